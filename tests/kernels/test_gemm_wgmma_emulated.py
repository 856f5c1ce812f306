"""kernels/gemm_wgmma itself, without a GPU: its source on the host, every access checked, its results against NumPy."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from emulation.host import COMPILER_EXISTS, place
from gemm import Configuration, build_host, check, check_configurations, sample

from mltune.device.known import H200
from mltune.kernel.bundle import Kernel, variables_of
from mltune.kernel.expressions import parse
from mltune.kernel.reader import load_kernel
from mltune.problem.gemm import GemmProblem
from mltune.problem.gemm_operands import numbers, transpositions

pytestmark = pytest.mark.skipif(not COMPILER_EXISTS, reason="needs g++")

CASES = [(precision, *ops) for precision in ("h", "b", "hs", "bs") for ops in transpositions(precision)]
FP8 = [(precision, "T", "N") for precision in ("eb", "e45h", "e54s", "ebf", "eh", "es", "e45b", "e54bf")]
SMALL = {"BLK_M": (64, 128), "BLK_N": (64, 96), "BLK_K": (64, 128), "STAGES": (2, 3), "PACK": (0,)}
SMALL |= {"CLUSTER": (1,), "CLUSTER_N": (1,)}
"""Values of small tiles, which are quick to emulate; a cluster of one block is all that is emulated."""

PLAIN = {"BLK_M": 64, "BLK_N": 64, "BLK_K": 64, "WG_M": 64, "TEAMS": 1, "STAGES": 3, "SPLIT_K": 1, "CLUSTER": 1}
PLAIN |= {"CLUSTER_N": 1, "PACK": 0, "SWAP": 0, "PRODUCER_REGISTERS": 40, "RASTER_GROUP": 1}
"""A configuration of one warpgroup that multiplies."""

FEW = replace(H200, sm_count=1)
"""So few multiprocessors that a block has more than one tile."""

PACKED = [
    (65, 9, 130),
    (5, 66, 7),
    (72, 3, 133),
    (1, 1, 1),
    (3, 80, 45),
    (70, 131, 263),
    (3, 4, 9001),
    (3, 64, 0),
    (2, 5, 3000),
    (72, 80, 136),
]
"""Sizes that are packed: short and long lines, operands of which one is aligned, more work than tiles; and one of which
only a leading dimension or an address is not aligned."""

ENDS = [
    ((0, 0), (0, 0, 0)),
    ((1, 3), (1, 2, 0)),
    ((2, 8), (4, 5, 1)),
    ((0, 5), (3, 0, 0)),
    ((7, 0), (0, 7, 0)),
    ((4, 4), (2, 4, 0)),
    ((16, 6), (6, 1, 0)),
]
"""Elements that leading dimensions are longer than lines, and offsets of A, B and C from an aligned address."""

WAYS = (
    lambda c: c["TEAMS"] == 1 and c["BLK_M"] == 128 and c["BLK_N"] == 96,
    lambda c: c["TEAMS"] == 2 and c["BLK_M"] == 64 and c["BLK_N"] == 96,
)
"""A tile of two instructions or warpgroups; two teams."""


@pytest.fixture(scope="module")
def kernel() -> Kernel:
    return load_kernel("gemm_wgmma")


def sizes(configuration: Configuration) -> Iterator[tuple[int, int, int]]:
    """Sizes around a configuration's tile, from one element to several tiles; depths below and above the pipeline's."""
    m, n, k = (configuration[name] for name in ("BLK_M", "BLK_N", "BLK_K"))
    yield m, n - 1, k + 8
    yield m + 1, n, (configuration["STAGES"] + 1) * k + 1
    yield 1, 1, 1
    yield m - 1, 5, 0


def run(kernel: Kernel, runtime: Path, case: tuple[str, str, str], configurations: list[Configuration]) -> None:
    check_configurations(kernel, case, runtime, configurations, sizes, FEW)


@pytest.mark.parametrize("case", CASES + FP8, ids="".join)
@pytest.mark.sampled(1, nightly=3)
def test_random_configurations(kernel: Kernel, runtime: Path, case: tuple[str, str, str]) -> None:
    number = (CASES + FP8).index(case)
    drawn = sample(kernel.with_values(SMALL), case, 64, seed=number)
    run(kernel, runtime, case, [next(filter(WAYS[number // 2 % 2], drawn))])


@pytest.mark.parametrize("case", CASES[:4] + FP8[:1], ids="".join)
@pytest.mark.sampled(1, nightly=2)
def test_lines_begin_anywhere(kernel: Kernel, runtime: Path, case: tuple[str, str, str]) -> None:
    """Every remainder of leading dimension and address by 16 bytes; less and more than a tile; two parts of k."""
    chunk = 16 // GemmProblem(*case, 1, 1, 1).element_bytes
    for tile, depth, stages, split in [((64, 64), 16, 2, 1), ((128, 96), 8, 4, 2), ((64, chunk), 8, 3, 1)]:
        depth *= chunk
        configuration = PLAIN | {"BLK_M": tile[0], "BLK_N": tile[1], "BLK_K": depth, "STAGES": stages, "SPLIT_K": split}
        host = build_host(kernel, runtime, configuration, GemmProblem(*case, 1, 1, 1))
        for remainder in range(chunk):
            m, n, k = (
                (tile[0] + 6, 9, 2 * depth + 3 - remainder) if remainder % 2 else (5, tile[1] + 1, 7 + 8 * remainder)
            )
            tight = GemmProblem(*case, m, n, k, 1.25, 0.0)
            ends = (remainder, 3 * remainder + 1)
            lda, ldb = (rows + (end - rows) % chunk for (rows, _), end in zip(tight.shapes(), ends, strict=False))
            problem = replace(tight, lda=lda, ldb=ldb)
            check(kernel, host, problem, (5 * remainder % chunk, remainder + 1, 0), configuration, FEW)


@pytest.mark.parametrize("case", CASES + FP8, ids="".join)
@pytest.mark.parametrize(("teams", "split"), [(1, 1), (1, 2), (2, 1), (1, 0)])
@pytest.mark.sampled(2, nightly=4)
def test_lines_are_packed(kernel: Kernel, runtime: Path, case: tuple[str, str, str], teams: int, split: int) -> None:
    """One operand or both, from any address and leading dimension; with blocks that have no tile, in either order.

    Each problem is launched twice with one workspace. One block runs at a time: it must never wait for another.
    """
    device = replace(H200, sm_count=4)
    configuration = PLAIN | {"TEAMS": teams, "PACK": 1, "SWAP": int(split == 0), "SPLIT_K": split}
    configuration["BLK_K"] *= 1 + (case in FP8)
    host = build_host(kernel, runtime, configuration, GemmProblem(*case, 1, 1, 1))
    helped = [
        (m, n, k)
        for m, n, k in PACKED
        if kernel.launch(configuration, variables_of(GemmProblem(*case, m, n, k), device)).grid[0]
        > -(-m // 64) * -(-n // 64) * max(split, 1)
    ]
    assert helped or split == 0, "blocks without a tile pack, too"
    for backwards in (False, True):
        host.library.emulation_run_backwards(backwards)
        for number, (m, n, k) in enumerate(PACKED):
            tight = GemmProblem(*case, m, n, k, 1.25, -0.75 * (number % 2))
            further, offsets = ENDS[(number + 3 * backwards) % len(ENDS)]
            lda, ldb = (rows + more for (rows, _), more in zip(tight.shapes(), further, strict=False))
            check(kernel, host, replace(tight, lda=lda, ldb=ldb), offsets, configuration, device)
        check(kernel, host, replace(tight, alpha=0.0), (1, 1, 0), configuration, device)
        check(kernel, host, GemmProblem(*case, 72, 80, 136), (0, 0, 0), configuration, device)  # nothing is packed


@pytest.mark.parametrize(("teams", "split"), [(1, 2), (2, 3)])
@pytest.mark.system
@pytest.mark.sampled(1, nightly=2)
def test_k_is_divided(kernel: Kernel, runtime: Path, teams: int, split: int) -> None:
    """The counters of the workspace are set back: each problem is launched twice with one workspace."""
    configuration = PLAIN | {"BLK_M": 128, "BLK_N": 96, "WG_M": 128, "TEAMS": teams, "STAGES": 2, "SWAP": teams - 1}
    configuration |= {"RASTER_GROUP": 2, "SPLIT_K": split}
    sizes = [(65, 97, 130 * split), (130, 100, 65 * split), (64, 97, 64), (5, 7, 0)]
    check_configurations(kernel, ("h", "T", "N"), runtime, [configuration], lambda _: sizes, replace(H200, sm_count=2))


@pytest.mark.parametrize(("parts", "processors", "teams"), [(1, 2, 1), (2, 3, 1), (3, 6, 2), (5, 5, 1), (8, 9, 1)])
@pytest.mark.sampled(1, nightly=3)
def test_any_number_of_parts(kernel: Kernel, runtime: Path, parts: int, processors: int, teams: int) -> None:
    """One, and more than fit on the device at a time; some of them empty."""
    configuration = PLAIN | {"BLK_N": 96 if teams > 1 else 64, "TEAMS": teams, "SPLIT_K": 0}
    divided = replace(kernel, space=replace(kernel.space, derived={**kernel.space.derived, "parts": parse(str(parts))}))
    sizes = [(65, 97, 130 * parts), (130, 60, 65 * parts), (64, 64, 64), (5, 7, 0)]
    device = replace(H200, sm_count=processors)
    check_configurations(divided, ("h", "N", "N"), runtime, [configuration], lambda _: sizes, device)


@pytest.mark.parametrize(
    ("m", "n", "k", "parts"),
    [
        (64, 64, 1024, 1),  # a meeting would take longer
        (64, 64, 8000, 8),  # a tile: more parts would take longer to add up
        (240, 140, 5336, 8),  # 12 tiles on 132 multiprocessors
        (928, 208, 5136, 2),  # 60 tiles
        (640, 960, 8192, 3),  # 150 tiles: 450 parts in 4 turns, not 150 tiles in two
        (1024, 1024, 8192, 1),  # 256 tiles fill them
        (64, 64, 0, 1),
        (0, 64, 8000, 8),
    ],
)
def test_parts_fill_the_device(kernel: Kernel, m: int, n: int, k: int, parts: int) -> None:
    """In one turn, or in turns that are fuller than those of whole tiles; where neither helps there is one part."""
    configuration = PLAIN | {"BLK_K": 128, "STAGES": 4, "SPLIT_K": 0}
    variables = variables_of(GemmProblem("h", "T", "N", m, n, k), H200)
    blocks, rows, _ = kernel.launch(configuration, variables).grid
    assert (rows, blocks) == (parts, min(-(-m // 64) * -(-n // 64), 132 // parts))


@pytest.mark.parametrize("columns", [8, 16, 24, 40, 72, 80])
@pytest.mark.parametrize("ops", ["TN", "NT"])
@pytest.mark.sampled(1, nightly=7)
def test_tiles_of_few_columns(kernel: Kernel, runtime: Path, ops: str, columns: int) -> None:
    """Numbers of columns that no power of two divides well, in all ways to store results."""
    configuration = PLAIN | {"BLK_M": 192 if columns in (40, 80) else 64, "BLK_N": columns}
    configuration |= {"SPLIT_K": 1 + columns // 8 % 2, "SWAP": int(columns > 40)}
    sizes = [(72, columns, 136), (65, columns + 1, 8 * 65), (1, 1, 1)]
    check_configurations(kernel, ("b", *ops), runtime, [configuration], lambda _: sizes, FEW)


@pytest.mark.parametrize(
    ("rows", "columns", "stages", "swap", "has_room"),
    [(128, 144, 2, 0, True), (128, 144, 2, 1, True), (256, 96, 5, 0, False), (256, 96, 5, 1, False)],
)
@pytest.mark.sampled(2, nightly=2)
def test_boxes_that_do_not_fit_into_a_stage(
    kernel: Kernel, runtime: Path, rows: int, columns: int, stages: int, swap: int, has_room: bool
) -> None:
    """They have rooms of their own or, if there is no memory for these, wait for each other."""
    configuration = PLAIN | {"BLK_M": rows, "BLK_N": columns, "STAGES": stages, "SWAP": swap}
    variables = variables_of(GemmProblem("h", "T", "N", 64, 64, 64), H200)
    lines = rows + columns
    assert (kernel.launch(configuration, variables).shared_bytes > stages * lines * 128 + 4096) is has_room
    sizes = [(rows + 8, columns + 1, 130), (rows - 8, columns, 8)]
    sizes = [(n // 8 * 8, m, k) if swap else (m, n, k) for m, n, k in sizes]
    check_configurations(kernel, ("h", "T", "N"), runtime, [configuration], lambda _: sizes, FEW)


@pytest.mark.system
def test_a_batch(kernel: Kernel, runtime: Path) -> None:
    case = ("h", "N", "T")
    drawn = filter(WAYS[1], sample(kernel.with_values(SMALL), case, 64, seed=7))
    check_configurations(kernel, case, runtime, [next(drawn)], lambda c: [*sizes(c)][:2], FEW, batch=3)


EPILOGUES = [
    ("h", "bias_m", 1),
    ("b", "bias_n+relu", 1),
    ("h", "bias_m+gelu", 1),
    ("hs", "bias_n+gelu_tanh", 1),
    ("b", "silu", 1),
    ("bs", "bias_m+silu", 1),
    ("h", "bias_n+relu", 3),
    ("eb", "scales+bias_m", 1),
    ("h", "scales+bias_n+gelu", 1),
    ("es", "scales", 3),
    ("ebf", "bias_m+gelu", 1),
]


@pytest.mark.parametrize(("precision", "epilogue", "batch"), EPILOGUES)
@pytest.mark.parametrize("way", ["split", "swap", "straight"])
@pytest.mark.sampled(1, nightly=5)
def test_an_epilogue_is_applied_before_a_result_is_stored(
    kernel: Kernel, runtime: Path, precision: str, epilogue: str, batch: int, way: str
) -> None:
    configuration = PLAIN | {"BLK_N": 96, "TEAMS": 2, "RASTER_GROUP": 2}
    configuration["BLK_K"] *= 1 + precision.startswith("e")
    if way == "split" and batch == 1:
        configuration["SPLIT_K"] = 2
    configuration["SWAP"] = int(way == "swap")
    case, shapes = (precision, "T", "N"), [(65, 97, 130), (64, 96, 64), (5, 7, 0)]
    check_configurations(
        kernel, case, runtime, [configuration], lambda _: shapes[: 4 - batch], FEW, batch=batch, epilogue=epilogue
    )


BLOCK_SCALES = {"SWAP": 1, "PACK": 1, "BLK_K": 128}
BLOCK_CONFIGURATIONS = [
    {"BLK_N": 256, "SPLIT_K": 2},
    {"BLK_N": 32, "TEAMS": 2, "BLK_M": 128, "WG_M": 128, "STAGES": 4},
    {"BLK_N": 128, "BLK_K": 256, "STAGES": 3},
]


@pytest.mark.parametrize(("precision", "epilogue"), [("eb", "block_scales"), ("es", "block_scales+bias_n+relu")])
@pytest.mark.parametrize("configuration", BLOCK_CONFIGURATIONS, ids=str)
@pytest.mark.sampled(1, nightly=6)
def test_factors_of_blocks(kernel: Kernel, runtime: Path, configuration: dict, precision: str, epilogue: str) -> None:
    shapes = [(130, 70, 400), (128, 130, 1024), (129, 3, 257), (5, 7, 0)]
    configuration = PLAIN | BLOCK_SCALES | configuration
    check_configurations(
        kernel, (precision, "T", "N"), runtime, [configuration], lambda _: shapes, FEW, epilogue=epilogue
    )


@pytest.mark.parametrize("precision", ["es", "e54bf", "e45s", "ebf"])
@pytest.mark.sampled(1, nightly=4)
def test_every_pattern_of_bits_is_a_number_of_fp8_or_none(kernel: Kernel, runtime: Path, precision: str) -> None:
    """The largest numbers, the smallest, zeros of both signs, and NaN, which spoils one row and one column."""
    problem = GemmProblem(precision, "T", "N", 70, 30, 256)
    configuration = PLAIN | {"BLK_K": 128, "BLK_N": 32}
    operands = problem.operands(np, 1)
    rng = np.random.default_rng(5)
    for name, dtype in zip("AB", problem.types.operands, strict=True):
        codes = rng.integers(0, 256, operands[name].size).astype(np.uint8)
        operands[name][:] = np.where(np.isfinite(numbers(codes, dtype)), codes, codes ^ 0x40)
    operands["A"][3 * 256 + 100], operands["B"][7 * 256 + 200] = 0x7F, 0xFF
    launch = kernel.launch(configuration, variables_of(problem, FEW))
    placed = {name: place(buffer, 0) for name, buffer in operands.items()}
    build_host(kernel, runtime, configuration, problem).launch(problem, placed, launch)
    answer, bound = problem.answer(operands), problem.error_bound(operands)
    result = numbers(problem.result(placed["C"]), problem.types.result)
    is_none = np.zeros((70, 30), dtype=bool)
    is_none[3], is_none[:, 7] = True, True
    np.testing.assert_array_equal(np.isnan(result), is_none)
    error = problem.worst_error(problem.result(placed["C"])[~is_none], answer[~is_none], bound[~is_none])
    assert 0 < error <= 1


FAULTS = {
    "products that are not awaited": ("wgmma_wait<1>();", "wgmma_wait<2>();", "error .* of the bound"),
    "a stage that is not free": ("barrier_wait(&empty[place.stage], place.parity ^ 1);", "", "got more"),
    "a stage that is not full": ("barrier_wait(&full[place.stage], place.parity);", "", "never written"),
    "a stage that is never freed": (
        "if (PROMOTES ? tile < tiles_k - 1 : tile > 0) release(PROMOTES ? place.stage : last);",
        "",
        "waits for what no thread and no copy will do",
    ),
    "stores that tensor cores may not see": ("        fence_proxy();", "", "wrote without a fence after it"),
    "chunks that have not come": ("cp_async_wait<AHEAD>();", "", "while a copy to it is in flight"),
    "chunks that a neighbour has not read": (
        "__syncwarp();\n#pragma unroll\n        for",
        "for",
        "which another thread read",
    ),
    "turns that are not kept": (
        "if (TEAMS > 1) barrier_wait(&turn[team], turns);",
        "",
        "while a copy to it is in flight|wait",
    ),
}
"""A line of the source, what is there instead, and what the emulator says of it."""

PACKING_FAULTS = {
    "stores that the copy engine may not see": (
        "fence_proxy_global();\n    __syncthreads();",
        "__syncthreads();",
        "wrote without a fence after it",
    ),
    "copies before the fence": ("fence_proxy_global();\n    leave();", "leave();", "without a fence before it"),
    "numbers that are not set back": ("fence_proxy_global();\n    leave();", "fence_proxy_global();", "are left zero"),
    "chunks behind the operand": (" && from + 2 * CHUNK <= end", "", "read out of bounds"),
    "chunks before the operand": (" && from >= X", "", "read out of bounds"),
    "ends that nobody copies": ("copy_ends(first, held, whole);", "{}", "error .* of the bound"),
    "units that are not done": (
        "if (threadIdx.x == 0 && mine > 0) add_release",
        "if (threadIdx.x == 0 && mine == 0) add_release",
        "waits for what no thread",
    ),
}
STORING_FAULTS = {
    "a stage that others read": ("meet<GROUPS * WARPGROUP>(1 + team);", "{}", "without a fence after it"),
    "lines that are not whole": (
        "      wait_for_others();\n      if (!boxed) {",
        "      if (!boxed) {",
        "thread .*(wrote|read) since the last barrier|without a fence after it",
    ),
    "lines that are not sent": (
        "        wait_for_others();\n      } else if",
        "      } else if",
        "another thread read since the last barrier|error .* of the bound",
    ),
    "stores that the copy engine may not see": (
        "      fence_proxy();\n      wait_for_others();",
        "      wait_for_others();",
        "without a fence after it",
    ),
}
FP8_FAULTS = {
    "promoted sums that are not awaited": ("wgmma_wait<0>();\n      hold(few);", "hold(few);", "in flight"),
    "sums that begin with those before": ("wgmma<false, false, false>", "wgmma<false, false>", "error .* of the bound"),
    "a stage that is free too early": (
        "PROMOTES ? tile < tiles_k - 1 : tile > 0",
        "true",
        "got more|without a fence|in flight",
    ),
    "factors of rows for columns": ("scale_n + beside, m", "scale_m + beside, m", "error .* of the bound|bounds"),
}
BLOCK_FAULTS = {
    "factors of the first steps for all": ("    of_rows += rows;\n", "", "error .* of the bound"),
    "factors of a block of columns for all": ("of_columns + i * steps", "of_columns", "error .* of the bound"),
    "factors of the first eight rows for all": (
        "i / 2 * HIGH + i % 2 * 8;\n      row",
        "0;\n      row",
        "error .* of the bound",
    ),
    "factors behind the last steps": ("left > 0 && down", "down", "out of bounds"),
    "factors behind the last rows": ("left > 0 && down < lower", "left > 0", "out of bounds"),
    "factors behind the last columns": ("left > 0 && (i == 0 || i < blocks)", "left > 0", "out of bounds"),
}
BOX_FAULTS = {
    "a box that is not whole": STORING_FAULTS["lines that are not whole"],
    "a box that the copy engine may not see": STORING_FAULTS["stores that the copy engine may not see"],
    "a stage whose box is not read": (
        "if (Outbox::is_sender()) wait_until_read();\n      __syncwarp();\n      release",
        "__syncwarp();\n      release",
        "error .* of the bound|in flight|never written|read by",
    ),
    "a box that is never read": (
        "    if (Outbox::BOXED && Outbox::is_sender()) wait_until_read();\n",
        "",
        "ends before copies",
    ),
}
FAULTS |= PACKING_FAULTS | STORING_FAULTS | BOX_FAULTS | FP8_FAULTS | BLOCK_FAULTS
FAULTS["boxes whose lines end within 16 bytes"] = (
    " && (SWAP ? n : m) * SIZE % 16 == 0",
    "",
    "the padding of C was written|written out of bounds",
)


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.sampled(2, nightly=10)
def test_a_planted_fault_is_found(kernel: Kernel, runtime: Path, tmp_path: Path, fault: str) -> None:
    line, instead, message = FAULTS[fault]
    source = (kernel.folder / "gemm_wgmma.cu").read_text()
    assert line in source
    (tmp_path / "gemm_wgmma.cu").write_text(source.replace(line, instead))
    configuration = PLAIN | {"TEAMS": 2, "STAGES": 2, "PACK": int(fault in PACKING_FAULTS)}
    configuration["TEAMS"] = 1 if fault in BOX_FAULTS else 2
    broken, device = replace(kernel, folder=tmp_path), replace(H200, sm_count=1 + configuration["PACK"])
    case, epilogue = ("hs" if fault in STORING_FAULTS else "h", "N", "T"), ""
    if fault in FP8_FAULTS:
        configuration["BLK_K"], case, epilogue = 128, ("eb", "T", "N"), "scales"
    if fault in BLOCK_FAULTS:
        configuration |= BLOCK_SCALES | {"BLK_N": 256}
        case, epilogue = ("es", "T", "N"), "block_scales"
    sizes = [(136 if fault in BOX_FAULTS else 300 if fault in BLOCK_FAULTS else 130, 130, 300)]
    with pytest.raises(pytest.fail.Exception, match=message):
        check_configurations(broken, case, runtime, [configuration], lambda _: sizes, device, epilogue=epilogue)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES + FP8, ids="".join)
def test_many_random_configurations(kernel: Kernel, runtime: Path, case: tuple[str, str, str]) -> None:
    seed = 100 + (CASES + FP8).index(case)
    run(kernel, runtime, case, list(sample(kernel.with_values(SMALL), case, 8, seed=seed)))
