"""Reject impossible timings: not finite, not positive, or more than 50 times faster than the device's peak allows."""

from __future__ import annotations

import math
from dataclasses import replace

from mltune.records.trial import Measurement, TrialState

MARGIN = 50.0
"""Multiple of the peak outside the tensor cores that no kernel reaches. It is wide because kernels that split operands
into parts of fewer bits for the tensor cores exceed that peak, by far on cards with few units for double precision."""

_ROUNDING = 1e-3  # datasets round samples and median differently


def within_limits(measurement: Measurement, flops: int, peak_flops: float) -> Measurement:
    """Return a measurement, without its times if they are impossible.

    Parameters
    ----------
    measurement : Measurement
        In any state; without times it is returned unchanged.
    flops : int
        Floating-point operations of the problem.
    peak_flops : float
        Peak of the device for the problem's arithmetic, outside its tensor cores, flop/s.

    Returns
    -------
    Measurement
        The same, or one in state ``UNSTABLE`` without samples and median, with the reason as its detail.
    """
    reason = _contradiction(measurement, flops, peak_flops)
    if not reason:
        return measurement
    return replace(
        measurement,
        state=TrialState.UNSTABLE,
        detail=reason,
        samples_s=(),
        median_s=None,
        noise=None,
        stopped_early=False,
    )


def _contradiction(measurement: Measurement, flops: int, peak_flops: float) -> str:
    """Return why the times are impossible; empty when they are possible."""
    median_s, samples_s = measurement.median_s, measurement.samples_s
    if median_s is None:
        return "samples must have a median, but this measurement has none" if samples_s else ""
    times_s = (median_s, *samples_s)
    if not all(math.isfinite(time_s) and time_s > 0 for time_s in times_s):
        return f"times must be finite and positive, got {[*times_s]!r:.200}"
    if samples_s and not (1 - _ROUNDING) * min(samples_s) <= median_s <= (1 + _ROUNDING) * max(samples_s):
        return f"a median must lie among its samples, got {median_s:.6g} s for {[*samples_s]!r:.200}"
    if flops > MARGIN * peak_flops * min(times_s):
        share = flops / (min(times_s) * peak_flops)
        return f"a time must be possible at the GPU's peak, but {min(times_s):.6g} s means {share:.3g} times that"
    return ""
