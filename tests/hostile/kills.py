"""SIGKILLs between any two changes that a run makes to its files, and what must hold after each of them."""

from __future__ import annotations

import dataclasses
import json
import shutil
import subprocess
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from mltune.records.declaration import FACT
from mltune.records.store import Store
from mltune.records.trial import TrialRecord
from tests.hostile.base import PLAN
from tests.hostile.sandbox import Sandbox
from tests.hostile.suite import failures

SOURCE = Path(__file__).with_name("kill_switch.c")
TRIALS = 20
READERS = ("show_json", "load_run", "report", "dashboard", "follow", "show")


def build_switch(folder: Path) -> Path:
    """Compile the library that kills."""
    compiler = shutil.which("gcc") or shutil.which("cc") or "g++"
    library = folder / "kill_switch.so"
    command = [compiler, "-x", "c", "-shared", "-fPIC", "-O1", "-o", str(library), str(SOURCE), "-ldl"]
    subprocess.run(command, check=True, capture_output=True)
    return library


@dataclass
class Tally:
    """What was seen in all kills."""

    kills: int = 0
    opening: int = 0
    closing: int = 0
    readings: int = 0
    records_compared: int = 0
    failures: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Victims:
    """Runs that are killed, each in a new folder.

    Attributes
    ----------
    victims, readers : Sandbox
        The former with the kill switch.
    folder : pathlib.Path
    search : str
    """

    victims: Sandbox
    readers: Sandbox
    folder: Path
    search: str = "random"

    def undisturbed(self, state: str) -> tuple[Path, int, int, int]:
        """Return the folder of a run without a kill, the counts of its first and last trial, and of all calls."""
        folder = self.begin(state, "undisturbed")
        outcome = self.victims.run("tune_with_switch", folder, 0, TRIALS, self.search)
        assert outcome.status == 0, outcome.output
        document = json.loads((folder / "calls").read_text())
        return folder, document["first"], document["last"], len(document["calls"])

    def begin(self, state: str, name: str) -> Path:
        """Return a new folder, with a run that was never begun, was closed half-way, or was killed half-way."""
        folder = self.folder / f"{state}-{name}"
        (folder / "named").mkdir(parents=True)
        (folder / "canary").mkdir()
        if state != "new":
            shutil.copytree(self.half(state), folder / "named" / "run")
        return folder

    def half(self, state: str) -> Path:
        """Return a run of half of the trials: ``closed`` as usual, or ``killed`` before its last transaction."""
        folder = self.folder / f"half-{state}"
        if not folder.exists():
            (folder / "named").mkdir(parents=True)
            (folder / "canary").mkdir()
            assert self.victims.run("tune_with_switch", folder, 0, TRIALS // 2, self.search).status == 0
            if state == "killed":
                calls = json.loads((folder / "calls").read_text())
                shutil.rmtree(folder / "named")
                (folder / "named").mkdir()
                outcome = self.victims.run("tune_with_switch", folder, calls["last"] - 1, TRIALS // 2, self.search)
                assert outcome.status == -9
        return folder / "named" / "run"

    def kill(self, state: str, at: int, expected: Path, tally: Tally) -> None:
        """Kill a run before its n-th change, read it, resume it, and compare it with the undisturbed one."""
        folder = self.begin(state, str(at))
        run, found = folder / "named" / "run", []
        outcome = self.victims.run("tune_with_switch", folder, at, TRIALS, self.search)
        if outcome.status != -9:
            found.append(f"it was not killed: {outcome.status} {outcome.output[-300:]}")
        acknowledged = numbers(folder / "acknowledged")
        begun = bool(acknowledged) or state != "new"
        for reader in READERS[at % 3 :: 3]:
            seen = self.readers.run(reader, folder)
            wrong = failures(dataclasses.replace(seen, opened=[]))
            if begun and seen.status != 0:
                wrong.append(f"exit status {seen.status}: {seen.output.strip()[-300:]}")
            found += [f"{reader}: {one}" for one in wrong]
            tally.readings += 1
        outcome = self.victims.run("tune_with_switch", folder, 0, TRIALS, self.search)
        if outcome.status != 0:
            found.append(f"resume: exit status {outcome.status}: {outcome.output.strip()[-300:]}")
        else:
            records = records_of(run)
            if lost := acknowledged - {record.number for record in records}:
                found.append(f"lost {sorted(lost)}")
            if (records, declaration_of(run)) != (records_of(expected), declaration_of(expected)):
                found.append("differs from the undisturbed run")
            tally.records_compared += len(records)
        tally.kills += 1
        tally.failures += [f"{state} {at}: {one}" for one in found]
        shutil.rmtree(folder)


@dataclass(frozen=True)
class Campaigns:
    """Campaigns whose device workers, or which themselves, are killed."""

    victims: Sandbox
    readers: Sandbox
    folder: Path

    def undisturbed(self) -> Path:
        """Return the folder of a campaign without a kill."""
        folder = self._begin("undisturbed")
        outcome = self.victims.run("run_with_switch", folder, 0, False)
        assert outcome.status == 0, outcome.output
        return folder

    def kill(self, name: str, at: int, expected: Path, tally: Tally, *, of_worker: bool) -> None:
        """Kill the first worker, or the campaign itself, before its n-th change; read all the while; compare."""
        folder, found = self._begin(name), []
        ended = threading.Event()
        with ThreadPoolExecutor(1) as pool:
            reading = pool.submit(self._read, folder, ended)
            outcome = self.victims.run("run_with_switch", folder, at, of_worker)
            killed = outcome.status == -9 or (of_worker and (folder / "killed").exists())
            if outcome.status == -9:
                outcome = self.victims.run("run_with_switch", folder, 0, False)
            ended.set()
            readings, wrong = reading.result()
        found += wrong
        if (
            outcome.status != 0
            or json.loads(outcome.output[outcome.output.find("{") :].partition("\nwritten")[0])["failed"]
        ):
            found.append(f"exit status {outcome.status}: {outcome.output.strip()[-300:]}")
        for run in sorted((expected / "named" / "run" / "problems").iterdir()):
            other = folder / "named" / "run" / "problems" / run.name
            if (records_of(other), declaration_of(other)) != (records_of(run), declaration_of(run)):
                found.append(f"{run.name} differs from the undisturbed campaign")
            tally.records_compared += len(records_of(other))
        tally.readings += readings
        tally.kills += killed
        tally.failures += [f"{'worker' if of_worker else 'campaign'} {at}: {one}" for one in found]
        shutil.rmtree(folder)

    def _begin(self, name: str) -> Path:
        folder = self.folder / f"campaign-{name}"
        (folder / "named").mkdir(parents=True)
        (folder / "canary").mkdir()
        (folder / "named" / "plan.toml").write_text(PLAN)
        return folder

    def _read(self, folder: Path, ended: threading.Event) -> tuple[int, list[str]]:
        """Read a campaign again and again until it has ended; return how often, and what went wrong."""
        count, wrong = 0, []
        while not ended.is_set():
            reader = ("show_json", "report_elsewhere", "dashboard", "show")[count % 4]
            seen = self.readers.run(reader, folder)
            begun = any((folder / "named" / "run").glob("problems/*/run.sqlite"))
            wrong += [f"{reader}: {one}" for one in failures(dataclasses.replace(seen, opened=[]))]
            if begun and count and seen.status not in (0, 1, 2):
                wrong.append(f"{reader}: exit status {seen.status}: {seen.output.strip()[-300:]}")
            if any(word in seen.output for word in ("undamaged store", "cannot be read", "readonly")):
                wrong.append(f"{reader}: {seen.output.strip()[-300:]}")
            count += 1
        return count, wrong


def numbers(path: Path) -> set[int]:
    return set(map(int, path.read_text().split())) if path.exists() else set()


def records_of(run: Path) -> list[TrialRecord]:
    """Return the records of a run by number, without their dates."""
    with Store.read_only(run) as store:
        records = [dataclasses.replace(one, finished_at=0.0, elapsed_s=0.0) for one in store.records()]
    return sorted(records, key=lambda record: record.number)


def declaration_of(run: Path) -> object:
    with Store.read_only(run) as store:
        return store.fact(FACT)


def spread(found: Sequence[int], count: int) -> list[int]:
    """Return so many of some numbers, evenly spread."""
    if count >= len(found):
        return list(found)
    return sorted({found[round(position * (len(found) - 1) / max(1, count - 1))] for position in range(count)})
