"""Rating of a measured time: TFLOPS, share of the device's peak, share of the reference kernel."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mltune.device.facts import Device
    from mltune.problem.problem import Problem
    from mltune.records.declaration import Declaration


def rating(problem: Problem, device: Device, median_s: float, reference_s: float | None) -> dict[str, float | None]:
    """Rate one time.

    Parameters
    ----------
    problem : Problem
        What was computed.
    device : Device
        What it was computed on.
    median_s : float
        Median time of the kernel, seconds.
    reference_s : float or None
        Median time of cuBLAS for the same problem on the same device, when it is known.

    Returns
    -------
    dict
        ``median_s``; ``tflops``; ``share_of_peak`` of the device's theoretical peak for the problem's arithmetic;
        ``share_of_reference`` (above 1: faster than cuBLAS), None when the time of cuBLAS is not known.
    """
    from mltune.device.peaks import peak_flops

    rate = problem.flops / median_s
    return {
        "median_s": median_s,
        "tflops": rate / 1e12,
        "share_of_peak": rate / peak_flops(device, problem.arithmetic),
        "share_of_reference": None if reference_s is None else reference_s / median_s,
    }


def declared_rating(
    problem: Problem, device: Device, declared: Declaration, reference_s: float | None
) -> dict[str, Any]:
    """Rate a winner by the race that it won.

    Parameters
    ----------
    problem : Problem
    device : Device
    declared : Declaration
    reference_s : float or None
        Median time of cuBLAS outside the race: what counts where it did not take part.

    Returns
    -------
    dict
        What :func:`rating` returns, and ``interval_s`` of the median, ``interval_share_of_reference`` (None where it
        was not in the race), ``ties`` (trial numbers), ``verified``.
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
