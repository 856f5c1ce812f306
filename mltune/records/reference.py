"""The reference kernel, timed again and again: what it says of the hours in between."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Reference:
    """One timing of the reference kernel: cuBLAS on the run's own problem.

    Attributes
    ----------
    after : int
        Trials on record at the time.
    elapsed_s : float
        Seconds of the run at the time.
    median_s : float
        Median of its samples, seconds.
    noise : float or None
        Relative noise of the samples.
    sm_clock_hz, temperature_c, power_w : float or None
        State of the GPU while it was sampled.
    throttle_reasons : int or None
        NVML's bit mask of clock event reasons.
    """

    after: int
    elapsed_s: float
    median_s: float
    noise: float | None = None
    sm_clock_hz: float | None = None
    temperature_c: float | None = None
    power_w: float | None = None
    throttle_reasons: int | None = None
