"""A run seen from another process: its stores and its diary are read, and nothing of it is touched.

The stores say how far it is, the diary what happened. What is missing, torn or from another version is passed over: the
next look may find more.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mltune.errors import MltuneError
from mltune.records import events
from mltune.records.directory import FILE, in_use, is_plan, runs_in
from mltune.records.store import Store
from mltune.results.messages import printable, sentence
from mltune.results.observer import Observer
from mltune.results.progress import CampaignProgress

if TYPE_CHECKING:
    from mltune.device.facts import Device
    from mltune.problem.problem import Problem
    from mltune.results.progress import Progress
    from mltune.show.live import RunDisplay

LOOK_EVERY_S = 1.0
"""Seconds between two looks."""

GRACE_S = 5.0
"""Seconds for which nobody may hold the lock of a run before it is taken to be dead."""

KILLED = "no process is at work on it, and it did not say that it ended: repeat its command to go on"

LATEST = 10
"""Events of the past that are shown at first."""


@dataclass(frozen=True, slots=True)
class Sight:
    """What one look has found. It can be shown like the progress of a plan.

    Attributes
    ----------
    runs : tuple of Progress
        The runs that are under way; of a run that has ended its last state.
    done, problems : int
        Problems that are finished, and all.
    elapsed_s : float
    left_s : float or None
    events : tuple of dict
        What happened since the look before.
    begun : bool
        Whether there is a run.
    is_plan : bool
    ended : bool
        Whether nothing more will come.
    message : str or None
        Why, where the run did not say so itself.
    """

    runs: tuple[Progress, ...] = ()
    done: int = 0
    problems: int = 1
    elapsed_s: float = 0.0
    left_s: float | None = None
    events: tuple[dict[str, Any], ...] = ()
    begun: bool = False
    is_plan: bool = False
    ended: bool = False
    message: str | None = None

    @property
    def campaign(self) -> CampaignProgress:
        """The progress of a campaign."""
        return CampaignProgress(self.runs, self.done, self.problems, self.elapsed_s, self.left_s, self.message)


def follow(directory: Path, display: RunDisplay) -> None:
    """Show a run, which may not have begun yet, until it has ended.

    Parameters
    ----------
    directory : pathlib.Path
        Of a run or of a plan.
    display : RunDisplay
        Entered.
    """
    watch = Watch(directory)
    waits = False
    while True:
        sight = watch.look()
        if not sight.begun and not waits:
            display.say(f"there is no run in {directory} yet: waiting for it")
            waits = True
        for event in sight.events:
            display.say(sentence(event), timed=True)
        if sight.is_plan:
            display(sight.campaign)
        else:
            for progress in sight.runs:
                display(progress)
            if sight.message:
                display.say(sight.message)
        if sight.ended:
            return
        time.sleep(LOOK_EVERY_S)


class Watch:
    """Looks at a run, or at the runs of a plan, again and again.

    Parameters
    ----------
    directory : pathlib.Path
        It need not exist yet.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = Path(directory)
        self._offset = 0
        self._looked = False
        self._free_since: float | None = None
        self._runs: dict[str, _Run] = {}
        self._diary = _Diary()

    def look(self) -> Sight:
        """Look once."""
        running = in_use(self._directory)  # before what it wrote is read: what it wrote last is then seen
        news, self._offset = events.read_events(self._directory / events.FILE, self._offset)
        for event in news:
            self._diary.note(event)
        shown = [event for event in news if event["event"] != "progress"][0 if self._looked else -LATEST :]
        self._looked = True
        begun = is_plan(self._directory) or (self._directory / FILE).is_file()
        if running or not begun:
            self._free_since = None
        elif self._free_since is None:
            self._free_since = time.monotonic()
        dead = self._free_since is not None and time.monotonic() - self._free_since >= GRACE_S
        return Sight(
            **self._state(running),
            events=tuple(shown),
            begun=begun,
            ended=dead or (self._diary.ended and not running),
            message=KILLED if dead and not self._diary.ended else None,
        )

    def _state(self, running: bool) -> dict[str, Any]:
        """Return what the stores say, and of the whole what only the diary knows."""
        if not is_plan(self._directory):
            found = self._run(self._directory, "").progress(self._diary.devices.get("", ""))
            runs = () if found is None else (found,)
            return {"runs": runs, "elapsed_s": found.elapsed_s if found else 0.0}
        folders = runs_in(self._directory)
        at_work = [folder for folder in folders if in_use(folder)]
        seen = [self._run(folder, folder.name).progress(self._diary.devices.get(folder.name, "")) for folder in at_work]
        last = self._diary.progress
        since_s = time.monotonic() - self._diary.progress_at if running else 0.0
        left_s = _number(last.get("left_s"))
        return {
            "is_plan": True,
            "runs": tuple(progress for progress in seen if progress is not None),
            "done": _whole(last.get("done")),
            "problems": max(_whole(last.get("problems")), len(self._diary.slugs), len(folders)),
            "elapsed_s": (_number(last.get("elapsed_s")) or 0.0) + since_s,
            "left_s": None if left_s is None else max(0.0, left_s - since_s),
        }

    def _run(self, folder: Path, slug: str) -> _Run:
        return self._runs.setdefault(slug, _Run(folder, slug))


@dataclass(slots=True)
class _Diary:
    """What the events so far say.

    Attributes
    ----------
    ended : bool
        Whether the run ended, and did not go on after.
    devices : dict of str to str
        Where each problem was worked on last, by slug.
    slugs : tuple of str
        The problems of the plan.
    progress : mapping
        The last event ``progress``.
    progress_at : float
        When it was read, by a clock that nobody sets.
    """

    ended: bool = False
    devices: dict[str, str] = field(default_factory=dict)
    slugs: tuple[str, ...] = ()
    progress: Mapping[str, Any] = field(default_factory=dict)
    progress_at: float = field(default_factory=time.monotonic)

    def note(self, event: Mapping[str, Any]) -> None:
        name, slug = event["event"], event.get("slug") or ""
        self._note_device(event)
        if name == "progress":
            self.progress, self.progress_at = event, time.monotonic()
            for run in event["runs"] if isinstance(event.get("runs"), list) else ():
                self._note_device(run)
        elif name == "plan_started" and isinstance(event.get("problems"), list):
            self.slugs = tuple(map(str, event["problems"]))
        if slug:  # what begins and ends there is one problem of a plan
            return
        if name in events.BEGINNINGS | events.ENDS:
            self.ended = name in events.ENDS

    def _note_device(self, told: Any) -> None:
        """Note where a problem is worked on, as an event says, or a part of one."""
        slug, device = (told.get("slug") or "", told.get("device")) if isinstance(told, Mapping) else ("", None)
        if isinstance(slug, str) and isinstance(device, str):
            self.devices[slug] = printable(device)


@dataclass(frozen=True, slots=True)
class _Subject:
    problem: Problem
    device: Device


class _Run:
    """One store, read as far as it goes; again only when it has changed."""

    def __init__(self, folder: Path, slug: str) -> None:
        self._folder = folder
        self._slug = slug
        self._seen: tuple[Any, ...] = ()
        self._identity: tuple[Any, ...] = ()
        self._observer: Observer | None = None
        self._device = ""
        self._progress: Progress | None = None

    def progress(self, device: str) -> Progress | None:
        """Return how far the run is; None before it is known."""
        state = (device, *(_stamp(self._folder / f"{FILE}{suffix}") for suffix in ("", "-wal")))
        if state != self._seen:
            try:
                self._read(device)
            except (MltuneError, OSError, ValueError, TypeError, KeyError):
                return self._progress  # it is being made, or is no store: the next look may tell
            self._seen = state
        return self._progress

    def _read(self, device: str) -> None:
        with Store.read_only(self._folder) as store:
            header = store.header
            limit = store.fact("limit")
            limit = limit if isinstance(limit, Mapping) else {}
            trials, time_s = _whole(limit.get("trials")) or None, _number(limit.get("time_s"))
            target = str(header.settings.get("target", ""))
            where = device or printable(target if target.startswith("replay:") else str(header.device.get("name")))
            identity = (header.created_at, where, trials, time_s)
            observer = self._observer
            if observer is None or identity != self._identity or observer.trials > len(store):
                observer = Observer(_subject(header), where, trials_limit=trials, time_limit_s=time_s, slug=self._slug)
            records = store.records(after=observer.trials)
            observer.recall(records)
            observer.reference_s = _number(store.fact("reference_median_s"))
            elapsed_s = max(store.seconds().get("total", 0.0), *(record.elapsed_s for record in records), 0.0)
        if self._observer is observer and self._progress is not None:
            elapsed_s = max(elapsed_s, self._progress.elapsed_s)
        self._observer, self._identity = observer, identity
        self._progress = observer.progress(elapsed_s)


def _subject(header: Any) -> _Subject:
    from mltune.device.facts import Device
    from mltune.problem.kinds import problem_from_json

    return _Subject(problem_from_json(dict(header.problem)), Device.from_json(dict(header.device)))


def _stamp(path: Path) -> tuple[int, int] | None:
    """Return what changes with a file."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size


def _whole(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None
