"""A real night on a GPU, broken off twice: by SIGTERM, as a job scheduler does, and by SIGKILL; then its report.

    python benchmarks/night.py                      # search/blas_cases.toml: nine minutes on one GPU
    python benchmarks/night.py --plan quick --breaks TERM@200,KILL@100

Recorded are how long the night took to end when it was told to, how many trials were on file before and after each
break, what recording and reporting took, and beside that the report itself.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from mltune import __version__
from mltune.errors import RunDirectoryError
from mltune.measure.build import available_cores, nvrtc_version
from mltune.records.directory import runs_in
from mltune.records.events import read_events
from mltune.records.store import Store

KEPT = ("report.html", "report.md", "winners.json")


def main() -> None:
    """Run the night, break it off, go on with it, and write what happened."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plan", default="blas_cases")
    parser.add_argument("--breaks", default="TERM@150,KILL@150", help="signals, each so many seconds after a start")
    parser.add_argument("--output", type=Path, default=Path("benchmarks/results/night"))
    arguments = parser.parse_args()
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as scratch:
        os.environ["XDG_CACHE_HOME"] = scratch  # no cubins from earlier runs
        night = Path(scratch) / "night"
        breaks = [break_off(arguments.plan, night, *one.split("@")) for one in arguments.breaks.split(",") if one]
        subprocess.run(command(arguments.plan, night), check=True)
        total_s = time.monotonic() - started
        arguments.output.mkdir(parents=True, exist_ok=True)
        result = {**facts(), "seconds": total_s, "breaks": breaks, **overhead(night, total_s)}
        (arguments.output / "night.json").write_text(json.dumps(result, indent=1) + "\n")
        for name in KEPT:
            shutil.copy(night / name, arguments.output / name)
    print(json.dumps(result, indent=1))


def command(plan: str, night: Path) -> list[str]:
    """Return the command that begins the night, or goes on with it."""
    return [sys.executable, "-m", "mltune", "run", plan, "--run", str(night)]


def break_off(plan: str, night: Path, name: str, after_s: str) -> dict[str, Any]:
    """Start the night, end it by a signal, and return what that took and left."""
    process = subprocess.Popen(command(plan, night))
    time.sleep(float(after_s))
    before = trials(night)
    process.send_signal(signal.Signals[f"SIG{name}"])
    sent = time.monotonic()
    code = process.wait()
    ended_s = time.monotonic() - sent
    return {
        "signal": f"SIG{name}",
        "after_s": float(after_s),
        "ended_s": ended_s,
        "exit": code,
        "trials_before": before,
        "trials_after": trials(night),
        "report": (night / "report.html").is_file(),
    }


def trials(night: Path) -> int:
    """Return how many trials are on file."""
    count = 0
    for folder in runs_in(night):
        with contextlib.suppress(RunDirectoryError), Store.read_only(folder) as store:
            count += len(store)
    return count


def overhead(night: Path, total_s: float) -> dict[str, Any]:
    """Return where the seconds went, and what share of all recording and reporting took."""
    spent: Counter[str] = Counter()
    for folder in runs_in(night):
        with Store.read_only(folder) as store:
            spent.update(store.seconds())
    events, _ = read_events(night / "events.jsonl")
    at = {
        name: [event["elapsed_s"] for event in events if event["event"] == name]
        for name in ("plan_ended", "report_written")
    }
    report_s = sum(written - ended for ended, written in zip(at["plan_ended"], at["report_written"], strict=True))
    return {
        "trials": trials(night),
        "problems": len(runs_in(night)),
        "spent_s": dict(spent),
        "report_s": report_s,
        "recording_share": spent["record"] / total_s,
        "recording_and_reporting_share": (spent["record"] + report_s) / total_s,
    }


def facts() -> dict[str, Any]:
    """Return when, with what and on what the night was run."""
    from mltune.device.query import driver_version, query_device

    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": " ".join(["python", *sys.argv]),
        "device": query_device(0).name,
        "cores": available_cores(),
        "versions": {
            "mltune": __version__,
            "nvrtc": nvrtc_version(),
            "driver": driver_version(),
            "python": platform.python_version(),
        },
    }


if __name__ == "__main__":
    main()
