"""kernels/gemm_tf32 itself, without a GPU: its source on the host, every access checked, its results against NumPy."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from emulation.host import COMPILER_EXISTS, HostKernel, place
from gemm import Configuration, build_host, check_configurations, check_spoilt, lines, sample, spoil

from mltune.device.known import H200
from mltune.kernel.bundle import Kernel, variables_of
from mltune.kernel.reader import load_kernel
from mltune.problem.gemm import CASES, GemmProblem

pytestmark = pytest.mark.skipif(not COMPILER_EXISTS, reason="needs g++")

SINGLE = [case for case in CASES if case[0] in "sc"]
SMALL = {
    "BLK_M": (16, 32, 48),
    "BLK_N": (16, 32, 48),
    "BLK_K": (8, 16, 32),
    "MIN_BLOCKS": (1,),
    "RASTER_GROUP": (1, 2, 4),
}
"""Values of small tiles, which are quick to emulate."""

WAYS = (
    lambda c: c["FRAGMENTS"] == 1 and c["MMA_K"] == 4 and c["PROMOTE_K"] == 8,
    lambda c: c["FRAGMENTS"] == 2 and c["MMA_K"] == 8 and c["PROMOTE_K"] > 8 and c["VEC_A"] + c["VEC_B"] > 2,
    lambda c: c["FRAGMENTS"] == 1 and c["MMA_K"] == 8 and c["VEC_A"] + c["VEC_B"] > 2,
    lambda c: c["FRAGMENTS"] == 2 and c["MMA_K"] == 8 and c["PROMOTE_K"] == 8,
)


@pytest.fixture(scope="module")
def kernel() -> Kernel:
    return load_kernel("gemm_tf32")


def sizes(configuration: Configuration) -> Iterator[tuple[int, int, int]]:
    """Sizes around a configuration's tile, from one element to several tiles; depths below and above the pipeline's."""
    m, n, k = (configuration[name] for name in ("BLK_M", "BLK_N", "BLK_K"))
    stages = configuration["STAGES"]
    yield m, n, stages * k
    yield m + 1, n - 1, (stages + 1) * k + 1
    yield 2 * m + 1, n, 15
    yield m - 1, n + 1, k + 17
    yield 1, 1, 1
    yield m, n, 0


def run(kernel: Kernel, runtime: Path, case: tuple[str, str, str], configurations: list[Configuration]) -> None:
    check_configurations(kernel, case, runtime, configurations, sizes)


@pytest.mark.parametrize("case", SINGLE, ids="".join)
@pytest.mark.sampled(1, nightly=2)
def test_random_configurations(kernel: Kernel, runtime: Path, case: tuple[str, str, str]) -> None:
    drawn = sample(kernel.with_values(SMALL), case, 256, seed=CASES.index(case))
    run(kernel, runtime, case, [next(filter(WAYS[SINGLE.index(case) // 4 % len(WAYS)], drawn))])


@pytest.mark.parametrize(("case", "split"), [(("s", "N", "T"), 3), (("c", "T", "N"), 2)], ids=["sNT", "cTN"])
@pytest.mark.system
@pytest.mark.sampled(1, nightly=2)
def test_k_is_divided(kernel: Kernel, runtime: Path, case: tuple[str, str, str], split: int) -> None:
    """The counters of the workspace are set back: each problem is launched twice with one workspace."""
    (configuration,) = sample(kernel.with_values(SMALL | {"SPLIT_K": (1,)}), case, 1, seed=1)
    m, n, k = (configuration[name] for name in ("BLK_M", "BLK_N", "BLK_K"))
    sizes = [(m + 1, n, 4 * k * split), (m, n - 1, 2 * k * split + 5), (5, 7, 33), (3, 2, 4), (5, 7, 0)]
    check_configurations(kernel, case, runtime, [dict(configuration) | {"SPLIT_K": split}], lambda _: sizes)


@pytest.mark.system
def test_a_batch(kernel: Kernel, runtime: Path) -> None:
    case = ("c", "N", "T")
    drawn = sample(kernel.with_values(SMALL | {"SPLIT_K": (1,)}), case, 1, seed=7)
    check_configurations(kernel, case, runtime, drawn, lambda c: [(c["BLK_M"] + 1, 5, c["BLK_K"] + 1)], batch=3)


def multiply(
    kernel: Kernel,
    host: HostKernel,
    configuration: Configuration,
    problem: GemmProblem,
    operands: dict[str, np.ndarray],
) -> np.ndarray:
    """Run a configuration on operands, and return C."""
    operands = {name: place(buffer, 0) for name, buffer in operands.items()}
    host.launch(problem, operands, kernel.launch(configuration, variables_of(problem, H200)))
    return problem.result(operands["C"])


SPECIAL = {"sNT": ("s", "N", "T", 1), "sTN": ("s", "T", "N", 2), "cCN": ("c", "C", "N", 1)}


@pytest.mark.parametrize("name", SPECIAL)
@pytest.mark.sampled(1, nightly=99)
def test_values_that_cannot_be_split(kernel: Kernel, runtime: Path, name: str) -> None:
    """Infinities, NaN, zeros, denormal numbers, the largest numbers, and lines that are small throughout."""
    *case, split = SPECIAL[name]
    (configuration,) = sample(kernel.with_values(SMALL | {"SPLIT_K": (1,)}), case, 1, seed=1)
    problem = GemmProblem(*case, 70, 50, 90, lda=90, ldb=90, ldc=71)
    operands = problem.operands(np, seed=1)
    rng = np.random.default_rng(2)
    for matrix in lines(problem, operands):
        spoil(matrix, rng)
        matrix[12] *= np.float32(2.0**-128)
        matrix[14, 17] = np.finfo(np.float32).max
        matrix[15, 19] = -np.inf
    configuration = dict(configuration) | {"SPLIT_K": split}
    host = build_host(kernel, runtime, configuration, problem)
    check_spoilt(problem, operands, lambda: multiply(kernel, host, configuration, problem, operands))


@pytest.mark.parametrize("case", [("s", "T", "T"), ("c", "N", "T")], ids="".join)
@pytest.mark.system
@pytest.mark.sampled(1, nightly=2)
def test_small_elements_among_others(kernel: Kernel, runtime: Path, case: tuple[str, str, str]) -> None:
    """Where low parts vanish, elements of C that are small are computed again, and no others."""
    (configuration,) = sample(kernel.with_values(SMALL | {"SPLIT_K": (1,)}), case, 1, seed=2)
    problem = GemmProblem(*case, 20, 18, 40, beta=0)
    operands = problem.operands(np, seed=1)
    for matrix in lines(problem, operands):
        matrix[1] *= np.float32(2.0**-128)
        matrix[2] *= np.float32(2.0**-112)
        matrix[3] *= np.float32(2.0**60)
        matrix[4, 1::2] *= np.float32(2.0**-120)
        matrix[5] = 0
    left, right = lines(problem, operands)
    left[6], right[6] = 0, 0
    factor = np.float32(1.5 + 2.0**-11 + 2.0**-12)  # rounded up to TF32; the product is almost the largest number
    left[6, 0], right[6, 0] = factor * np.float32(2.0**63), np.float32(2.0**64 / factor * (2 - 2.0**-20))
    answer, bound = problem.answer(operands), problem.error_bound(operands)
    result = multiply(kernel, build_host(kernel, runtime, configuration, problem), configuration, problem, operands)
    underflow = problem.k * 2.0**-149 * (1 + 1j if problem.is_complex else 1)  # is no part of the bound
    assert problem.worst_error(result, answer, bound + underflow) <= 1


def fused(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Multiply two matrices in FP32, by one FMA after the other."""
    total = np.zeros((left.shape[0], right.shape[1]), np.float32)
    for column, row in zip(left.T.astype(np.float64), right.astype(np.float64), strict=True):
        total = (total + np.outer(column, row)).astype(np.float32)
    return total


DATA = {
    "zero mean": lambda rng, shape: rng.uniform(-1, 1, shape),
    "positive": lambda rng, shape: rng.uniform(0, 1, shape),
    "one binade": lambda rng, shape: rng.uniform(1, 2, shape),
    "wide exponents": lambda rng, shape: rng.uniform(-1, 1, shape) * 2.0 ** rng.integers(-12, 13, shape),
}


@pytest.mark.parametrize("promote_k", [8, 16])
@pytest.mark.system
@pytest.mark.sampled(1, nightly=2)
def test_the_error_is_not_above_that_of_fp32(kernel: Kernel, runtime: Path, promote_k: int) -> None:
    wanted = kernel.with_values(SMALL | {"BLK_M": (32,), "BLK_N": (32,), "PROMOTE_K": (promote_k,)})
    (configuration,) = sample(wanted, ("s", "N", "N"), 1, seed=1)
    host = build_host(kernel, runtime, configuration, GemmProblem("s", "N", "N", 1, 1, 1))
    for k, (name, make) in product((3, 400), DATA.items()):
        rng = np.random.default_rng(1)
        problem = GemmProblem("s", "N", "N", 32, 32, k)
        left, right = (make(rng, shape).astype(np.float32) for shape in ((32, k), (k, 32)))
        operands = {"A": left.T.ravel(), "B": right.T.ravel(), "C": np.zeros(32 * 32, np.float32)}
        answer, size = problem.answer(operands), abs(left).astype(np.float64) @ abs(right).astype(np.float64)
        result = multiply(kernel, host, configuration, problem, operands)
        error, usual = ((abs(one - answer) / size).max() for one in (result, fused(left, right)))
        assert error < (usual if k > 3 else 3 * 2.0**-24), (k, name)  # here sums of three products are not fused


@pytest.mark.slow
@pytest.mark.parametrize("case", SINGLE, ids="".join)
def test_many_random_configurations(kernel: Kernel, runtime: Path, case: tuple[str, str, str]) -> None:
    run(kernel, runtime, case, list(sample(kernel.with_values(SMALL), case, 8, seed=100 + CASES.index(case))))
