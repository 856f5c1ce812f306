"""What a report is made from: the stores, the plan and the events of a directory, checked.

Directories come from anybody. What cannot be read of one problem is said in its place; the others are read.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mltune.device.facts import Device
from mltune.errors import MltuneError, RunDirectoryError, StoreError
from mltune.records.declaration import FACT, Declaration, Finalist
from mltune.records.directory import PLAN_FILE, PROBLEMS, is_plan, runs_in
from mltune.records.events import FILE as EVENTS_FILE
from mltune.records.events import planned, read_events
from mltune.records.header import RunHeader
from mltune.records.reference import Reference
from mltune.records.store import Store
from mltune.records.trial import GATES, TrialRecord

if TYPE_CHECKING:
    from mltune.kernel.bundle import Kernel
    from mltune.problem.problem import Problem

SLUG = re.compile(r"[a-z0-9][a-z0-9.-]{0,127}")
"""What the folder of a plan's problem may be called."""

_BUILT_IN = re.compile(r"[a-z][a-z0-9_]{0,63}")
_LONGEST_PLAN = 1 << 18
_LONGEST_TEXT = 2_000


@dataclass(frozen=True, slots=True)
class ProblemRun:
    """The run of one problem, as its store tells it.

    Attributes
    ----------
    slug : str
        Name of its folder; of a run by itself the label of the problem.
    directory : pathlib.Path
    header : RunHeader
    kernel : Kernel or None
        The bundle, where it is a built-in one and still the same.
    problem : Problem
    device : Device
    peak_flops : float
        Of the device for the problem's arithmetic, operations per second.
    records : sequence of TrialRecord
        Every time in them is finite and above 0, or None.
    seconds : mapping of str to float
        Where they went.
    reference_s : float or None
        Median time of cuBLAS, measured beside the run.
    declaration : Declaration or None
        None where the run ended before its finals.
    references : sequence of Reference
    stopped : str
        Why it ended by itself; empty when it did not.
    """

    slug: str
    directory: Path
    header: RunHeader
    kernel: Kernel | None
    problem: Problem
    device: Device
    peak_flops: float
    records: Sequence[TrialRecord]
    seconds: Mapping[str, float]
    reference_s: float | None
    declaration: Declaration | None
    references: Sequence[Reference]
    stopped: str

    @property
    def replayed(self) -> bool:
        """Whether its times were recorded earlier: seconds of the run then say nothing of a GPU."""
        return str(self.header.settings.get("target", "")).startswith("replay:")

    def of_trial(self, number: int) -> TrialRecord | None:
        """Return the record of a trial."""
        return next((record for record in self.records if record.number == number), None)


@dataclass(frozen=True, slots=True)
class Unread:
    """A problem of which nothing can be told, and why."""

    slug: str
    reason: str


@dataclass(frozen=True, slots=True)
class Night:
    """All that a report is made from.

    Attributes
    ----------
    directory : pathlib.Path
    plan : str or None
        The text of the plan; None for the run of one problem.
    title : str
        Of the plan, or the label of the problem.
    runs : sequence of ProblemRun
    unread : sequence of Unread
        Problems that were not begun, or whose store cannot be read.
    events : sequence of mapping
        What happened, in order.
    """

    directory: Path
    plan: str | None
    title: str
    runs: Sequence[ProblemRun]
    unread: Sequence[Unread]
    events: Sequence[Mapping[str, Any]]


def read_night(directory: Path) -> Night:
    """Read the directory of a run or of a plan.

    Raises
    ------
    RunDirectoryError
        It is neither.
    """
    directory = Path(directory)
    events, _ = read_events(directory / EVENTS_FILE)
    if not is_plan(directory):
        (only,) = runs_in(directory)
        run = _read(only, None)
        if isinstance(run, Unread):
            return Night(directory, None, run.slug, [], [run], events)
        return Night(directory, None, run.problem.label, [run], [], events)
    with (directory / PLAN_FILE).open("rb") as file:
        text = file.read(_LONGEST_PLAN).decode("utf-8", "backslashreplace")
    found = [_read(path, path.name) for path in _folders(directory, events)]
    return Night(
        directory,
        text,
        _title(text) or directory.resolve().name,
        [run for run in found if isinstance(run, ProblemRun)],
        [run for run in found if isinstance(run, Unread)],
        events,
    )


def _folders(directory: Path, events: Sequence[Mapping[str, Any]]) -> list[Path]:
    """Return the folders of a plan's problems: in the plan's order as far as an event tells it, those not begun too."""
    there = {path.name for path in runs_in(directory)}
    there |= {path.name for path in directory.glob(f"{PROBLEMS}/*") if path.is_dir()}
    ordered = dict.fromkeys([*planned(events), *sorted(there)])
    return [directory / PROBLEMS / name for name in ordered if SLUG.fullmatch(name)]


def _title(text: str) -> str:
    """Return the title that a plan gives itself."""
    try:
        document = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError):
        return ""
    heads = [document, document.get("plan")]
    titles = (head.get(key) for head in heads if isinstance(head, dict) for key in ("title", "name"))
    return next((title[:200] for title in titles if isinstance(title, str) and title), "")


def _read(directory: Path, slug: str | None) -> ProblemRun | Unread:
    """Read one store. Whatever a damaged one raises is said in the report, and is no reason not to write it."""
    name = slug or directory.resolve().name
    try:
        with Store.read_only(directory) as store:
            return _checked(store, slug)
    except (RunDirectoryError, StoreError) as error:
        begun = (directory / "run.sqlite").exists()
        return Unread(name, str(error)[:_LONGEST_TEXT] if begun or slug is None else "not begun")
    except (MltuneError, ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
        return Unread(name, f"its store cannot be read: {type(error).__name__}: {error}"[:_LONGEST_TEXT])


def _checked(store: Store, slug: str | None) -> ProblemRun:
    from mltune.device.peaks import peak_flops
    from mltune.problem.kinds import problem_from_json

    header = store.header
    _check_header(header)
    problem = problem_from_json(dict(header.problem))
    device = Device.from_json(dict(header.device))
    peak = float(peak_flops(device, problem.arithmetic))
    if not 0.0 < peak < math.inf:
        raise ValueError("a device has a peak above 0")
    records = [_sound(record, header) for record in store.records()]
    stopping = store.fact("stopping")
    return ProblemRun(
        slug=slug or _slug(problem.label),
        directory=store.directory,
        header=header,
        kernel=_kernel(header),
        problem=problem,
        device=device,
        peak_flops=peak,
        records=records,
        seconds={str(name): float(value) for name, value in store.seconds().items() if _is_time(value, or_zero=True)},
        reference_s=_time(store.fact("reference_median_s")),
        declaration=_declaration(store.fact(FACT), {record.number for record in records}),
        references=[
            reference
            for reference in store.references()
            if _is_time(reference.median_s)
            and _is_time(reference.elapsed_s, or_zero=True)
            and (reference.noise is None or _is_time(reference.noise, or_zero=True))
            and type(reference.after) is int
        ],
        stopped=str(stopping.get("reason", ""))[:_LONGEST_TEXT] if isinstance(stopping, dict) else "",
    )


def _check_header(header: RunHeader) -> None:
    """Check what a report shows of a header, and computes with.

    Raises
    ------
    ValueError
        Something is of another kind.
    """
    names = {field.name for field in dataclasses.fields(Device)} - {"name", "compute_capability", "fma_per_clock"}
    plain = (str, int, float, bool, type(None))
    laws = {
        "kernel": isinstance(header.kernel, str),
        "seed": type(header.seed) is int,
        "created_at": _is_time(header.created_at, or_zero=True),
        "settings": isinstance(header.settings, dict) and all(type(v) in plain for v in header.settings.values()),
        "versions": isinstance(header.versions, dict) and all(isinstance(v, str) for v in header.versions.values()),
        "parameters": all(type(value) is int for values in header.parameters.values() for value in values),
        "device": isinstance(header.device, dict)
        and isinstance(header.device.get("name"), str)
        and all(_is_time(header.device.get(name), or_zero=True) for name in names)
        and [type(part) for part in header.device.get("compute_capability", ())] == [int, int],
    }
    for name, holds in laws.items():
        if not holds:
            raise ValueError(f"its header holds no sound {name}")


def _slug(label: str) -> str:
    return "-".join(re.findall(r"[a-z0-9]+", label.lower())) or "problem"


def _sound(record: TrialRecord, header: RunHeader) -> TrialRecord:
    """Return a record with every time finite and not negative, or as if it were not known.

    Raises
    ------
    ValueError
        Its configuration or its gate is not one of the run.
    """
    if record.configuration.keys() != header.parameters.keys():
        raise ValueError(f"trial {record.number} has other parameters than its run")
    if any(type(value) is not int for value in record.configuration.values()):
        raise ValueError(f"trial {record.number} has a value that is no integer")
    if record.skip is not None and record.skip.gate not in GATES:
        raise ValueError(f"trial {record.number} was skipped by an unknown gate")
    build, measurement = record.build, record.measurement
    if build is not None and not _is_time(build.compile_s, or_zero=True):
        build = dataclasses.replace(build, compile_s=0.0)
    if measurement is not None:
        measurement = dataclasses.replace(
            measurement,
            median_s=_time(measurement.median_s),
            verify_s=measurement.verify_s if _is_time(measurement.verify_s) else 0.0,
            time_s=measurement.time_s if _is_time(measurement.time_s) else 0.0,
        )
    return dataclasses.replace(record, build=build, measurement=measurement)


def _kernel(header: RunHeader) -> Kernel | None:
    """Return the built-in kernel of the run, if its source is what was run."""
    from mltune.assets import folder

    name = header.kernel
    if not isinstance(name, str) or not _BUILT_IN.fullmatch(name) or not (folder("kernels") / name).is_dir():
        return None
    kernel = _bundle(name)
    same = kernel.source_hash == header.source_hash and set(kernel.all_parameters) == set(header.parameters)
    return kernel if same else None


@functools.cache
def _bundle(name: str) -> Kernel:
    """Return a built-in kernel, read once: a plan has many problems for one."""
    from mltune.kernel.reader import load_kernel

    return load_kernel(name)


def _declaration(fact: Any, numbers: set[int]) -> Declaration | None:
    """Return the declaration on file, if every figure in it is sound."""
    if fact is None:
        return None
    declaration = Declaration.from_json(fact)
    finalists: tuple[Finalist, ...] = declaration.finalists
    timed = (*finalists, *([declaration.reference] if declaration.reference else []))
    sound = all(
        _is_time(value)
        for one in timed
        for value in (one.median_s, one.low_s, one.high_s, one.ratio, one.ratio_low, one.ratio_high)
    )
    if not sound or declaration.number not in {one.number for one in finalists}:
        raise ValueError("a declaration holds finite times above 0, and its winner among the finalists")
    if not {one.number for one in finalists} <= numbers:
        raise ValueError("a declaration names trials that are on record")
    return declaration


def _time(value: Any) -> float | None:
    return float(value) if _is_time(value) else None


def _is_time(value: Any, *, or_zero: bool = False) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return math.isfinite(value) and (value >= 0.0 if or_zero else value > 0.0)
