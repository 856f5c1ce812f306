"""Shared by the benchmarks: the options of their command lines, where a result comes from, and how it is written."""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import shlex
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

from mltune.records.trial import TrialRecord
from mltune.records.versions import installed_versions
from mltune.results.run import TuneResult

RESULTS = Path(__file__).parent / "results"
Key = TypeVar("Key", int, str)
SEARCHING = ("numpy", "scipy", "scikit-learn", "optuna")
"""Packages whose versions decide what a search proposes."""
ARMS = {"both": (False, True), "with": (True,), "without": (False,)}
"""Whether tunes have compiler parameters, by the value of ``--arms``."""


def parser_of(description: str | None, output: Path | None = None) -> argparse.ArgumentParser:
    """Return a parser with the text of a benchmark's module, and with ``--output``."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=output)
    return parser


def provenance(*packages: str, of: str = "processor time, not wall time", **facts: Any) -> dict[str, Any]:
    """Return the head of a result: date, command, machine, versions, and what else is given."""
    threads = os.environ.get("OMP_NUM_THREADS")
    given = pairwise(["", *sys.argv])
    shown = ["URL" if before == "--store" else one for before, one in given]  # a URL may hold a password
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": f"OMP_NUM_THREADS={threads} " * bool(threads) + shlex.join(["python", *shown]),
        "machine": f"{os.cpu_count()} cores ({platform.machine()}); {of}",
        "versions": {"python": platform.python_version(), **installed_versions(*packages)},
        **facts,
    }


def gpu_provenance(**facts: Any) -> dict[str, Any]:
    """Return the head of a result that was measured on the first GPU, with its facts."""
    from mltune.device.query import driver_version, query_device
    from mltune.measure.build import nvrtc_version

    head = provenance(of="wall time", device=query_device(0).to_json(), **facts)
    return {**head, "versions": {**head["versions"], "nvrtc": nvrtc_version(), "driver": driver_version()}}


def write(path: Path | None, document: dict[str, Any], text: str = "") -> None:
    """Write a result as JSON, and its text as Markdown beside it; nothing without a path."""
    if path is None:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    if text:
        path.with_suffix(".md").write_text(text.rstrip("\n") + "\n", encoding="utf-8")


def rates(result: TuneResult) -> dict[str, float]:
    """Return the rates of the parts of the loop."""
    built = [record.build for record in result.records if record.build is not None]
    ran = [record.measurement for record in result.records if record.measurement is not None]
    verify_s, time_s = sum(one.verify_s for one in ran), sum(one.time_s for one in ran)
    return {
        "compiled_per_s": len(built) / result.seconds["total"],
        "compile_cpu_s": sum(one.compile_s for one in built) / max(len(built), 1),
        "timed_per_gpu_s": len(ran) / max(verify_s + time_s, 1e-9),
        "verify_share": verify_s / max(verify_s + time_s, 1e-9),
        "search_s_per_trial": result.seconds["search"] / max(len(result.records), 1),
        "noise_of_best": result.best.measurement.noise if result.best and result.best.measurement else None,
        "samples_of_best": len(result.best.measurement.samples_s) if result.best and result.best.measurement else None,
    }


def curve(records: list[TrialRecord], started: float, flops: float) -> list[tuple[float, float]]:
    """Return the best TFLOPS so far at every improvement: (seconds since the start, TFLOPS)."""
    points: list[tuple[float, float]] = []
    for record in sorted(records, key=lambda record: record.finished_at):
        if record.state == "ok" and record.median_s is not None:
            tflops = flops / record.median_s / 1e12
            if not points or tflops > points[-1][1]:
                points.append((round(record.finished_at - started, 2), round(tflops, 3)))
    return points


def improvements(records: Iterable[TrialRecord], begun: float) -> list[tuple[float, float]]:
    """Return the best time so far at every improvement: (seconds since the beginning, seconds of the kernel)."""
    points: list[tuple[float, float]] = []
    for record in sorted(records, key=lambda record: record.finished_at):
        best_s = record.median_s
        if record.state == "ok" and best_s and (not points or best_s < points[-1][1]):
            points.append((round(record.finished_at - begun, 2), best_s))
    return points


def best_after(points: Iterable[tuple[float, float]], moments: Iterable[float]) -> dict[str, float | None]:
    """Return the best time so far after some seconds, by these seconds; None where nothing was measured by then."""
    points = list(points)
    return {str(at): min((best_s for when, best_s in points if when <= at), default=None) for at in moments}


def bench_in_turns(calls: Mapping[Key, Callable[[], Any]], rounds: int, *, shuffled: bool = False) -> dict[Key, float]:
    """Return the median milliseconds of calls by Triton's ``do_bench``, in turns; shuffled, in another order each."""
    import numpy as np
    from triton.testing import do_bench

    samples: dict[Key, list[float]] = {one: [] for one in calls}
    for turn in range(rounds):
        names = [*calls]
        order = np.random.default_rng(turn).permutation(len(names)) if shuffled else range(len(names))
        for one in (names[at] for at in order):
            samples[one].append(do_bench(calls[one], warmup=10, rep=50, return_mode="median"))
    return {one: statistics.median(times) for one, times in samples.items()}


def tunes_in_turns(
    script: str, cases: Sequence[str], seeds: str, arms: Sequence[bool], given: Sequence[object], output: Path | None
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Run ``script --one CASE SEED VARIANTS`` for each case, with and without compiler parameters in turns.

    Each is a process of its own with an empty cache of cubins and further arguments as `given`. It prints a row with
    the ``head`` of the result. What there is so far is written after each; return the head and all rows.
    """
    head: dict[str, Any] = {}
    rows: list[dict[str, Any]] = []
    for seed in map(int, seeds.split(",")):
        for number, case in enumerate(cases):
            for variants in arms[::-1] if (seed + number) % 2 else arms:
                command = [sys.executable, script, *map(str, given), "--one", case, str(seed), str(variants)]
                with tempfile.TemporaryDirectory() as cache:
                    own = {**os.environ, "XDG_CACHE_HOME": cache}
                    done = subprocess.run(command, check=False, stdout=subprocess.PIPE, text=True, env=own)
                if done.returncode:
                    print(case, seed, variants, "exit code", done.returncode, flush=True)
                    continue
                row = json.loads(done.stdout.splitlines()[-1])
                head = row.pop("head") | {"command": provenance()["command"]}
                rows.append(row)
                shown = ("case", "seed", "variants", "share_of_reference", "best_s", "call_s")
                print(*(row[name] for name in shown if name in row), flush=True)
                write(output, {**head, "all": rows})
    return head, rows
