"""Triton kernels on this GPU: those of the benchmarks are right, and kernels are tuned at shapes that may fail."""

import json
from pathlib import Path

import pytest

import mltune

pytestmark = pytest.mark.gpu

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
KERNELS = "matmul", "flash_attention", "layer_norm", "softmax", "grouped_gemm", "fused_moe", "fp8_matmul"

FAULTY = """
import torch, triton
import triton.language as tl

CONFIGS = [triton.Config({"BLOCK": block}, num_warps=warps) for block in (64, 256, 1024) for warps in (1, 4)]

@triton.autotune(configs=CONFIGS, key=["n"])
@triton.jit
def twice(x, n, far, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x + at + far, 2 * tl.load(x + at, at < n), at < n)

def arguments(n, far=0, most=1):
    x = torch.ones(n * most, device="cuda")
    return lambda meta: (triton.cdiv(n, meta["BLOCK"]),), x, n, far * 2**40
"""


@pytest.fixture
def recorder(monkeypatch):
    pytest.importorskip("triton")
    pytest.importorskip("torch")
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import record_triton

    return record_triton


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_kernel_computes_what_pytorch_does(recorder, kernel):
    module = recorder.module_of(kernel)
    for size in module.SMALL:
        case = recorder.Case(kernel, size, Path())
        launches = recorder.launches_of(module.arguments(**size))
        expected = [module.reference(*arguments) for _, *arguments in launches]
        rows = [
            recorder.measure(case, launches, expected, config, rep=2)
            for config in case.configs[:: len(case.configs) // 5]
        ]
        ok = [row for row in rows if row["state"] == "ok"]
        assert {row["state"] for row in rows} <= {"ok", "launch_error"}, rows
        assert len(ok) >= 3
        assert all(row["registers"] > 0 and row["median_s"] > 0 for row in ok)


def test_shapes_are_tuned_and_one_that_corrupts_the_gpu_costs_itself_alone(tmp_path, monkeypatch):
    pytest.importorskip("triton")
    monkeypatch.chdir(tmp_path)
    Path("faulty.py").write_text(FAULTY)
    Path("shapes.csv").write_text("n,far,most\n4096,0,1\n4096,1,1\n65536,0,1\n4096,0,1000000000\n1048576,0,1\n")
    rows = mltune.tune_shapes("faulty.py:twice", "shapes.csv", trials=6, wisdom="wisdom.json")["shapes"]
    assert [("error" in row) for row in rows] == [False, True, False, True, False]
    assert "memory" in rows[3]["error"]
    for row in rows[::2]:
        assert row["measured"] == 6
        assert 0 < row["median_s"] <= row["first_s"]
    (tmp_path / "shapes.csv").write_text("n,far,most\n4096,0,1\n")
    (row,) = mltune.tune_shapes("faulty.py:twice", "shapes.csv", trials=6, wisdom="wisdom.json", run="new")["shapes"]
    assert row["measured"] == 1, "the winner is known"


def test_configurations_of_an_fp8_product_are_written(tmp_path):
    pytest.importorskip("triton")
    (tmp_path / "shapes.csv").write_text("M,N,K\n16,1024,1024\n256,1024,1024\n")
    kernel = BENCHMARKS / "triton_kernels" / "fp8_matmul.py"
    found = mltune.tune_shapes(
        f"{kernel}:fp8_matmul", tmp_path / "shapes.csv", trials=8, run=tmp_path, export={"vllm-fp8": tmp_path / "out"}
    )
    assert not any("error" in row for row in found["shapes"]), found["shapes"]
    (path,) = map(Path, found["written"])
    name = found["device"].replace(" ", "_")
    assert path.name == f"N=1024,K=1024,device_name={name},dtype=fp8_w8a8,block_shape=[128,128].json"
    assert {int(m) for m in json.loads(path.read_text())} == {16, 256}
