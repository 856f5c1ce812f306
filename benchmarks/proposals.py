"""What it is worth that a regressor chooses among several proposals: two states of the search, in seconds and counts.

Played on complete spaces with the clock of ``mltune compare``: ``cold`` with physics and what the compiler reports,
``warm`` with a pretrained model besides, which has not seen the GPU (of the GEMMs: the problem), and ``raw`` with the
parameters alone. ``--before`` is the result of this command in another commit: differences are of the same space and
seed, with their standard errors. Half an hour on one core.

    git checkout BEFORE && OMP_NUM_THREADS=1 python benchmarks/proposals.py --output before.json
    git checkout AFTER && OMP_NUM_THREADS=1 python benchmarks/proposals.py --before before.json --output after.json
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from harness import SEARCHING, parser_of, provenance, write
from search_seconds import SPACES
from transfer import cases

from mltune.comparison.baselines import ShippedSearch
from mltune.comparison.clock import ended_seconds
from mltune.comparison.scores import best_so_far, scores
from mltune.comparison.simulation import Recording, record, simulate
from mltune.cost.pretrained import PretrainedModel
from mltune.cost.regressors import one_thread
from mltune.dataset.dataset import Dataset, load_dataset, shipped_datasets, shipped_searches
from mltune.kernel.reader import load_kernel

OTHERS = (
    *("convolution_rtx_a4000", "convolution_rtx_a6000", "convolution_w6600"),
    *("xgemm_rtx_2080_ti", "xgemm_rtx_3060_laptop", "xgemm_rtx_a4000"),
)
"""Further complete spaces, which are played with the parameters alone."""

EVALUATIONS = 250
AT = (25, 50, 100, 200)
TO = (0.95, 0.98, 0.99)
CORES = (1, 16)


def models(datasets: Mapping[str, Dataset]) -> dict[str, PretrainedModel | None]:
    """Return a model for each space that has not seen its GPU, or its problem where all are of one GPU."""
    kernels = {one.manifest.kernel for one in datasets.values()}
    others = [load_dataset(name) for name in shipped_datasets()]
    searches = [load_dataset(str(path)) for path in shipped_searches()]
    known = [[one for one in some if one.manifest.kernel in kernels] for some in (others, searches)]
    return {case.name: case.model for case in cases(*known)}


def play(strategy: ShippedSearch, recording: Recording, cores: int, seed: int) -> dict[str, Any]:
    """Play one run; return its score over evaluations, shares of the optimum, and seconds."""
    trace = simulate(replace(strategy, compilers=cores), recording, EVALUATIONS, seed)
    best_s = best_so_far(recording.median_s, [trace], EVALUATIONS)
    ends_s = ended_seconds(trace, recording, cores)
    order = np.argsort(ends_s, kind="stable")
    share = recording.optimum_s / np.fmin.accumulate(np.fmin(recording.median_s[trace.indices[order]], np.inf))
    places = [int(np.argmax(share >= one)) if share[-1] >= one else len(share) - 1 for one in TO]
    return {
        "space": recording.name,
        "cores": cores,
        "seed": seed,
        "score": float(scores(best_s, recording.pessimal_s)[0]),
        "at": [float(recording.optimum_s / best_s[0, count - 1]) for count in AT],
        "to_s": [float(ends_s[order[place]]) for place in places],
        "most_own_s": float(trace.builds["own_s"].max()),
    }


def runs(seeds: int) -> Iterator[dict[str, Any]]:
    """Play all runs."""
    datasets = {name: load_dataset(name) for name in SPACES}
    trained = models(datasets)
    for name in (*SPACES, *OTHERS):
        dataset = load_dataset(name)
        recording = record(dataset, load_kernel(dataset.manifest.kernel))
        starts = {"raw": ShippedSearch(build=False, resources=False)}
        if name in SPACES:
            starts |= {"cold": ShippedSearch(), "warm": ShippedSearch(pretrained=trained[name])}
        for start, strategy in starts.items():
            for cores in CORES:
                for seed in range(seeds):
                    yield {"start": start, **play(strategy, recording, cores, seed)}


def table(rows: list[dict[str, Any]], before: list[dict[str, Any]]) -> str:
    """Return means as Markdown, and in brackets the differences from before with their standard errors."""
    keys = ("start", "cores", "space", "seed")
    known = {tuple(row[key] for key in keys): row for row in before}
    lines = [
        "Mean score over evaluations, shares of the optimum at 25, 50, 100 and 200, and the geometric mean of the",
        "seconds to 95, 98 and 99 % (a run that does not get there counts with all it took); in brackets what changed,",
        "and its standard error over the runs: of the seconds in per cent.",
        "",
        "| start | cores | runs | score | at 25, 50, 100, 200 | to 95 % | to 98 % | to 99 % |",
        "|---|--:|--:|---|---|---|---|---|",
    ]
    for start, cores in sorted({(row["start"], row["cores"]) for row in rows}):
        some = [row for row in rows if (row["start"], row["cores"]) == (start, cores)]
        old = [known.get(tuple(row[key] for key in keys), row) for row in some]
        gains = np.array([row["score"] - other["score"] for row, other in zip(some, old, strict=True)])
        ratios = np.log([np.divide(row["to_s"], other["to_s"]) for row, other in zip(some, old, strict=True)])
        seconds = np.exp(np.log([row["to_s"] for row in some]).mean(axis=0))
        error = np.sqrt(len(some))
        cells = [
            f"{one:.1f} s ({100 * gain:+.0f} ± {100 * noise:.0f})"
            for one, gain, noise in zip(seconds, ratios.mean(axis=0), ratios.std(axis=0, ddof=1) / error, strict=True)
        ]
        score = f"{np.mean([row['score'] for row in some]):.3f} ({gains.mean():+.3f} ± {gains.std(ddof=1) / error:.3f})"
        at = " ".join(f"{share:.3f}".lstrip("0") for share in np.mean([row["at"] for row in some], axis=0))
        lines.append(f"| {start} | {cores} | {len(some)} | {score} | {at} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Play the search of this commit, and compare it with another."""
    parser = parser_of(__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--before", type=Path)
    arguments = parser.parse_args()
    with one_thread():
        rows = list(runs(arguments.seeds))
    before = json.loads(arguments.before.read_text())["rows"] if arguments.before else []
    text = table(rows, before)
    print(text)
    write(arguments.output, provenance(*SEARCHING, of="one core; thinking is its processor time", rows=rows), text)


if __name__ == "__main__":
    main()
