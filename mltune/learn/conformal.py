"""Conformal intervals: how much faster than predicted a configuration may be, with a coverage that can be tested."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Self

import numpy as np

from mltune.kernel.columns import Floats

SLOPE = 0.2
"""Slope of the scale of an interval below the median of what was measured."""

SMALLEST_OFFSET = 1e-6


def upper_quantile(scores: Floats, confidence: float) -> float:
    """Return what a new score lies below with at least this probability.

    The ``ceil((n + 1) * confidence)``-th smallest of n scores (Vovk, Gammerman and Shafer, 2005): if the new one is
    exchangeable with them, the promise holds for any n and any distribution. Infinite where n is too small for it.

    Parameters
    ----------
    scores : ndarray of shape (n,)
    confidence : float
        Between 0 and 1.
    """
    rank = math.ceil((len(scores) + 1) * confidence - 1e-9)
    return float(np.partition(scores, rank - 1)[rank - 1]) if 1 <= rank <= len(scores) else math.inf


@dataclass(frozen=True, slots=True)
class UpperEnd:
    """The optimistic end of a one-sided interval: ``predicted + width * (spread + offset)``, on a compressed scale.

    It widens with the model's own spread (Lei and others, 2018, "Distribution-free predictive inference for
    regression", section 5.2): narrow where the model knows, wide where it guesses. The offset, half of the median
    error, keeps members that agree by chance from promising certainty.

    The scale is the one that models are fitted on (:class:`mltune.learn.cost_model.Compression`): below the median of
    what was measured a distance counts a fifth. Coverage is the same on any monotone scale; on this one errors among
    the hopeless do not widen the interval of the fast.

    Attributes
    ----------
    width : float
        In units of spread plus offset; infinite where nothing is promised.
    offset, knee : float
        Log share of peak.
    """

    width: float = math.inf
    offset: float = 1.0
    knee: float = 0.0

    @classmethod
    def calibrate(cls, measured: Floats, predicted: Floats, spread: Floats, confidence: float) -> Self:
        """Return the end below which a share ``confidence`` of all configurations lies: marginal coverage.

        Parameters
        ----------
        measured, predicted, spread : ndarray of shape (n_configs,)
            Log shares of peak: what was measured, and what was predicted for each without having seen it. All finite.
        confidence : float
        """
        if len(measured) == 0:
            return cls()
        shape = cls(0.0, 0.0, float(np.median(measured)))
        errors = shape.compress(measured) - shape.compress(predicted)
        offset = max(float(np.median(np.abs(errors))) / 2, SMALLEST_OFFSET)
        return cls(upper_quantile(errors / (spread + offset), confidence), offset, shape.knee)

    def scores(self, measured: Floats, predicted: Floats, spread: Floats) -> Floats:
        """Return the widths at which the end would have met each measurement: ndarray of shape (n_configs,)."""
        return (self.compress(measured) - self.compress(predicted)) / (spread + self.offset)

    def end(self, predicted: Floats, spread: Floats) -> Floats:
        """Return the optimistic end for each configuration: ndarray of shape (n_configs,)."""
        end = self.compress(predicted) + self.width * (spread + self.offset)
        return np.where(end < self.knee, self.knee + (end - self.knee) / SLOPE, end)

    def compress(self, speed: Floats) -> Floats:
        """Return speeds on the scale of the interval."""
        return np.where(speed < self.knee, self.knee + SLOPE * (speed - self.knee), speed)
