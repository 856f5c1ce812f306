"""Declaration of a run: its winner, with confidence intervals, ties and rejected trials."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

FACT = "declaration"
"""Name of the fact in the store of a run."""


@dataclass(frozen=True, slots=True)
class Finalist:
    """One of the fastest configurations, timed in alternation with the others.

    Attributes
    ----------
    number : int
        Number of its trial; -1 for the reference kernel.
    median_s, low_s, high_s : float
        Median of the samples in seconds, and the bounds of its 95 % interval.
    ratio, ratio_low, ratio_high : float
        Time relative to the winner, sample by sample, and the bounds of its 95 % interval. All 1 for the winner.
    """

    number: int
    median_s: float
    low_s: float
    high_s: float
    ratio: float = 1.0
    ratio_low: float = 1.0
    ratio_high: float = 1.0


@dataclass(frozen=True, slots=True)
class Declaration:
    """The winner of a run, and the race that decided it.

    Attributes
    ----------
    number : int
        Number of the winner's trial.
    finalists : tuple of Finalist
        The fastest first; the winner is one of them.
    reference : Finalist or None
        The reference kernel in the same race, if it was timed. Its ratio is the speed of the winner relative to it:
        above 1 where the winner is faster.
    rounds : int
        Number of rounds of the race; 0 where the finalists were not timed again.
    as_of : int
        Number of trials on record at that time.
    rejected : mapping of int to str
        Faster trials that failed the final verification, with the reason.
    verified : bool
        Whether the winner passed the final verification. False in replay, where nothing is verified.
    """

    number: int
    finalists: tuple[Finalist, ...]
    reference: Finalist | None = None
    rounds: int = 0
    as_of: int = 0
    rejected: Mapping[int, str] = dataclasses.field(default_factory=dict)
    verified: bool = False

    @property
    def winner(self) -> Finalist:
        """The winner among the finalists."""
        return next(finalist for finalist in self.finalists if finalist.number == self.number)

    @property
    def ties(self) -> tuple[int, ...]:
        """Trials that the race does not distinguish from the winner: the interval of their ratio contains 1."""
        return tuple(
            finalist.number
            for finalist in self.finalists
            if finalist.number != self.number and finalist.ratio_low <= 1.0 <= finalist.ratio_high
        )

    def to_json(self) -> dict[str, Any]:
        """Return the declaration as plain JSON values, including ``ties``."""
        document = dataclasses.asdict(self)
        return document | {
            "finalists": list(document["finalists"]),
            "rejected": {str(number): reason for number, reason in self.rejected.items()},
            "ties": list(self.ties),
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Declaration:
        """Rebuild a declaration from :meth:`to_json`."""
        values = {name: value for name, value in document.items() if name not in ("ties", "cublas")}
        reference = values.get("reference", document.get("cublas"))  # "cublas" before version 0.2
        return cls(
            **values
            | {
                "finalists": tuple(Finalist(**finalist) for finalist in values["finalists"]),
                "reference": None if reference is None else Finalist(**reference),
                "rejected": {int(number): reason for number, reason in values.get("rejected", {}).items()},
            }
        )
