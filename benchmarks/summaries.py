"""Sum up the rows of older results for the pages: python benchmarks/summaries.py.

A result keeps its rows, and a page shows their counts and means. This script makes these for results whose own script
writes no summary. They lie in benchmarks/results/summaries.json, for benchmarks/figures.py. A test fails if the file
is not what the rows give.
"""

from __future__ import annotations

import json
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from scipy.stats import binomtest, hypergeom

RESULTS = Path(__file__).resolve().parent / "results"
OUTPUT = RESULTS / "summaries.json"
Rows = list[dict[str, Any]]


def read(name: str) -> Any:
    """Return a result."""
    return json.loads((RESULTS / name).read_text())


def grouped(rows: Iterable[dict[str, Any]], key: Callable[[dict[str, Any]], Any]) -> dict[str, Rows]:
    """Return rows by a key, in the order in which the keys come."""
    groups: dict[str, Rows] = defaultdict(list)
    for row in rows:
        groups[str(key(row))].append(row)
    return dict(groups)


def of(rows: Rows, name: str) -> list[Any]:
    """Return a column."""
    return [row[name] for row in rows]


def skips() -> dict[str, Any]:
    """Sum up skip.json: skips of random rows, and skips and ends of searches."""
    results = read("skip.json")["results"]
    random = {
        gate: {size: _random(rows) for size, rows in grouped(of_gate, lambda row: row["rows"]).items()}
        for gate, of_gate in grouped(results["random"], lambda row: row["gate"]).items()
    }
    looked = [row for row in results["searched"] if "rows" in row]
    ends = [row for row in results["searched"] if "ended" in row]
    return {
        "random": random,
        "spaces": len({row["space"] for row in results["random"]}),
        "by_rows": {size: _skipped(rows) for size, rows in grouped(looked, lambda row: row["rows"]).items()},
        "by_kernel": {name: _skipped(rows) for name, rows in grouped(looked, _kernel).items()},
        "small": _skipped([row for row in looked if _kernel(row) in SMALL]),
        "ends": {name: _ends(rows) for name, rows in grouped(ends, _kernel).items()}
        | {"small": _ends([row for row in ends if _kernel(row) in SMALL])}
        | {"recorded": _ends([row for row in ends if _kernel(row) not in FAMILIES]), "all": _ends(ends)},
    }


SMALL = ("convolution_cuda", "reduction", "softmax", "stencil", "transpose")
"""Kernels whose recorded spaces have 300 or 400 configurations."""
FAMILIES = ("mirrored", "narrow", "isolated")


def _kernel(row: dict[str, Any]) -> str:
    return str(row["family"].partition(",")[0])


def _random(rows: Rows) -> dict[str, float]:
    false = {
        name: sum(of(group, "false")) / max(1, sum(of(group, "skipped")))
        for name, group in grouped(rows, lambda row: row["space"]).items()
    }
    skipped = sum(of(rows, "skipped"))
    return {
        "skipped": skipped / sum(of(rows, "others")),
        "false": sum(of(rows, "false")) / skipped,
        "most_false": max(false.values()),
    }


def _skipped(rows: Rows) -> dict[str, float]:
    """Return the better ones, how many of them the rule and the comparison skip, and their shares of the next 50."""
    better, _, following = (sum(row["all"][part] for row in rows) for part in range(3))
    rule, comparison = (
        [sum(row[name][part] for row in rows) for part in (0, 2)] for name in ("both", "below the best")
    )
    return {
        "better": better,
        "rule": rule[0],
        "comparison": comparison[0],
        "rule_share": rule[0] / max(1, better),
        "rule_next": rule[1] / max(1, following),
        "comparison_next": comparison[1] / max(1, following),
    }


def _ends(rows: Rows) -> dict[str, float]:
    ended = [row for row in rows if row["ended"]]
    return {
        "searches": len(rows),
        "ended": len(ended),
        "median": statistics.median(of(ended, "ended")),
        "most": max(of(ended, "ended")),
        "mean_share": statistics.fmean(of(ended, "found")),
        "least_share": min(of(ended, "found")),
        "within": sum(share >= 0.99 for share in of(ended, "found")),
        "false": sum(of(ended, "false")),
        "false_share": sum(of(ended, "false")) / len(ended),
        "false_interval": list(binomtest(sum(of(ended, "false")), len(ended)).proportion_ci(0.95)),
    }


def sweeps() -> dict[str, Any]:
    """Sum up pruned_sweep/: by space, before and with the audit of strata."""
    files = {"before": ("replay_before.json", "hidden_before.json"), "now": ("replay.json", "hidden.json")}
    summary: dict[str, Any] = {
        arm: {
            space: _swept(rows)
            for name in names
            for space, rows in grouped(
                read(f"pruned_sweep/{name}")["results"]["runs"], lambda row: row["dataset"]
            ).items()
        }
        for arm, names in files.items()
    }
    for arm in summary.values():
        for kernel in ("xgemm", "convolution"):
            spaces = [arm[name] for name in list(arm) if name.startswith(kernel)]
            arm[kernel] = {name: of(spaces, name) for name in ("configurations", "seconds")}
            arm[kernel] |= {name: sum(of(spaces, name)) for name in ("held", "sweeps")}
            arm[kernel] |= {"confidence": statistics.fmean(of(spaces, "confidence"))}
            arm[kernel] |= {"least_confidence": min(of(spaces, "least_confidence"))}
    summary["astra"] = {row["dataset"]: row for row in read("pruned_sweep/replay.json")["results"]["astra"]}
    return summary


def _swept(rows: Rows) -> dict[str, float]:
    confidence = [_confidence(row["audit"]) for row in rows]
    return {
        "sweeps": len(rows),
        "held": sum(not row["missed"] for row in rows),
        "configurations": statistics.fmean(of(rows, "configurations")),
        "seconds": statistics.fmean(of(rows, "seconds")),
        "confidence": statistics.fmean(confidence),
        "least_confidence": min(confidence),
    }


def _confidence(audit: dict[str, Any]) -> float:
    """Return the confidence of a promise by today's rule; sweeps before the audit of strata have the asked one."""
    if "weakest_audited" not in audit:
        return float(audit["confidence"])
    group = min(20, audit["group"])
    return min(0.95, float(hypergeom.sf(0, audit["weakest_left_out"], group, audit["weakest_audited"])))


def variants() -> dict[str, Any]:
    """Sum up tunes with and without compiler parameters: shares of cuBLAS by precision and size, and what is gained."""
    rows = read("variants.json")["all"]
    arms = grouped(
        rows, lambda row: f"{row['case'][0]}_{row['case'].split()[-1]}_{'with' if row['variants'] else 'without'}"
    )
    shares = {
        name: {
            "cases": len(some),
            "mean": statistics.geometric_mean(of(some, "share_of_reference")),
            "least": min(of(some, "share_of_reference")),
        }
        for name, some in arms.items()
    }
    slower = {f"slower_after_{after}_s": _slower(rows, after) for after in ("5", "10")}
    others = [row for row in read("variants_seeds.json")["all"] if "gemm" not in row["case"]]
    gains = {"others": _gains(others), "examples": _gains(read("kernel_tuner_examples.json")["all"])}
    return shares | slower | {f"gains_of_{name}": gain for name, gain in gains.items()}


def _pairs(rows: Rows) -> dict[str, tuple[dict[str, Any], dict[str, Any]]]:
    """Return the rows of each case with and without compiler parameters, of cases that have both."""
    cases = grouped(rows, lambda row: row["case"])
    arms = {name: {row["variants"]: row for row in some} for name, some in cases.items()}
    return {name: (arm[True], arm[False]) for name, arm in arms.items() if len(arm) == 2}


def _gains(rows: Rows) -> dict[str, float]:
    return {name: plain["best_s"] / varied["best_s"] - 1 for name, (varied, plain) in _pairs(rows).items()}


def _slower(rows: Rows, after: str) -> dict[str, float]:
    times = [(varied["after_s"][after], plain["after_s"][after]) for varied, plain in _pairs(rows).values()]
    known = [varied_s / plain_s - 1 for varied_s, plain_s in times if varied_s and plain_s]
    return {"cases": len(known), "most": max(known)}


def proposals() -> dict[str, float]:
    """Sum up proposals.json: the mean score with 16 cores, by what is known."""
    rows = [row for row in read("proposals.json")["rows"] if row["cores"] == 16]
    starts = grouped(rows, lambda row: row["start"])
    return {start: statistics.fmean(of(some, "score")) for start, some in starts.items()}


def cost_models() -> dict[str, Any]:
    """Sum up cost_models.json: mean regret and coverage by model and number of rows."""
    return {
        model: {
            size: {name: statistics.fmean(of(some, name)) for name in ("regret", "coverage", "rank")}
            for size, some in grouped(rows, lambda row: row["rows"]).items()
        }
        for model, rows in grouped(read("cost_models.json")["results"]["models"], lambda row: row["model"]).items()
    }


def half_cases() -> dict[str, float]:
    """Return the shares of the peak in half_cases_10s.json; gemm_half.json has the peak."""
    row = read("gemm_half.json")["problems"][0]
    peak = row["tflops"] / row["share_of_peak"]
    return {name: case["tflops"] / peak for name, case in read("half_cases_10s.json")["cases"].items()}


def wrong_builds() -> dict[str, int]:
    """Count the builds of wrong_builds.json that read too early, and those with wrong results."""
    rows = read("wrong_builds.json")["rows"]
    wrong = [row for row in rows if "wrong_result" in row["states"]]
    return {
        "builds": len(rows),
        "early": sum(bool(row["unwaited"]) for row in rows),
        "wrong": len(wrong),
        "wrong_otherwise": sum(not row["unwaited"] for row in wrong),
    }


SUMMARIES: dict[str, Callable[[], dict[str, Any]]] = {
    "skip": skips,
    "pruned_sweep": sweeps,
    "variants": variants,
    "proposals": proposals,
    "cost_models": cost_models,
    "half_cases": half_cases,
    "wrong_builds": wrong_builds,
}


def summaries() -> dict[str, Any]:
    """Return all summaries."""
    return {name: summary() for name, summary in SUMMARIES.items()}


def main() -> None:
    """Write the summaries."""
    OUTPUT.write_text(json.dumps(summaries(), indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
