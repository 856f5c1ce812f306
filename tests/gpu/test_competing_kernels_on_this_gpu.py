"""Kernels that compete for a problem on a GPU: the winner is one of them, right, and can be called."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import mltune
from mltune.device.facts import Device
from mltune.problem.gemm import GemmProblem
from mltune.resolve.device import fits
from mltune.resolve.problems import candidates

pytestmark = pytest.mark.gpu

PROBLEMS = {
    "a shape that fills no tile": GemmProblem("d", "T", "N", 1000, 777, 555, 1.5, 0.5, lda=557, ldb=561, ldc=1001),
    "few tiles, which are divided along k": GemmProblem("d", "N", "T", 256, 256, 8192),
    "complex": GemmProblem("z", "C", "N", 300, 500, 700, 1.5 - 0.5j, 0.25j),
}


@pytest.mark.parametrize("problem", PROBLEMS.values(), ids=PROBLEMS)
def test_the_best_of_all_kernels_is_right(problem: GemmProblem, device: Device, tmp_path: Path) -> None:
    import cupy

    competing = [kernel.name for kernel in candidates(problem) if fits(kernel, device)]
    found = mltune.tune(problem, time=12, run=tmp_path / "run", progress=None, wisdom="none")
    assert found.kernel in competing
    operands = problem.operands(cupy, 5)
    answer, bound = problem.answer(operands), problem.error_bound(operands)
    tuned = found.compile()
    for _ in range(3):  # a workspace must be left as it was found
        result = {**operands, "C": operands["C"].copy()}
        tuned(*problem.kernel_arguments(result).values())
        error = problem.worst_error(problem.result(result["C"]), answer, bound)
        assert error <= 1
    assert np.isnan(cupy.asnumpy(problem.padding(result["C"]))).all()
