"""What kernels need zero of their workspaces: a library keeps it zero between calls, so that it clears nothing."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from mltune.device.known import H200
from mltune.kernel.bundle import variables_of
from mltune.kernel.reader import built_in, load_kernel
from mltune.kernel.space import ConstrainedSpace, row
from mltune.library.source import COUNTERS
from mltune.problem.gemm import GemmProblem
from mltune.problem.gemm_operands import transpositions

KERNELS = [name for name in built_in() if load_kernel(name).launch_rule.workspace is not None]
SIZES = [
    (1, 1, 0),
    (5, 7, 64),
    (100, 100, 8192),
    (64, 64, 60_000),
    (300, 500, 4096),
    (1024, 768, 1024),
    (30_000, 33_000, 96),
]


def test_kernels_with_a_workspace_are_found() -> None:
    assert {"gemm_simt", "gemm_mma64", "gemm_tf32", "gemm_split", "gemm_wgmma"} <= {*KERNELS}


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.sampled(1, nightly=99)
def test_what_must_be_zero_is_little_and_at_the_beginning(name: str) -> None:
    """At most the zeros of a library, in whole lines of its memory, and less than all of it."""
    kernel, rng, sums = load_kernel(name), np.random.default_rng(1), 0
    assert kernel.launch_rule.zeros is not None
    for (m, n, k), precision in zip(SIZES, itertools.cycle((kernel.precisions[0], kernel.precisions[-1]))):
        problem = GemmProblem(precision, *transpositions(precision)[0], m, n, k)
        variables = variables_of(problem, H200)
        space = ConstrainedSpace(kernel, variables)
        columns = space.rows(space.sample(min(50, space.count), rng))
        for number in range(len(next(iter(columns.values())))):
            configuration = row(columns, number)
            scope = kernel.space.scope({**variables, **configuration})
            zeros, size = (
                int(kernel.launch_rule.zeros.evaluate(scope)),
                int(kernel.launch_rule.workspace.evaluate(scope)),
            )
            assert zeros % 256 == 0, (problem, configuration)
            assert zeros <= COUNTERS, (problem, configuration)
            assert zeros < size or size == 0, (problem, configuration)
            sums += zeros > 0
    assert sums > 10, "configurations that count are among those drawn"
