"""Finals: time the fastest trials again, side by side, rank them, verify them, and declare the winner.

A heat gives the finalists; after their race the winner and its ties are verified, not others: verifying takes longer
than racing. A trial that fails is excluded, and the rest is ranked again from the same race.
"""

from __future__ import annotations

import functools
import math
import statistics
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from mltune.measure.timing import BUDGET_S, NORMAL_MEDIAN, how_many_fit
from mltune.records.declaration import Declaration, Drift, Finalist, Reference, drifts
from mltune.records.trial import Build, Measurement, TrialRecord, TrialState
from mltune.records.trials import Trials
from mltune.tuning.session import Session

if TYPE_CHECKING:
    from mltune.measure.runner import GpuRunner


REFERENCE = -1
"""The number of the reference implementation among finalists."""

CONFIDENCE = 0.95
"""Confidence of all intervals."""

UNKNOWN_NOISE = 0.005
"""Assumed relative noise of a median of unknown samples, or of one sample: the noise at which sampling ends."""

_FARTHEST = 27.0  # logarithm of a time in seconds or of a ratio: a store holds those from 1e-12 to 1e12
_FEW = 6  # with fewer samples no interval of order statistics reaches 95 %


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate and its interval with the confidence :data:`CONFIDENCE`."""

    center: float
    low: float
    high: float

    def exp(self) -> Interval:
        """Return the interval of the exponential, its ends within the limits of a store."""
        return Interval(math.exp(self.center), math.exp(max(self.low, -_FARTHEST)), math.exp(min(self.high, _FARTHEST)))


def median_interval(values: Sequence[float], confidence: float = CONFIDENCE) -> Interval:
    """Return the median of a sample of two values or more, and its interval.

    The ends are order statistics (the inverted sign test), which assume no distribution. With fewer than six values
    these cannot reach 95 %; the interval is then Student's, which assumes a normal distribution.
    """
    center = statistics.median(values)
    if len(values) >= _FEW:
        ordered, (low, high) = sorted(values), _ranks(len(values), confidence)
        return Interval(center, float(ordered[low]), float(ordered[high]))
    from scipy.special import stdtrit

    error = NORMAL_MEDIAN * statistics.stdev(values) / math.sqrt(len(values))
    half = float(stdtrit(len(values) - 1, (1 + confidence) / 2)) * error
    return Interval(center, center - half, center + half)


@functools.cache
def _ranks(count: int, confidence: float) -> tuple[int, int]:
    """Return the places of the ends of a median's interval among the ordered values of a sample."""
    from scipy.special import bdtr  # scipy.stats has all of this in one call, but takes a second to import

    at_most_below = bdtr(np.arange(count), count, 0.5)  # the chances that so many values lie below the median
    low, high = np.searchsorted(at_most_below, ((1 - confidence) / 2, (1 + confidence) / 2))
    return int(low) - 1, int(high)


def rank_race(times_s: Mapping[int, Sequence[float]]) -> tuple[tuple[Finalist, ...], Finalist | None]:
    """Rank the trials of a race by their median seconds, one value per round; the reference's are :data:`REFERENCE`.

    The ratio of a trial to the winner is the median of their ratios in each round, because a disturbance of a round
    slows both. There are at least two rounds.
    """
    medians = {number: statistics.median(times) for number, times in times_s.items() if number != REFERENCE}
    order = sorted(medians, key=lambda number: (medians[number], number))
    winner_s = times_s[order[0]]

    def finalist(number: int) -> Finalist:
        logs = [math.log(time_s / best_s) for time_s, best_s in zip(times_s[number], winner_s, strict=True)]
        ratio = Interval(1.0, 1.0, 1.0) if number == order[0] else median_interval(logs).exp()
        return _finalist(number, _log_interval(statistics.median(times_s[number]), times_s[number]).exp(), ratio)

    return tuple(map(finalist, order)), finalist(REFERENCE) if REFERENCE in times_s else None


def rank_records(measurements: Mapping[int, Measurement]) -> tuple[Finalist, ...]:
    """Rank trials by their measurements, which were made at different times; the fastest is the first.

    The interval of a ratio is computed from the intervals of both medians, on a logarithmic scale, with recovered
    variances (MOVER: Zou and Donner, Construction of confidence limits about effect measures, Statistics in Medicine
    27, 2008).
    """
    intervals = {number: _recorded(measured) for number, measured in measurements.items()}
    order = sorted(intervals, key=lambda number: (intervals[number].center, number))
    winner = intervals[order[0]]
    return tuple(
        _finalist(
            number,
            intervals[number].exp(),
            Interval(1.0, 1.0, 1.0) if number == order[0] else _difference(intervals[number], winner).exp(),
        )
        for number in order
    )


def _recorded(measured: Measurement) -> Interval:
    """Return the logarithm of a recorded median and its interval."""
    if measured.median_s is None:
        raise ValueError("only a measurement with a median can be ranked")
    return _log_interval(measured.median_s, measured.samples_s)


def _log_interval(median_s: float, samples_s: Sequence[float]) -> Interval:
    """Return the logarithm of a median and its interval: times are above 0, and so are both ends."""
    center = math.log(median_s)
    if len(samples_s) < 2:
        half = statistics.NormalDist().inv_cdf((1 + CONFIDENCE) / 2) * UNKNOWN_NOISE
        return Interval(center, center - half, center + half)
    logarithm = median_interval([math.log(sample_s) for sample_s in samples_s])
    return Interval(center, min(center, logarithm.low), max(center, logarithm.high))


def _difference(first: Interval, other: Interval) -> Interval:
    """Return the interval of the difference of two independent estimates."""
    center = first.center - other.center
    below = math.hypot(first.center - first.low, other.high - other.center)
    above = math.hypot(first.high - first.center, other.center - other.low)
    return Interval(center, center - below, center + above)


def _finalist(number: int, time_s: Interval, ratio: Interval) -> Finalist:
    return Finalist(number, time_s.center, time_s.low, time_s.high, ratio.center, ratio.low, ratio.high)


Entry = tuple[TrialRecord, Build]
"""A trial with its new build."""

FINALISTS = 5
"""Number of trials in a race."""

CANDIDATES = 20
"""Trials, fastest medians first, in a heat: under a power limit a kernel is 0 to 9 % slower than in a short trial."""

HEAT = 1 / 3
"""Share of the seconds of a race that a heat may take."""

MEMORY = 1 / 8
"""Share of the memory of a GPU that the workspaces of a heat may take."""

DOUBTFUL = 3
"""Most further trials that are timed again because their recorded times are in doubt."""

ATTEMPTS = 3
"""Most sets of finalists, where all of a set fail the verification."""


@dataclass(frozen=True, slots=True)
class _Times:
    """The times that finalists are ranked by: those of a race, or else the recorded measurements."""

    raced_s: Mapping[int, Sequence[float]]
    recorded: Mapping[int, Measurement]

    @property
    def rounds(self) -> int:
        return min((len(times_s) for times_s in self.raced_s.values()), default=0)

    def rank(self, excluded: Collection[int]) -> tuple[tuple[Finalist, ...], Finalist | None]:
        """Rank the trials that are not excluded; the second value is the reference."""
        if self.raced_s:
            raced_s = {number: times_s for number, times_s in self.raced_s.items() if number not in excluded}
            return rank_race(raced_s) if raced_s.keys() - {REFERENCE} else ((), None)
        recorded = {number: measured for number, measured in self.recorded.items() if number not in excluded}
        return (rank_records(recorded), None) if recorded else ((), None)


@dataclass(slots=True)
class Finals:
    """The finals of a run, whose trials are in the order of appending.

    On a GPU the finalists are raced for at most `race_s` seconds, and the winner is verified, and its ties until
    `until` on the clock of :func:`time.perf_counter`. The recorded times decide in replay, where a race would take too
    long (:func:`mltune.measure.timing.how_many_fit`), and once `stop` is true, which is asked between steps of some
    seconds. `rejected` are the reasons against trials that failed meanwhile, by their numbers.
    """

    session: Session
    trials: Trials
    references: Sequence[Reference] = ()
    race_s: float = BUDGET_S
    until: float = math.inf
    stop: Callable[[], bool] = bool
    rejected: dict[int, str] = field(default_factory=dict, init=False)

    def declare(self) -> Declaration | None:
        """Declare the winner; None when no trial succeeded and passed."""
        trials, rejected, drifts_of_reference = self.trials, self.rejected, drifts(self.references)
        for _ in range(ATTEMPTS):
            remaining = trials.take(~np.isin(trials.column("number"), list(rejected))) if rejected else trials
            fastest = list(remaining.fastest(CANDIDATES))
            suspects = doubtful(trials, drifts_of_reference, fastest[:FINALISTS], rejected)
            candidates = {record.number: record for record in (*fastest, *suspects)}
            times = self._time(candidates, fastest[:FINALISTS], suspects)
            verified = self._verify(candidates, times)
            ranked, reference = times.rank(rejected)
            if ranked:
                winner = ranked[0].number
                return Declaration(winner, ranked, reference, times.rounds, len(trials), rejected, verified)
        return None

    def _time(
        self, candidates: Mapping[int, TrialRecord], fastest: Sequence[TrialRecord], suspects: Iterable[TrialRecord]
    ) -> _Times:
        """Race the best of a heat, or without time for it the fastest and the doubtful; or return what is on record."""
        gpu, finalists = self.session.gpu, [*fastest, *suspects]
        counted = fastest or finalists
        recorded = {record.number: record.measurement for record in counted if record.measurement is not None}
        on_record = _Times({}, recorded)
        if gpu is None:
            return on_record
        heat_s = HEAT * self.race_s if self._fits_a_heat(candidates.values()) else 0.0
        entries = self._built(candidates.values() if heat_s else finalists)
        if entries is None:
            return on_record
        if heat_s:
            entries = _best_of_heat(gpu, entries, finalists, heat_s)
            if self.stop():
                return on_record
        fit = how_many_fit(_medians(record for record, _ in entries), self.race_s - heat_s)
        if fit < min(2, len(entries)) or not entries:
            return on_record
        result = gpu.race([(record.configuration, build) for record, build in entries[:fit]], self.race_s - heat_s)
        if result.rounds < 2:
            return on_record
        columns = zip(*result.samples_s, strict=True)
        raced_s = {record.number: times_s for (record, _), times_s in zip(entries, columns, strict=False)}
        return _Times(raced_s | ({REFERENCE: result.reference_s} if result.reference_s else {}), recorded)

    def _fits_a_heat(self, candidates: Collection[TrialRecord]) -> bool:
        """Return whether all candidates can be run in turns in the time of a heat, each with its workspace."""
        if len(candidates) <= FINALISTS or how_many_fit(_medians(candidates), HEAT * self.race_s) < len(candidates):
            return False
        placed = self.session.placed
        launches = [placed.launch(record.configuration) for record in candidates]
        return sum(launch.workspace_bytes or 0 for launch in launches) <= MEMORY * placed.device.memory_bytes

    def _built(self, records: Iterable[TrialRecord]) -> list[Entry] | None:
        """Return trials with their builds, the fastest first; None where it was stopped. Others are rejected."""
        if self.stop():
            return None
        entries: list[Entry] = []
        ordered = sorted(records, key=lambda record: (record.median_s or 0.0, record.number))
        builds = [self.session.builder.submit(record.configuration) for record in ordered]
        for record, future in zip(ordered, builds, strict=True):
            if self.stop():
                return None
            build = future.result()
            if build.state is TrialState.OK:
                entries.append((record, build))
            else:
                self.rejected[record.number] = f"cannot be built again: {build.state} {build.detail}"
        return entries

    def _verify(self, records: Mapping[int, TrialRecord], times: _Times) -> bool:
        """Verify the winner, and ties while there is time, unless replayed; return whether the winner passed."""
        if self.session.gpu is None:
            return False
        passed: set[int] = set()
        while True:
            ranked, _ = times.rank(self.rejected)
            due = [finalist.number for finalist in ranked if finalist.is_equal and finalist.number not in passed]
            settled = bool(ranked) and ranked[0].number in passed
            if not due or self.stop() or (settled and time.perf_counter() >= self.until):
                return settled
            failure = self.session.verify(records[due[0]])
            if failure:
                self.rejected[due[0]] = failure
            else:
                passed.add(due[0])


def doubtful(
    trials: Trials, drifts_of_reference: Sequence[Drift], fastest: Sequence[TrialRecord], excluded: Collection[int] = ()
) -> Trials:
    """Return trials that may be among the fastest although their recorded times are not, without those `excluded`.

    They were timed while the GPU was slower than usual, and would be fast if their times were divided by that ratio, or
    their times were too noisy to count.
    """
    ratios = np.ones(len(trials))
    for drift in drifts_of_reference:
        ratios[drift.first : drift.last] = max(drift.ratio, 1.0)
    times_s = trials.column("median_s") / ratios
    slowest_s = (fastest[-1].median_s if fastest else None) or math.inf
    settled = np.isin(trials.column("number"), [*excluded, *(record.number for record in fastest)])
    rows = np.flatnonzero(trials.timed & ~settled & (times_s <= slowest_s))
    order = np.lexsort((trials.column("number")[rows], times_s[rows]))
    return trials.take(rows[order[:DOUBTFUL]])


def _best_of_heat(
    gpu: GpuRunner, entries: Sequence[Entry], finalists: Sequence[TrialRecord], heat_s: float
) -> list[Entry]:
    """Return the finalists: the fastest of a heat, or those on record where it failed."""
    heat = gpu.race([(record.configuration, build) for record, build in entries], heat_s)
    if not heat.rounds:
        on_record = {record.number for record in finalists}
        return [entry for entry in entries if entry[0].number in on_record]
    order = np.argsort(np.median(heat.samples_s, axis=0), kind="stable")
    return [entries[at] for at in order[:FINALISTS]]


def _medians(records: Iterable[TrialRecord]) -> list[float]:
    return sorted(record.median_s or 0.0 for record in records)
