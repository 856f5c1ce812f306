"""When to stop: once nothing untried can be expected to beat the best by more than a share."""

from __future__ import annotations

import math
from dataclasses import dataclass

from mltune.kernel.columns import Floats


@dataclass(frozen=True, slots=True)
class NothingLeft:
    """Why a search stops by itself: what was untried does not promise enough.

    Attributes
    ----------
    share : float
        By how much the best would have to be beaten.
    gain : float
        By how much the most hopeful of what was looked at might beat it, at its optimistic end; at most ``share``, and
        negative where that end is below the best.
    untried, looked_at : int
        Configurations that were not tried, and those of them that were judged.
    hopeful_share_at_most : float
        Upper bound (95 % confidence) on the share of the untried that would have been judged more hopeful: 0 where all
        were looked at. Of a sample it is never 0: in a space too large to look through, that much is not known.
    """

    share: float
    gain: float
    untried: int
    looked_at: int
    hopeful_share_at_most: float

    def __str__(self) -> str:
        scope = f"all {self.untried:,} untried configurations"
        if self.looked_at < self.untried:
            scope = f"a sample of {self.looked_at:,} of the {self.untried:,} untried configurations"
        text = f"none of {scope} can be expected to beat the best by more than {100 * self.share:g} %"
        if self.hopeful_share_at_most > 0:
            text += f"; at most {100 * self.hopeful_share_at_most:.2g} % of the others can (95 % confidence)"
        return text


class StoppingRule:
    """Stops a search when the calibrated optimistic end of everything untried lies below the best plus a share.

    The ends are those of the gate (:class:`mltune.learn.gates.Gate`, ``cautious``): wide enough for the fastest that
    were measured. They come from one model of one batch, and a model may be blind to an island; so the verdict must
    hold for ``patience`` batches on end, each with a model fitted anew, while the search goes on exploring.

    A space too large to look through is judged by a uniform sample, and by the variants of the best configurations,
    where improvements mostly are. A sample proves nothing of the rest: it bounds the share of the rest that could be
    better (the rule of three), and that bound must be at most ``most_hopeful``.

    Parameters
    ----------
    share : float
        By how much the best must be beaten to matter.
    minimum : int
        Measured configurations before the first verdict.
    patience : int
        Verdicts on end.
    most_hopeful : float
        Share of a space too large to look through that may be more hopeful, unseen.

    Attributes
    ----------
    held : int
        Verdicts on end so far; set by who resumes a search.
    """

    def __init__(
        self, *, share: float = 0.01, minimum: int = 100, patience: int = 3, most_hopeful: float = 0.003
    ) -> None:
        self.share = share
        self.minimum = minimum
        self.patience = patience
        self.most_hopeful = most_hopeful
        self.held = 0

    def judge(
        self, ends: Floats | None, best: float, *, measured: int, untried: int, near: Floats | None = None
    ) -> NothingLeft | None:
        """Judge once a batch; return the reason to stop, or None.

        Parameters
        ----------
        ends : ndarray of shape (n_configs,) or None
            Optimistic ends (log share of peak) of all untried configurations, or of a uniform sample of them; None
            while nothing can be promised.
        best : float
            The best measured, log share of peak.
        measured : int
            Configurations measured so far.
        untried : int
            Configurations not tried yet.
        near : ndarray of shape (n_near,), optional
            Optimistic ends of variants of the best, beside a sample.
        """
        found = None if ends is None or measured < self.minimum else self._look(ends, near, best, untried)
        self.held = self.held + 1 if found else 0
        return found if self.held >= self.patience else None

    def _look(self, ends: Floats, near: Floats | None, best: float, untried: int) -> NothingLeft | None:
        looked_at = min(len(ends), untried)
        # None of n is hopeful: with 95 % confidence fewer than 1 - 0.05 ** (1 / n) of the others are.
        bound = 0.0 if looked_at == untried else -math.expm1(math.log(0.05) / max(looked_at, 1))
        highest = max((float(each.max()) for each in (ends, near) if each is not None and len(each)), default=-math.inf)
        gain = math.expm1(min(highest - best, 700.0))
        if gain > self.share or bound > self.most_hopeful:
            return None
        return NothingLeft(self.share, gain, untried, looked_at, bound)
