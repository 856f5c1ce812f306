"""Rules for the first picks where physics and a model are known: what the initial design is worth by each.

No search runs: the first eight proposals follow from the sources alone. Replayed are the spaces of transfer.py that
have a model, the four Xgemm spaces with a model of one GPU of the other architecture, and the recorded searches, with a
model of the others. The rules:

- ``now``: the search as it is;
- ``ranks``: the smallest sum of the square roots of both ranks comes first in place of the largest mean of the logs,
  where a model knows other problems only;
- ``agreement``: the same configuration comes second;
- ``mean right``: the portfolio has a third scenario, in which the mean of the sources is right;
- ``own first``: the first choice comes before the configurations that a model remembers.

The figures are the fastest of the first so many as a share of the fastest recorded: means over spaces, the difference
to ``now``, and its standard error over spaces (seeds of one space hardly differ).

    OMP_NUM_THREADS=1 python benchmarks/first_picks.py [--seeds 3] [--parts searches,sources,architecture,problem]
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import numpy as np
from harness import RESULTS, SEARCHING, parser_of, provenance, write
from transfer import cases, is_part

from mltune.comparison.simulation import Recording, record
from mltune.cost.encoding import Source, first_choice, portfolio
from mltune.cost.features import Features
from mltune.cost.pretrained import PretrainedModel, fit_members
from mltune.dataset.dataset import Dataset, load_dataset, shipped_datasets, shipped_searches
from mltune.kernel.coding import Floats, Indices
from mltune.kernel.placed import PlacedKernel
from mltune.kernel.reader import load_kernel
from mltune.search import planning
from mltune.search.search import KernelSearch, SearchSettings, Start
from mltune.tuning.training import as_sweeps

AT = (1, 2, 3, 5, 8)
FEWEST = 100
"""Fewest configurations of a recorded search that is replayed."""

PARTS = {
    "architecture": "another architecture",
    "sources": "all but one GPU of another architecture",
    "problem": "another problem, the same GPU",
    "searches": "the search itself",
}


def agreed(expected: Floats) -> int:
    """Return the configuration with the smallest sum of the square roots of its ranks by all sources."""
    ranks = np.argsort(np.argsort(-expected, axis=1, kind="stable"), axis=1)
    return int(np.argmin(np.sqrt(ranks).sum(axis=0)))


def by_ranks(expected: Floats, sources: tuple[Source, ...] = ()) -> int:
    """Choose by ranks, unless a source decides."""
    decided = any(source.decides for source in sources) or len(expected) < 2
    return first_choice(expected, sources) if decided else agreed(expected)


def chosen_by_ranks(expected: Floats, points: Floats, count: int, rng: Any, sources: tuple[Source, ...]) -> Indices:
    """Return a portfolio whose first choice is that of :func:`by_ranks`."""
    with patch("mltune.cost.encoding.first_choice", by_ranks):
        return portfolio(expected, points, count, rng, sources)


def with_agreement(expected: Floats, points: Floats, count: int, rng: Any, sources: tuple[Source, ...]) -> Indices:
    """Return a portfolio with the configuration of :func:`agreed` in the second place."""
    rows = portfolio(expected, points, count, rng, sources)
    return np.array([*dict.fromkeys([rows[0], agreed(expected), *rows])][:count], dtype=np.int64)


def mean_right(expected: Floats, points: Floats, count: int, rng: Any, sources: tuple[Source, ...]) -> Indices:
    """Return a portfolio with the mean as a source."""
    first = first_choice(expected, sources)
    with patch("mltune.cost.encoding.first_choice", lambda *_: first):
        return portfolio(np.vstack([expected, expected.mean(axis=0)]), points, count, rng, sources)


RULES: dict[str, dict[str, Callable[..., Any]]] = {
    "now": {"portfolio": portfolio},
    "ranks": {"first_choice": by_ranks, "portfolio": chosen_by_ranks},
    "agreement": {"portfolio": with_agreement},
    "mean right": {"portfolio": mean_right},
    "own first": {"portfolio": portfolio},
}


def replayed(parts: list[str]) -> Iterator[tuple[str, str, Recording, PretrainedModel]]:
    """Yield the part, the name, the recording and the model of every space."""
    datasets, searches = (
        [load_dataset(path) for path in paths] for paths in ([*shipped_datasets().values()], [*shipped_searches()])
    )
    if {*parts} & {"architecture", "problem"}:
        for case in cases(datasets, searches):
            if case.model is not None and case.between in parts:
                yield case.between, case.name, case.recording, case.model
    recorded = [one.manifest.name for one in datasets]
    for kernel in ("clblast_xgemm", *sorted({one.manifest.kernel for one in searches})):
        part = "sources" if kernel == "clblast_xgemm" else "searches"
        if part in parts:
            own = [one for one in [*datasets, *searches] if one.manifest.kernel == kernel]
            yield from ((part, *one) for one in of_kernel(kernel, own, recorded if part == "searches" else []))


def of_kernel(
    kernel: str, datasets: list[Dataset], left: list[str]
) -> Iterator[tuple[str, Recording, PretrainedModel]]:
    """Yield the spaces of a kernel except those ``left`` out, with a model of the others, of Xgemm of each alone."""
    sweeps, parameters = as_sweeps(datasets), tuple(datasets[0].manifest.parameters)
    members = dict(zip((one.name for one in sweeps), fit_members(sweeps, parameters), strict=True))
    for dataset, sweep in zip(datasets, sweeps, strict=True):
        if sweep.name in left or len(sweep.median_s) < FEWEST:
            continue
        others = [members[one.name] for one in sweeps if one.group != sweep.group and not is_part(one.name)]
        for some in [others] if left else [[one] for one in others]:
            model = PretrainedModel(kernel, parameters, tuple(some))
            if model := model.closest(dataset.manifest.problem, dataset.manifest.device):
                yield f"{sweep.name} from {some[0].sweep}", record(dataset, load_kernel(kernel)), model


def starts(recording: Recording, pretrained: PretrainedModel, seeds: int) -> dict[str, list[list[float]]]:
    """Return the fastest of the first so many as shares of the fastest recorded, by rule and seed."""
    space, speed = recording.space, np.nan_to_num(recording.optimum_s / recording.median_s)
    features = Features(PlacedKernel(recording.kernel, recording.problem, recording.device))
    planner = KernelSearch(space, features, SearchSettings(adapts=True), Start(pretrained=pretrained))._planner
    everything = space.rows(np.arange(space.count))
    known = [(source, source.expected(everything)) for source in planner.sources]
    sources = [replace(one, expected=lambda columns, logs=logs: logs[space.index_of(columns)]) for one, logs in known]
    planner = replace(planner, sources=sources)
    model = planner._model  # describes the space: the same for all rules and seeds
    shares: dict[str, list[list[float]]] = {rule: [] for rule in RULES}
    for seed in range(seeds):
        for rule, functions in RULES.items():
            with patch.multiple(planning, **functions):
                seeded = replace(planner, seed=seed)
                vars(seeded)["_model"] = model
                design = seeded._initial_design.tolist()
            first = [design[0], *planner.first] if rule == "own first" else [*planner.first, design[0]]
            order = [*dict.fromkeys([*first, *planner.elsewhere, *design])]
            fastest = np.maximum.accumulate(speed[order])
            shares[rule].append([float(fastest[min(count, len(fastest)) - 1]) for count in AT])
    return shares


def table(spaces: dict[str, dict[str, Any]]) -> str:
    """Return the means of each rule over the spaces of each part, and their differences to the search as it is."""
    lines = ["| left out | spaces | rule | " + " | ".join(map(str, AT)) + " |"]
    lines.append("| --- | ---: | --- |" + " --- |" * len(AT))
    for part, text in {**PARTS, "": "all"}.items():
        some = [space["shares"] for space in spaces.values() if part in ("", space["part"])]
        for rule in RULES if some else ():
            mean, now = (np.array([one[name] for one in some]) for name in (rule, "now"))
            error = (mean - now).std(axis=0, ddof=1) / np.sqrt(len(some))
            cells = [
                f"{share:.3f}" if rule == "now" else f"{share:.3f} ({gain:+.4f} ± {one:.4f})"
                for share, gain, one in zip(mean.mean(axis=0), (mean - now).mean(axis=0), error, strict=True)
            ]
            lines.append(f"| {text} | {len(some)} | {rule} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    """Replay everything, and write the JSON and the table."""
    parser = parser_of(__doc__, RESULTS / "first_picks.json")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--parts", default=",".join(PARTS))
    arguments: Any = parser.parse_args()
    started, spaces = time.time(), dict[str, dict[str, Any]]()
    for part, name, recording, model in replayed(arguments.parts.split(",")):
        shares = starts(recording, model, arguments.seeds)
        means = {rule: np.round(np.mean(one, axis=0), 4).tolist() for rule, one in shares.items()}
        spaces[name] = {"part": part, "shares": means}
        print(part, name, {rule: one[0] for rule, one in means.items()}, file=sys.stderr, flush=True)
    head = provenance(*SEARCHING, seeds=arguments.seeds, seconds=round(time.time() - started))
    write(arguments.output, {**head, "at": AT, "spaces": spaces}, text := table(spaces))
    print(text)


if __name__ == "__main__":
    main()
