"""SIGKILLs between any two changes that a run makes to its files, and what must hold after each of them."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import tuned_functions

from mltune.errors import MltuneError
from mltune.known.entry import Entry
from mltune.known.triton_calls import read_programs, write_program
from mltune.known.wisdom import Wisdom
from mltune.library.folder import read_library
from mltune.records.store import Store
from mltune.records.trial import TrialRecord
from tests.environment import importing
from tests.hostile.base import PLAN, make_winners
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
            if any(word in seen.output for word in ("damaged store", "cannot be read", "readonly")):
                wrong.append(f"{reader}: {seen.output.strip()[-300:]}")
            count += 1
        return count, wrong


LIBRARY = """
[library]
operation = "sgemm"
trans = "NT"
kernel = ["gemm_simt"]
trials = 20
tuned = 2
[sizes]
shapes = [1024, 4096]
"""
LIBRARY_CHANGES = 20
"""Changes of files in the folder of a library that its writer makes at least, about."""

TUNED = Path(tuned_functions.__file__)
MINE = "wisdom.json"
NEXT_S = 120.0
"""Seconds in which the process after a kill has ended: nothing blocks it."""


@dataclass(frozen=True)
class Programs:
    """Library builds, tuned functions and imports of winners that are killed, each in a folder of its own.

    Attributes
    ----------
    folder, switch : pathlib.Path
        The latter is the library that kills, for moments at which a folder is written.
    """

    folder: Path
    switch: Path

    def library(self) -> tuple[Path, float]:
        """Return the folder of a library, its run and its description without a kill, and the seconds of a build."""
        folder, begun = self.folder / "library", time.monotonic()
        folder.mkdir()
        (folder / "spec.toml").write_text(LIBRARY)
        assert self._build(folder).wait() == 0
        return folder, time.monotonic() - begun

    def kill_library(self, at: int, built: tuple[Path, float], rng: Random, tally: Tally) -> None:
        """Kill a build that begins, goes on or replaces a library; read what there is, and build again."""
        (expected, whole_s), folder = built, self.folder / f"library-{at}"
        folder.mkdir()
        (folder / "spec.toml").write_text(LIBRARY)
        replaces, by_switch = at % 3 > 0, at % 2 > 0
        if replaces:
            shutil.copytree(expected / "lib", folder / "lib")
        if by_switch:  # while the folder is written
            shutil.copytree(expected / "run", folder / "run")
            status = self._build(folder, rng.randrange(1, LIBRARY_CHANGES)).wait(NEXT_S)
        else:
            status = _killed_after(self._build(folder), rng.uniform(0.2, 1.0) * whole_s)
        tally.kills += status == -signal.SIGKILL
        found, runs = [], sorted(folder.glob("run/problems/*/run.sqlite"))
        before = {run.parent.name: records_of(run.parent) for run in runs}
        if replaces or (folder / "lib").exists():
            found += _faults(lambda: read_library(folder / "lib"))
            tally.readings += 1
        again = self._build(folder)
        if again.wait(NEXT_S) != 0:
            found.append(f"the next build: exit status {again.returncode}")
        found += _faults(lambda: read_library(folder / "lib"))
        for name, records in before.items():
            if records_of(folder / "run" / "problems" / name)[: len(records)] != records:
                found.append(f"{name}: a recorded trial is lost")
            tally.records_compared += len(records)
        tally.failures += [f"library {at}: {fault}" for fault in found]
        shutil.rmtree(folder)

    def _build(self, folder: Path, at: int = 0) -> subprocess.Popen[bytes]:
        environment = importing() | {"MLTUNE_WISDOM": "none"}
        if at:
            environment |= {"LD_PRELOAD": str(self.switch), "KILL_SWITCH_AT": str(at)}
            environment |= {"KILL_SWITCH_NAME": "lib.", "KILL_SWITCH_ONCE": str(folder / "killed")}
        arguments = ["library", "build", "spec.toml", "lib", "--device", "replay", "--run", "run"]
        return _begun([sys.executable, "-P", "-m", "mltune", *arguments], folder, environment)

    def kill_tuned(self, at: int, whole_s: float, rng: Random, tally: Tally) -> None:
        """Kill one of two processes that call a tuned function, of the same sizes or of others; call it again."""
        folder = self.folder / f"tuned-{at}"
        folder.mkdir()
        file, sizes = folder / "add.json", (1000, rng.choice((1000, 2000)))
        victim, beside = (self._call(file, n) for n in sizes)
        status = _killed_after(victim, rng.uniform(0.2, 1.0) * whole_s)
        tally.kills += status == -signal.SIGKILL
        found = _faults(lambda: Wisdom.load(file))
        if beside.wait(NEXT_S) != 0:
            found.append(f"the process beside it: exit status {beside.returncode}")
        before = [len(records_of(run)) for run in folder.glob("cache/mltune/tuned/*") if (run / "run.sqlite").exists()]
        again = self._call(file, sizes[0])
        if again.wait(NEXT_S) != 0:
            found.append(f"the next process: exit status {again.returncode}")
        found += _faults(lambda: Wisdom.load(file))
        entries = [entry for entry in Wisdom.load(file) if isinstance(entry, Entry)]
        if {entry.problem["sizes"]["problem_size_x"] for entry in entries} != {*sizes}:
            found.append("an outcome is lost")
        if max(before, default=0) > max((entry.trials for entry in entries), default=0):
            found.append("a recorded trial is lost")
        tally.readings += 2
        tally.records_compared += sum(before)
        tally.failures += [f"tuned function {at}: {fault}" for fault in found]
        shutil.rmtree(folder)

    def imported(self) -> Path:
        """Return a folder with winners, a wisdom that had one and a program, and into which they were imported."""
        folder = self.folder / "imported"
        folder.mkdir()
        make_winners(folder)
        (folder / "before").mkdir()
        theirs = [entry for entry in Wisdom.load(folder / "triton.json") if isinstance(entry, Entry)]
        Wisdom(entry.model_copy(update={"driver": "12.0"}) for entry in theirs[:1]).add_to(folder / "before" / MINE)
        write_program(folder / "before" / MINE, [("library:own", {"n": 1})])
        shutil.copytree(folder / "before", folder / "mine")
        assert self._import(folder) == 0
        return folder

    def kill_import(self, at: int, expected: Path, tally: Tally) -> None:
        """Kill an import before its n-th change, and import again."""
        folder = self.folder / f"import-{at}"
        shutil.copytree(expected / "winners", folder / "winners")
        shutil.copytree(expected / "before", folder / "mine")
        before, mine, found = expected / "before" / MINE, folder / "mine" / MINE, []
        tally.kills += self._import(folder, at) == -signal.SIGKILL
        if not {*map(repr, Wisdom.load(before))} <= {*map(repr, Wisdom.load(mine))}:
            found.append("a winner is lost")
        if read_programs(mine)[-1:] != read_programs(before):
            found.append("a program is lost")
        if self._import(folder) != 0:
            found.append("the next import fails")
        for file in (MINE, f"{MINE}.calls"):
            if (mine.parent / file).read_bytes() != (expected / "mine" / file).read_bytes():
                found.append(f"{file} is not that of an undisturbed import")
        tally.readings += 2
        tally.failures += [f"import {at}: {fault}" for fault in found]
        shutil.rmtree(folder)

    def _import(self, folder: Path, at: int = 0) -> int:
        environment = importing()
        if at:
            environment |= {"LD_PRELOAD": str(self.switch), "KILL_SWITCH_AT": str(at)}
            environment |= {"KILL_SWITCH_NAME": "/mine/", "KILL_SWITCH_ONCE": str(folder / "killed")}
        arguments = ["triton", "import", str(folder / "winners"), "--wisdom", str(folder / "mine" / MINE)]
        return _begun([sys.executable, "-P", "-m", "mltune", *arguments], folder, environment).wait(NEXT_S)

    def tuned_s(self) -> float:
        """Return the seconds of a process that calls a tuned function without a kill."""
        folder, begun = self.folder / "tuned", time.monotonic()
        folder.mkdir()
        assert self._call(folder / "add.json", 1000).wait(NEXT_S) == 0
        return time.monotonic() - begun

    def _call(self, file: Path, n: int) -> subprocess.Popen[bytes]:
        environment = importing(TUNED.parent, MLTUNE_EFFORT="quick", XDG_CACHE_HOME=str(file.parent / "cache"))
        environment["MLTUNE_IMAGINARY_GPU"] = str(file.parent)
        return _begun([sys.executable, str(TUNED), str(file), str(n), ""], file.parent, environment)


def _begun(command: list[str], folder: Path, environment: dict[str, str]) -> subprocess.Popen[bytes]:
    output = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    return subprocess.Popen(command, cwd=folder, env=environment, **output)


def _killed_after(process: subprocess.Popen[bytes], seconds: float) -> int:
    """Kill a process unless it has ended by then; return its exit status."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(seconds)
    process.kill()
    return process.wait()


def _faults(read: Callable[[], object]) -> list[str]:
    try:
        read()
    except MltuneError as error:
        return [str(error)]
    return []


def numbers(path: Path) -> set[int]:
    return set(map(int, path.read_text().split())) if path.exists() else set()


def records_of(run: Path) -> list[TrialRecord]:
    """Return the records of a run by number, without their dates."""
    with Store.read_only(run) as store:
        records = [dataclasses.replace(one, finished_at=0.0, elapsed_s=0.0) for one in store.records()]
    return sorted(records, key=lambda record: record.number)


def declaration_of(run: Path) -> object:
    with Store.read_only(run) as store:
        return store.documents().get("declaration")


def spread(found: Sequence[int], count: int) -> list[int]:
    """Return so many of some numbers, evenly spread."""
    if count >= len(found):
        return list(found)
    return sorted({found[round(position * (len(found) - 1) / max(1, count - 1))] for position in range(count)})
