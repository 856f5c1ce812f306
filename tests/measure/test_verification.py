"""The kernels of the worker itself, and the table of references."""

import pytest

from mltune.errors import DeviceError
from mltune.measure.operand_checksums import _CHECKSUM
from mltune.measure.references import REFERENCES, bind_reference
from mltune.measure.stopwatch import _SPIN
from mltune.measure.verification import _COMPARE
from mltune.problem.gemm import GemmProblem
from mltune.problem.recorded import RecordedProblem


def test_the_kinds_with_a_reference_are_those_whose_problems_name_one():
    assert REFERENCES.keys() == {kind.kind for kind in (GemmProblem, RecordedProblem) if kind.reference}


def test_a_kind_without_a_reference_is_a_device_error():
    with pytest.raises(DeviceError, match="of kind gemm, got recorded"):
        bind_reference(RecordedProblem("convolution"), {})
    with pytest.raises(DeviceError, match="no reference implementation of ddgemm"):
        bind_reference(GemmProblem("dd", "N", "T", 4, 4, 4), {})


@pytest.mark.parametrize("architecture", ["sm_80", "sm_90", "sm_100"])
@pytest.mark.parametrize(
    ("source", "macros"),
    [
        (_SPIN, ""),
        (_CHECKSUM, ""),
        (_COMPARE, "-DREAL=float -DTERMS=1"),
        (_COMPARE, "-DREAL=double -DTERMS=1"),
        (_COMPARE, "-DREAL=double -DTERMS=2"),
    ],
)
def test_kernels_of_the_worker_compile(architecture, source, macros):
    from cuda.bindings import nvrtc

    _, program = nvrtc.nvrtcCreateProgram(source.encode(), b"worker.cu", 0, [], [])
    options = [f"--gpu-architecture={architecture}".encode(), *map(str.encode, macros.split())]
    (result,) = nvrtc.nvrtcCompileProgram(program, len(options), options)
    _, size = nvrtc.nvrtcGetProgramLogSize(program)
    log = bytes(size)  # of zeros: Python shares its one-byte objects, and NVRTC writes a zero into them
    nvrtc.nvrtcGetProgramLog(program, log)

    assert result == nvrtc.nvrtcResult.NVRTC_SUCCESS, log.decode()
