"""The wisdom in a run: known configurations that are measured first, and what is added at the end."""

from __future__ import annotations

import warnings
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mltune.errors import DamagedRunError, MltuneWarning, WisdomError
from mltune.files.text import printable
from mltune.records.declaration import Finalist
from mltune.records.header import LARGEST
from mltune.records.trial import TrialRecord, TrialState
from mltune.tuning.ranking import rank_records
from mltune.wisdom.entry import LONGEST_TEXT, Entry, Failure, Gpu
from mltune.wisdom.wisdom import Wisdom

if TYPE_CHECKING:
    from mltune.records.events import EventWriter
    from mltune.records.store import Store
    from mltune.results.run import TuneResult
    from mltune.tuning.session import Session

FACT = "wisdom"
"""Name of the fact in the store of a run: the configurations that a resumed run must propose again."""

MOST = 3
"""Most configurations of a wisdom that a run measures first."""

_FAILED = frozenset(TrialState) - {TrialState.OK, TrialState.SKIPPED, TrialState.UNSTABLE}


def known_configurations(
    store: Store, session: Session, file: Path | None, events: EventWriter, *, required: bool
) -> list[dict[str, int]]:
    """Return the configurations that a run measures first: those of its first start, also where it is resumed.

    Parameters
    ----------
    store : Store
        Open for writing.
    session : Session
    file : pathlib.Path or None
        The wisdom.
    events : callable
        Writes an event that names what was found.
    required : bool
        Whether a wisdom that cannot be read is an error. Otherwise it is a warning.

    Raises
    ------
    WisdomError
        The wisdom cannot be read.
    DamagedRunError
        The store does not hold configurations.
    """
    recorded = store.fact(FACT)
    if recorded is None and file is not None and len(store) == 0:
        recorded = _look_up(session, file, events, required)
        store.set_fact(FACT, recorded)
    return _checked(recorded or [], store.directory)


def add_outcomes(file: Path, session: Session, result: TuneResult) -> None:
    """Add the winner of a run that has ended to a wisdom, with its ties and the outcomes of what was known.

    Nothing is added before the winner is declared, or on a GPU before it is verified. A file that cannot be written is
    a warning: the run has its result.
    """
    if not result.settled or result.interrupted:
        return
    try:
        found = Wisdom([*_entries(session, result), *_failures(session, result)])
        if len(found):
            found.add_to(file)
    except (WisdomError, ValueError) as error:  # such as a name that is longer than a wisdom takes
        warnings.warn(f"the winner was not added to the wisdom: {error}", MltuneWarning, stacklevel=3)


def driver_of(session: Session) -> str:
    """Return the version of the driver, in replay that of the recording; empty where it is not known."""
    return session.versions.get("driver", session.versions.get("recorded_driver", ""))


def _look_up(session: Session, file: Path, events: EventWriter, required: bool) -> list[dict[str, int]]:
    try:
        wisdom = Wisdom.load(file)
    except WisdomError as error:
        if required:
            raise
        warnings.warn(f"{error} This run does without it.", MltuneWarning, stacklevel=4)
        return []
    found = wisdom.lookup(session.kernel, session.problem, session.device, driver_of(session), most=MOST)
    coded = [(str(match), match.entry.codes(session.kernel.labels)) for match in found]
    known = [(text, configuration) for text, configuration in coded if configuration is not None]
    if known:
        events("wisdom", detail="; ".join(text for text, _ in known))
    return [configuration for _, configuration in known]


def _checked(recorded: Any, directory: Path) -> list[dict[str, int]]:
    """Return the recorded configurations."""
    good = isinstance(recorded, list) and all(
        isinstance(one, dict) and all(type(value) is int and abs(value) <= LARGEST for value in one.values())
        for one in recorded
    )
    if not good or len(recorded) > MOST:
        raise DamagedRunError(
            f"a run records at most {MOST} configurations of a wisdom, but that in {directory} does not; start a new "
            "run."
        )
    return list(recorded)


def _entries(session: Session, result: TuneResult) -> list[Entry]:
    """Return the winner, its ties, and the trials that the wisdom proposed."""
    declaration = result.declaration
    if declaration is None:
        return []
    best = {one.number: one for one in declaration.finalists if one.number in (declaration.number, *declaration.ties)}
    known = [one for one in result.measured() if one.proposed_by == "wisdom" and one.number not in declaration.rejected]
    again = {one.number: rank_records({one.number: one.measurement})[0] for one in known if one.measurement}
    again |= {one.number: one for one in declaration.finalists if one.number in again}
    return [
        _entry(session, result, finalist, declaration.verified and number in best)
        for number, finalist in (again | best).items()
    ]


def _failures(session: Session, result: TuneResult) -> list[Failure]:
    """Return what the wisdom proposed and failed, also in the last verification."""
    rejected = {} if result.declaration is None else result.declaration.rejected
    proposed = result.records.take(result.records.column("proposed_by") == "wisdom")
    return [
        Failure.model_validate(_facts(session, result, record) | {"failed": printable(reason, LONGEST_TEXT)})
        for record in proposed
        if (reason := rejected.get(record.number) or _failure(record))
    ]


def _failure(record: TrialRecord) -> str:
    return f"{record.state}: {record.detail}" if record.state in _FAILED else ""


def _entry(session: Session, result: TuneResult, finalist: Finalist, verified: bool) -> Entry:
    record = result.trial(finalist.number)
    assert record is not None  # noqa: S101 - a finalist is on record
    assert result.declaration is not None  # noqa: S101
    reference = result.declaration.reference
    default = (one.median_s for one in result.measured() if one.proposed_by == "default")
    return Entry.model_validate(
        {
            **_facts(session, result, record),
            "median_s": finalist.median_s,
            "low_s": min(finalist.low_s, finalist.median_s),
            "high_s": max(finalist.high_s, finalist.median_s),
            "default_s": next(default, None),
            "reference_s": result.reference_s if reference is None else reference.median_s,
            "verified": verified,
            "trials": len(result.records),
        }
    )


def _facts(session: Session, result: TuneResult, record: TrialRecord) -> dict[str, Any]:
    """Return what entries and failures have in common."""
    return {
        "kernel": session.kernel.name,
        "source_hash": session.kernel.source_hash,
        "problem": session.problem.to_json(),
        "device": Gpu.of(session.device),
        "driver": driver_of(session),
        "configuration": result.header.labelled(record.configuration),
        "measured_at": f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%S.%f}Z",
        "versions": dict(result.header.versions),
    }
