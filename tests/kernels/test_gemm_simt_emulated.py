"""kernels/gemm_simt itself, without a GPU: its source on the host, every access checked, its results against NumPy.

All 26 cases, random legal configurations, sizes around the tile.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from emulation.host import COMPILER_EXISTS
from gemm import Configuration, build_host, check, check_configurations, problems, sample

from mltune.device.known import H200
from mltune.kernel.bundle import Kernel, variables_of
from mltune.kernel.reader import load_kernel
from mltune.problem.gemm import CASES, GemmProblem

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
PARTS = (1, 4, 2, 7)
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
    yield m, n, (stages + 2) * k - 4
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


@pytest.mark.parametrize("case", [("s", "N", "N"), ("z", "T", "C"), ("c", "N", "T"), ("d", "T", "N")], ids="".join)
@pytest.mark.sampled(1, system=4)
def test_any_number_of_parts_meets_in_one_machine_code(
    kernel: Kernel, runtime: Path, case: tuple[str, str, str]
) -> None:
    """Powers of two and others, as many as there are tiles along k and more, with and without a rest of k."""
    (drawn,) = sample(kernel.with_values(SMALL | {"BLK_M": (16,), "BLK_N": (16, 32), "BLK_K": (8,)}), case, 1, seed=3)
    host = build_host(kernel, runtime, {**drawn, "SPLIT_K": 0}, GemmProblem(*case, 1, 1, 1))
    for parts in (*range(1, 10), 13, 16):
        for k in (8 * parts, 8 * 9 + 4, 7):
            problem, offsets = next(problems(case, [(17, 33, k)]))
            check(kernel, host, problem, offsets, {**drawn, "SPLIT_K": parts})
    problem, offsets = next(problems(case, [(17, 33, 1204)]))
    devices = [replace(H200, sm_count=count) for count in (3, 5, 132)]
    of_each = [kernel.launch({**drawn, "SPLIT_K": 0}, variables_of(problem, one)).grid[1] for one in devices]
    assert of_each[-1] == 18
    assert max(of_each[:2]) == 3
    for device in devices:
        check(kernel, host, problem, offsets, {**drawn, "SPLIT_K": 0}, device)


@pytest.mark.parametrize(
    ("m", "n", "k", "parts"),
    [
        (64, 64, 4096, 64),  # a tile: no part is shorter than 64 steps
        (71, 75, 6142, 33),  # 4 tiles on 132 multiprocessors
        (1024, 1024, 4096, 1),  # 256 tiles fill them
        (640, 640, 8192, 5),  # 100 tiles: 500 parts in 4 turns, not 100 tiles in one
        (640, 640, 512, 1),  # a meeting would take longer
        (512, 512, 8192, 2),  # 64 tiles
        (64, 64, 127, 1),
        (64, 64, 0, 1),
        (0, 64, 4096, 64),
    ],
)
def test_zero_splits_into_as_many_parts_as_fill_the_device(kernel: Kernel, m: int, n: int, k: int, parts: int) -> None:
    (drawn,) = sample(kernel.with_values({"BLK_M": (64,), "BLK_N": (64,), "MIN_BLOCKS": (1,)}), ("s", "N", "N"), 1, 1)
    configuration = {**drawn, "BLK_K": 8, "SPLIT_K": 0}
    launch = kernel.launch(configuration, variables_of(GemmProblem("s", "N", "N", m, n, k), H200))
    tiles = -(-m // 64) * -(-n // 64)
    assert launch.grid == (tiles, parts, 1)
    assert launch.workspace_bytes == (parts - 1) * (-(-4 * tiles // 256) * 256 + tiles * 64 * 64 * 4)
    assert launch == kernel.launch(
        {**configuration, "SPLIT_K": parts}, variables_of(GemmProblem("s", "N", "N", m, n, k), H200)
    )


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
