"""Follow a run from another process by its stores and its event log, without writing and without locks."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mltune.errors import MltuneError
from mltune.files.text import printable
from mltune.records import events
from mltune.records.columns import LONGEST_S, SHORTEST_S
from mltune.records.directory import is_begun, is_plan, runs_in
from mltune.records.store import is_written
from mltune.results.messages import message
from mltune.results.progress import CampaignProgress, Observer, Progress
from mltune.results.reader import RunReader
from mltune.results.run import TuneResult
from mltune.show.live import RunDisplay

LOOK_EVERY_S = 1.0
"""Seconds between two reads of a directory."""

GRACE_S = 5.0
"""Seconds for which the lock of a run may be free before the run counts as dead."""

KILLED = "no process works on the run, and its event log has no end: repeat the command to resume it"

LATEST = 10
"""Number of past events shown at first."""


@dataclass(frozen=True, slots=True)
class Snapshot(CampaignProgress):
    """The progress of a run or of a campaign at one moment, and its new ``events``.

    ``begun`` says whether there is a run, ``is_plan`` whether it is a campaign, ``ended`` whether nothing more will
    come; ``message`` says why if no event does.
    """

    events: tuple[dict[str, Any], ...] = ()
    begun: bool = False
    is_plan: bool = False
    ended: bool = False


def follow(directory: Path, display: RunDisplay) -> None:
    """Show the run or the campaign in a directory until it has ended; it may not have begun yet."""
    watch = Watch(directory)
    waits = False
    while True:
        seen = watch.look()
        if not seen.begun and not waits:
            display.say(f"there is no run in {directory} yet: waiting for it")
            waits = True
        for event in seen.events:
            display.say(message(event), timed=True)
        if seen.is_plan:
            display(seen)
        else:
            for progress in seen.runs:
                display(progress)
            if seen.message:
                display.say(seen.message)
        if seen.ended:
            return
        time.sleep(LOOK_EVERY_S)


class Watch:
    """Repeated reads of a run, or of the runs of a campaign, in a directory that need not exist yet."""

    def __init__(self, directory: Path) -> None:
        self._directory = Path(directory)
        self._offset = 0
        self._looked = False
        self._free_since: float | None = None
        self._runs: dict[str, _Run] = {}
        self._events = _Events()

    def look(self) -> Snapshot:
        """Read the new records."""
        running = is_written(self._directory)  # first: what a run writes before it lets go of the lock is read below
        before = self._offset
        news, self._offset = events.read_events(self._directory / events.FILE, before)
        for event in news:
            self._events.add(event)
        shown = [event for event in news if event["event"] != "progress"][0 if self._looked else -LATEST :]
        self._looked = self._offset - before < events.MOST_BYTES  # a longer log is read in parts
        begun = is_plan(self._directory) or is_begun(self._directory)
        if running or not begun:
            self._free_since = None
        elif self._free_since is None:
            self._free_since = time.monotonic()
        dead = self._free_since is not None and time.monotonic() - self._free_since >= GRACE_S
        return Snapshot(
            **self._state(running),
            events=tuple(shown),
            begun=begun,
            ended=dead or (self._looked and self._events.ended and not running),
            message=KILLED if dead and not self._events.ended else None,
        )

    def _state(self, running: bool) -> dict[str, Any]:
        """Return the progress by the stores, and of a whole campaign by its events."""
        if not is_plan(self._directory):
            run_progress = self._run(self._directory, "").progress(self._events.devices.get("", ""))
            runs = () if run_progress is None else (run_progress,)
            return {"runs": runs, "elapsed_s": run_progress.elapsed_s if run_progress else 0.0}
        folders = runs_in(self._directory)
        active = [folder for folder in folders if is_written(folder)]
        seen = [self._run(folder, folder.name).progress(self._events.devices.get(folder.name, "")) for folder in active]
        last = self._events.progress
        trials = self._events.trials | {progress.slug: progress.trials for progress in seen if progress is not None}
        since_s = time.monotonic() - self._events.progress_at if running else 0.0
        left_s = _time(last.get("left_s"))
        return {
            "is_plan": True,
            "runs": tuple(progress for progress in seen if progress is not None),
            "done": self._events.done,
            "problems": max(_whole(last.get("problems")), len(self._events.slugs), len(folders)),
            "trials": sum(trials.values()),
            "trials_limit": self._events.trials_limit,
            "elapsed_s": (_time(last.get("elapsed_s")) or 0.0) + since_s,
            "left_s": None if left_s is None else max(0.0, left_s - since_s),
        }

    def _run(self, folder: Path, slug: str) -> _Run:
        return self._runs.setdefault(slug, _Run(folder, slug))


@dataclass(slots=True)
class _Events:
    """The state of a run or of a campaign by its events; ``progress`` is the last event of that name."""

    ended: bool = False
    devices: dict[str, str] = field(default_factory=dict)  # that worked on each problem last, by slug
    slugs: tuple[str, ...] = ()
    done: int = 0  # problems that have had their minimum
    trials: dict[str, int] = field(default_factory=dict)  # of each problem, by slug
    trials_limit: int | None = None
    progress: Mapping[str, Any] = field(default_factory=dict)
    progress_at: float = field(default_factory=time.monotonic)

    def add(self, event: Mapping[str, Any]) -> None:
        name, slug = event["event"], event.get("slug") or ""
        self._add_device(event)
        if name in ("progress", "slice_ended"):
            self.done = _whole(event.get("done")) or self.done
        if name in ("plan_started", "resumed"):
            self.trials_limit = int(_time(event.get("budget_trials")) or 0) or self.trials_limit
        if name == "slice_ended" and isinstance(slug, str):
            self.trials[slug] = _whole(event.get("trials"))
        if name == "progress":
            self.progress, self.progress_at = event, time.monotonic()
            for run in event["runs"] if isinstance(event.get("runs"), list) else ():
                self._add_device(run)
        elif name == "plan_started" and isinstance(event.get("problems"), list):
            self.slugs = tuple(map(str, event["problems"]))
        if not slug and name in events.BEGINNINGS | events.ENDS:  # of the whole, not of one problem of a campaign
            self.ended = name in events.ENDS

    def _add_device(self, source: Any) -> None:
        """Keep the device that an event, or an entry of its ``runs``, has for a problem."""
        slug, device = (source.get("slug") or "", source.get("device")) if isinstance(source, Mapping) else ("", None)
        if isinstance(slug, str) and isinstance(device, str):
            self.devices[slug] = printable(device)


class _Run:
    """The progress of one run, read from its store."""

    def __init__(self, folder: Path, slug: str) -> None:
        self._reader = RunReader(folder, slug)
        self._slug = slug
        self._seen: tuple[TuneResult | None, str] = (None, "")
        self._identity: tuple[Any, ...] = ()
        self._observer: Observer | None = None
        self._progress: Progress | None = None

    def progress(self, device: str) -> Progress | None:
        """Return the progress of the run; None before its store has any."""
        try:
            run = self._reader.read()
        except (MltuneError, OSError):
            return self._progress  # the store is being created, or is none
        if run is self._seen[0] and device == self._seen[1]:
            return self._progress
        spec = str(run.header.settings.get("target", ""))
        where = device or printable(spec if spec.startswith("replay:") else run.device.name)
        limit = run.limit or {}
        trials, time_s = _whole(limit.get("trials")) or None, limit.get("time_s")
        identity = (run.header.created_at, where, trials, time_s)
        observer, elapsed_s = self._observer, run.elapsed_s
        if observer is None or identity != self._identity or observer.trials > len(self._reader.ended):
            observer = Observer(
                run.problem, run.device, where, trials_limit=trials, time_limit_s=time_s, slug=self._slug
            )
        elif self._progress is not None:
            elapsed_s = max(elapsed_s, self._progress.elapsed_s)
        observer.recall(self._reader.ended[observer.trials :])
        observer.reference_s = run.reference_s
        self._seen, self._observer, self._identity = (run, device), observer, identity
        self._progress = observer.progress(elapsed_s)
        return self._progress


def _time(value: Any) -> float | None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and SHORTEST_S <= value <= LONGEST_S else None


def _whole(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0
