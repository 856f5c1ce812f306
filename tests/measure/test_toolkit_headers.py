"""Headers of the CUDA toolkit are found by name, and nothing else is."""

import pytest

from mltune.measure.build import _include_folders, toolkit_headers
from mltune.measure.compiler import CudaSource
from mltune.records.trial import TrialState

HALF = "#include <cuda_fp16.h>\n__global__ void add(__half* c) { c[0] = __hadd(c[1], c[2]); }\n"
BLOCK_SUM = """#include <cub/cub.cuh>
__global__ void add(float* c) {
  __shared__ typename cub::BlockReduce<float, 128>::TempStorage room;
  c[0] = cub::BlockReduce<float, 128>(room).Sum(c[threadIdx.x]);
}
"""
HOST = """#include <stdio.h>
#include <math.h>
#include <stdint.h>
#include <assert.h>
__global__ void add(uint32_t* c) { assert(c[0] > 0); printf("%u", c[0]); c[0] += int32_t(sqrtf(c[1])); }
"""


def test_a_source_without_includes_needs_none():
    assert toolkit_headers("__global__ void f() {}", {"own.h": "int x;"}) == {}


@pytest.mark.parametrize(
    "name", ["/etc/passwd", "../../../../../../etc/passwd", "cuda_fp16.h/../../../../../../etc/passwd"]
)
def test_what_is_not_in_the_toolkit_is_not_found(name):
    assert toolkit_headers(f'#include "{name}"\n', {}) == {}


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("cuda_fp16.h", HALF),
        pytest.param("cub/cub.cuh", BLOCK_SUM, marks=pytest.mark.system),
        ("stdio.h", HOST),
    ],
)
def test_sources_compile_with_what_they_include(name, source):
    if not _include_folders():
        pytest.skip("no headers of the toolkit are installed")
    from mltune.measure.compiler import _compile, _nvrtc

    headers = toolkit_headers(source, {})
    options = ("--gpu-architecture=sm_90", "--std=c++17", "-default-device", "--ptxas-options=-v")

    build = _compile(_nvrtc(), CudaSource(source, "add", options, headers), "")

    assert name in headers
    assert (build.state, build.detail) == (TrialState.OK, "")
    assert build.entry.startswith("_Z3add")
