"""The wisdom in a run: known configurations that are measured first, and the outcomes that are added at the end."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from mltune.errors import DamagedRunError, MltuneWarning, WisdomError
from mltune.files.text import printable
from mltune.known.entry import LONGEST_TEXT, Entry, Failure, Gpu
from mltune.known.wisdom import Wisdom
from mltune.records.declaration import Finalist
from mltune.records.events import EventWriter
from mltune.records.header import LARGEST
from mltune.records.store import Store
from mltune.records.trial import TrialRecord, TrialState
from mltune.results.run import TuneResult
from mltune.tuning.ranking import rank_records
from mltune.tuning.session import Session

FACT = "wisdom"
"""Name of the fact in the store of a run: the configurations that a resumed run must propose again."""

MOST = 5
"""Most configurations that a run measures first: with the default configuration less than half of a batch, so that most
of the first batch stays with the search, and about 3 CPU seconds of compiling for a GEMM."""

_FAILED = frozenset(TrialState) - {TrialState.OK, TrialState.SKIPPED, TrialState.UNSTABLE}


def known_configurations(
    store: Store,
    session: Session,
    file: Path | None,
    events: EventWriter,
    *,
    required: bool,
    siblings: Sequence[Entry] = (),
) -> list[dict[str, int]]:
    """Return the configurations that a run measures first: those of its first start, also where it is resumed.

    Parameters
    ----------
    events : callable
        Writes an event that names the entries found.
    required : bool
        Whether a wisdom that cannot be read is an error. Otherwise it is a warning.
    siblings : sequence of Entry
        Entries of the other problems of a campaign, looked up as those of a wisdom are.

    Raises
    ------
    WisdomError
        The wisdom cannot be read.
    DamagedRunError
        The store does not hold configurations.
    """
    recorded = store.fact(FACT)
    if recorded is None and (file is not None or siblings) and len(store) == 0:
        known = Wisdom(siblings) if file is None else load_wisdom(file, required=required).merge(Wisdom(siblings))
        recorded = _look_up(session, known, events)
        store.set_fact(FACT, recorded)
    return _checked(recorded or [], store.directory)


def add_outcomes(file: Path, session: Session, result: TuneResult) -> None:
    """Add the winner of a run that has ended to a wisdom, with its ties and the outcomes of known configurations.

    Nothing is added before the winner is declared, or on a GPU before it is verified. A file that cannot be written is
    a warning: the run has its result.
    """
    if not result.settled or result.interrupted:
        return
    try:
        driver = driver_of(session.versions)
        found = Wisdom([*_entries(result, driver), *_failures(result, driver)])
        if len(found):
            found.add_to(file)
    except (WisdomError, ValueError) as error:  # such as a name that is longer than a wisdom takes
        warnings.warn(f"the winner was not added to the wisdom: {error}", MltuneWarning, stacklevel=3)


def found_so_far(result: TuneResult) -> list[Entry]:
    """Return the entries of a run for its siblings: the winner with its ties, or else the fastest trial so far."""
    best, driver = result.best_record, driver_of(result.header.versions)
    if result.declaration is not None or best is None or best.measurement is None:
        return _entries(result, driver)
    (fastest,) = rank_records({best.number: best.measurement})
    return [_entry(result, driver, fastest, verified=False)]


def driver_of(versions: Mapping[str, str]) -> str:
    """Return the version of the driver, in replay that of the recording; empty where it is not known."""
    return versions.get("driver", versions.get("recorded_driver", ""))


def load_wisdom(file: Path, *, required: bool) -> Wisdom:
    """Read a wisdom; one that cannot be read is an error only if it is required, else a warning."""
    try:
        return Wisdom.load(file)
    except WisdomError as error:
        if required:
            raise
        warnings.warn(f"{error} It is not used.", MltuneWarning, stacklevel=4)
        return Wisdom()


def _look_up(session: Session, wisdom: Wisdom, events: EventWriter) -> list[dict[str, int]]:
    driver, space = driver_of(session.versions), session.space
    found = wisdom.lookup(session.kernel, session.problem, session.device, driver, most=MOST, space=space)
    if found:
        events("wisdom", detail="; ".join(map(str, found)))
    coded = (match.entry.codes(session.kernel.labels) for match in found)
    return [configuration for configuration in coded if configuration is not None]


def _checked(recorded: Any, directory: Path) -> list[dict[str, int]]:
    """Return the recorded configurations."""
    good = isinstance(recorded, list) and all(
        isinstance(one, dict) and all(type(value) is int and abs(value) <= LARGEST for value in one.values())
        for one in recorded
    )
    if not good or len(recorded) > MOST:
        raise DamagedRunError(
            f"a run records at most {MOST} configurations of a wisdom, but the record in {directory} is another; start "
            "a new run."
        )
    return list(recorded)


def _entries(result: TuneResult, driver: str) -> list[Entry]:
    """Return the winner, its ties, and the trials that the wisdom proposed."""
    declaration = result.declaration
    if declaration is None:
        return []
    best = {one.number: one for one in declaration.finalists if one.number in (declaration.number, *declaration.ties)}
    known = [one for one in result.measured() if one.proposed_by == "wisdom" and one.number not in declaration.rejected]
    again = {one.number: rank_records({one.number: one.measurement})[0] for one in known if one.measurement}
    again |= {one.number: one for one in declaration.finalists if one.number in again}
    return [
        _entry(result, driver, finalist, verified=declaration.verified and number in best)
        for number, finalist in (again | best).items()
    ]


def _failures(result: TuneResult, driver: str) -> list[Failure]:
    """Return the configurations of the wisdom that failed, also in the last verification."""
    rejected = {} if result.declaration is None else result.declaration.rejected
    proposed = result.records.take(result.records.column("proposed_by") == "wisdom")
    return [
        Failure.model_validate(_facts(result, driver, record) | {"failed": printable(reason, LONGEST_TEXT)})
        for record in proposed
        if (reason := rejected.get(record.number) or _failure(record))
    ]


def _failure(record: TrialRecord) -> str:
    return f"{record.state}: {record.detail}" if record.state in _FAILED else ""


def _entry(result: TuneResult, driver: str, finalist: Finalist, *, verified: bool) -> Entry:
    record = result.trial(finalist.number)
    assert record is not None  # noqa: S101 - a finalist is on record
    reference = None if result.declaration is None else result.declaration.reference
    default = (one.median_s for one in result.measured() if one.proposed_by == "default")
    return Entry.model_validate(
        {
            **_facts(result, driver, record),
            "median_s": finalist.median_s,
            "low_s": min(finalist.low_s, finalist.median_s),
            "high_s": max(finalist.high_s, finalist.median_s),
            "default_s": next(default, None),
            "reference_s": result.reference_s if reference is None else reference.median_s,
            "verified": verified,
            "trials": len(result.records),
        }
    )


def _facts(result: TuneResult, driver: str, record: TrialRecord) -> dict[str, Any]:
    """Return the fields that entries and failures have in common."""
    header = result.header
    return {
        "kernel": header.kernel,
        "source_hash": header.source_hash,
        "accuracy": result.accuracy,
        "problem": result.problem.to_json(),
        "device": Gpu.of(result.device),
        "driver": driver,
        "configuration": header.labelled(record.configuration),
        "measured_at": f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%S.%f}Z",
        "versions": dict(header.versions),
    }
