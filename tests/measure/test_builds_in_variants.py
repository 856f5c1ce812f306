"""Builds of one source in variants, with the real NVRTC: other names and other options of the assembler."""

import subprocess
import sys

import pytest

pytest.importorskip("cuda.bindings.nvrtc", reason="needs the Python bindings of NVRTC")

from mltune.device.known import H200
from mltune.kernel.placed import PlacedKernel
from mltune.kernel.python_kernel import KernelCall, make_kernel
from mltune.kernel.reader import load_kernel
from mltune.measure.build import NvrtcBuilder, with_known_options
from mltune.measure.bundle_check import check_bundle
from mltune.measure.compiler import compiles_with
from mltune.problem.gemm import parse_problem
from mltune.records.trial import TrialState
from tests.own_bundle import write_bundle

pytestmark = pytest.mark.system

PROBLEM = parse_problem("sgemm", trans="NT", size=1024)
# fmt: off
FAST = {
    "BLK_M": 128, "BLK_N": 128, "BLK_K": 16, "DIM_X": 16, "DIM_Y": 16, "LANE_X": 8, "LANE_ORDER": 0, "DIM_XA": 32,
    "DIM_XB": 32, "VEC_A": 4, "VEC_B": 4, "VEC_M": 4, "VEC_N": 4, "PAD_A": 0, "PAD_B": 0, "STORE_A": 1, "STORE_B": 1,
    "ASYNC_A": 1, "ASYNC_B": 1, "STAGES": 3, "FRAGMENTS": 1, "UNROLL_K": 16, "ORDER": 1, "READ": 0, "MIN_BLOCKS": 1,
    "SPLIT_K": 1, "RASTER_GROUP": 1,
}
# fmt: on


def test_variants_of_a_configuration_are_different_code_of_another_name():
    with NvrtcBuilder(load_kernel("gemm_simt"), PROBLEM, "sm_90", workers=2) as builder:
        asked = [FAST | {"entry_name": name, "register_usage_level": level} for name in (0, 1) for level in (5, 8)]
        plain, *others = [future.result(300) for future in map(builder.submit, (FAST, *asked))]
    assert {build.state for build in (plain, *others)} == {TrialState.OK}
    assert [build.entry for build in others] == ["", "", "gemm_cutlass", "gemm_cutlass"]
    assert others[0].cubin == plain.cubin
    assert others[2].code_bytes != plain.code_bytes, "other rules, not only another name"
    assert len({build.cubin for build in others}) >= 3


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("template <int N> __global__ void fill(float* out) { out[0] = N; }", "fill<WIDTH>"),
        ("namespace deep { __global__ void fill(float* out) { out[0] = WIDTH; } }", "deep::fill"),
        ('extern "C" { __global__ void fill(float* out) { out[0] = WIDTH; } }', "fill"),
        ("#define fills 1\n__global__ void fill(float* out) { out[0] = WIDTH * fills; }", "fill"),
    ],
)
def test_the_name_of_any_kernel_can_be_changed(source, name, tmp_path):
    import numpy as np

    kernel = make_kernel(KernelCall(name, source, 1, [np.ones(4, np.float32)], {"WIDTH": [1, 2]}), tmp_path)
    with NvrtcBuilder(kernel, kernel.arrays.problem(), "sm_90", workers=1) as builder:
        plain, changed = (builder.submit({"WIDTH": 2, "entry_name": one}).result(300) for one in (0, 1))
    assert plain.state is changed.state is TrialState.OK, changed.detail
    assert "cutlass" in changed.entry
    assert "cutlass" not in plain.entry


def test_a_value_that_this_compiler_does_not_know_is_left_out_with_a_notice(monkeypatch):
    assert compiles_with("sm_90", ("--ptxas-options=--register-usage-level=8",))
    assert compiles_with("sm_90", ("--ptxas-options=-O2",))
    assert not compiles_with("sm_90", ("--ptxas-options=--no-such-option=8",))
    compiles_with.cache_clear()
    with monkeypatch.context() as patch:
        patch.setattr("mltune.measure.compiler._text", lambda *size_get_program: "")  # as from NVRTC's own cache
        assert compiles_with("sm_90", ("--ptxas-options=--register-usage-level=8",))
    compiles_with.cache_clear()
    monkeypatch.setattr(
        "mltune.measure.build.compiles_with", lambda architecture, options: "level=8" not in str(options)
    )
    known, notices = with_known_options(load_kernel("gemm_simt").with_variants(), "sm_90")
    assert known.compiler.parameters == {"entry_name": (0, 1), "register_usage_level": (5,)}
    assert known.compiler.varied == ("entry_name", "register_usage_level")
    (notice,) = notices
    assert notice.startswith("NVRTC ")
    assert notice.endswith(
        "does not know --ptxas-options=--register-usage-level=8: register_usage_level = 8 is left out"
    )


def test_a_check_compiles_the_variants_of_the_default(tmp_path):
    source = 'extern "C" __global__ void entry(float* out) { entry_of<WIDTH>(out); }'
    text = "template <int N> __device__ void entry_of(float* out) { out[0] = N; }\n"
    kernel = load_kernel(write_bundle(tmp_path, text + source, 'math = ["", "--fmad=false"]'))
    found = check_bundle(PlacedKernel(kernel, kernel.arrays.problem(), H200), build_s=300.0)
    assert found.passed, found
    asked = [
        {name: value for name, value in configuration.items() if name != "WIDTH"} for configuration, _ in found.builds
    ]
    assert {"math": 1} in asked
    assert {"entry_name": 1} in asked
    assert {"register_usage_level": 8} in asked


def test_a_compile_process_imports_nothing_heavier_than_nvrtc():
    program = "import sys, mltune.measure.compiler; print({'numpy', 'pydantic', 'pandas'} & sys.modules.keys())"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
