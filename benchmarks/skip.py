"""Skips of the gates on random proposals, their errors, and the end of a search by the stopping rule.

On every recorded space, for several numbers of random measurements: the model and the gate are fitted to them and
decide on others of the space, of which the truth is known.

- covered: share below the end of the interval (95 % promised), and below the end that the gate decides by.
- skipped: share of the others that the gate skips.
- false: share of the skipped that was faster than the best measured.
- missed: share of what was faster than the best measured that is skipped.

Then the same where the rows were chosen by a search (extra trees, 15 of a batch by upper confidence bound and one at
random): errors on all untried configurations of a model that saw mostly its own proposals, and the batch at which the
rule of mltune/search/stopping.py ends the search.

    OMP_NUM_THREADS=1 python benchmarks/skip.py [--seeds 4] [--searches 3] [--spaces NAME,NAME] [--output skip.json]
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from cost_models import Space, spaces
from harness import SEARCHING, parser_of, provenance, write
from numpy.typing import NDArray

from mltune.cost.regressors import ExtraTreesModel
from mltune.search.gates import Gate
from mltune.search.stopping import StoppingRule

Floats = NDArray[np.float64]

SIZES = (50, 100, 200, 400, 1000)
LOOKED_AT = (104, 200, 296)
MOST = 600


def judge(space: Space, gate_name: str, size: int, seed: int) -> dict[str, float]:
    """Fit and calibrate on some rows, judge the others."""
    X = space.before if gate_name == "before_compile" else space.after
    known, others = space.split(size, seed)
    model = ExtraTreesModel(random_state=seed).fit(X[known], space.speed[known])
    gate = Gate(gate_name)
    gate.calibrate(space.speed[known], *model.unseen())
    mean, spread = model.predict(X[others])
    best = float(np.nanmax(space.speed[known]))
    return figures(gate, space.speed[others], mean, spread, best)


def figures(gate: Gate, truth: Floats, mean: Floats, spread: Floats, best: float) -> dict[str, float]:
    """Count how often the decision of a gate is right, given the truth (NaN: failed)."""
    skip, optimistic = gate.decide(mean, spread, best)
    ran = np.isfinite(truth)
    better = truth > best
    return {
        "covered": float((truth <= gate.interval.end(mean, spread))[ran].mean()),
        "covered_cautious": float((truth <= optimistic)[ran].mean()),
        "others": len(truth),
        "skipped": int(skip.sum()),
        "better": int(better.sum()),
        "false": int((better & skip).sum()),
    }


def search(space: Space, seed: int) -> Iterator[dict[str, Any]]:
    """Search a space; yield how the gate judges all that is untried, now and then, and how the search ended."""
    X, y = space.before, space.speed
    rng, rule = np.random.default_rng(seed), StoppingRule()
    tried = rng.permutation(len(y))[:24]
    while True:
        model = ExtraTreesModel(random_state=int(rng.integers(2**31))).fit(X[tried], y[tried])
        gate, best = Gate("before_compile"), float(np.nanmax(y[tried]))
        gate.calibrate(y[tried], *model.unseen())
        untried = np.setdiff1d(np.arange(len(y)), tried)
        mean, spread = model.predict(X[untried])
        if len(tried) in LOOKED_AT:
            yield {"rows": len(tried), **figures(gate, y[untried], mean, spread, best)}
        ends = None if gate.is_open else gate.cautious.end(mean, spread)
        stop = rule.check(ends, best, measured=len(tried), untried=len(untried))
        if stop or len(tried) >= MOST:
            yield {"rows": len(tried), "stopped": bool(stop), "found": float(np.exp(best - np.nanmax(y)))}
            return
        chosen = {int(untried[np.argmax(mean + weight * spread)]) for weight in rng.exponential(size=15)}
        others = np.setdiff1d(untried, sorted(chosen))
        tried = np.concatenate([tried, sorted(chosen), rng.choice(others, 16 - len(chosen), replace=False)])


def searched_table(results: list[dict[str, Any]]) -> str:
    """Return what the searches say as Markdown: one line a space."""
    lines = [
        "| space | skipped, false after 104 | after 200 | after 296 | stopped after (found) |",
        "|---|---|---|---|---|",
    ]
    for name in dict.fromkeys(one["space"] for one in results):
        mine = [one for one in results if one["space"] == name]
        cells = []
        for rows in LOOKED_AT:
            some = [one for one in mine if one["rows"] == rows and "skipped" in one]
            total = {key: sum(one[key] for one in some) for key in ("others", "skipped", "better", "false")}
            cells.append(
                f"{total['skipped'] / max(1, total['others']):.2f}, {total['false'] / max(1, total['skipped']):.4f} "
                f"({total['false']} of {total['better']})"
                if some
                else "-"
            )
        ends = [f"{one['rows'] if one['stopped'] else 'not'} ({one['found']:.3f})" for one in mine if "stopped" in one]
        lines.append(f"| {name} | {' | '.join(cells)} | {', '.join(ends)} |")
    return "\n".join(lines)


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
    parser.add_argument("--searches", type=int, default=3)
    parser.add_argument("--spaces", default="")
    arguments = parser.parse_args()
    results = [
        {"space": space.name, "gate": gate, "rows": size, "seed": seed, **judge(space, gate, size, seed)}
        for space in spaces(arguments.spaces)
        for gate in ("before_compile", "after_compile")
        for size in SIZES
        for seed in range(arguments.seeds)
    ]
    searched = [
        {"space": space.name, "seed": seed, **found}
        for space in spaces(arguments.spaces)
        for seed in range(arguments.searches)
        for found in search(space.part(6000), seed)
    ]
    write(arguments.output, provenance(*SEARCHING) | {"results": {"random": results, "searched": searched}})
    print(table(results), searched_table(searched), sep="\n\n")


if __name__ == "__main__":
    main()
