"""Headers of the CUDA toolkit are found by name, and nothing else is."""

import pytest

from mltune.measure.compiler import Source
from mltune.measure.toolkit_headers import _include_folders, toolkit_headers
from mltune.records.trial import TrialState

HALF = "#include <cuda_fp16.h>\n__global__ void add(__half* c) { c[0] = __hadd(c[1], c[2]); }\n"


def test_a_source_without_includes_needs_none():
    assert toolkit_headers("__global__ void f() {}", {"own.h": "int x;"}) == {}


@pytest.mark.parametrize(
    "name", ["/etc/passwd", "../../../../../../etc/passwd", "cuda_fp16.h/../../../../../../etc/passwd"]
)
def test_what_is_not_in_the_toolkit_is_not_found(name):
    assert toolkit_headers(f'#include "{name}"\n', {}) == {}


def test_half_precision_compiles():
    if not _include_folders():
        pytest.skip("no headers of the toolkit are installed")
    from mltune.measure.compiler import _compile, _nvrtc

    headers = toolkit_headers(HALF, {})
    options = ("--gpu-architecture=sm_90", "--std=c++17", "-default-device", "--ptxas-options=-v")

    build = _compile(_nvrtc(), Source(HALF, "add", options, headers), "")

    assert "cuda_fp16.h" in headers
    assert (build.state, build.detail) == (TrialState.OK, "")
    assert build.entry.startswith("_Z3add")
