"""Rating of a measured time: TFLOPS, share of the device's peak, share of the reference kernel."""

from __future__ import annotations

from typing import Any

from mltune.device.facts import Device
from mltune.device.peaks import peak_flops
from mltune.problem.problem import Problem
from mltune.records.declaration import Declaration


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
        ``median_s``; ``gb_per_s``, the least memory traffic over the time, None where a problem states none or counts
        its operations; ``tflops`` and ``share_of_peak`` (of the device's theoretical peak for the problem's
        arithmetic), None where the problem does not count its operations; ``share_of_reference`` (above 1: faster than
        the reference), None where the time of the reference is not known.

    Examples
    --------
    >>> from mltune.device.known import H200
    >>> from mltune.problem.gemm import GemmProblem
    >>> rating(GemmProblem("s", "N", "T", 4096, 4096, 4096), H200, 2.5e-3, 2e-3)["share_of_reference"]
    0.8
    """
    flops = known_flops(problem)
    rate = flops / median_s if flops else None
    return {
        "median_s": median_s,
        "gb_per_s": problem.bytes / median_s / 1e9 if problem.bytes and not flops else None,
        "tflops": None if rate is None else rate / 1e12,
        "share_of_peak": None if rate is None else rate / peak_flops(device, problem.arithmetic),
        "share_of_reference": None if reference_s is None else reference_s / median_s,
    }


def known_flops(problem: Problem) -> int:
    """Return the operations of a problem; 0 where they are not known (a recorded problem then counts 1)."""
    return problem.flops if problem.flops > 1 else 0


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
