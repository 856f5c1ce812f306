"""Seconds to 99 % and to the end on recorded spaces, where everything is measured if that is cheap and where it is not.

The search as shipped, with its stopping rule and 16 compilers, on the clock of ``mltune compare``; and the same search
with a budget of trials that does not suffice for everything. Some minutes on 16 cores.

    OMP_NUM_THREADS=1 python benchmarks/whole_spaces.py [--seeds 3] [--jobs 16] [--only NAME,...]
"""

from __future__ import annotations

import math
import statistics
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from typing import Any

import numpy as np
from harness import RESULTS, SEARCHING, parser_of, provenance, write

from mltune.comparison.baselines import _Measuring
from mltune.comparison.clock import ended_seconds
from mltune.comparison.simulation import RecordingSource, Simulation
from mltune.cost.features import Features
from mltune.cost.regressors import one_thread
from mltune.dataset.dataset import list_datasets
from mltune.kernel.placed import PlacedKernel
from mltune.search.search import KernelSearch, SearchSettings

COMPILERS = 16
MEDIANS = {"measured": 0, "end_s": 1, "near_s": 2, "best": 3}
"""What the table has of each space, and with how many digits."""


def play(name: str, seed: int, trials: int | None) -> dict[str, Any]:
    """Search a recorded space until the search ends; a budget of too few trials prevents that all is measured."""
    recording = RecordingSource(name).load()
    simulation = Simulation(recording, recording.space.count + 1)
    simulation.budget = recording.space.count + 1  # the search ends by itself
    features = Features(PlacedKernel(recording.kernel, recording.problem, recording.device))
    settings = SearchSettings(seed=seed, adapts=True, compilers=COMPILERS, trials=trials)
    search = KernelSearch(simulation.space, features, settings)
    _Measuring(simulation, search, COMPILERS, after_compile=True).play()
    trace = simulation.trace()
    ends_s = ended_seconds(trace, recording, COMPILERS)
    order = np.argsort(ends_s, kind="stable")
    best_s = np.minimum.accumulate(np.fmin(recording.median_s[trace.indices[order]], np.inf))
    near = np.flatnonzero(best_s <= recording.optimum_s / 0.99)
    return {
        "space": name,
        "seed": seed,
        "count": recording.space.count,
        "measured": len(trace.indices),
        "end_s": float(ends_s.max()),
        "near_s": float(ends_s[order][near[0]]) if len(near) else math.inf,
        "best": recording.optimum_s / float(best_s[-1]),
        "whole": search.whole.since is not None,
        "detail": search.whole.detail,
        "verdict": search.verdict,
    }


def both(place: tuple[str, int]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a search that measures everything where it is cheap, and one that never does."""
    with one_thread():
        shipped = play(*place, None)
        return shipped, play(*place, 0) if shipped["whole"] else shipped


def summary(pairs: list[tuple[dict[str, Any], dict[str, Any]]]) -> dict[str, Any]:
    """Return the medians of each space, without everything and with it, ranges of Triton's, and ratios."""
    spaces: dict[str, dict[str, Any]] = {}
    for name in dict.fromkeys(shipped["space"] for shipped, _ in pairs):
        runs = [pair for pair in pairs if pair[0]["space"] == name]
        medians = {key: [statistics.median(run[at][key] for run in runs) for at in (1, 0)] for key in MEDIANS}
        whole = sum(shipped["whole"] for shipped, _ in runs)
        spaces[name] = {"count": runs[0][0]["count"], **medians, "runs": len(runs), "whole": whole}
    ratios = {
        key: {name: space[key][1] / space[key][0] for name, space in spaces.items() if space["whole"] == space["runs"]}
        for key in ("end_s", "near_s")
    }
    kernels = {manifest.name: manifest.kernel for manifest in list_datasets()}
    triton = [space for name, space in spaces.items() if kernels[name].startswith("triton_")]
    ranges = {
        key: [f([space[key][at] for space in triton]) for at in (0, 1) for f in (min, max)] for key in MEDIANS if triton
    }
    means = {
        key: {"mean": statistics.geometric_mean(found.values()), "most": max(found.values()), "spaces": len(found)}
        for key, found in ratios.items()
        if found
    }
    return {"spaces": spaces, "triton": ranges, "seconds_with_everything": means}


def table(spaces: dict[str, dict[str, Any]]) -> str:
    """Return the medians of each space as Markdown."""
    lines = [
        "| space | configurations | measured | seconds to the end | seconds to 99 % | best found | everything |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for name, space in spaces.items():
        cells = [", ".join(f"{value:.{digits}f}" for value in space[key]) for key, digits in MEDIANS.items()]
        whole = f"{space['whole']} of {space['runs']}"
        lines.append(f"| {name} | {space['count']:,} | {' | '.join(cells)} | {whole} |")
    return "\n".join(lines)


def main() -> None:
    """Play all spaces, and write the figures: without everything, with it."""
    parser = parser_of(__doc__, RESULTS / "whole_spaces.json")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--only", default="")
    arguments = parser.parse_args()
    names = [manifest.name for manifest in list_datasets()]
    names = [name for name in names if any(part in name for part in arguments.only.split(","))]
    with ProcessPoolExecutor(arguments.jobs) as pool:
        pairs = []
        for pair in pool.map(both, product(names, range(arguments.seeds))):
            pairs.append(pair)
            medians = summary(pairs)
            head = provenance(*SEARCHING, of="one core; thinking is its processor time")
            write(arguments.output, {**head, **medians, "searches": pairs}, table(medians["spaces"]))
    print(table(medians["spaces"]))


if __name__ == "__main__":
    main()
