"""What a run declares in the end: its winner, how sure that is, and what came so close that it is a tie."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

FACT = "declaration"
"""Name of the fact of a run's store that holds its declaration."""


@dataclass(frozen=True, slots=True)
class Finalist:
    """One of the fastest, timed side by side with the others.

    Attributes
    ----------
    number : int
        Of its trial; -1 for cuBLAS.
    median_s, low_s, high_s : float
        Median of its samples, seconds, and the ends of the 95 % interval of the median.
    ratio, ratio_low, ratio_high : float
        Its time over that of the winner, sample by sample, and the ends of the 95 % interval. All 1 for the winner.
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
    """Who won.

    Attributes
    ----------
    number : int
        Of the winner's trial.
    finalists : tuple of Finalist
        The fastest first; the winner is one of them.
    reference : Finalist or None
        The reference kernel in the same race: its ratio is the winner's speed relative to it, above 1 where the winner
        is faster. None where it was not timed.
    rounds : int
        Rounds of the race; 0 where the finalists were not timed again.
    as_of : int
        Trials on record at the time.
    rejected : mapping of int to str
        Faster trials that failed the last verification, and why.
    verified : bool
        Whether the winner passed the last verification.
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
        """Trials that cannot be told from the winner: 1 lies in the interval of their ratio."""
        return tuple(
            finalist.number
            for finalist in self.finalists
            if finalist.number != self.number and finalist.ratio_low <= 1.0 <= finalist.ratio_high
        )

    def to_json(self) -> dict[str, Any]:
        """Return the declaration as plain JSON values; ``ties`` among them."""
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
