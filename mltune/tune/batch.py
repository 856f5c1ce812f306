"""A batch of proposals under way: what it was planned from judges it, and it is told of as a whole."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from mltune.measure.pipeline import Candidate
from mltune.records.trial import GATES, Build, Skip, TrialRecord

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from optuna.trial import Trial

    from mltune.kernel.columns import Columns
    from mltune.learn.gates import Gates

BATCH = 16
"""Proposals of a batch: enough to keep a compile pool busy, few enough to learn often."""


def numbers_of(batch: int) -> set[int]:
    """Return the trial numbers of a whole batch."""
    return set(range(batch * BATCH, (batch + 1) * BATCH))


@dataclass(slots=True)
class Batch:
    """A batch under way.

    Attributes
    ----------
    number : int
    trials : list of Trial
        As Optuna knows them.
    judgement : Gates
        What was known when it was planned.
    gates : frozenset of str
        The gates that skip.
    records : dict of int to TrialRecord
        Of the trials that have ended, by number.
    """

    number: int
    trials: list[Trial]
    judgement: Gates
    gates: frozenset[str]
    records: dict[int, TrialRecord] = field(default_factory=dict)

    @property
    def complete(self) -> bool:
        """Whether all its trials have ended."""
        return len(self.records) == len(self.trials)

    def before(self, candidates: Sequence[Candidate]) -> list[Candidate]:
        """Return its candidates with the verdicts of the gate before compiling."""
        numbers = [candidate.number for candidate in candidates]
        exempt = self._exempt(candidates, GATES[0])
        return _judged(candidates, *self.judgement.before(_columns(candidates), numbers, exempt))

    def after(self, built: Sequence[tuple[Candidate, Build]]) -> list[Candidate]:
        """Return some of its candidates with the verdicts of the gate after compiling."""
        candidates, builds = [candidate for candidate, _ in built], [build for _, build in built]
        numbers = [candidate.number for candidate in candidates]
        exempt = self._exempt(candidates, GATES[1])
        return _judged(candidates, *self.judgement.after(_columns(candidates), builds, numbers, exempt))

    def _exempt(self, candidates: Sequence[Candidate], gate: str) -> NDArray[np.bool_]:
        """Return which candidates a gate does not skip, those among them that the gate before sent to the audit."""
        from mltune.learn.gates import spared

        if gate not in self.gates:
            return np.ones(len(candidates), dtype=bool)
        audited = np.array([one.audited for one in candidates], dtype=bool)
        exempt: NDArray[np.bool_] = audited | spared([one.proposed_by for one in candidates], gate)
        return exempt


@dataclass(slots=True)
class Pace:
    """What the trials that the study was told of took: seconds and number of builds, and of measurements."""

    compile_s: float = 0.0
    builds: int = 0
    ran_s: float = 0.0
    measurements: int = 0

    def add(self, record: TrialRecord) -> None:
        """Count one trial."""
        if record.build is not None:
            self.compile_s += record.build.compile_s
            self.builds += 1
        if record.measurement is not None:
            self.ran_s += record.measurement.verify_s + record.measurement.time_s
            self.measurements += 1

    def awaits_gpu(self, compilers: float) -> bool:
        """Return whether timing is what the run waits for.

        Where compilers are what is short, the GPU has time for whatever they bring: skipping that saves nothing.
        """
        return self.measurements > 0 and self.ran_s / self.measurements > self.compile_s / self.builds / compilers


def _columns(candidates: Sequence[Candidate]) -> Columns:
    """Return candidates as a table."""
    names = candidates[0].configuration
    return {name: np.array([one.configuration[name] for one in candidates], dtype=np.int64) for name in names}


def _judged(
    candidates: Sequence[Candidate], skips: Sequence[Skip | None], audited: NDArray[np.bool_]
) -> list[Candidate]:
    """Return candidates with the verdict of a gate; one that the audit drew before keeps the first."""
    return [
        replace(one, skip=skip, audited=bool(drawn)) if skip is not None else one
        for one, skip, drawn in zip(candidates, skips, audited, strict=True)
    ]
