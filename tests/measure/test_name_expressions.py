"""Kernels by their C++ names: templates, namespaces and kernels without ``extern "C"``, with the real NVRTC."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("cuda.bindings.nvrtc", reason="needs the Python bindings of NVRTC")

from mltune.kernel.python_kernel import KernelCall, make_kernel
from mltune.measure.build import NvrtcBuilder, compile_options, definitions
from mltune.measure.compiler import CudaSource, code_bytes
from mltune.process.child import Child
from mltune.records.trial import Build, TrialState

pytestmark = pytest.mark.system

TEMPLATE = """
template <typename T, int N> __global__ void fill(T* out) { for (int i = 0; i < N; ++i) out[i] = T(SCALE); }
"""
SPACE = """
namespace deep { namespace er {
__global__ void fill(float* out, int n) { if (threadIdx.x < n) out[threadIdx.x] = SCALE; }
} }
"""
PLAIN = "__global__ void fill(float* out) { out[threadIdx.x] = SCALE; }"
C = f'extern "C" {PLAIN}'
MIXED = 'extern "C" __device__ float one() { return 1; }\n__global__ void fill(float* out) { out[0] = one() * SCALE; }'


@pytest.fixture(scope="module")
def compiled():
    """Return a function that compiles a source with macros."""

    def compile_source(text: str, entry: str, **macros: int | float | str) -> Build:
        compiler = Child(
            "mltune.measure.compiler:make_compiler", (CudaSource(text, entry, compile_options("sm_90")), 4 << 30)
        )
        try:
            return compiler.call((definitions(macros), ()), 120)
        finally:
            compiler.kill()

    return compile_source


@pytest.mark.parametrize(
    ("text", "entry", "name"),
    [
        (C, "fill", ""),
        (f'extern "C" {{ {PLAIN} }}', "fill", "fill"),
        (f'#define KERNEL extern "C" __global__\nKERNEL {PLAIN.removeprefix("__global__")}', "fill", ""),
        (PLAIN, "fill", "_Z4fillPf"),
        (SPACE, "deep::er::fill", "_ZN4deep2er4fillEPfi"),
        (TEMPLATE, "fill<float, 3>", "_Z4fillIfLi3EEvPT_"),
        (TEMPLATE, "fill<TYPE, TILE>", "_Z4fillIdLi4EEvPT_"),
        (TEMPLATE, "fill<unsigned int, TILE>", "_Z4fillIjLi4EEvPT_"),
    ],
)
def test_a_kernel_is_found_by_its_name(compiled, text: str, entry: str, name: str) -> None:
    build = compiled(text, entry, SCALE=2, TILE=4, TYPE="double")
    assert build.state is TrialState.OK, build.detail
    assert build.entry == name
    assert build.registers is not None
    assert build.code_bytes == code_bytes(build.cubin, name or "fill")


def test_macros_are_put_into_the_arguments_of_a_template_only() -> None:
    lines = definitions({"fill": 7, "TILE": 4, "TYPE": "float4"})
    assert CudaSource(TEMPLATE, "fill<TYPE, TILE>", ()).expression(lines) == "fill<float4, 4>"
    assert CudaSource(C, "fill", ()).expression(lines) == ""
    assert CudaSource(PLAIN, "fill", ()).expression(lines) == "fill"


def test_a_kernel_beside_a_c_function_is_found(compiled) -> None:
    build = compiled(MIXED, "fill", SCALE=2)
    assert build.state is TrialState.OK, build.detail
    assert build.entry == "_Z4fillPf"


@pytest.mark.parametrize(
    ("text", "entry"),
    [(PLAIN, "empty"), (TEMPLATE, "fill<float>"), (TEMPLATE, "fill<NONE, 3>"), (SPACE, "fill"), (C, "e")],
)
def test_what_is_not_in_the_source_is_a_compile_error(compiled, text: str, entry: str) -> None:
    build = compiled(text, entry, SCALE=2)
    assert build.state is TrialState.COMPILE_ERROR
    assert build.detail


def test_every_configuration_of_a_template_has_its_own_name(tmp_path: Path) -> None:
    values = {"TILE": [1, 2], "KIND": ["float", "half_"], "SCALE": [0.5, 2]}
    kernel = make_kernel(KernelCall("fill<KIND, TILE>", TEMPLATE, 1, [], values), tmp_path)
    kernel = replace(
        kernel,
        source=replace(kernel.source, text=f"struct half_ {{ short bits; explicit half_(float) {{}} }};\n{TEMPLATE}"),
    )
    with NvrtcBuilder(kernel, kernel.arrays.problem(), "sm_90", workers=1) as builder:
        futures = [builder.submit({"TILE": tile, "KIND": kind, "SCALE": 0}) for tile in (1, 2) for kind in (0, 1)]
        builds = [future.result(300) for future in futures]
    assert {build.state for build in builds} == {TrialState.OK}, builds[0].detail
    assert [build.entry for build in builds] == [
        "_Z4fillIfLi1EEvPT_",
        "_Z4fillI5half_Li1EEvPT_",
        "_Z4fillIfLi2EEvPT_",
        "_Z4fillI5half_Li2EEvPT_",
    ]
