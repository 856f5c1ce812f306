"""kernels/gemm_dd itself, without a GPU: its source on the host, every access checked, its results exact to 2^-104."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from emulation.host import COMPILER_EXISTS, HostKernel
from gemm import Configuration, check_configurations, sample

from mltune.device.known import H200
from mltune.kernel.bundle import Kernel, variables_of
from mltune.kernel.reader import load_kernel
from mltune.problem.gemm import GemmProblem
from mltune.problem.gemm_operands import transpositions

pytestmark = pytest.mark.skipif(not COMPILER_EXISTS, reason="needs g++")

CASES = tuple(("dd", *ops) for ops in transpositions("dd"))
SMALL = {
    "BLK_M": (16, 32, 48),
    "BLK_N": (16, 32, 48),
    "BLK_K": (4, 8, 16),
    "MIN_BLOCKS": (1,),
    "RASTER_GROUP": (1, 2, 4),
}
"""Values of small tiles, which are quick to emulate."""


@pytest.fixture(scope="module")
def kernel() -> Kernel:
    return load_kernel("gemm_dd")


def sizes(configuration: Configuration) -> Iterator[tuple[int, int, int]]:
    """Sizes around a configuration's tile, from one element to several tiles."""
    m, n, k = (configuration[name] for name in ("BLK_M", "BLK_N", "BLK_K"))
    stages = configuration["STAGES"]
    yield m, n, stages * k
    yield m + 1, n - 1, (stages + 1) * k + 1
    yield 2 * m + 1, 2 * n, k - 1
    yield m - 1, n + 1, k + 1
    yield 1, 1, 1
    yield m, n, 0


@pytest.mark.parametrize("case", CASES, ids="".join)
@pytest.mark.sampled(1, nightly=2)
def test_random_configurations(kernel: Kernel, runtime: Path, case: tuple[str, str, str]) -> None:
    drawn = list(sample(kernel.with_values(SMALL), case, 2, seed=CASES.index(case)))
    check_configurations(kernel, case, runtime, drawn, sizes)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids="".join)
def test_many_random_configurations(kernel: Kernel, runtime: Path, case: tuple[str, str, str]) -> None:
    drawn = list(sample(kernel.with_values(SMALL), case, 12, seed=100 + CASES.index(case)))
    check_configurations(kernel, case, runtime, drawn, sizes)


@pytest.mark.parametrize("renormalise", [1, 16])
@pytest.mark.sampled(1, nightly=2)
def test_the_error_is_some_units_of_the_last_of_106_bits(kernel: Kernel, runtime: Path, renormalise: int) -> None:
    """Compared with fractions, the error is far below the bound, which holds for any operands."""
    case = ("dd", "N", "T")
    values = SMALL | {"RENORMALISE": (renormalise,), "BLK_K": (16,)}
    configuration = next(sample(kernel.with_values(values), case, 1, seed=7))
    problem = GemmProblem(*case, 5, 4, 300)
    parameters = {name: configuration[name] for name in kernel.space.parameters}
    host = HostKernel(kernel.folder / "gemm_dd.cu", parameters | problem.macros(), runtime)
    operands = problem.operands(np, seed=3)
    exact, moduli = products(problem, operands)

    host.launch(problem, operands, kernel.launch(configuration, variables_of(problem, H200)))

    result = problem.result(operands["C"])
    errors = [abs(fraction(result[at]) - exact[at]) / moduli[at] for at in exact]
    assert 0 < max(errors) < Fraction(1, 2**104)
    assert all(one.real + one.imag == one.real for one in result.flat)  # carried


def products(problem: GemmProblem, operands: dict[str, np.ndarray]) -> tuple[dict, dict]:
    """Return the elements of A B^T, and of |A| |B^T|, by row and column."""
    A, B = (operands[name].reshape(problem.k, -1) for name in "AB")
    exact, moduli = {}, {}
    for i in range(problem.m):
        for j in range(problem.n):
            terms = [fraction(a) * fraction(b) for a, b in zip(A[:, i], B[:, j], strict=True)]
            exact[i, j], moduli[i, j] = sum(terms), sum(map(abs, terms))
    return exact, moduli


def fraction(element: complex) -> Fraction:
    return Fraction(element.real) + Fraction(element.imag)
