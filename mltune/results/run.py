"""The result of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mltune.problem.problem import Problem
from mltune.records.declaration import Declaration
from mltune.records.trial import TrialRecord
from mltune.results.audit import audit_skips
from mltune.results.rating import declared_rating
from mltune.results.summary import counts

if TYPE_CHECKING:
    from mltune.device.facts import Device


@dataclass(frozen=True, slots=True)
class TuneResult:
    """What a run has found.

    Attributes
    ----------
    best : TrialRecord or None
        The winner; None when no trial succeeded.
    reference_s : float or None
        Median time of cuBLAS for the same problem.
    declaration : Declaration or None
        How sure it is that the winner is the fastest, and faster trials that failed the last verification.
    stopped : str
        Why the run ended by itself before its budget was spent; empty when it did not.
    interrupted : bool
        Whether it was told to end.
    """

    problem: Problem
    device: Device
    kernel: str
    records: Sequence[TrialRecord]
    best: TrialRecord | None
    reference_s: float | None
    seconds: Mapping[str, float]
    run: Path
    declaration: Declaration | None = None
    stopped: str = ""
    interrupted: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return the result as plain JSON values: what ``mltune tune --json`` prints."""
        found = None
        if self.best is not None and self.declaration is not None:
            found = {
                "configuration": dict(self.best.configuration),
                **declared_rating(self.problem, self.device, self.declaration, self.reference_s),
            }
        return {
            "problem": self.problem.to_json(),
            "device": self.device.to_json(),
            "kernel": self.kernel,
            "trials": len(self.records),
            "counts": counts(record.state for record in self.records),
            "best": found,
            "seconds": dict(self.seconds),
            "run": str(self.run),
            "stopped": self.stopped,
            "skips": audit_skips(self.records, self.seconds.get("search", 0.0)).to_json(),
        }
