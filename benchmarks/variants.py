"""Whole tunes on a GPU with and without compiler parameters, in turns: their winners, and the best after some seconds.

Each tune is a process of its own with an empty cache of cubins, as a user's first one. The result is JSON: a row for
each tune, with the share of the reference implementation that the finals measured.

    python benchmarks/variants.py --cases "sgemm NN 4096;dgemm * 4096;softmax" --time 20 --seeds 0,1,2 --output FILE
    python benchmarks/variants.py --merge FILE FILE --output FILE
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import harness

from mltune.problem.gemm_operands import transpositions

AFTER_S = (5, 10, 15, 20, 40)
"""Seconds after the beginning of a call at which the best so far is noted."""


def cases_of(text: str) -> Iterator[str]:
    """Yield the cases of a list with semicolons; ``*`` stands for all transpositions of a GEMM."""
    for case in text.split(";"):
        if "*" in case:
            yield from (case.replace("*", "".join(both)) for both in transpositions(case[0]))
        else:
            yield case


def tune(case: str, seed: int, budget_s: float, *, variants: bool, keep: Path | None = None) -> dict[str, object]:
    """Run one tune in this process; return what it found, and export its runs as datasets into the folder `keep`."""
    import mltune
    from mltune.dataset.dataset import export_run

    label = f"{case.replace(' ', '-')}-{seed}-{'with' if variants else 'without'}"
    name, *shape = case.split()
    size = {"trans": shape[0], "size": int(shape[1])} if shape else {}
    begun, call = time.time(), time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        result = mltune.tune(
            name, time=budget_s, seed=seed, variants=variants, stop=False, wisdom="none", progress=None,
            run=f"{folder}/run", **size,
        )  # fmt: skip
        call_s = time.perf_counter() - call
        runs = {one.kernel: one for one in (result, *result.rivals)}.values()
        records = [one for run in runs for one in run.records]
        for run in runs if keep else ():
            if run.best is not None:
                export_run(run.directory, keep / label)
        rating = result.best_rating() or {}
        return {
            "case": case,
            "seed": seed,
            "budget_s": budget_s,
            "variants": variants,
            "kernel": result.kernel,
            "trials": {run.kernel: len(run.records) for run in runs},
            "states": {name: count for name, count in result.counts.items() if count},
            "best_s": result.best_time_s,
            "share_of_reference": rating.get("share_of_reference"),
            "configuration": result.best_config,
            "after_s": harness.best_after(harness.improvements(records, begun), AFTER_S),
            "call_s": call_s,
            "seconds": dict(result.seconds),
        }


def table(rows: list[dict[str, object]]) -> str:
    """Return the shares of the reference as Markdown, a line for each case, and their geometric means."""
    shares: dict[str, dict[bool, list[float]]] = {}
    for row in rows:
        of_case = shares.setdefault(str(row["case"]), {False: [], True: []})
        if row["share_of_reference"] is not None:
            of_case[bool(row["variants"])].append(float(row["share_of_reference"]))
    lines = ["| case | without | with compiler parameters |", "|---|---|---|"]
    lines += [
        f"| {case} | {' | '.join(', '.join(f'{one:.3f}' for one in arms[with_]) or '-' for with_ in (False, True))} |"
        for case, arms in shares.items()
    ]
    groups: dict[str, dict[bool, list[float]]] = {}
    for case, arms in shares.items():
        name, *shape = case.split()
        for with_, found in arms.items() if shape else ():
            groups.setdefault(f"{name} {shape[-1]}", {False: [], True: []})[with_] += found
    for name, arms in groups.items():
        means = [
            f"{statistics.geometric_mean(one):.3f} (least {min(one):.3f})" if one else "-" for one in arms.values()
        ]
        lines.append(f"| **{name}**, geometric mean | {' | '.join(means)} |")
    return "\n".join(lines)


def main() -> None:
    """Run all tunes, or one in this process."""
    parser = harness.parser_of(__doc__)
    parser.add_argument("--cases", default="sgemm NN 4096;sgemm TN 4096;cgemm NN 4096;dgemm TN 4096;softmax")
    parser.add_argument("--time", type=float, default=20.0, help="seconds")
    parser.add_argument("--seeds", default="0,1")
    parser.add_argument("--arms", choices=harness.ARMS, default="both")
    parser.add_argument("--keep", type=Path, help="folder for the runs as datasets")
    parser.add_argument("--one", nargs=3, metavar=("CASE", "SEED", "VARIANTS"), help="one tune, in this process")
    parser.add_argument("--merge", nargs="+", type=Path, metavar="FILE", help="results to join, in place of measuring")
    options = parser.parse_args()
    if options.merge:
        parts = [json.loads(part.read_text()) for part in options.merge]
        rows = [row for part in parts for row in part["all"]]
        command = "; ".join(dict.fromkeys(part["command"] for part in parts))
        harness.write(options.output, {**parts[0], "command": command, "all": rows}, table(rows))
        return
    if options.one:
        case, seed, variants = options.one
        row = tune(case, int(seed), options.time, variants=variants == "True", keep=options.keep)
        print(json.dumps({"head": harness.gpu_provenance(), **row}))
        return
    given = ["--time", options.time, *(["--keep", options.keep] if options.keep else [])]
    cases, arms = [*cases_of(options.cases)], harness.ARMS[options.arms]
    harness.tunes_in_turns(__file__, cases, options.seeds, arms, given, options.output)


if __name__ == "__main__":
    main()
