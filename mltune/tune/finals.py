"""The finals: the fastest trials once more, side by side; who won, how surely, and who cannot be told from the winner.

First the race, then the verification of those who may be named: the winner and its ties. Whoever fails is struck from
the ranking of the same race. Only a trial that nobody would name is spared the verification, which takes longer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mltune.measure.race import how_many_fit
from mltune.records.declaration import Declaration, Finalist
from mltune.records.reference import Drift, Reference, drifts
from mltune.records.trial import Build, Measurement, TrialRecord, TrialState
from mltune.results.run import fastest as best
from mltune.tune.ranking import REFERENCE, rank_race, rank_records

if TYPE_CHECKING:
    from mltune.tune.session import Session


FINALISTS = 5
"""The fastest trials, by the recorded medians, that are timed again."""

DOUBTFUL = 3
"""Most trials that are timed again besides, whose time on record is in doubt."""

ATTEMPTS = 3
"""Sets of finalists that are tried when not one of a set passes the verification."""


@dataclass(frozen=True, slots=True)
class _Times:
    """What finalists are ranked by: the times of a race, or else the measurements on record."""

    raced_s: Mapping[int, Sequence[float]]
    recorded: Mapping[int, Measurement]

    @property
    def rounds(self) -> int:
        return min((len(times_s) for times_s in self.raced_s.values()), default=0)

    def rank(self, struck: Collection[int]) -> tuple[tuple[Finalist, ...], Finalist | None]:
        """Rank those that are not struck; nobody when nobody is left."""
        if self.raced_s:
            raced_s = {number: times_s for number, times_s in self.raced_s.items() if number not in struck}
            return rank_race(raced_s) if raced_s.keys() - {REFERENCE} else ((), None)
        recorded = {number: measured for number, measured in self.recorded.items() if number not in struck}
        return (rank_records(recorded), None) if recorded else ((), None)


def declare(
    session: Session,
    records: Collection[TrialRecord],
    *,
    references: Sequence[Reference] = (),
    stop: Callable[[], bool] = bool,
) -> Declaration | None:
    """Declare the winner of a run.

    On a GPU the finalists are raced against each other and cuBLAS, and who may be named is verified. In replay, and
    where a race would take too long (see :func:`mltune.measure.race.how_many_fit`), what is on record decides.

    Parameters
    ----------
    session : Session
        Entered.
    records : collection of TrialRecord
        All of the run, in the order of appending.
    references : sequence of Reference
        Timings of the reference kernel, in the order taken.
    stop : callable
        Asked between the steps, none of which takes longer than some seconds; once it says so, no further step is
        taken, and what is known is declared.

    Returns
    -------
    Declaration or None
        None when no trial succeeded, or none that succeeded passed the verification.

    Raises
    ------
    DeviceLostError
        The GPU cannot be used now. With a ``stop`` that is true at once the GPU is not asked.
    """
    listed, found = list(records), drifts(references)
    rejected: dict[int, str] = {}
    for _ in range(ATTEMPTS):
        fastest = best((record for record in listed if record.number not in rejected), FINALISTS)
        others = doubtful(listed, found, fastest, rejected)
        times = _time(session, fastest, others, rejected, stop)
        verified = _verify(session, {record.number: record for record in (*fastest, *others)}, times, rejected, stop)
        ranked, reference = times.rank(rejected)
        if ranked:
            return Declaration(
                ranked[0].number,
                ranked,
                reference,
                rounds=times.rounds,
                as_of=len(listed),
                rejected=rejected,
                verified=verified,
            )
    return None


def doubtful(
    records: Sequence[TrialRecord], found: Sequence[Drift], fastest: Sequence[TrialRecord], struck: Collection[int] = ()
) -> list[TrialRecord]:
    """Return trials that might be among the fastest although their times on record do not say so.

    Those are trials of a stretch in which the GPU was slower than usual, if their times divided by the stretch's ratio
    would be among the fastest, and trials whose times were too noisy to count.

    Parameters
    ----------
    records : sequence of TrialRecord
        In the order of appending.
    found : sequence of Drift
        Stretches of them.
    fastest : sequence of TrialRecord
        Who is in the finals anyway, fastest first.
    struck : collection of int
        Numbers of trials that are out of the question.
    """
    ratios = dict.fromkeys(range(len(records)), 1.0)
    for drift in found:
        ratios |= dict.fromkeys(range(drift.first, min(drift.last, len(records))), max(drift.ratio, 1.0))
    known = {*struck, *(record.number for record in fastest)}
    slowest_s = (fastest[-1].median_s if fastest else None) or math.inf
    candidates = [
        (record.median_s / ratios[place], record.number, record)
        for place, record in enumerate(records)
        if record.state in (TrialState.OK, TrialState.UNSTABLE) and record.median_s is not None
        if record.number not in known and record.median_s / ratios[place] <= slowest_s
    ]
    return [record for *_, record in sorted(candidates, key=lambda entry: entry[:2])[:DOUBTFUL]]


def _time(
    session: Session,
    fastest: Sequence[TrialRecord],
    others: Sequence[TrialRecord],
    rejected: dict[int, str],
    stop: Callable[[], bool],
) -> _Times:
    """Race them, as many as can be raced, or take what is on record of the fastest."""
    recorded = {record.number: record.measurement for record in fastest if record.measurement is not None}
    if session.gpu is None:
        return _Times({}, recorded)
    entries: list[tuple[TrialRecord, Build]] = []
    for record in sorted((*fastest, *others), key=lambda record: (record.median_s or 0.0, record.number)):
        if stop():
            return _Times({}, recorded)
        build = session.builder.submit(record.configuration).result()
        if build.state is TrialState.OK:
            entries.append((record, build))
        else:
            rejected[record.number] = f"cannot be built again: {build.state} {build.detail}"
    fit = how_many_fit([record.median_s or 0.0 for record, _ in entries])
    if fit < min(2, len(entries)) or not entries:
        return _Times({}, recorded)
    result = session.gpu.race([(record.configuration, build) for record, build in entries[:fit]])
    if result.rounds < 2:
        return _Times({}, recorded)
    columns = zip(*result.samples_s, strict=True)
    raced_s = {record.number: times_s for (record, _), times_s in zip(entries, columns, strict=False)}
    return _Times(raced_s | ({REFERENCE: result.reference_s} if result.reference_s else {}), recorded)


def _verify(
    session: Session,
    records: Mapping[int, TrialRecord],
    times: _Times,
    rejected: dict[int, str],
    stop: Callable[[], bool],
) -> bool:
    """Verify whoever may be named, the winner first; strike who fails. In replay there is nothing to verify.

    Returns
    -------
    bool
        Whether the winner passed.
    """
    passed = set(records) if session.gpu is None else set()
    while True:
        ranked, _ = times.rank(rejected)
        due = [one.number for one in ranked if one.ratio_low <= 1 <= one.ratio_high and one.number not in passed]
        if not due or stop():
            return bool(ranked) and ranked[0].number in passed
        reason = session.verified(records[due[0]])
        if reason:
            rejected[due[0]] = reason
        else:
            passed.add(due[0])
