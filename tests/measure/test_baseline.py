"""Baselines: what configurations are compared with, and defaults that do not compile."""

from concurrent.futures import Future
from dataclasses import replace

import pytest

from mltune.device.known import H200
from mltune.errors import BundleError
from mltune.kernel.launch import Launch
from mltune.kernel.placed import PlacedKernel
from mltune.kernel.reader import load_kernel
from mltune.measure.baseline import make_baseline
from mltune.records.trial import Build, TrialState

TRANSPOSE = load_kernel("transpose")
PROBLEM = TRANSPOSE.arrays.problem({"rows": 100, "columns": 70})


class OneBuild:
    """A builder whose every build is the same."""

    def __init__(self, build):
        self.build, self.configurations = build, []

    def submit(self, configuration):
        self.configurations.append(configuration)
        future = Future()
        future.set_result(self.build)
        return future


def test_configurations_are_compared_with_the_default_and_the_reference():
    builder = OneBuild(Build(TrialState.OK, cubin=b"code"))

    baseline = make_baseline(PlacedKernel(TRANSPOSE, PROBLEM, H200), builder)

    assert builder.configurations == [TRANSPOSE.space.default]
    assert (baseline.cubin, baseline.entry, baseline.verify) == (b"code", "transpose", b"")
    assert [launch.grid[0] for launch in baseline.launches] == [9 * 17, 13 * 25, 1 * 32, 4 * 3]
    entry, launches = baseline.reference
    assert entry == "transpose_naive"
    assert launches[-1] == Launch((3, 13, 1), (32, 8, 1), 0, ())
    assert len(launches) == 4


def test_without_a_reference_the_default_configuration_is_the_answer():
    kernel = replace(TRANSPOSE, arrays=replace(TRANSPOSE.arrays, reference=None))
    baseline = make_baseline(
        PlacedKernel(kernel, PROBLEM, H200), OneBuild(Build(TrialState.OK, cubin=b"code", entry="_Z4copy"))
    )
    assert (baseline.entry, baseline.reference) == ("_Z4copy", None)


def test_a_default_that_does_not_compile_is_told():
    builder = OneBuild(Build(TrialState.COMPILE_ERROR, "no such type"))
    with pytest.raises(BundleError, match=r"transpose ends with compile_error: no such type; it must compile"):
        make_baseline(PlacedKernel(TRANSPOSE, PROBLEM, H200), builder)
