"""The configurations that are proposed for a GPU can be compiled for it, also for one that is not here."""

import pytest

import mltune
from mltune.device.known import known_devices
from mltune.errors import SpaceError
from mltune.kernel.reader import load_kernel
from mltune.measure.build import NvrtcBuilder
from mltune.records.trial import TrialState

OLDEST = (7, 5)  # that NVRTC of CUDA 13 compiles for
GPUS = [name for name, device in known_devices().items() if (device.compute_capability or ()) >= OLDEST]
GEMMS = ("sgemm", "dgemm", "cgemm", "zgemm", "hgemm", "ddgemm")
PROBLEMS = (*GEMMS, "convolution_cuda", "reduction", "softmax", "stencil")
FEW = [("t4", "sgemm"), ("t4", "zgemm"), ("rtx_5090", "sgemm")]
ALL = [(gpu, problem) for gpu in GPUS for problem in PROBLEMS if (gpu, problem) not in FEW]


@pytest.mark.parametrize(
    ("gpu", "problem", "count"),
    [*(pytest.param(*one, 1, marks=pytest.mark.system) for one in FEW)]
    + [pytest.param(*one, 5, marks=pytest.mark.slow) for one in FEW + ALL],
)
def test_first_choices_compile(gpu, problem, count):
    """Where no configuration is possible on a GPU, that is said."""
    try:
        found = mltune.predict(problem, gpu=gpu, top=count, wisdom="none")
    except SpaceError:
        return
    kernel = load_kernel(found.kernel)
    with NvrtcBuilder(kernel, found.problem, found.device.architecture, workers=1) as builder:
        builds = [builder.submit(choice.configuration).result() for choice in found.choices]
    assert [(build.state, build.detail) for build in builds] == [(TrialState.OK, "")] * count
