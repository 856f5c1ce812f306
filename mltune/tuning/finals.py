"""Finals: time the fastest trials again, side by side, verify them, and declare the winner with its uncertainty.

First the race, then the verification of the winner and of the trials that tie with it. A trial that fails is excluded,
and the remaining ones are ranked again from the same race. Other trials are not verified, which takes longer than
racing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from mltune.measure.race import BUDGET_S, how_many_fit
from mltune.records.declaration import Declaration, Finalist
from mltune.records.reference import Drift, Reference, drifts
from mltune.records.trial import Build, Measurement, TrialRecord, TrialState
from mltune.records.trials import Trials
from mltune.tuning.ranking import REFERENCE, rank_race, rank_records

if TYPE_CHECKING:
    from mltune.tuning.session import Session


FINALISTS = 5
"""Number of trials with the fastest recorded medians that are timed again."""

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


def declare(
    session: Session,
    trials: Trials,
    *,
    references: Sequence[Reference] = (),
    race_s: float = BUDGET_S,
    stop: Callable[[], bool] = bool,
) -> Declaration | None:
    """Declare the winner of a run.

    On a GPU the finalists are raced against each other and the reference implementation, and the winner and its ties
    are verified. In replay, and where a race would take too long (:func:`mltune.measure.race.how_many_fit`), the
    recorded times decide.

    Parameters
    ----------
    session : Session
        Entered.
    trials : Trials
        All trials of the run, in the order of appending.
    references : sequence of Reference
        Timings of the reference implementation, in the order taken.
    race_s : float
        Most seconds of a race.
    stop : callable
        Checked between steps, which take at most some seconds each. Once it is true, the winner is declared from what
        is known.

    Returns
    -------
    Declaration or None
        None when no trial succeeded, or none that succeeded passed the verification.

    Raises
    ------
    DeviceLostError
        The GPU cannot be used now. A `stop` that is true from the start does not use the GPU.
    """
    found = drifts(references)
    rejected: dict[int, str] = {}
    for _ in range(ATTEMPTS):
        left = trials.take(~np.isin(trials.column("number"), list(rejected))) if rejected else trials
        fastest = left.fastest(FINALISTS)
        others = doubtful(trials, found, fastest, rejected)
        times = _time(session, fastest, others, rejected, race_s, stop)
        verified = _verify(session, {record.number: record for record in (*fastest, *others)}, times, rejected, stop)
        ranked, reference = times.rank(rejected)
        if ranked:
            return Declaration(
                ranked[0].number,
                ranked,
                reference,
                rounds=times.rounds,
                as_of=len(trials),
                rejected=rejected,
                verified=verified,
            )
    return None


def doubtful(
    trials: Trials, found: Sequence[Drift], fastest: Sequence[TrialRecord], excluded: Collection[int] = ()
) -> Trials:
    """Return trials that may be among the fastest although their recorded times are not.

    Those are trials timed while the GPU was slower than usual, if their times divided by the ratio of that drift would
    be among the fastest, and trials whose times were too noisy to count.

    Parameters
    ----------
    trials : Trials
        In the order of appending.
    found : sequence of Drift
        Intervals of the records in which the GPU was faster or slower.
    fastest : sequence of TrialRecord
        The other finalists, fastest first.
    excluded : collection of int
        Numbers of trials that failed the verification.
    """
    ratios = np.ones(len(trials))
    for drift in found:
        ratios[drift.first : drift.last] = max(drift.ratio, 1.0)
    times_s = trials.column("median_s") / ratios
    slowest_s = (fastest[-1].median_s if fastest else None) or math.inf
    timed = trials.in_state(TrialState.OK) | trials.in_state(TrialState.UNSTABLE)
    known = np.isin(trials.column("number"), [*excluded, *(record.number for record in fastest)])
    rows = np.flatnonzero(timed & ~known & (times_s <= slowest_s))
    order = np.lexsort((trials.column("number")[rows], times_s[rows]))
    return trials.take(rows[order[:DOUBTFUL]])


def _time(
    session: Session,
    fastest: Sequence[TrialRecord],
    others: Sequence[TrialRecord],
    rejected: dict[int, str],
    race_s: float,
    stop: Callable[[], bool],
) -> _Times:
    """Race as many trials as fit into the time of a race, or return the recorded measurements of the fastest.

    Where every time is in doubt, so are these.
    """
    counted = fastest or others
    recorded = _Times({}, {record.number: record.measurement for record in counted if record.measurement is not None})
    if session.gpu is None:
        return recorded
    entries: list[tuple[TrialRecord, Build]] = []
    for record in sorted((*fastest, *others), key=lambda record: (record.median_s or 0.0, record.number)):
        if stop():
            return recorded
        build = session.builder.submit(record.configuration).result()
        if build.state is TrialState.OK:
            entries.append((record, build))
        else:
            rejected[record.number] = f"cannot be built again: {build.state} {build.detail}"
    fit = how_many_fit([record.median_s or 0.0 for record, _ in entries], race_s)
    if fit < min(2, len(entries)) or not entries:
        return recorded
    result = session.gpu.race([(record.configuration, build) for record, build in entries[:fit]], race_s)
    if result.rounds < 2:
        return recorded
    columns = zip(*result.samples_s, strict=True)
    raced_s = {record.number: times_s for (record, _), times_s in zip(entries, columns, strict=False)}
    return _Times(raced_s | ({REFERENCE: result.reference_s} if result.reference_s else {}), recorded.recorded)


def _verify(
    session: Session,
    records: Mapping[int, TrialRecord],
    times: _Times,
    rejected: dict[int, str],
    stop: Callable[[], bool],
) -> bool:
    """Verify the winner, then its ties, and reject those that fail; return whether the winner passed.

    In replay nothing is verified.
    """
    if session.gpu is None:
        return False
    passed: set[int] = set()
    while True:
        ranked, _ = times.rank(rejected)
        due = [one.number for one in ranked if one.ratio_low <= 1 <= one.ratio_high and one.number not in passed]
        if not due or stop():
            return bool(ranked) and ranked[0].number in passed
        failure = session.verify(records[due[0]])
        if failure:
            rejected[due[0]] = failure
        else:
            passed.add(due[0])
