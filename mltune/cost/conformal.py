"""One-sided conformal prediction intervals: an upper bound on the speed of a configuration, with testable coverage."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Self

import numpy as np

from mltune.cost.cost_model import compress, expand
from mltune.kernel.columns import Floats

SMALLEST_OFFSET = 1e-6


def upper_quantile(scores: Floats, confidence: float) -> float:
    """Return a bound that a new score is below with at least the given probability.

    It is the ``ceil((n + 1) * confidence)``-th smallest of n scores (Vovk, Gammerman and Shafer, 2005). If the new
    score is exchangeable with them, the coverage holds for any n and any distribution. The bound is infinite if n is
    too small for it.

    Parameters
    ----------
    scores : ndarray of shape (n,)
    confidence : float
        Between 0 and 1.

    Examples
    --------
    >>> upper_quantile(np.arange(99.0), 0.95)
    94.0
    >>> upper_quantile(np.arange(9.0), 0.95)
    inf
    """
    rank = math.ceil((len(scores) + 1) * confidence - 1e-9)
    return float(np.partition(scores, rank - 1)[rank - 1]) if 1 <= rank <= len(scores) else math.inf


@dataclass(frozen=True, slots=True)
class UpperEnd:
    """The upper end of a one-sided interval: ``predicted + width * (spread + offset)``, on a compressed scale.

    The interval is wide where the standard deviation of the model is large (Lei and others, 2018, "Distribution-free
    predictive inference for regression", section 5.2). The offset is half of the median error: members of an ensemble
    that agree by chance do not make the interval arbitrarily narrow.

    The scale is that of :func:`mltune.cost.cost_model.compress`: below the median of the measured speeds a distance
    counts a fifth. Coverage is the same on any monotone scale; on this one the errors among slow configurations do not
    widen the interval of the fast ones.

    Attributes
    ----------
    width : float
        In units of spread plus offset; infinite if there are too few measurements.
    offset, knee : float
        Log share of peak.
    """

    width: float = math.inf
    offset: float = 1.0
    knee: float = 0.0

    @classmethod
    def calibrate(cls, measured: Floats, predicted: Floats, spread: Floats, confidence: float) -> Self:
        """Return the end that is above a share ``confidence`` of all configurations (marginal coverage).

        Parameters
        ----------
        measured, predicted, spread : ndarray of shape (n_configs,)
            Log shares of peak: measurements, and predictions by models that did not see them. All finite.
        """
        if len(measured) == 0:
            return cls()
        shape = cls(0.0, 0.0, float(np.median(measured)))
        errors = shape.compress(measured) - shape.compress(predicted)
        offset = max(float(np.median(np.abs(errors))) / 2, SMALLEST_OFFSET)
        return cls(upper_quantile(errors / (spread + offset), confidence), offset, shape.knee)

    def scores(self, measured: Floats, predicted: Floats, spread: Floats) -> Floats:
        """Return the width at which the end equals each measurement: ndarray of shape (n_configs,)."""
        return (self.compress(measured) - self.compress(predicted)) / (spread + self.offset)

    def end(self, predicted: Floats, spread: Floats) -> Floats:
        """Return the upper end for each configuration: ndarray of shape (n_configs,)."""
        return expand(self.compress(predicted) + self.width * (spread + self.offset), self.knee)

    def compress(self, speed: Floats) -> Floats:
        """Return speeds on the scale of the interval."""
        return compress(speed, self.knee)
