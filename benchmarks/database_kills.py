"""Kills of the processes that write runs into a PostgreSQL database, and many that write at once.

First four processes at a time write four runs, a transaction of 1 to 16 trials after the other, and say after each how
many trials are on record. Each is killed by SIGKILL at a random moment of its first second, in which it also opens its
run, and another one continues the run. After every kill the database must have what the process had said, and at most
the one transaction more that it was about to report; at the end all records are compared with those that were written.

Then 16 processes write 16 runs of 2,000 trials at once, 16 trials a transaction, as do one process alone and files.

    python benchmarks/database_kills.py --store postgresql://me@host/name

Results: benchmarks/results/database_kills.json.
"""

from __future__ import annotations

import json
import os
import random
import select
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import alembic.command  # noqa: F401 - imported once for all processes
import large_run
import psycopg  # noqa: F401
from harness import parser_of, provenance

import mltune.records.database_tables  # noqa: F401
from mltune.records.store import Store
from mltune.records.trial import TrialRecord
from mltune.tuning.session import run_header

RESULT = Path(__file__).parent / "results" / "database_kills.json"
LONGEST = 2_000
"""Trials of a run."""

AT_ONCE = 16


class Runs:
    """What is written: the same realistic records into every run."""

    def __init__(self, database: str, folder: Path) -> None:
        whole = large_run.session()
        self._header = run_header(whole, 0, {"target": "gpu", "batch": 16, "in_flight": 3})
        self.records: list[TrialRecord] = list(large_run.records(whole.space, LONGEST))
        self.database = database
        self.folder = folder

    def open(self, name: str) -> Store:
        """Open a run for writing."""
        return Store.open(self.folder / name, replace(self._header, created_at=0.0), self.database)

    def on_record(self, name: str) -> int:
        """Return the number of trials on record."""
        with Store.read_only(self.folder / name) as store:
            return len(store)

    def is_whole(self, name: str) -> bool:
        """Return whether a run has exactly the first of the records."""
        with Store.read_only(self.folder / name) as store:
            found = store.records()
        return found == self.records[: len(found)]


def forked(work: Callable[[int], None]) -> tuple[int, int]:
    """Do something in a process; return its number, and the pipe that it may write to."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.close(reading)
        try:
            work(writing)
        except Exception:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    os.close(writing)
    return child, reading


def write(runs: Runs, name: str, sizes: random.Random | None, pipe: int) -> None:
    """Write the rest of a run, and say after each transaction how many trials it has."""
    with runs.open(name) as store:
        known = len(store)
        os.write(pipe, b"%8d" % known)
        while known < LONGEST:
            some = runs.records[known : known + (sizes.randint(1, AT_ONCE) if sizes else AT_ONCE)]
            store.append(*some)
            store.set_seconds({"total": float(known)})
            known += len(some)
            os.write(pipe, b"%8d" % known)


def said(pipe: int) -> int:
    """Return the last number that a process has said, -1 if none."""
    text = b""
    while part := os.read(pipe, 1 << 16):
        text += part
    os.close(pipe)
    return int(text[-8:]) if text else -1


def kill_writers(runs: Runs, kills: int, random_: random.Random) -> dict[str, Any]:
    """Kill processes that write; return what that did to their records."""
    names = [f"run-{at}" for at in range(4)]
    before = dict.fromkeys(names, 0)
    done, killed, failed, unopened, lost, more, finished = 0, 0, 0, 0, 0, 0, 0
    while killed < kills:
        children = {}
        for name in names:
            sizes = random.Random(random_.random())  # noqa: S311
            children[name] = forked(lambda pipe, name=name, sizes=sizes: write(runs, name, sizes, pipe))
        deaths = sorted((time.monotonic() + random_.uniform(0.0, 1.0), name) for name in names)
        for moment, name in deaths:
            time.sleep(max(0.0, moment - time.monotonic()))
            os.kill(children[name][0], signal.SIGKILL)
        for at, name in enumerate(names):
            child, pipe = children[name]
            done += 1
            status = os.waitpid(child, 0)[1]
            last = said(pipe)
            killed += os.WIFSIGNALED(status)
            failed += not os.WIFSIGNALED(status) and os.WEXITSTATUS(status) != 0
            unopened += last < 0
            known = max(last, before[name])
            if not (runs.folder / name / "run.json").exists():
                lost += known
                continue
            found = runs.on_record(name)
            lost += max(0, known - found)
            more += found > known
            before[name] = found
            if found == LONGEST:
                finished += 1
                lost += not runs.is_whole(name)
                names[at] = f"run-{len(before)}"
                before[names[at]] = 0
    different = sum(not runs.is_whole(name) for name in names if before[name])
    return {
        "processes": done,
        "killed": killed,
        "failed": failed,
        "killed_before_the_run_was_open": unopened,
        "transactions_committed_but_not_reported": more,
        "runs_ended": finished,
        "trials_on_record": sum(before.values()),
        "trials_lost": lost,
        "runs_that_differ": different,
    }


def write_at_once(runs: Runs, count: int) -> dict[str, Any]:
    """Let some processes write a run each; return the trials a second of all together."""
    names = [f"{count}-at-once-{at}" for at in range(count)]
    for name in names:
        runs.open(name).close()
    begin = time.perf_counter()
    children = [forked(lambda pipe, name=name: write(runs, name, None, pipe)) for name in names]
    pipes = {pipe for _, pipe in children}
    while pipes:
        for pipe in select.select(list(pipes), [], [])[0]:
            if not os.read(pipe, 1 << 16):
                os.close(pipe)
                pipes.discard(pipe)
    for child, _ in children:
        os.waitpid(child, 0)
    taken_s = time.perf_counter() - begin
    whole = sum(runs.is_whole(name) and runs.on_record(name) == LONGEST for name in names)
    return {"writers": count, "trials_per_s": round(count * LONGEST / taken_s), "runs_that_are_whole": whole}


def main() -> None:
    """Run the benchmark and write its figures."""
    parser = parser_of(__doc__, RESULT)
    parser.add_argument("--store", required=True, help="URL of a PostgreSQL database, which is filled")
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        runs, files = Runs(options.store, Path(folder) / "database"), Runs("", Path(folder) / "files")
        document = {
            **provenance("sqlalchemy", "psycopg", "alembic", of="PostgreSQL on the same host"),
            "kills": kill_writers(runs, options.kills, random.Random(options.seed)),  # noqa: S311
            "at_once": {
                "database": [write_at_once(runs, count) for count in (1, 4, 16)],
                "files": [write_at_once(files, count) for count in (1, 4, 16)],
            },
        }
    text = json.dumps(document, indent=1)
    print(text)
    options.output.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
