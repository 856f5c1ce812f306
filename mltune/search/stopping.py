"""The stopping rule: end a search once no untried configuration can be expected to improve on the best by a share."""

from __future__ import annotations

import math
from dataclasses import dataclass

from mltune.kernel.coding import Floats

LOOKED_AT = 20_000
"""Largest sample of untried configurations that the rule examines."""

INCUMBENTS = 3
"""Number of best configurations whose neighbours the rule examines as well."""

ENOUGH = "the best is as near to the upper bound as was asked for"
"""Reason of a search that has reached its goal."""


@dataclass(frozen=True, slots=True)
class Stopping:
    """The state of the stopping rule. A run stores it, so that a resumed run stops at the same batch.

    Attributes
    ----------
    fitted_to : int
        Number of trials that the models of the last evaluation were fitted to; 0 before the first.
    held : int
        Consecutive evaluations that found nothing left (:class:`StoppingRule`).
    reason : str
        Reason to plan no batch after ``batch``: nothing faster is expected, nothing is left to try, or the goal is
        reached. Empty while the search continues.
    batch : int
        The batch that was planned at the last evaluation.
    """

    fitted_to: int = 0
    held: int = 0
    reason: str = ""
    batch: int = 0


@dataclass(slots=True, kw_only=True)
class StoppingRule:
    """A rule that ends a search if the upper ends of all untried configurations are below the best plus a share.

    The upper ends are those of the gate (:class:`mltune.search.gates.Gate`, ``cautious``): wide enough for the fastest
    measured configurations. They come from one model, which may miss an isolated optimum. So the condition
    must hold for ``patience`` consecutive batches, each with a model fitted anew, while the search continues.

    A space that is too large to enumerate is examined by a uniform sample, and by variants of the best configurations,
    where most improvements are. A sample does not exclude better configurations, but bounds their share (the rule of
    three); that bound must be at most ``most_promising``.

    Attributes
    ----------
    share : float
        The improvement over the best that matters.
    minimum : int
        Number of measured configurations before the first decision.
    patience : int
        Number of consecutive batches.
    most_promising : float
        Largest acceptable bound on the share of better configurations outside the sample.
    streak : int
        Consecutive batches for which the condition has held; a resumed search sets it.

    Examples
    --------
    >>> import numpy as np
    >>> rule = StoppingRule(patience=1)
    >>> print(rule.check(np.array([-2.0, -1.5]), -1.0, measured=200, untried=2))
    none of all 2 untried configurations can be expected to beat the best by more than 1 %
    """

    share: float = 0.01
    minimum: int = 100
    patience: int = 3
    most_promising: float = 0.003
    streak: int = 0

    def check(
        self, ends: Floats | None, best: float, *, measured: int, untried: int, near: Floats | None = None
    ) -> str:
        """Check the condition, once for each batch; return the reason to stop, or an empty text.

        Parameters
        ----------
        ends : ndarray of shape (n_configs,) or None
            Upper ends (log share of peak) of all untried configurations, or of a uniform sample of them; None while the
            gate is not calibrated.
        best : float
            The best measured, log share of peak.
        measured, untried : int
            Number of configurations measured so far, and of those not tried yet.
        near : ndarray of shape (n_near,), optional
            Upper ends of variants of the best, in addition to a sample.
        """
        reason = "" if ends is None or measured < self.minimum else self._examine(ends, near, best, untried)
        self.streak = self.streak + 1 if reason else 0
        return reason if self.streak >= self.patience else ""

    def _examine(self, ends: Floats, near: Floats | None, best: float, untried: int) -> str:
        examined = min(len(ends), untried)
        # If none of n is promising, fewer than 1 - 0.05 ** (1 / n) of the others are, with 95 % confidence.
        bound = 0.0 if examined == untried else -math.expm1(math.log(0.05) / max(examined, 1))
        highest = max((float(each.max()) for each in (ends, near) if each is not None and len(each)), default=-math.inf)
        gain = math.expm1(min(highest - best, 700.0))
        if gain > self.share or bound > self.most_promising:
            return ""
        scope = f"all {untried:,} untried configurations"
        if examined < untried:
            scope = f"a sample of {examined:,} of the {untried:,} untried configurations"
        others = f"; at most {100 * bound:.2g} % of the others can (95 % confidence)" if bound > 0 else ""
        return f"none of {scope} can be expected to beat the best by more than {100 * self.share:g} %{others}"
