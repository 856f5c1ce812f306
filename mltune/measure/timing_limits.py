"""Can it be a time? What no GPU can have measured is no time, whoever says so."""

from __future__ import annotations

import math
from dataclasses import replace

from mltune.records.trial import Measurement, TrialState

MARGIN = 50.0
"""How many times the peak outside the tensor cores no kernel reaches. Wide: on operands split into parts of fewer bits
the tensor cores exceed that peak honestly, and on cards with few units for double precision by far."""

_ROUNDING = 1e-3  # datasets round samples and median differently


def within_limits(measurement: Measurement, flops: int, peak_flops: float) -> Measurement:
    """Return a measurement if its times can be such, else one without times that says why.

    Parameters
    ----------
    measurement : Measurement
        In whatever state; without times it is returned as it is.
    flops : int
        Operations of the problem.
    peak_flops : float
        Peak of the device for the problem's arithmetic, outside its tensor cores, flop/s.

    Returns
    -------
    Measurement
        The same, or one in state ``UNSTABLE`` without samples and median.
    """
    reason = _why_not(measurement, flops, peak_flops)
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


def _why_not(measurement: Measurement, flops: int, peak_flops: float) -> str:
    """Return what no clock can have shown; empty when there is nothing."""
    median_s, samples_s = measurement.median_s, measurement.samples_s
    if median_s is None:
        return "samples have a median, but this measurement has none" if samples_s else ""
    times_s = (median_s, *samples_s)
    if not all(math.isfinite(time_s) and time_s > 0 for time_s in times_s):
        return f"times must be finite and positive, got {[*times_s]!r:.200}"
    if samples_s and not (1 - _ROUNDING) * min(samples_s) <= median_s <= (1 + _ROUNDING) * max(samples_s):
        return f"a median must lie among its samples, got {median_s:.6g} s for {[*samples_s]!r:.200}"
    if flops > MARGIN * peak_flops * min(times_s):
        share = flops / (min(times_s) * peak_flops)
        return f"no time is shorter than the GPU's peak allows, but {min(times_s):.6g} s would be {share:.3g} times it"
    return ""
