"""Rating of a measured time: its rate, share of the device's limit, share of the reference kernel."""

from __future__ import annotations

from typing import Any

from mltune.device.facts import Device
from mltune.problem.problem import Problem
from mltune.records.declaration import Declaration
from mltune.results.rate import GB_PER_S, TFLOPS, rate_of


def rating(problem: Problem, device: Device, median_s: float, reference_s: float | None) -> dict[str, float | None]:
    """Rate one time of a kernel.

    Parameters
    ----------
    median_s : float
        Median time of the kernel, seconds.
    reference_s : float or None
        Median time of the reference kernel for the same problem on the same device, seconds.

    Returns
    -------
    dict
        ``median_s``; ``tflops`` or ``gb_per_s``, the unit of :func:`mltune.results.rate.rate_of`, and None for the
        other one; ``share_of_peak``, of the device's arithmetic peak for TFLOPS and of its memory bandwidth for GB/s,
        None where times are shown and where the bandwidth is not known; ``share_of_reference`` (above 1: faster than
        the reference), None where the time of the reference is not known.

    Examples
    --------
    >>> from mltune.device.known import H200
    >>> from mltune.problem.gemm import GemmProblem
    >>> rating(GemmProblem("s", "N", "T", 4096, 4096, 4096), H200, 2.5e-3, 2e-3)["share_of_reference"]
    0.8
    """
    rate = rate_of(problem, device)
    return {
        "median_s": median_s,
        **{unit.key: rate.of(median_s) if unit == rate.unit else None for unit in (GB_PER_S, TFLOPS)},
        "share_of_peak": rate.share_of_peak(median_s),
        "share_of_reference": None if reference_s is None else reference_s / median_s,
    }


def declared_rating(
    problem: Problem, device: Device, declared: Declaration, reference_s: float | None
) -> dict[str, Any]:
    """Rate a declared winner by its times in the finals.

    Parameters
    ----------
    reference_s : float or None
        Median time of the reference kernel outside the finals, seconds: used where it did not take part in them.

    Returns
    -------
    dict
        The result of :func:`rating`, and ``interval_s`` of the median, ``interval_share_of_reference`` (None where the
        reference was not in the finals), ``ties`` (trial numbers), ``verified``.
    """
    winner, reference = declared.winner, declared.reference
    figures: dict[str, Any] = dict(rating(problem, device, winner.median_s, reference_s))
    if reference is not None:
        figures["share_of_reference"] = reference.ratio
    return figures | {
        "interval_s": [winner.low_s, winner.high_s],
        "interval_share_of_reference": None if reference is None else [reference.ratio_low, reference.ratio_high],
        "ties": list(declared.ties),
        "verified": declared.verified,
    }
