"""kernels/gemm_mma64 itself, without a GPU: its source on the host, every access checked, its results against NumPy."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from emulation.host import COMPILER_EXISTS
from gemm import Configuration, build_host, check, check_configurations, problems, sample

from mltune.device.known import H200
from mltune.kernel.bundle import Kernel
from mltune.kernel.reader import load_kernel
from mltune.problem.gemm import CASES, GemmProblem

pytestmark = pytest.mark.skipif(not COMPILER_EXISTS, reason="needs g++")

DOUBLE = [case for case in CASES if case[0] in "dz"]
SMALL = {
    "BLK_M": (16, 32, 48, 64),
    "BLK_N": (16, 32, 48, 64),
    "BLK_K": (4, 8, 16),
    "MIN_BLOCKS": (1,),
    "RASTER_GROUP": (1, 2, 4),
}
"""Values of small tiles, which are quick to emulate."""

FEW = replace(H200, sm_count=5)
"""So few multiprocessors that the tiles of a small problem fill them more than once, and some are divided along k."""

WAYS = {
    "a block a tile": lambda c: not c["STREAM_K"] and c["FRAGMENTS"] == 1 and c["MMA_M"] == 8,
    "a block a tile, vectors": lambda c: not c["STREAM_K"] and c["FRAGMENTS"] == 2 and c["VEC_A"] + c["VEC_B"] > 2,
    "divided along k": lambda c: c["STREAM_K"] and c["FRAGMENTS"] == 1,
    "divided along k, vectors": lambda c: c["STREAM_K"] and c["FRAGMENTS"] == 2 and c["VEC_A"] + c["VEC_B"] > 2,
}
COMPLEX = {
    "a block a tile": lambda c: not c["STREAM_K"] and c["FRAGMENTS"] == 1 and c["MMA_M"] == 8,
    "divided along k": lambda c: c["STREAM_K"] and c["FRAGMENTS"] == 2,
}


@pytest.fixture(scope="module")
def kernel() -> Kernel:
    return load_kernel("gemm_mma64")


def sizes(configuration: Configuration) -> Iterator[tuple[int, int, int]]:
    """Sizes around a configuration's tile, from one element to more tiles than multiprocessors."""
    m, n, k = (configuration[name] for name in ("BLK_M", "BLK_N", "BLK_K"))
    stages = configuration["STAGES"]
    yield m, n, stages * k
    yield m + 1, n - 1, (stages + 1) * k + 1
    yield 2 * m + 1, 2 * n, k - 1
    yield m - 1, n + 1, k + 1
    yield 1, 1, 1
    yield m, n, 0
    if configuration["STREAM_K"]:
        yield 3 * m, 2 * n + 1, 7 * k + 3


def run(kernel: Kernel, runtime: Path, case: tuple[str, str, str], configurations: list[Configuration]) -> None:
    check_configurations(kernel, case, runtime, configurations, sizes, FEW)


@pytest.mark.parametrize("case", [case for case in DOUBLE if "T" not in case[1:] or case[0] == "d"], ids="".join)
@pytest.mark.sampled(1, nightly=2)
def test_random_configurations(kernel: Kernel, runtime: Path, case: tuple[str, str, str]) -> None:
    drawn = list(sample(kernel.with_values(SMALL), case, 512, seed=CASES.index(case)))
    ways = list((WAYS if case[0] == "d" else COMPLEX).values())
    number = DOUBLE.index(case)
    run(kernel, runtime, case, [next(filter(ways[(number + i) % len(ways)], drawn)) for i in (0, len(ways) // 2)])


@pytest.mark.sampled(1, nightly=2)
@pytest.mark.parametrize("case", [("d", "N", "T"), ("z", "T", "C")], ids="".join)
def test_any_number_of_parts_meets(kernel: Kernel, runtime: Path, case: tuple[str, str, str]) -> None:
    """Of one tile, and of three that are divided among blocks that end elsewhere than tiles do."""
    values = SMALL | {"STREAM_K": (1,), "MIN_BLOCKS": (1,), "BLK_M": (16, 32), "BLK_N": (16, 32), "BLK_K": (4, 8)}
    (drawn,) = sample(kernel.with_values(values), case, 1, seed=3)
    host = build_host(kernel, runtime, drawn, GemmProblem(*case, 1, 1, 1))
    m, n, k = (drawn[name] for name in ("BLK_M", "BLK_N", "BLK_K"))
    for blocks in (*range(1, 10), 13, 16):
        for size in ((m, n, 4 * k * blocks), (3 * m, n, 4 * k * blocks + 1)):
            problem, offsets = next(problems(case, [size]))
            check(kernel, host, problem, offsets, drawn, replace(H200, sm_count=blocks))


@pytest.mark.system
def test_a_batch(kernel: Kernel, runtime: Path) -> None:
    case = ("d", "N", "T")
    drawn = filter(WAYS["a block a tile"], sample(kernel.with_values(SMALL), case, 64, seed=7))
    check_configurations(
        kernel, case, runtime, [next(drawn)], lambda c: [(c["BLK_M"] + 1, 5, c["BLK_K"] + 1)], FEW, batch=3
    )


@pytest.mark.slow
@pytest.mark.parametrize("case", DOUBLE, ids="".join)
def test_many_random_configurations(kernel: Kernel, runtime: Path, case: tuple[str, str, str]) -> None:
    run(kernel, runtime, case, list(sample(kernel.with_values(SMALL), case, 8, seed=100 + CASES.index(case))))
