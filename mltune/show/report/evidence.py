"""Evidence for the findings of a report: its runs, and the arrays and figures behind each finding.

The directory may be damaged or come from a third party: a problem that cannot be read is reported as such.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from mltune.cost.importance import importance
from mltune.files import folders
from mltune.files.reading import parse_toml, read_file
from mltune.kernel.coding import Floats
from mltune.kernel.placed import PlacedKernel
from mltune.kernel.reader import load_kernel
from mltune.records.declaration import usual_s
from mltune.records.directory import PLAN_FILE, PROBLEMS, SLUG, is_begun, is_plan, runs_in
from mltune.records.events import FILE as EVENTS_FILE
from mltune.records.events import planned, read_events
from mltune.records.trial import TrialRecord, TrialState
from mltune.records.trials import Trials
from mltune.results.rating import Unit
from mltune.results.reader import Unread, read_or_set_aside, read_run
from mltune.results.run import TuneResult
from mltune.results.wording import REFERENCE

_BUILT_IN = re.compile(r"[a-z][a-z0-9_]{0,63}")
MAX_BYTES = 1 << 18
"""Longest text of a plan that a report shows."""

_load_once = functools.cache(load_kernel)


@dataclass(frozen=True, slots=True)
class ReportInput:
    """The input of a report; ``plan`` and its ``title`` are texts, of one run None and the label of its problem.

    ``unread`` are the problems that were not begun or cannot be read, ``events`` all events in their order.
    """

    directory: Path
    plan: str | None
    title: str
    runs: Sequence[TuneResult]
    unread: Sequence[Unread]
    events: Sequence[Mapping[str, Any]]


def read_input(directory: Path, read: Callable[[Path, str], TuneResult] = read_run) -> ReportInput:
    """Read the directory of a run or of a campaign; ``read`` reads the run in a folder, given its slug."""
    directory = Path(directory)
    events, _ = read_events(directory / EVENTS_FILE)
    begun = runs_in(directory)
    if is_plan(directory):  # asked after it was found to be either: a plan may be writing its first files
        plan: str | None = _plan(directory / PLAN_FILE)
        problems = [_read(path, path.name, read) for path in _folders(directory, events)]
        title = _title(plan or "") or directory.resolve().name
    else:
        plan, problems = None, [_read(path, "", read) for path in begun]
        title = problems[0].problem.label if isinstance(problems[0], TuneResult) else problems[0].slug
    runs = [run for run in problems if isinstance(run, TuneResult)]
    return ReportInput(directory, plan, title, runs, [run for run in problems if isinstance(run, Unread)], events)


def _folders(directory: Path, events: Sequence[Mapping[str, Any]]) -> list[Path]:
    """Return the folders of a plan's problems in its order, as far as known, also of those not begun.

    Kernels that were left out, because another one is faster than they can be, have none.
    """
    folders = sorted(path.name for path in directory.glob(f"{PROBLEMS}/*") if path.is_dir())
    left_out = {event.get("slug") for event in events if event["event"] == "left_out"} - set(folders)
    ordered = dict.fromkeys([*(slug for slug in planned(events) if slug not in left_out), *folders])
    return [directory / PROBLEMS / name for name in ordered if SLUG.fullmatch(name)]


def _plan(path: Path) -> str:
    """Return the text of a plan, or why it cannot be read."""
    try:
        return read_file(path, MAX_BYTES).decode("utf-8", "backslashreplace")
    except OSError as error:
        return f"# {error}"


def _title(text: str) -> str:
    """Return the title that a plan gives itself."""
    try:
        document = parse_toml(text)
    except ValueError:
        return ""
    heads = [document, document.get("plan")]
    titles = (head.get(key) for head in heads if isinstance(head, dict) for key in ("title", "name"))
    return next((title[:200] for title in titles if isinstance(title, str) and title), "")


def _read(directory: Path, slug: str, read: Callable[[Path, str], TuneResult]) -> TuneResult | Unread:
    """Read one run; ``slug`` is empty for a run outside a plan."""
    if slug and not is_begun(directory):
        return Unread(slug, "not begun")
    return read_or_set_aside(slug or directory.resolve().name, lambda: read(directory, slug))


def placed_of(run: TuneResult) -> PlacedKernel | None:
    """Return the kernel of a run where it ran if it is built-in and unchanged since."""
    header = run.header
    if not _BUILT_IN.fullmatch(header.kernel) or not (folders.assets("kernels") / header.kernel).is_dir():
        return None
    kernel = _load_once(header.kernel)
    same = kernel.source.is_version(header.source_hash) and kernel.has_parameters(header.parameters)
    return PlacedKernel(kernel.recorded_with(header.parameters), run.problem, run.device) if same else None


FAILURES = tuple(state for state in TrialState if state not in (TrialState.OK, TrialState.SKIPPED))
"""States of trials that failed."""

MOST_EXAMPLES = 50
"""Most failed trials of a run and a state that are searched for a message."""

MOST_CELLS = 2_000
"""Largest number of cells of a heat map."""

NOISES, LEAST_NOISE = 2.0, 0.002
"""Difference of two results that is no noise: multiples of the noise of one, and at least this share."""

TIME_USE = {
    "search": "searching",
    "wait": "waiting for builds and the GPU",
    "reference": "reference kernel and start",
    "finals": "finals",
    "record": "recording and display",
    "rest": "other",
}
"""Parts of the run time, and their names in a report, whose first word heads a column."""

_LARGEST_SHARE = 1e300
"""Largest predicted share that counts: a damaged record may predict an infinite one."""

FEWEST_PREDICTED = 5
"""Fewest trials for a rank correlation."""


@dataclass(frozen=True, slots=True)
class Curve:
    """The best result so far of one problem, over its run.

    ``at`` are the seconds or trials at which it changed, and the end; ``share`` is its speed as a share of that of
    ``of``, the reference kernel or ``"final best"``. ``unit`` is ``"s"``, or ``"trials"`` in replay and without times
    on record.
    """

    at: Floats
    share: Floats
    of: str
    unit: str


@dataclass(frozen=True, slots=True)
class Predictions:
    """Predictions of the search, and the measurements of the same trials.

    Both are shares of the problem's limit on the device (``Rate.peak``), or without a known limit just comparable
    speeds. ``rank_correlation`` is Spearman's; None below :data:`FEWEST_PREDICTED` trials, and where all are equal.
    """

    predicted: Floats
    measured: Floats
    rank_correlation: float | None


@dataclass(frozen=True, slots=True)
class Cells:
    """The best result for each pair of values of two parameters, ``names``: shape (n_rows, n_columns), NaN for none.

    Two results differ where their ratio is further from 1 than ``noise``.
    """

    names: tuple[str, str]
    rows: tuple[int, ...]
    columns: tuple[int, ...]
    unit: Unit
    values: Floats
    noise: float


@dataclass(frozen=True, slots=True)
class Failure:
    """A kind of failure, with an example from the problem ``slug``."""

    state: str
    count: int
    slug: str
    example: TrialRecord

    @property
    def detail(self) -> str:
        """Message of the example."""
        parts = (self.example, self.example.measurement, self.example.build)
        return next((part.detail for part in parts if part is not None and part.detail), "")


@dataclass
class Evidence:
    """The evidence of one run; every property is computed when it is first read."""

    run: TuneResult

    @cached_property
    def measured(self) -> Trials:
        """Trials that succeeded, by number."""
        return self.run.measured

    @cached_property
    def times(self) -> Floats:
        """Median times of ``measured``, seconds: ndarray of shape (n_measured,)."""
        return self.measured.column("median_s")

    @cached_property
    def curve(self) -> Curve | None:
        """The best so far; None where nothing was measured."""
        run = self.run
        if not self.measured or run.leader is None:
            return None
        reference_s = run.leader.reference_s
        by_time = not run.replayed and bool((self.measured.column("elapsed_s") > 0.0).all())
        at, best = map(np.array, zip(*run.improvements(by_time=by_time), strict=True))
        ends = self.measured.column("elapsed_s") if by_time else self.measured.column("number") + 1.0
        last = max(float(ends.max()), run.seconds.get("total", 0.0) if by_time else float(len(run.records)))
        of_s = float(best[-1]) if reference_s is None else reference_s
        return Curve(
            np.append(at, last),
            of_s / np.append(best, best[-1]),
            "final best" if reference_s is None else run.problem.reference or REFERENCE,
            "s" if by_time else "trials",
        )

    @cached_property
    def predictions(self) -> Predictions:
        """Predictions and measurements of the trials that have both."""
        rate, logs = self.run.rate, self.measured.column("expected")
        work, peak = (1, 1.0) if rate.peak is None else (rate.work, rate.peak)
        with np.errstate(all="ignore"):
            measured, predicted = (work / (times * peak) for times in (self.times, self.run.predicted_s(logs)))
        finite = np.isfinite(logs) & np.isfinite(measured)
        predicted, measured = np.minimum(predicted[finite], _LARGEST_SHARE), measured[finite]
        return Predictions(predicted, measured, _rank_correlation(predicted, measured))

    @cached_property
    def importance(self) -> dict[str, float] | None:
        """Share of each parameter in the importance of all; None where too little was measured."""
        values = self.run.header.parameters
        columns = {name: self.measured.parameter(name).astype(np.int64) for name in values}
        return importance(columns, self.times, values)

    @cached_property
    def cells(self) -> Cells | None:
        """The best results over the two most important parameters; None where there are no two, or too many values."""
        names = [*(self.importance or ())][:2]
        if len(names) < 2:
            return None
        names.sort(key=[*self.run.header.parameters].index)
        first, second = (self.measured.parameter(name) for name in names)
        rows, columns = tuple(np.unique(first).tolist()), tuple(np.unique(second).tolist())
        if len(rows) * len(columns) > MOST_CELLS:
            return None
        fastest = np.full((len(rows), len(columns)), np.inf)
        at = np.searchsorted(rows, first), np.searchsorted(columns, second)
        np.minimum.at(fastest, at, self.times)
        rate = self.run.rate
        values = np.where(np.isfinite(fastest), rate.of(fastest), np.nan)
        noises = self.measured.column("noise")
        noise = NOISES * float(np.nanmedian(noises)) if np.isfinite(noises).any() else 0.0
        return Cells((names[0], names[1]), rows, columns, rate.unit, values, min(max(noise, LEAST_NOISE), 1.0))

    @cached_property
    def intensity(self) -> float | None:
        """Operations per byte of the least memory traffic; None where one of them is not counted."""
        flops, size = self.run.flops, self.run.problem.bytes
        return flops / size if flops and size else None

    @cached_property
    def reference_changes(self) -> Floats:
        """Relative deviations of the reference's timings from its usual time: ndarray of shape (n_timings,)."""
        references = self.run.references
        times = np.array([reference.median_s for reference in references], dtype=np.float64)
        with np.errstate(all="ignore"):
            return times / usual_s(references) - 1.0 if references else times

    @cached_property
    def discarded(self) -> int:
        """Samples that were discarded because the clock was throttled."""
        return int(np.nansum(self.run.records.column("discarded")))


def failures(runs: Sequence[TuneResult]) -> list[Failure]:
    """Return the kinds of failure, the most frequent first, with the first example that has a message."""
    failures: list[Failure] = []
    for state in FAILURES:
        failed = [(run.slug, run.records.take(run.records.in_state(state))) for run in runs]
        count = sum(len(trials) for _, trials in failed)
        examples = [(slug, record) for slug, trials in failed for record in trials[:MOST_EXAMPLES]]
        candidates = [Failure(str(state), count, slug, record) for slug, record in examples]
        if candidates:
            failures.append(next((candidate for candidate in candidates if candidate.detail), candidates[0]))
    return sorted(failures, key=lambda failure: -failure.count)


def time_use(seconds: Mapping[str, float | None]) -> dict[str, float]:
    """Return the seconds of the parts of the run time, by the keys of :data:`TIME_USE`.

    A phase that a store does not count is 0, and its seconds are part of the rest. Compilers and the GPU work in
    parallel with all of them.
    """
    spent = {phase: seconds.get(phase) or 0.0 for phase in TIME_USE if phase != "rest"}
    return spent | {"rest": max((seconds.get("total") or 0.0) - sum(spent.values()), 0.0)}


def _rank_correlation(predicted: Floats, measured: Floats) -> float | None:
    if len(predicted) < FEWEST_PREDICTED or np.ptp(predicted) == 0.0 or np.ptp(measured) == 0.0:
        return None
    from scipy.stats import spearmanr

    return float(spearmanr(predicted, measured).statistic)
