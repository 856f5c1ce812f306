"""Weighing of beliefs: a search that weighs beliefs with and without its sources, beside one that trusts the sources.

The spaces and the models are those of transfer.py. Each search is replayed twice with the same seeds: as it is, and
with the belief with sources alone. ``warm`` has physics and a model, ``physics`` no model, ``misled`` a model that
takes each value for that of the opposite end of its list, without physics.

The figures are the fastest so far as a share of the fastest recorded; the difference of trusting and weighing, its
standard error over spaces, and the space in which trusting loses most.

    OMP_NUM_THREADS=1 python benchmarks/beliefs.py [--seeds 3]
"""

from __future__ import annotations

import sys
from typing import Any
from unittest.mock import patch

import numpy as np
from harness import RESULTS, SEARCHING, parser_of, provenance, write
from transfer import AT, Case, cases, curve

from mltune.comparison.baselines import ShippedSearch
from mltune.comparison.simulation import simulate
from mltune.cost.encoding import Encoding
from mltune.dataset.dataset import load_dataset, shipped_datasets, shipped_searches
from mltune.search.beliefs import Belief, Beliefs

WAYS = ("weighing", "trusting")


def trust(beliefs: Beliefs, encoding: Encoding) -> None:
    """Make the beliefs of a search those with its sources alone."""
    beliefs.beliefs = [Belief(encoding)]


def replay(case: Case, search: str, seed: int) -> dict[str, list[float]]:
    """Return the shares of one search, by its way."""
    model = {"warm": case.model, "misled": case.misleading}.get(search)
    strategy = ShippedSearch(pretrained=model, resources=search != "misled")
    shares = {"weighing": curve(case.recording, simulate(strategy, case.recording, max(AT), seed).indices)}
    with patch.object(Beliefs, "__init__", trust):
        shares["trusting"] = curve(case.recording, simulate(strategy, case.recording, max(AT), seed).indices)
    return shares


def table(rows: list[dict[str, Any]]) -> str:
    """Return the means by search and way, and where trusting loses most."""
    lines = [
        "| search | spaces | way | " + " | ".join(map(str, AT)) + " |",
        "| --- | ---: | --- |" + " --- |" * len(AT),
    ]
    for search in dict.fromkeys(row["search"] for row in rows):
        names = list(dict.fromkeys(row["space"] for row in rows if row["search"] == search))
        means = {
            way: np.array(
                [
                    np.mean([row[way] for row in rows if (row["search"], row["space"]) == (search, name)], axis=0)
                    for name in names
                ]
            )
            for way in WAYS
        }
        gain = means["trusting"] - means["weighing"]
        error = gain.std(axis=0, ddof=1) / np.sqrt(len(names))
        cells = {
            "weighing": [f"{share:.3f}" for share in means["weighing"].mean(axis=0)],
            "trusting": [f"{mean:+.4f} ± {one:.4f}" for mean, one in zip(gain.mean(axis=0), error, strict=True)],
            "worst": [f"{gain[at, column]:+.3f} {names[at]}" for column, at in enumerate(gain.argmin(axis=0))],
        }
        lines += [f"| {search} | {len(names)} | {way} | " + " | ".join(texts) + " |" for way, texts in cells.items()]
    return "\n".join(lines)


def main() -> None:
    """Replay everything, and write the rows and the table."""
    parser = parser_of(__doc__, RESULTS / "beliefs.json")
    parser.add_argument("--seeds", type=int, default=3)
    arguments: Any = parser.parse_args()
    known = cases([load_dataset(one) for one in shipped_datasets().values()], [*map(load_dataset, shipped_searches())])
    rows = []
    for seed in range(arguments.seeds):
        for case in known:
            for search in ("warm", "misled") if case.model is not None else ("physics",):
                rows.append({"space": case.name, "search": search, "seed": seed, **replay(case, search, seed)})
                print(rows[-1], file=sys.stderr, flush=True)
        head = provenance(*SEARCHING, seeds=seed + 1)
        write(arguments.output, {**head, "at": AT, "searches": rows}, table(rows))
    print(table(rows))


if __name__ == "__main__":
    main()
