"""The GEMM kernels of the papers that mltune descends from: on the host, every access checked, and compiled."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from emulation.host import COMPILER_EXISTS
from gemm import Configuration, check_configurations, sample

from mltune.device.known import H200
from mltune.errors import SpaceError
from mltune.kernel.bundle import Kernel, variables_of
from mltune.kernel.reader import load_kernel
from mltune.measure.build import NvrtcBuilder
from mltune.problem.gemm import CASES, GemmProblem
from mltune.records.trial import TrialState
from tests import needs

pytestmark = pytest.mark.skipif(not COMPILER_EXISTS, reason="needs g++")

SMALL = {
    "gemm_naive": {"DIM_X": (1, 2, 8, 32, 64), "DIM_Y": (1, 2, 8, 32, 64)},
    "gemm_strip": {"WIDTH": (32, 64), "STRIP": (0, 16, 32), "UNROLL_I": (1, 2), "UNROLL_J": (1, 2, 4)},
    "gemm_shared": {"BLK_M": (8, 16, 32), "BLK_N": (8, 16, 32), "BLK_K": (4, 8, 16)},
    "gemm_cached": {"THR_M": (1, 2, 4), "THR_N": (1, 2, 4), "DIM_X": (1, 2, 8), "DIM_Y": (4, 8, 32)},
}
"""Values of small blocks, which are quick to emulate."""

SIZES = ((32, 32, 32), (37, 35, 19), (65, 33, 40), (1, 1, 1), (5, 3, 0))


QUICK = [("s", "T", "N"), ("z", "C", "N")]
"""Cases that are run by default with the first kernel, and with the others as system and nightly tests."""


def marks_of(name: str, case: tuple[str, str, str]) -> Any:
    if case not in QUICK:
        return pytest.mark.slow
    if name == next(iter(SMALL)):
        return ()
    return pytest.mark.system if case == QUICK[0] else pytest.mark.nightly


def cases() -> list[Any]:
    """Return the kernels with the cases that they solve: gemm_cached has TN and NN in S and D. Most are slow tests."""
    return [
        pytest.param(name, case, marks=marks_of(name, case), id=f"{name}-{''.join(case)}")
        for name in SMALL
        for case in CASES
        if name != "gemm_cached" or (case[0] in "sd" and case[2] == "N")
    ]


@pytest.mark.parametrize(("name", "case"), cases())
def test_random_configurations(runtime: Path, name: str, case: tuple[str, str, str]) -> None:
    kernel = load_kernel(name).with_values(SMALL[name])
    drawn = sample(kernel, case, 2, seed=CASES.index(case))
    check_configurations(kernel, case, runtime, drawn, lambda configuration: SIZES)


@pytest.mark.parametrize("name", SMALL)
@needs.nvrtc
@pytest.mark.sampled(0, system=2, nightly=99)
def test_the_default_and_a_sample_compile(name: str) -> None:
    kernel, case = load_kernel(name), ("s", "T", "N")
    problem = GemmProblem(*case, 4096, 4096, 4096)
    variables = variables_of(problem, H200)
    configurations = [kernel.space.default, *sample(kernel, case, 3, seed=1)]
    errors: list[int] = []
    assert not broken(kernel, kernel.space.default, variables)
    with NvrtcBuilder(kernel, problem, "sm_90", workers=2) as builder:
        for configuration, future in [(one, builder.submit(one)) for one in configurations]:
            build = future.result(300)
            columns = {name: np.array([value]) for name, value in configuration.items()}
            said = {
                name: column[0]
                for name, column in kernel.space.evaluate(columns, variables, kernel.resources.estimates).items()
            }
            assert (build.state, build.detail) == (TrialState.OK, ""), configuration
            assert build.shared_bytes == 0, configuration  # all shared memory is dynamic
            assert build.registers <= said["register_cap"], configuration
            errors.append(abs(build.registers - min(said["registers"], said["register_cap"])))
    assert np.median(errors) <= 24  # an estimate: the compiler moves loads as it likes, and its versions differ


def broken(kernel: Kernel, configuration: Configuration, variables: dict[str, int]) -> list[str]:
    """Return the restrictions that a configuration violates."""
    columns = {name: np.array([value]) for name, value in configuration.items()}
    rules = {rule.text: rule.expression for rule in kernel.space.restrictions}
    return [text for text, column in kernel.space.evaluate(columns, variables, rules).items() if not column.all()]


def test_a_case_that_a_paper_does_not_have_is_refused_with_its_reason() -> None:
    with pytest.raises(SpaceError, match="TN and NN, as in the paper"):
        next(sample(load_kernel("gemm_cached"), ("s", "N", "T"), 1, seed=0))
