"""kernels/gemm_split itself, without a GPU: its source on the host, every access checked, its results against NumPy."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from emulation.host import COMPILER_EXISTS, place
from gemm import Configuration, build_host, check_configurations, check_spoilt, lines, sample, spoil

from mltune.device.known import H200
from mltune.kernel.bundle import Kernel, variables_of
from mltune.kernel.reader import load_kernel
from mltune.problem.gemm import GemmProblem
from mltune.problem.gemm_operands import transpositions

pytestmark = pytest.mark.skipif(not COMPILER_EXISTS, reason="needs g++")

CASES = [(precision, *ops) for precision in "sc" for ops in transpositions(precision)]
SMALL = {
    "BLK_M": (64, 128),
    "BLK_N": (32, 48, 64),
    "STAGES": (3, 4, 5),
    "LOADS": (2, 4),
    "CLUSTER": (1,),
    "PROMOTE_K": (32, 64),
}
"""Values of small tiles, which are quick to emulate; a cluster of one block is all that is emulated."""

FEW = replace(H200, sm_count=1)
"""So few multiprocessors that a block has more than one tile."""


@pytest.fixture(scope="module")
def kernel() -> Kernel:
    return load_kernel("gemm_split")


def sizes(configuration: Configuration) -> Iterator[tuple[int, int, int]]:
    """Sizes around a configuration's tile, from one element to several tiles; depths below and above the pipeline's."""
    m, n, k = (configuration[name] for name in ("BLK_M", "BLK_N", "BLK_K"))
    yield m, n - 1, k + 8
    yield m + 1, n, (configuration["STAGES"] + 1) * k + 1
    yield 1, 1, 15
    yield m - 1, 5, 0


def run(kernel: Kernel, runtime: Path, case: tuple[str, str, str], configurations: list[Configuration]) -> None:
    check_configurations(kernel, case, runtime, configurations, sizes, FEW)


@pytest.mark.parametrize("case", [("s", "N", "N"), ("s", "T", "T"), ("c", "T", "N"), ("c", "N", "C")], ids="".join)
@pytest.mark.sampled(0, system=1)
def test_random_configurations(kernel: Kernel, runtime: Path, case: tuple[str, str, str]) -> None:
    run(kernel, runtime, case, list(sample(kernel.with_values(SMALL), case, 1, seed=CASES.index(case))))


@pytest.mark.parametrize("case", [("s", "N", "T"), ("c", "C", "N")], ids="".join)
@pytest.mark.sampled(0, system=1, nightly=2)
def test_values_that_cannot_be_split(kernel: Kernel, runtime: Path, case: tuple[str, str, str]) -> None:
    """Infinities, NaN, zeros, denormal numbers, and elements far below the largest one of their row or column."""
    (configuration,) = sample(kernel.with_values(SMALL), case, 1, seed=1)
    problem = GemmProblem(*case, 70, 50, 90, lda=90, ldb=90, ldc=71)
    host = build_host(kernel, runtime, configuration, problem)
    operands = {name: place(buffer, 0) for name, buffer in problem.operands(np, seed=1).items()}
    rng = np.random.default_rng(2)
    for line in lines(problem, operands):
        spoil(line, rng)

    def launch() -> np.ndarray:
        host.launch(problem, operands, kernel.launch(configuration, variables_of(problem, H200)))
        return problem.result(operands["C"])

    check_spoilt(problem, operands, launch)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids="".join)
def test_many_random_configurations(kernel: Kernel, runtime: Path, case: tuple[str, str, str]) -> None:
    run(kernel, runtime, case, list(sample(kernel.with_values(SMALL), case, 8, seed=100 + CASES.index(case))))
