"""kernels/gemm_simt itself, without a GPU: its source on the host, every access checked, its results against NumPy.

All 26 cases, random legal configurations, sizes around the tile.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from emulation.host import COMPILER_EXISTS, place
from gemm import Configuration, build_host, check, check_configurations, problems, sample

from mltune.device.known import H200
from mltune.kernel.bundle import Kernel, variables_of
from mltune.kernel.expressions import parse
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

TINY = SMALL | {"BLK_M": (16,), "BLK_N": (16, 32), "BLK_K": (8,)}

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
@pytest.mark.sampled(1, nightly=2)
def test_random_configurations(kernel: Kernel, runtime: Path, case: tuple[str, str, str]) -> None:
    drawn = list(sample(kernel.with_values(SMALL), case, 512, seed=CASES.index(case)))
    turn = CASES.index(case)
    chosen = [
        {**next(filter(pipeline, drawn)), "SPLIT_K": PARTS[(number + turn) % len(PARTS)]}
        for number, pipeline in enumerate(PIPELINES.values())
    ]
    check_configurations(kernel, case, runtime, chosen, sizes)


@pytest.mark.parametrize("case", [("s", "N", "N"), ("z", "T", "C"), ("c", "N", "T"), ("d", "T", "N")], ids="".join)
@pytest.mark.sampled(1, nightly=2)
def test_any_number_of_parts_meets_in_one_machine_code(
    kernel: Kernel, runtime: Path, case: tuple[str, str, str]
) -> None:
    """Powers of two and others, as many as there are tiles along k and more, with and without a rest of k."""
    (drawn,) = sample(kernel.with_values(TINY), case, 1, seed=3)
    host = build_host(kernel, runtime, {**drawn, "SPLIT_K": 2}, GemmProblem(*case, 1, 1, 1))
    for parts in (*range(1, 10), 13, 16):
        for k in (8 * parts, 8 * 9 + 4, 7):
            problem, offsets = next(problems(case, [(17, 33, k)]))
            check(kernel, host, problem, offsets, {**drawn, "SPLIT_K": parts})


def with_blocks(kernel: Kernel, blocks: int) -> Kernel:
    """Return the kernel with a number of blocks that stay, whatever the device and the problem."""
    return replace(kernel, space=replace(kernel.space, derived=kernel.space.derived | {"stay": parse(str(blocks))}))


@pytest.mark.parametrize("case", CASES, ids="".join)
@pytest.mark.sampled(1, nightly=3)
def test_blocks_that_stay_divide_tiles(kernel: Kernel, runtime: Path, case: tuple[str, str, str]) -> None:
    """Any number of blocks: more than there are steps, several for each tile, ends within tiles, whole waves too.

    The emulator runs blocks one after the other, the smaller numbers first, as a GPU does with room for one: a block
    that waits for a later one waits forever.
    """
    turn = CASES.index(case)
    drawn = list(sample(kernel.with_values(TINY), case, 256, seed=turn))
    pipeline = list(PIPELINES.values())[turn % len(PIPELINES)]
    configuration = {**next(filter(pipeline, drawn)), "SPLIT_K": 0}
    host = build_host(kernel, runtime, configuration, GemmProblem(*case, 1, 1, 1))
    m, n, k = (configuration[name] for name in ("BLK_M", "BLK_N", "BLK_K"))
    shapes = (m, n, 13 * k), (1, 1, 1), (2 * m + 1, n, 7 * k + 3), (m - 1, 2 * n, k - 1), (5 * m - 2, n + 1, 2 * k + 1)
    for number, shape in enumerate(shapes):
        aligned, offsets = next(problems(case, [shape]))
        odd = [rows + 1 + rows % 2 for rows, _ in aligned.shapes()]
        for blocks in (1, 2, 3, 4, 5, 7, 8, 13, 16, 23):
            problem = aligned
            if (blocks + number) % 3 == 0:
                problem = replace(aligned, lda=odd[0], ldb=odd[1], ldc=odd[2], beta=0.0)
            if blocks == 16:
                problem = replace(aligned, alpha=0.0)
            check(with_blocks(kernel, blocks), host, problem, offsets, configuration)


@pytest.mark.parametrize("ldc", [0, 64, 65])
@pytest.mark.sampled(1, nightly=3)
def test_an_element_of_two_tiles_is_the_one_that_it_belongs_to(kernel: Kernel, runtime: Path, ldc: int) -> None:
    """Tiles that overlap are divided elsewhere and round otherwise: the bits do not depend on which is stored last."""
    kernel = with_blocks(kernel, 3)  # for two tiles: steps 0 to 3 and 4 to 5 of one, 0 to 1 and 2 to 5 of the other
    values = TINY | {"BLK_N": (16,), "VEC_M": (4,)}
    (drawn,) = sample(kernel.with_values(values), ("s", "N", "T"), 1, seed=5)
    for m in (28, 29):
        problem = GemmProblem("s", "N", "T", m, 16, 6 * 8, beta=0.0, ldc=ldc)
        made = problem.operands(np, seed=1)
        operands = {name: place(buffer, 0) for name, buffer in made.items()}
        host = build_host(kernel, runtime, {**drawn, "SPLIT_K": 0}, problem)
        host.launch(problem, operands, kernel.launch({**drawn, "SPLIT_K": 0}, variables_of(problem, H200)))
        a, b = made["A"].reshape(48, m), made["B"].reshape(48, 16)
        parts = [np.zeros((m, 16), np.float32) for _ in "12"]
        for step in range(48):
            parts[step >= 32] += a[step][:, None] * b[step][None, :]
        assert (problem.result(operands["C"])[:16] == (parts[1] + parts[0])[:16]).all()


@pytest.mark.parametrize(
    ("m", "n", "k", "blocks", "is_valid"),
    [
        (64, 64, 4096, 64, True),  # a tile: no part is shorter than 64 steps
        (71, 75, 6142, 132, True),  # 4 tiles: 33 blocks each
        (320, 320, 16384, 132, True),  # 25 tiles: 5 blocks each would leave 7 idle
        (320, 320, 8192, 125, True),  # which costs less than that a block takes part in two tiles
        (1024, 1024, 4096, 132, True),  # 256 tiles: two turns, of which one is nearly full
        (640, 640, 8192, 132, True),  # 100 tiles
        (640, 640, 256, 100, False),  # a meeting would take longer
        (1408, 1536, 8192, 528, False),  # 528 tiles are four whole turns
        (64, 64, 127, 1, False),
        (64, 64, 0, 1, False),
    ],
)
@pytest.mark.sampled(4, nightly=99)
def test_zero_has_as_many_blocks_as_run_at_a_time(
    kernel: Kernel, m: int, n: int, k: int, blocks: int, is_valid: bool
) -> None:
    (drawn,) = sample(kernel.with_values({"BLK_M": (64,), "BLK_N": (64,), "MIN_BLOCKS": (1,)}), ("s", "N", "N"), 1, 1)
    configuration = {**drawn, "BLK_K": 8, "SPLIT_K": 0}
    for batch in (1, 2):
        variables = variables_of(GemmProblem("s", "N", "N", m, n, k, batch=batch), H200)
        scope = kernel.space.scope({**variables, **configuration})
        rules = [rule.expression for rule in kernel.space.restrictions if "SPLIT_K" in rule.text]
        assert all(rule.evaluate(scope) for rule in rules) == (is_valid and batch == 1)
    launch = kernel.launch(configuration, variables_of(GemmProblem("s", "N", "N", m, n, k), H200))
    assert launch.grid == (blocks, 1, 1)
    assert launch.workspace_bytes == -(-4 * blocks // 256) * 256 + blocks * 64 * 64 * 4


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
