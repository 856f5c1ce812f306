"""Where searches end by the stopping rule, replayed on recorded and made spaces, beside a sooner one.

Every search goes on until both rules have ended it: what it measures is the same, and where each rule ends it follows
from that. Recorded spaces are searched as described and by their parameters alone, made spaces
(`tests/hidden_optima.py`) by their parameters.

- ``now``: :func:`mltune.search.stopping.little_gained`;
- ``sixty``: a certain model needs 60 measurements at least in place of 100, and is certain up to a sum of .02.

``near`` is the number of measurements with the first within 1 % of the best recorded; none where there was no such one.

    OMP_NUM_THREADS=1 python benchmarks/stops.py [--seeds 30] [--spaces NAME,NAME] [--made 5] [--part all]
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from harness import RESULTS, SEARCHING, parser_of, provenance, write
from numpy.typing import NDArray

from mltune.cost.features import Features
from mltune.dataset.dataset import list_datasets, load_dataset
from mltune.dataset.replay import bare_kernel, recorded_kernel
from mltune.kernel.placed import PlacedKernel
from mltune.kernel.reader import is_bundle
from mltune.kernel.space import TableSpace
from mltune.records.trial import TrialState
from mltune.search import stopping
from mltune.search.search import KernelSearch, SearchSettings
from mltune.search.stopping import GAIN, little_gained

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
from hidden_optima import FAMILIES, hidden, play, search_of

CERTAIN, SURE = (1e-5, 2e-2), 60
"""Of the other rule: when a model is certain, and how many measurements are then enough at least."""


def ended_sooner(scores: NDArray[np.float64], count: int, hopes: float) -> bool:
    """Return whether the rule with a least wait of 60 ends a search."""
    fewest = SURE if CERTAIN[0] < hopes < CERTAIN[1] else stopping.FEWEST
    with patch.multiple(stopping, CERTAIN=CERTAIN, FEWEST=fewest):
        return bool(little_gained(scores, count, hopes))


def searches(names: list[str], seeds: list[int], made: int) -> Iterator[dict[str, Any]]:
    """Yield how the searches of recorded and of made spaces ended."""
    for name, seed in ((name, seed) for seed in seeds for name in names):
        dataset = load_dataset(name)
        manifest, space = dataset.manifest, TableSpace(dataset.columns)
        times_s = np.where(dataset.states == TrialState.OK, dataset.numbers("median_s"), np.nan)
        for way, kernel in (("described", recorded_kernel(manifest)[0]), ("parameters", bare_kernel(manifest))):
            features = Features(PlacedKernel(kernel, manifest.problem, manifest.device))
            search = KernelSearch(space, features, SearchSettings(seed=seed, adapts=True, stop=False))
            yield {"space": name, "way": way, "seed": seed, **ends(search, times_s)}
    for family, number in ((family, number) for number in range(made) for family in FAMILIES):
        table = hidden(family, seeds[0] + number)
        search = search_of(table, seed=seeds[0] + number, stop=False)
        yield {"space": family, "way": "made", "seed": seeds[0] + number, **ends(search, np.exp(-table.speed))}


def ends(search: KernelSearch, times_s: NDArray[np.float64]) -> dict[str, Any]:
    """Return after how many measurements each rule ends a search, and the best by then as a share of the best."""
    speed, order = -np.log(times_s), play(search, times_s, 1)
    ended: dict[str, int] = {}
    while len(ended) < 2 and len(more := play(search, times_s, 1)):
        scores, hopes = speed[order], search._planner.hopes
        for rule, ends_now in (("now", little_gained), ("sixty", ended_sooner)):
            if rule not in ended and ends_now(scores, len(speed), hopes):
                ended[rule] = len(order)
        order = np.concatenate([order, more])
    shares = np.fmax.accumulate(np.exp(speed[order] - np.nanmax(speed)))
    near = np.flatnonzero(shares > 1 / (1 + GAIN))
    return {"near": int(near[0]) + 1 if len(near) else None} | {
        rule: [count, round(float(shares[count - 1]), 4)]
        for rule, count in ((rule, ended.get(rule, len(order))) for rule in ("now", "sixty"))
    }


def summary(results: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the ends by way and rule."""
    ways: dict[str, Any] = {}
    for way in (*dict.fromkeys(one["way"] for one in results), "all"):
        mine = [one for one in results if way in (one["way"], "all")]
        ways[way] = {"searches": len(mine), "first": float(np.median([one["near"] or math.inf for one in mine]))}
        for rule in ("now", "sixty"):
            after, share = np.array([one[rule] for one in mine]).T
            facts = {"median": np.median(after), "mean": after.mean(), "most": after.max(), "least_share": share.min()}
            within = int((share > 1 / (1 + GAIN)).sum())
            ways[way][rule] = {**{name: round(float(fact), 3) for name, fact in facts.items()}, "within": within}
    return ways


def table(ways: dict[str, Any]) -> str:
    """Return the ends by way and rule as Markdown."""
    lines = ["| searches | first within 1 % | rule | ended after (median, mean, most) | within 1 % | least |"]
    lines.append("| --- | ---: | --- | --- | ---: | ---: |")
    for way, facts in ways.items():
        for rule in ("now", "sixty"):
            of = facts[rule]
            lines.append(
                f"| {facts['searches']} {way} | {facts['first']:.0f} | {rule} | "
                f"{of['median']:.0f}, {of['mean']:.0f}, {of['most']:.0f} | {of['within']} | {of['least_share']:.3f} |"
            )
    return "\n".join(lines)


def main() -> None:
    """Replay the searches, and write the rows and the table."""
    parser = parser_of(__doc__, RESULTS / "stops.json")
    parser.add_argument("--seeds", default="30")
    parser.add_argument("--spaces", default="")
    parser.add_argument("--made", type=int, default=0)
    parser.add_argument("--part", default="all", help="part of the results, the others of which stay as they are")
    arguments: Any = parser.parse_args()
    names = (
        arguments.spaces.split(",")
        if arguments.spaces
        else [one.name for one in list_datasets() if is_bundle(one.kernel)]
    )
    rows = []
    for row in searches(names, [int(seed) for seed in arguments.seeds.split(",")], arguments.made):
        print(row, file=sys.stderr, flush=True)
        rows.append(row)
    parts = json.loads(arguments.output.read_text())["parts"] if arguments.output.exists() else {}
    parts[arguments.part] = {**provenance(*SEARCHING), "summary": summary(rows), "searches": rows}
    text = "\n\n".join(f"`{part['command']}`, {part['date']}\n\n{table(part['summary'])}" for part in parts.values())
    write(arguments.output, {"parts": parts}, text)
    print(text)


if __name__ == "__main__":
    main()
