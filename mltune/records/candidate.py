"""A candidate: a proposed configuration before its trial has ended."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace

from mltune.records.trial import Build, Measurement, Skip, TrialRecord, TrialState

BATCH = 16
"""Candidates of a batch: enough to keep all compilers busy, few enough to learn often."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A proposed configuration. The attributes without a description are those of :class:`TrialRecord`.

    Attributes
    ----------
    skip : Skip or None
        The decision of a gate to skip it; None when no gate has decided so.
    audited : bool
        Whether the audit measures it although a gate skips it.
    """

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
            number=self.number,
            batch=self.batch,
            index=self.index,
            configuration=self.configuration,
            state=state,
            detail=detail,
            proposed_by=self.proposed_by,
            skip=self.skip,
            audited=self.audited,
            predicted=self.predicted,
            build=None if build is None else replace(build, cubin=b""),
            measurement=measurement,
            finished_at=time.time(),
        )
