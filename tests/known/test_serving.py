"""Files of configurations, read back as vLLM and SGLang do."""

import json

import pytest

from mltune.errors import UsageError
from mltune.known.serving import FORMATS, PARAMETERS, configuration_files

BEST = dict(zip(PARAMETERS, (16, 64, 128, 1, 4, 3), strict=True))
FACTS = {"device": "NVIDIA H100 80GB HBM3", "triton": "3.6.0", "dtype": None, "block_shape": []}
H100 = "device_name=NVIDIA_H100_80GB_HBM3"
FP8 = "dtype=fp8_w8a8,block_shape=[128,128]"
SCALED = {**FACTS, "dtype": "fp8_w8a8", "block_shape": [128, 128]}


def row(m, configuration=BEST, **sizes):
    return {"shape": {"M": m, **(sizes or {"E": 8, "N": 14336, "K": 4096})}, "configuration": configuration}


def nearest(data, m):
    """Choose as vLLM and SGLang do: the configuration of the nearest number of rows."""
    configurations = {int(key): value for key, value in json.loads(data).items()}
    return configurations[min(configurations, key=lambda known: abs(known - m))]


def test_a_file_has_the_configuration_of_each_number_of_rows():
    other = BEST | {"BLOCK_SIZE_M": 128}
    ((path, data),) = configuration_files("vllm-moe", [row(4096, other), row(1), row(16)], FACTS).items()
    assert path == "E=8,N=14336,device_name=NVIDIA_H100_80GB_HBM3.json"
    assert nearest(data, 20) == BEST
    assert nearest(data, 5000) == other
    assert [*json.loads(data)] == ["1", "16", "4096"]


@pytest.mark.parametrize(
    ("form", "facts", "path"),
    [
        ("vllm-moe", {"device": "NVIDIA H200 NVL"}, f"E=8,N=128,device_name=NVIDIA_H200,{FP8}"),
        (
            "sglang-moe",
            {"device": "NVIDIA H200 NVL"},
            "configs/triton_3_6_0/E=8,N=128,device_name=NVIDIA_H200_NVL,dtype=fp8_w8a8,block_shape=[128, 128]",
        ),
        ("vllm-moe", {"device": "NVIDIA  A/B"}, f"E=8,N=128,device_name=NVIDIA_A_B,{FP8}"),
        (
            "vllm-moe",
            {"dtype": "int8_w8a16", "block_shape": [0, 96]},
            f"E=8,N=128,{H100},dtype=int8_w8a16",
        ),
        (
            "sglang-moe",
            {"dtype": "int8_w8a16", "block_shape": [0, 96]},
            f"configs/triton_3_6_0/E=8,N=128,{H100},dtype=int8_w8a16",
        ),
        ("sglang-moe", {"block_shape": [], "dtype": None}, f"configs/triton_3_6_0/E=8,N=128,{H100}"),
        ("vllm-fp8", {}, f"N=128,K=7168,{H100},{FP8}"),
        ("sglang-fp8", {"dtype": None}, f"N=128,K=7168,{H100},dtype=fp8_w8a8,block_shape=[128, 128]"),
    ],
)
def test_a_file_has_the_name_that_is_looked_for(form, facts, path):
    rows = [row(1, E=8, N=128, K=7168)]
    assert [*configuration_files(form, rows, SCALED | facts)] == [f"{path}.json"]


def test_other_sizes_are_in_other_files():
    rows = [row(1, N=n, K=k) for n in (128, 256) for k in (128, 512)]
    assert len(configuration_files("vllm-fp8", rows, SCALED)) == 4


@pytest.mark.parametrize("dtype", ["int8_w8a16", "int4_w4a16"])
def test_vllm_finds_split_k_where_its_kernel_needs_it(dtype):
    facts = FACTS | {"dtype": dtype, "block_shape": [0, 128]}
    ((_, of_vllm),) = configuration_files("vllm-moe", [row(1)], facts).items()
    ((_, of_sglang),) = configuration_files("sglang-moe", [row(1)], facts).items()
    assert nearest(of_vllm, 1) == BEST | {"SPLIT_K": 1}
    assert nearest(of_sglang, 1) == BEST


def test_one_that_triton_adds_is_left_out():
    (data,) = configuration_files("vllm-moe", [row(1, {**BEST, "num_ctas": 1})], FACTS).values()
    assert nearest(data, 1) == BEST


@pytest.mark.parametrize("form", FORMATS)
def test_without_winners_there_is_no_file(form):
    assert configuration_files(form, [], SCALED) == {}


@pytest.mark.parametrize(
    ("form", "rows", "facts", "message"),
    [
        (
            "vllm",
            [],
            {},
            "'vllm' is no format of configurations: it is one of vllm-moe, sglang-moe, vllm-fp8, sglang-fp8",
        ),
        ("vllm-moe", [row(1), row(1, E=8, N=14336, K=8)], {}, "M=1 is there twice"),
        ("vllm-moe", [row(1, E=8)], {}, "made of a shape with M, E and N"),
        ("vllm-moe", [{"shape": {"E": 8, "N": 1}, "configuration": BEST}], {}, "made of a shape with M, E and N"),
        ("vllm-fp8", [row(1, N=8, K=8)], {"block_shape": []}, "block_shape"),
        ("vllm-fp8", [row(1, N=8, K=8)], {"block_shape": [128]}, "block_shape"),
        ("vllm-moe", [row(1)], {"dtype": "../../etc"}, "dtype"),
        ("sglang-moe", [row(1)], {"device": "a/../../b"}, "the name of a file"),
        ("vllm-moe", [row(1)], {"device": "\x1b[2J"}, "the name of a file"),
        ("sglang-moe", [row(1)], {"triton": "3.6.0+git/.."}, "the name of a file"),
        ("vllm-moe", [row(1, BEST | {"SPLIT_K": 2})], {}, "positive integers BLOCK_SIZE_M"),
        ("vllm-moe", [row(1, {})], {}, "positive integers BLOCK_SIZE_M"),
        ("vllm-moe", [row(1, BEST | {"num_ctas": 2})], {}, "positive integers BLOCK_SIZE_M"),
        ("vllm-moe", [row(1, BEST | {"num_warps": "4"})], {}, "positive integers BLOCK_SIZE_M"),
        ("vllm-moe", [row(1, BEST | {"num_warps": True})], {}, "positive integers BLOCK_SIZE_M"),
        ("vllm-moe", [row(1, BEST | {"num_stages": 0})], {}, "positive integers BLOCK_SIZE_M"),
        ("vllm-moe", [row(1, BEST | {"num_stages": [3]})], {}, "positive integers BLOCK_SIZE_M"),
        ("vllm-fp8", [row(1, BEST | {"BLOCK_SIZE_K": 256}, N=8, K=8)], {}, "BLOCK_SIZE_K divides"),
    ],
)
def test_what_does_not_fit_is_refused(form, rows, facts, message):
    with pytest.raises(UsageError) as raised:
        configuration_files(form, rows, SCALED | facts)
    assert message in str(raised.value)
    assert str(raised.value).isprintable()
