"""Skips of the gates on random proposals, their errors, and the end of a search by the stopping rule.

On every recorded space, for several numbers of random measurements: the model and the gate are fitted to them and
decide on others of the space, of which the truth is known.

- covered: share below the end of the interval (95 % promised), and below the end that the gate decides by.
- skipped: share of the others that the gate skips.
- false: share of the skipped that was faster than the best measured.
- missed: share of what was faster than the best measured that is skipped.

Then the searches themselves, of every recorded space as described and by its parameters alone, and of made spaces
(`tests/hidden_optima.py`). After 50, 100 and 200 measurements: what the gate would skip of everything untried, of the
next 50 that were measured, and of what is better than the best so far; also by the rules that it is made of. And where
the rule of mltune/search/stopping.py ends the search, how near the best is then to the optimum, and whether as many
measurements again gain 1 %.

    OMP_NUM_THREADS=1 python benchmarks/skip.py [--seeds 4] [--searches 4] [--spaces NAME,NAME] [--output skip.json]
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from cost_models import Space, spaces
from harness import SEARCHING, parser_of, provenance, write
from numpy.typing import NDArray

from mltune.cost.features import Features
from mltune.cost.regressors import ExtraTreesModel, one_thread
from mltune.dataset.dataset import list_datasets, load_dataset
from mltune.dataset.replay import bare_kernel, recorded_kernel
from mltune.kernel.placed import PlacedKernel
from mltune.kernel.space import TableSpace
from mltune.records.trial import TrialState
from mltune.search.gates import FIRST, Gate, Gates
from mltune.search.history import History, Results
from mltune.search.search import KernelSearch, SearchSettings
from mltune.search.stopping import GAIN, little_gained

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
from hidden_optima import FAMILIES, hidden, play, search_of

Floats = NDArray[np.float64]

SIZES = (50, 100, 200, 400, 1000)
LOOKED_AT = (50, 100, 200)
MADE = 20
"""Made spaces of each family."""

EXAMINED = 4000
"""Most untried configurations that a gate judges, besides those that are better than the best."""


def judge(space: Space, gate_name: str, size: int, seed: int) -> dict[str, float]:
    """Fit and calibrate on some rows, judge the others."""
    X = space.before if gate_name == "before_compile" else space.after
    known, others = space.split(size, seed)
    model = ExtraTreesModel(random_state=seed).fit(X[known], space.speed[known])
    gate = Gate(gate_name)
    gate.calibrate(space.speed[known], *model.unseen())
    mean, spread = model.predict(X[others])
    truth, speed = space.speed[others], space.speed[known]
    skip, optimistic = gate.decide(mean, spread, float(np.nanmax(speed[:FIRST], initial=-np.inf)))
    ran = np.isfinite(truth)
    better = truth > np.nanmax(speed)
    return {
        "covered": float((truth <= gate.interval.end(mean, spread))[ran].mean()),
        "covered_cautious": float((truth <= optimistic)[ran].mean()),
        "others": len(truth),
        "skipped": int(skip.sum()),
        "better": int(better.sum()),
        "false": int((better & skip).sum()),
    }


def searches(names: str, seeds: int) -> Iterator[dict[str, Any]]:
    """Search recorded and made spaces; yield what gates would skip, and how the searches ended."""
    known = names.split(",") if names else [one.name for one in list_datasets() if one.kind != "pruned"]
    for name, seed in ((name, seed) for name in known for seed in range(seeds)):
        dataset = load_dataset(name)
        manifest = dataset.manifest
        times_s = np.where(dataset.states == TrialState.OK, dataset.numbers("median_s"), np.nan)
        for way, kernel in (("described", recorded_kernel(manifest)[0]), ("parameters", bare_kernel(manifest))):
            features, space = (
                Features(PlacedKernel(kernel, manifest.problem, manifest.device)),
                TableSpace(dataset.columns),
            )
            search = KernelSearch(space, features, SearchSettings(seed=seed, adapts=True, stop=False))
            for found in searched(search, space, features, times_s, seed):
                yield {"space": name, "family": f"{manifest.kernel}, {way}", "seed": seed, **found}
    for family, number in ((family, number) for family in FAMILIES if not names for number in range(MADE)):
        made = hidden(family, number)
        search = search_of(made, seed=number, stop=False)
        for found in searched(search, search.space, search.features, np.exp(-made.speed), number):
            yield {"space": f"{family} {number}", "family": family, "seed": number, **found}


def searched(search: KernelSearch, space: TableSpace, features: Features, times_s: Floats, seed: int) -> Iterator[dict]:
    """Search on after the end, and yield what is judged of one search."""
    speed, order = -np.log(times_s), np.empty(0, dtype=np.int64)
    ended, reason = 0, ""
    while len(order) < (2 * ended or space.count) and len(more := play(search, times_s, 1)):
        if not reason and (reason := little_gained(speed[order], space.count, search._planner.hopes)):
            ended = len(order)
        order = np.concatenate([order, more])
    for rows in LOOKED_AT:
        if rows + 50 <= len(order):
            yield {"rows": rows, **gated(space, features, speed, order, rows, seed)}
    best, later = (float(np.nanmax(speed[order[:most]])) for most in (ended or len(order), len(order)))
    found = float(np.exp(best - np.nanmax(speed)))
    yield {"ended": ended, "found": found, "false": bool(later - best >= np.log1p(GAIN))}


def gated(
    space: TableSpace, features: Features, speed: Floats, order: NDArray[np.int64], rows: int, seed: int
) -> dict[str, Any]:
    """Count what the gate before compiling would skip after so many measurements."""
    tried, best = order[:rows], float(np.nanmax(speed[order[:rows]]))
    untried = np.setdiff1d(np.arange(space.count), tried)
    better, following = untried[speed[untried] > best], order[rows : rows + 50]
    some = np.random.default_rng(seed).permutation(untried)[:EXAMINED]
    judged = np.unique(np.concatenate([some, better, following]))
    nothing = np.empty(0, dtype=np.int64)
    history = History(tried, speed[tried], nothing, np.empty(0), nothing, nothing, set(tried.tolist()))
    gates = Gates(features, Results(), space, seed).following(history)
    gate, model = gates._fitted("before_compile")
    columns = space.rows(judged)
    near = gates.near(columns)
    skips: dict[str, NDArray[np.bool_]] = {name: np.zeros(len(judged), dtype=bool) for name in RULES}
    if model is not None and not gate.is_open:
        mean, spread = model.predict(features.before(columns))
        measured = speed[tried][np.isfinite(speed[tried])]
        below_best, below_first = (gate.decide(mean, spread, one)[0] for one in (best, measured[:FIRST].max()))
        skips = dict(zip(RULES, (below_best, below_best & ~near, below_first, below_first & ~near), strict=True))
    skips = {"all": np.ones(len(judged), dtype=bool), **skips}
    return {
        rule: [int(skip[np.isin(judged, part)].sum()) for part in (better, some, following)]
        for rule, skip in skips.items()
    }


RULES = ("below the best", "and not near", "below the first", "both")
"""The rules of the gate: the one before, with each of the two that it has now, and with both."""


def searched_table(results: list[dict[str, Any]]) -> str:
    """Return what the searches say as Markdown: skips by family and rule, and ends by family."""
    families = list(dict.fromkeys(one["family"] for one in results))
    lines = ["| rows | rule | of better | of the others | of the next 50 |", "|---|---|---|---|---|"]
    looked = [one for one in results if "rows" in one]
    for rows in LOOKED_AT:
        some = [one for one in looked if one["rows"] == rows]
        better, others, following = _sums(some, "all")
        for rule in RULES:
            found = _sums(some, rule)
            shares = f"{found[1] / max(others, 1):.2f} | {found[2] / max(following, 1):.2f}"
            lines.append(f"| {rows} | {rule} | {found[0]} of {better} | {shares} |")
    lines += ["", "| space | better skipped: before, now | next 50 skipped: before, now |", "|---|---|---|"]
    for family in families:
        mine = [one for one in looked if one["family"] == family]
        total, old, new = (_sums(mine, rule) for rule in ("all", RULES[0], RULES[-1]))
        shares = f"{old[2] / max(total[2], 1):.2f}, {new[2] / max(total[2], 1):.2f}"
        lines.append(f"| {family} | {old[0]}, {new[0]} of {total[0]} | {shares} |")
    lines += [
        "",
        "| space | ended | after (median, most) | found (mean, least) | at least .99 | false |",
    ]
    lines += ["|---|---|---|---|---|---|"]
    for family in [*families, "all"]:
        ends = [one for one in results if "ended" in one and family in (one["family"], "all")]
        stopped = [one for one in ends if one["ended"]]
        after, found = ([one[key] for one in stopped] for key in ("ended", "found"))
        lines.append(
            f"| {family} | {len(stopped)} of {len(ends)} | {np.median(after):.0f}, {max(after)} | "
            f"{np.mean(found):.3f}, {min(found):.3f} | {sum(one >= 0.99 for one in found)} | "
            f"{sum(one['false'] for one in stopped)} |"
        )
    return "\n".join(lines)


def _sums(results: list[dict[str, Any]], rule: str) -> list[int]:
    """Return how many a rule skips of what is better, of the others and of the next 50."""
    return [sum(one[rule][part] for one in results) for part in range(3)]


def table(results: list[dict[str, Any]]) -> str:
    """Return totals over spaces and seeds as Markdown, and the worst space's share of false skips."""
    lines = [
        "| gate | rows | covered (spaces from, to) | decided by | skipped | false | worst space | missed |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for gate in ("before_compile", "after_compile"):
        for size in SIZES:
            some = [one for one in results if one["gate"] == gate and one["rows"] == size]
            total = {key: sum(one[key] for one in some) for key in ("others", "skipped", "better", "false")}
            names = sorted({one["space"] for one in some})
            by_space = [[one for one in some if one["space"] == name] for name in names]
            covered = [np.mean([one["covered"] for one in group]) for group in by_space]
            wrong = [
                sum(one["false"] for one in group) / max(1, sum(one["skipped"] for one in group)) for group in by_space
            ]
            cautious = np.mean([one["covered_cautious"] for one in some])
            lines.append(
                f"| {gate} | {size} | {np.mean(covered):.3f} ({min(covered):.3f}, {max(covered):.3f}) | "
                f"{cautious:.3f} | "
                f"{total['skipped'] / total['others']:.2f} | {total['false'] / max(1, total['skipped']):.5f} | "
                f"{max(wrong):.4f} | {total['false']} of {total['better']} |"
            )
    return "\n".join(lines)


def main() -> None:
    """Measure, print the table, and write the JSON."""
    parser = parser_of(__doc__, Path("skip.json"))
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--searches", type=int, default=4)
    parser.add_argument("--spaces", default="")
    arguments = parser.parse_args()
    results = [
        {"space": space.name, "gate": gate, "rows": size, "seed": seed, **judge(space, gate, size, seed)}
        for space in spaces(arguments.spaces)
        for gate in ("before_compile", "after_compile")
        for size in SIZES
        for seed in range(arguments.seeds)
    ]
    with one_thread():
        found = list(searches(arguments.spaces, arguments.searches))
    write(arguments.output, provenance(*SEARCHING) | {"results": {"random": results, "searched": found}})
    print(table(results), searched_table(found), sep="\n\n")


if __name__ == "__main__":
    main()
