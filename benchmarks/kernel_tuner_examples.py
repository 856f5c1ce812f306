"""What compiler parameters gain on unchanged examples of Kernel Tuner: tunes on a GPU with and without, in turns.

The folder has the sources `examples/cuda/*.cu` of github.com/KernelTuner/kernel_tuner, which are not part of this
repository. Sizes, parameters, restrictions and grids are those of the scripts beside them; data are random. Each tune
is a call of :func:`mltune.tune_kernel` in a process of its own with an empty cache of cubins, as a user's first one.

    python benchmarks/kernel_tuner_examples.py --examples FOLDER --time 10 --seeds 0,1,2 --output FILE
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import harness
import numpy as np

AFTER_S = (2, 5, 10)
"""Seconds after the beginning of a call at which the best so far is noted."""

SAME = 1.005
"""Ratio of two times that count as the same result."""

POWERS = [1, 2, 4, 8, 16, 32]
TILED = {"grid_div_x": ["block_size_x", "tile_size_x"], "grid_div_y": ["block_size_y", "tile_size_y"]}


def matmul(rng: np.random.Generator) -> dict[str, Any]:
    """Return the call that tunes a product of matrices of 512 by 512."""
    a, b = rng.standard_normal((2, 512, 512), np.float32)
    return {
        "kernel_name": "matmul_kernel",
        "problem_size": (512, 512),
        "arguments": [np.zeros_like(a), a, b],
        "tune_params": {
            "block_size_x": [16, 32, 64],
            "block_size_y": POWERS,
            "tile_size_x": POWERS[:4],
            "tile_size_y": POWERS[:4],
        },
        "restrictions": ["block_size_x==block_size_y*tile_size_y"],
        **TILED,
    }


def convolution(rng: np.random.Generator) -> dict[str, Any]:
    """Return the call that tunes a filter of 17 by 17 over an image of 4096 by 4096."""
    weights = rng.standard_normal(17 * 17, np.float32)
    image = rng.standard_normal(4112 * 4112, np.float32)
    return {
        "kernel_name": "convolution_kernel",
        "problem_size": (4096, 4096),
        "arguments": [np.zeros(4096 * 4096, np.float32), image, weights],
        "tune_params": {
            "block_size_x": [16 * i for i in range(1, 9)],
            "block_size_y": POWERS,
            "tile_size_x": POWERS[:3],
            "tile_size_y": POWERS[:3],
        },
        "cmem_args": {"d_filter": weights},
        **TILED,
    }


def pnpoly(rng: np.random.Generator) -> dict[str, Any]:
    """Return the call that tunes which of 2e7 points are in a polygon of 600 vertices on a circle.

    Points on a level with a vertex may have another answer by another method, so the circle is the measure: all but
    three in ten thousand must be on the right side of it. The script also times transfers; here is the kernel alone.
    """
    count, angles = 20_000_000, np.sort(2 * np.pi * rng.random(600))[::-1]
    points = rng.standard_normal((count, 2), np.float32)
    vertices = np.stack([np.cos(angles), np.sin(angles)], 1).astype(np.float32)
    before = np.roll(vertices, 1, axis=0)
    inside = np.square(points).sum(1) < 1
    return {
        "kernel_name": "cn_pnpoly",
        "problem_size": (count, 1),
        "arguments": [np.zeros(count, np.int32), points, np.int32(count)],
        "tune_params": {
            "block_size_x": [32 * i for i in range(1, 32)],
            "tile_size": [1, *(2 * i for i in range(1, 11))],
            "between_method": [0, 1, 2, 3],
            "use_precomputed_slopes": [0, 1],
            "use_method": [0, 1],
        },
        "grid_div_x": ["block_size_x", "tile_size"],
        "cmem_args": {
            "d_vertices": vertices,
            "d_slopes": (before[:, 0] - vertices[:, 0]) / (before[:, 1] - vertices[:, 1]),
        },
        "answer": [inside.astype(np.int32), None, None],
        "verify": lambda answer, found, atol=None: np.mean(answer[0] != found[0]) < 3e-4,
    }


def expdist(rng: np.random.Generator) -> dict[str, Any]:
    """Return the call that tunes a cost function of two sets of 2000 points; each block writes a part of the sum."""
    count, spare = np.int32(2000), 3000
    a = rng.standard_normal(2 * spare)
    b = a + 1e-5 * rng.standard_normal(2 * spare)
    scale_a, scale_b = np.abs(0.01 * rng.standard_normal((2, spare)))
    apart = sum(np.subtract.outer(a[at : at + count], b[at : at + count]) ** 2 for at in (0, count))
    total = np.exp(-apart / np.add.outer(scale_a[:count], scale_b[:count])).sum()
    parts = np.zeros(-(-count // 32) * count)
    return {
        "kernel_name": "ExpDist",
        "problem_size": (count, count),
        "arguments": [a, b, count, count, scale_a, scale_b, parts],
        "tune_params": {
            "block_size_x": [32, 64, 128, 256, 512],
            "block_size_y": POWERS,
            "tile_size_x": POWERS[:4],
            "tile_size_y": POWERS[:4],
            "use_shared_mem": [0, 1],
        },
        "answer": [*[None] * 6, np.array([total])],
        "verify": lambda answer, found, atol=None: np.isclose(answer[6].sum(), found[6].sum()),
        **TILED,
    }


def stencil(rng: np.random.Generator) -> dict[str, Any]:
    """Return the call that tunes a stencil of five points over 4096 by 2048."""
    grid = rng.standard_normal(4096 * 2048, np.float32)
    return {
        "kernel_name": "stencil_kernel",
        "problem_size": (4096, 2048),
        "arguments": [grid.copy(), grid],
        "tune_params": {"block_size_x": [32 * i for i in range(1, 9)], "block_size_y": POWERS},
        "grid_div_x": ["block_size_x"],
        "grid_div_y": ["block_size_y"],
    }


def zeromeanfilter(rng: np.random.Generator) -> dict[str, Any]:
    """Return the call that tunes the vertical filter, in place, of an image of 3539 by 4391."""
    height, width = np.int32(4391), np.int32(3539)
    return {
        "kernel_name": "computeMeanVertically",
        "problem_size": (width, 1),
        "arguments": [height, width, rng.standard_normal(height * width, np.float32)],
        "tune_params": {"block_size_x": [32 * i for i in range(1, 9)], "block_size_y": POWERS},
        "grid_div_x": ["block_size_x"],
        "grid_div_y": [],
    }


CASES: dict[str, Callable[[np.random.Generator], dict[str, Any]]] = {
    one.__name__: one for one in (matmul, convolution, pnpoly, expdist, stencil, zeromeanfilter)
}


def tune(case: str, seed: int, budget_s: float, examples: Path, *, variants: bool) -> dict[str, Any]:
    """Run one tune in this process; return what it found."""
    import mltune

    given = CASES[case](np.random.default_rng(0))
    begun, call = time.time(), time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        result = mltune.tune_kernel(
            kernel_source=examples / f"{case}.cu", time=budget_s, seed=seed, variants=variants, stop=False,
            wisdom="none", progress=None, run=f"{folder}/run", **given,
        )  # fmt: skip
        call_s = time.perf_counter() - call
        trace = harness.improvements(result.records, begun)
        return {
            "case": case,
            "seed": seed,
            "budget_s": budget_s,
            "variants": variants,
            "trials": len(result.records),
            "states": {name: count for name, count in result.counts.items() if count},
            "best_s": result.best_time_s,
            "configuration": result.best_config,
            "after_s": harness.best_after(trace, AFTER_S),
            "trace": trace,
            "paired": paired(result.results, [*given["tune_params"]]),
            "call_s": call_s,
            "seconds": dict(result.seconds),
        }


def paired(results: Iterable[dict[str, Any]], parameters: list[str]) -> list[float]:
    """Return for each configuration that was also measured in another variant: its default's time by its fastest's."""
    from mltune.kernel.compiler_parameters import BUILT_IN

    times: dict[tuple[Any, ...], dict[bool, float]] = {}
    for one in results:
        usual = all(one.get(name, values[0]) == values[0] for name, values in BUILT_IN.items())
        of_one = times.setdefault(tuple(one[name] for name in parameters), {})
        of_one[usual] = min(one["time"], of_one.get(usual, one["time"]))
    return [one[True] / min(one.values()) for one in times.values() if len(one) > 1]


def table(rows: list[dict[str, Any]]) -> str:
    """Return a line for each kernel as Markdown: both arms, the gain, and the seconds to the same result."""
    lines = [
        "| kernel | without, us | with, us | gain of each seed | seconds to the best without: without, with "
        "| to the best with: without, with | gain of a configuration: median, most (count) |",
        "|---|---|---|---|---|---|---|",
    ]
    gains: list[float] = []
    for case in dict.fromkeys(row["case"] for row in rows):
        arms: list[dict[int, dict[str, Any]]] = [{}, {}]
        for row in rows:
            if row["case"] == case and row["best_s"]:
                arms[row["variants"]][row["seed"]] = row
        both = [(arms[0][seed], arms[1][seed]) for seed in arms[0] if seed in arms[1]]
        found = [without["best_s"] / with_["best_s"] for without, with_ in both]
        within = [gain for row in arms[1].values() for gain in row["paired"]]
        cells = [case, *(", ".join(f"{1e6 * row['best_s']:.1f}" for row in arm.values()) for arm in arms)]
        cells.append(", ".join(f"{gain:.3f}" for gain in found))
        cells += ["; ".join(_reached(pair, pair[of]["trace"][-1][1]) for pair in both) for of in (0, 1)]
        cells.append(f"{statistics.median(within):.3f}, {max(within):.3f} ({len(within)})" if within else "-")
        lines.append(f"| {' | '.join(cells)} |")
        gains += found
    if gains:
        lines += ["", f"Gain of all tunes: median {statistics.median(gains):.3f}, most {max(gains):.3f}."]
    return "\n".join(lines)


def _reached(pair: Iterable[dict[str, Any]], target_s: float) -> str:
    """Return the first seconds at which tunes had a kernel as fast as the target."""
    seconds = [next((at for at, best_s in row["trace"] if best_s <= SAME * target_s), None) for row in pair]
    return ", ".join("never" if at is None else f"{at:.1f}" for at in seconds)


def main() -> None:
    """Run all tunes, or one in this process."""
    parser = harness.parser_of(__doc__)
    parser.add_argument("--examples", type=Path, required=True, help="folder of Kernel Tuner's examples/cuda")
    parser.add_argument("--cases", default=",".join(CASES))
    parser.add_argument("--time", type=float, default=10.0, help="seconds")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--arms", choices=harness.ARMS, default="both")
    parser.add_argument("--one", nargs=3, metavar=("CASE", "SEED", "VARIANTS"), help="one tune, in this process")
    options = parser.parse_args()
    if options.one:
        case, seed, variants = options.one
        row = tune(case, int(seed), options.time, options.examples, variants=variants == "True")
        print(json.dumps({"head": harness.gpu_provenance(), **row}))
        return
    given, arms = ["--time", options.time, "--examples", options.examples], harness.ARMS[options.arms]
    head, rows = harness.tunes_in_turns(__file__, options.cases.split(","), options.seeds, arms, given, options.output)
    harness.write(options.output, {**head, "all": rows}, table(rows))
    print(table(rows))


if __name__ == "__main__":
    main()
