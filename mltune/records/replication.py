"""Records of a run on their way from one store to another: all of them, or only the new ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from mltune.records.declaration import Reference
from mltune.records.header import RunHeader
from mltune.records.store import Store
from mltune.records.trial import TrialRecord


@dataclass(frozen=True, slots=True)
class Changes:
    """Records that a store has and another may lack, after some trials and timings; facts and seconds are whole."""

    header: RunHeader
    after: int = 0
    references_after: int = 0
    trials: tuple[TrialRecord, ...] = ()
    references: tuple[Reference, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)
    seconds: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def of(cls, store: Store, after: int = 0, references_after: int = 0) -> Changes:
        """Return the records of a store without its first trials and timings of the reference kernel."""
        with store.at_once():
            return cls(
                store.header,
                after,
                references_after,
                tuple(store.records(after)),
                tuple(store.references()[references_after:]),
                store.documents(),
                store.seconds(),
            )

    @property
    def upto(self) -> tuple[int, int]:
        """Numbers of trials and of timings of the reference kernel in a store that has these changes."""
        return self.after + len(self.trials), self.references_after + len(self.references)

    def write(self, store: Store) -> None:
        """Write what a store lacks; a gap between its trials and these raises a ValueError."""
        trials, references = len(store), len(store.references())
        if trials < self.after or references < self.references_after:
            raise ValueError(f"changes do not follow what the store has: {trials} trials, not {self.after}")
        with store.at_once():
            store.append(*self.trials[trials - self.after :])
            for reference in self.references[references - self.references_after :]:
                store.append_reference(reference)
            for name, value in self.facts.items():
                store.set_fact(name, value)
            store.set_seconds(self.seconds)
