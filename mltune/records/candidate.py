"""A candidate: a proposed configuration before its trial has ended."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace

from mltune.records.trial import Build, Measurement, Skip, TrialRecord, TrialState

BATCH = 16
"""Candidates of a batch: enough to keep all compilers busy, few enough to learn often."""


SEARCHES = ("model", "tpe", "random", "astra")
"""The searches that propose candidates: a Gaussian process with a physical prior; Optuna's TPE restricted to valid, new
configurations; random search; random search within the hand-set thresholds of LAWN 267."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A proposed configuration; its attributes are those of :class:`TrialRecord`."""

    number: int
    batch: int
    index: int
    configuration: Mapping[str, int]
    proposed_by: str
    predicted: float | None = None
    skip: Skip | None = None
    audited: bool = False

    @property
    def is_skipped(self) -> bool:
        """Whether it is not measured."""
        return self.skip is not None and not self.audited

    def record(
        self,
        state: TrialState,
        detail: str = "",
        *,
        build: Build | None = None,
        measurement: Measurement | None = None,
    ) -> TrialRecord:
        """Return the record of the trial that ended in a state."""
        return TrialRecord(
            **{field.name: getattr(self, field.name) for field in fields(self)},
            state=state,
            detail=detail,
            build=None if build is None else replace(build, cubin=b""),
            measurement=measurement,
            finished_at=time.time(),
        )
