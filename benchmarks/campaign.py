"""A campaign on a GPU that is interrupted twice, by SIGTERM (as a job scheduler does) and by SIGKILL, and its report.

    python benchmarks/campaign.py                   # search/blas_cases.toml: nine minutes on one GPU
    python benchmarks/campaign.py --plan quick --breaks TERM@200,KILL@100

The result has the seconds from each signal to the end of the process, the trials on file before and after it, the
seconds of recording and reporting, and the report itself.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from harness import RESULTS, gpu_provenance, parser_of, write

from mltune.errors import RunDirectoryError
from mltune.measure.build import available_cores
from mltune.records.directory import runs_in
from mltune.records.events import read_events
from mltune.records.store import Store

KEPT = ("report.html", "report.md", "winners.json")


def main() -> None:
    """Run the campaign, interrupt it, continue it, and write the result."""
    parser = parser_of(__doc__, RESULTS / "campaign")
    parser.add_argument("--plan", default="blas_cases")
    parser.add_argument("--breaks", default="TERM@150,KILL@150", help="signals, each with the seconds after a start")
    arguments = parser.parse_args()
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as scratch:
        os.environ["XDG_CACHE_HOME"] = scratch  # no cubins from earlier runs
        os.environ["MLTUNE_WISDOM"] = "none"  # no winners of earlier runs
        campaign = Path(scratch) / "campaign"
        breaks = [break_off(arguments.plan, campaign, *one.split("@")) for one in arguments.breaks.split(",") if one]
        subprocess.run(command(arguments.plan, campaign), check=True)
        total_s = time.monotonic() - started
        head = gpu_provenance(cores=available_cores(), seconds=total_s, breaks=breaks)
        result = head | overhead(campaign, total_s)
        write(arguments.output / "campaign.json", result)
        for name in KEPT:
            shutil.copy(campaign / name, arguments.output / name)
    print(json.dumps(result, indent=1))


def command(plan: str, campaign: Path) -> list[str]:
    """Return the command that begins or continues the campaign."""
    return [sys.executable, "-m", "mltune", "run", plan, "--run", str(campaign)]


def break_off(plan: str, campaign: Path, name: str, after_s: str) -> dict[str, Any]:
    """Start the campaign, end it by a signal, and return the seconds that this took and the trials on file."""
    process = subprocess.Popen(command(plan, campaign))
    time.sleep(float(after_s))
    before = trials(campaign)
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
        "trials_after": trials(campaign),
        "report": (campaign / "report.html").is_file(),
    }


def trials(campaign: Path) -> int:
    """Return the number of trials on file."""
    count = 0
    for folder in runs_in(campaign):
        with contextlib.suppress(RunDirectoryError), Store.read_only(folder) as store:
            count += len(store)
    return count


def overhead(campaign: Path, total_s: float) -> dict[str, Any]:
    """Return the seconds of each phase, and the share of recording and reporting."""
    spent: Counter[str] = Counter()
    for folder in runs_in(campaign):
        with Store.read_only(folder) as store:
            spent.update(store.seconds())
    events, _ = read_events(campaign / "events.jsonl")
    at = {
        name: [event["elapsed_s"] for event in events if event["event"] == name]
        for name in ("plan_ended", "report_written")
    }
    report_s = sum(written - ended for ended, written in zip(at["plan_ended"], at["report_written"], strict=True))
    return {
        "trials": trials(campaign),
        "problems": len(runs_in(campaign)),
        "spent_s": dict(spent),
        "report_s": report_s,
        "recording_share": spent["record"] / total_s,
        "recording_and_reporting_share": (spent["record"] + report_s) / total_s,
    }


if __name__ == "__main__":
    main()
