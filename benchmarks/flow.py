"""The flow of batches with 16 compilers, replayed: score over evaluations, and seconds by the simulated clock.

The search as shipped, of spaces of which parameters alone are known (no resources, no reports of the compiler), and
with what the bundles know. ``--against`` compares in pairs of space and seed with the file of an earlier version: the
mean over spaces of the change of score, and of the logs of the seconds to 95 and 99 % and to 100 trials, of the share
of the first four seconds in which compilers built what ended in them, and of what is found by 2, 4 and 8 s, with
standard errors. No constant was chosen on the held-out spaces. Ten minutes on two cores.

    OMP_NUM_THREADS=1 python benchmarks/flow.py [--seeds 8] [--first 0] [--jobs 2] [--against FILE]
"""

from __future__ import annotations

import json
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from harness import RESULTS, SEARCHING, parser_of, provenance, write

from mltune.comparison.baselines import ShippedSearch
from mltune.comparison.clock import best_over_time, ended_seconds
from mltune.comparison.scores import best_so_far, scores
from mltune.comparison.simulation import RecordingSource, simulate
from mltune.cost.regressors import one_thread

COMPILERS, EVALUATIONS = 16, 200
AT = (10, 25, 50, 100, 200)
AT_S, BUSY_S = (2.0, 4.0, 8.0), 4.0
FIGURES = {"score": float, "to_95_s": np.log, "to_99_s": np.log, "to_100_trials_s": np.log, "busy": float}
FIGURES |= {f"at_{seconds:g}_s": float for seconds in AT_S}
DEVELOPING = (
    "h200-sgemm-nt-4096-complete",
    "h200-cgemm-nn-4096-complete",
    "convolution_mi250x_gcd",
    "convolution_rtx_a4000",
    "xgemm_titan_rtx",
    "xgemm_rtx_3060_laptop",
    "h200-sgemm-nn-4096-random",
    "h200-zgemm-nn-4096-random",
    "h200-sgemm-nt-1024-random",
)
HELD_OUT = (
    "h200-dgemm-tn-4096-random",
    "h200-zgemm-nc-4096-random",
    "h200-convolution-cuda-random",
    "h200-stencil-8192x8192x4-random",
    "h200-reduction-67108864-random",
    "h200-transpose-8192x8192-random",
    "h200-softmax-16384x4096-random",
    "convolution_rtx_a6000",
    "h200-dgemm-nt-4096-random",
    "h200-matmul-4096-4096-4096",
    "h200-fp8-matmul-4096-4096-7168",
    "h200-fused-moe-2048-8-14336-4096-2",
)


def play(place: tuple[str, str, int]) -> dict[str, Any]:
    """Replay one search."""
    name, known, seed = place
    recording = RecordingSource(name).load()
    most = min(EVALUATIONS, recording.space.count)
    is_bare = known == "parameters"
    with one_thread():
        strategy = ShippedSearch(resources=not is_bare, build=not is_bare, compilers=COMPILERS)
        trace = simulate(strategy, recording, most, seed)
    ends_s = ended_seconds(trace, recording, COMPILERS)
    order = np.argsort(ends_s, kind="stable")
    over_time = np.minimum.accumulate(np.fmin(recording.median_s[trace.indices[order]], np.inf))
    best = best_so_far(recording.median_s, [trace], most)
    reached = {share: np.flatnonzero(over_time <= recording.optimum_s / share) for share in (0.95, 0.99)}
    to_s = {share: float(ends_s[order[there[0]]] if len(there) else ends_s.max()) for share, there in reached.items()}
    found_s = best_over_time(recording.median_s, [trace], [ends_s], np.array(AT_S))[0]
    built_s = float(recording.compile_s[trace.indices][ends_s <= BUSY_S].sum())
    return {
        "space": name,
        "known": known,
        "seed": seed,
        "busy": built_s / (COMPILERS * BUSY_S),
        **{
            f"at_{seconds:g}_s": float(recording.optimum_s / best_s)
            for seconds, best_s in zip(AT_S, found_s, strict=True)
        },
        "score": float(scores(best, recording.pessimal_s)[0]),
        "to_95_s": to_s[0.95],
        "to_99_s": to_s[0.99],
        "to_100_trials_s": float(np.sort(ends_s)[min(100, len(ends_s)) - 1]),
        "at": [float(recording.optimum_s / best[0, min(count, most) - 1]) for count in AT],
    }


def table(runs: list[dict[str, Any]], earlier: list[dict[str, Any]]) -> str:
    """Return the means over spaces as Markdown, and the changes against earlier ones."""
    before = {(run["space"], run["known"], run["seed"]): run for run in earlier}
    head = ("known", "spaces", "score", f"at {', '.join(map(str, AT))}", "busy, then at 2, 4, 8 s", *FIGURES, "worst")
    lines = [f"| {' | '.join(head)} |", "| --- | --- |" + " ---: |" * (len(head) - 3) + " --- |"]
    groups = {"developing": DEVELOPING, "held out": HELD_OUT}
    for known, (group, names) in product(dict.fromkeys(run["known"] for run in runs), groups.items()):
        spaces = [[run for run in runs if (run["space"], run["known"]) == (name, known)] for name in names]
        spaces = [space for space in spaces if space]
        if not spaces:
            continue
        score = np.mean([np.mean([run["score"] for run in space]) for space in spaces])
        by_time = [f"{np.mean([run[figure] for space in spaces for run in space]):.3f}" for figure in [*FIGURES][4:]]
        at = np.mean([np.mean([run["at"] for run in space], axis=0) for space in spaces], axis=0)
        changes: dict[str, list[float]] = {figure: [] for figure in FIGURES}
        for space, (figure, scale) in product(spaces, FIGURES.items()):
            pairs = [(run, before.get((run["space"], known, run["seed"]))) for run in space]
            differences = [scale(run[figure]) - scale(old[figure]) for run, old in pairs if old is not None]
            changes[figure].append(float(np.mean(differences or 0.0)))
        cells = [
            f"{np.mean(change):+.3f} +- {np.std(change, ddof=1) / np.sqrt(len(change)):.3f}"
            if len(change) > 1
            else f"{change[0]:+.3f}"
            for change in changes.values()
        ]
        lowest, latest = int(np.argmin(changes["score"])), int(np.argmax(changes["to_99_s"]))
        worst = f"{spaces[lowest][0]['space']} {changes['score'][lowest]:+.3f} of score, "
        worst += f"{spaces[latest][0]['space']} {changes['to_99_s'][latest]:+.2f} to 99 %"
        shares = ", ".join(f"{share:.3f}" for share in at)
        head = (known, f"{group} ({len(spaces)})", f"{score:.3f}", shares, ", ".join(by_time), *cells, worst)
        lines.append(f"| {' | '.join(head)} |")
    return "\n".join(lines)


def main() -> None:
    """Replay everything, and write the figures."""
    parser = parser_of(__doc__, RESULTS / "flow.json")
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--first", type=int, default=0, help="first seed")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--known", default="parameters,everything")
    parser.add_argument("--against", type=Path)
    arguments = parser.parse_args()
    places = product(
        (*DEVELOPING, *HELD_OUT), arguments.known.split(","), range(arguments.first, arguments.first + arguments.seeds)
    )
    with ProcessPoolExecutor(arguments.jobs) as pool:
        runs = list(pool.map(play, places))
    earlier = [] if arguments.against is None else json.loads(arguments.against.read_text())["runs"]
    text = table(runs, earlier)
    document = {**provenance(*SEARCHING, of="one core; thinking is its processor time"), "runs": runs}
    write(arguments.output, document, text)


if __name__ == "__main__":
    main()
