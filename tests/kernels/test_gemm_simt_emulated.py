"""kernels/gemm_simt itself, without a GPU: its source on the host, every access checked, its results against NumPy.

All 26 cases, random legal configurations, sizes around the tile.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from emulation.host import COMPILER_EXISTS
from gemm import Configuration, check_configurations, sample

from mltune.kernel.bundle import Kernel
from mltune.kernel.reader import load_kernel
from mltune.problem.gemm import CASES

pytestmark = pytest.mark.skipif(not COMPILER_EXISTS, reason="needs g++")

SMALL = {
    "BLK_M": (16, 32, 48, 64),
    "BLK_N": (16, 32, 48, 64),
    "BLK_K": (4, 8, 16),
    "MIN_BLOCKS": (1,),
    "RASTER_GROUP": (1, 2, 4),
}
"""Values of small tiles, which are quick to emulate."""

PIPELINES = {
    "ASTRA's": lambda c: c["STAGES"] == 1,
    "two tiles, staged in registers": lambda c: c["STAGES"] == 2 and not (c["ASYNC_A"] or c["ASYNC_B"]),
    "asynchronous": lambda c: c["ASYNC_A"] and c["ASYNC_B"],
    "mixed": lambda c: c["ASYNC_A"] != c["ASYNC_B"],
}
PARTS = (1, 4, 2, 1)
"""Parts of a tile's depth, by pipeline: more than there are tiles along k, too."""


@pytest.fixture(scope="module")
def kernel() -> Kernel:
    return load_kernel("gemm_simt")


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
@pytest.mark.sampled(1, system=2)
def test_random_configurations(kernel: Kernel, runtime: Path, case: tuple[str, str, str]) -> None:
    drawn = list(sample(kernel.with_values(SMALL), case, 512, seed=CASES.index(case)))
    turn = CASES.index(case)
    chosen = [
        {**next(filter(pipeline, drawn)), "SPLIT_K": PARTS[(number + turn) % len(PARTS)]}
        for number, pipeline in enumerate(PIPELINES.values())
    ]
    check_configurations(kernel, case, runtime, chosen, sizes)


@pytest.mark.system
def test_a_batch(kernel: Kernel, runtime: Path) -> None:
    case = ("c", "T", "C")
    (drawn,) = sample(kernel.with_values(SMALL), case, 1, seed=7)
    chosen = [{**drawn, "SPLIT_K": parts} for parts in (1, 2)]
    check_configurations(kernel, case, runtime, chosen, lambda c: [(c["BLK_M"] + 1, 5, 2 * c["BLK_K"] + 1)], batch=3)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids="".join)
def test_many_random_configurations(kernel: Kernel, runtime: Path, case: tuple[str, str, str]) -> None:
    check_configurations(kernel, case, runtime, sample(kernel, case, 8, seed=100 + CASES.index(case)), sizes)
