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


def play(name: str, seed: int, trials: int | None) -> dict[str, Any]:
    """Search a recorded space until the search ends; a budget of too few trials prevents that all is measured."""
    recording = RecordingSource(name).load()
    simulation = Simulation(recording, recording.space.count + 1)
    simulation.budget = recording.space.count + 1  # the search ends by itself
    features = Features(PlacedKernel(recording.kernel, recording.problem, recording.device))
    settings = SearchSettings(seed=seed, adapts=True, compilers=COMPILERS, trials=trials)
    search = KernelSearch(simulation.space, features, settings)
    _Measuring(simulation, search, after_compile=True).play()
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


def table(pairs: list[tuple[dict[str, Any], dict[str, Any]]]) -> str:
    """Return the medians of each space as Markdown."""
    lines = [
        "| space | configurations | measured | seconds to the end | seconds to 99 % | best found | everything |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for name in dict.fromkeys(shipped["space"] for shipped, _ in pairs):
        runs = [pair for pair in pairs if pair[0]["space"] == name]

        def medians(key: str, digits: int, runs: list[Any] = runs) -> str:
            return ", ".join(f"{statistics.median(run[at][key] for run in runs):.{digits}f}" for at in (1, 0))

        whole = sum(shipped["whole"] for shipped, _ in runs)
        cells = [medians(key, digits) for key, digits in (("measured", 0), ("end_s", 1), ("near_s", 2), ("best", 3))]
        lines.append(f"| {name} | {runs[0][0]['count']:,} | {' | '.join(cells)} | {whole} of {len(runs)} |")
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
            document = {**provenance(*SEARCHING, of="one core; thinking is its processor time"), "searches": pairs}
            write(arguments.output, document, table(pairs))
    print(table(pairs))


if __name__ == "__main__":
    main()
