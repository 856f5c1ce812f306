"""The rate of a problem: whether its times are shown as TFLOPS, as GB/s or as milliseconds, and what limits them.

Operations are rated in TFLOPS against the theoretical peak, memory traffic in GB/s against the bandwidth. Of a kernel
that counts both, the roofline decides: it is rated by what takes longer at the device's limits (Williams, Waterman and
Patterson, 2009). A problem that counts neither is shown as times.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from mltune.device.facts import Device
from mltune.device.peaks import has_unit, peak_flops
from mltune.problem.problem import Problem
from mltune.records.declaration import Declaration
from mltune.results.wording import REFERENCE, UNKNOWN, gb_per_s, milliseconds, percent, tflops


@dataclass(frozen=True, slots=True)
class Unit:
    """A unit in which the time of a kernel is shown.

    `key` is the field of a rating that holds the value, `size` the unit in SI units, `limit` what the device limits it
    by.

    >>> figures = {"median_s": 2e-3, "tflops": 54.6, "interval_s": [1.95e-3, 2.05e-3]}
    >>> unit_of(figures).text(figures), unit_of(figures).interval(figures), MS.text(figures)
    ('54.60', ('53.27', '56.00'), '2.0000')
    """

    name: str
    key: str
    size: float
    limit: str
    write: Callable[[float | None], str]

    @property
    def higher_is_better(self) -> bool:
        """Whether it is a rate, not a time."""
        return self.key != "ms"

    def value(self, figures: Mapping[str, Any]) -> Any:
        """Return the value of a rating, None where it has none: see :func:`rating`."""
        if self.higher_is_better:
            return figures.get(self.key)
        median_s = figures.get("median_s")
        return None if median_s is None else median_s / self.size

    def text(self, figures: Mapping[str, Any]) -> str:
        """Write the value of a rating without the unit."""
        return self.write(self.value(figures))

    def interval(self, figures: Mapping[str, Any]) -> tuple[str, str] | None:
        """Write both ends of the interval of a rating, the lower one first; None where it has no interval."""
        value, ends_s = self.value(figures), figures.get("interval_s")
        if value is None or not ends_s or None in ends_s:
            return None
        work = value * figures["median_s"]
        ends = [work / end_s if self.higher_is_better else end_s / self.size for end_s in ends_s]
        low, high = map(self.write, sorted(ends))
        return low, high

    def of_limit(self, share: float) -> str:
        """Write a share of the limit."""
        return f"{percent(share)} of {self.limit or 'the peak'}"


def _ms(value: float | None) -> str:
    return milliseconds(None if value is None else 1e-3 * value).removesuffix(" ms")


TFLOPS = Unit("TFLOPS", "tflops", 1e12, "the peak", tflops)
GB_PER_S = Unit("GB/s", "gb_per_s", 1e9, "the memory bandwidth", gb_per_s)
MS = Unit("ms", "ms", 1e-3, "", _ms)

RATED = ("median_s", "tflops", "gb_per_s", "share_of_peak", "share_of_reference")
"""Fields of a :func:`rating`, which every document of a winner has."""

UNITS = (TFLOPS, GB_PER_S, MS)
"""Every unit, those that are preferred first."""


def unit_of(figures: Mapping[str, Any]) -> Unit | None:
    """Return the unit of a rating, or of an event with the fields of one; None where there is nothing to show."""
    return next((unit for unit in UNITS if unit.value(figures) is not None), None)


def speed(figures: Mapping[str, Any]) -> str:
    """Write the value of a rating with its unit."""
    unit = unit_of(figures)
    return UNKNOWN if unit is None else f"{unit.text(figures)} {unit.name}"


def rating_text(figures: Mapping[str, Any], reference: str | None, *, of_limit: bool = True) -> str:
    """Write the speed of a rating, and its shares of the reference and of the limit, as far as they are known."""
    unit, share, of_peak = unit_of(figures), figures.get("share_of_reference"), figures.get("share_of_peak")
    parts = [] if unit is None else [speed(figures)]
    parts += [] if share is None else [f"{percent(share)} of {reference or REFERENCE}"]
    parts += [] if of_peak is None or not of_limit else [(unit or TFLOPS).of_limit(of_peak)]
    return ", ".join(parts)


def units_of(ratings: Iterable[Mapping[str, Any]]) -> list[Unit]:
    """Return the units that occur in ratings: a table has a column for each."""
    units = {unit_of(figures) for figures in ratings}
    return [unit for unit in UNITS if unit in units]


@dataclass(frozen=True, slots=True)
class Rate:
    """The rate of a problem on a device.

    `work` are its operations or bytes, 0 where times are shown; `peak` is the device's limit, work per second, or None.
    """

    unit: Unit
    work: int
    peak: float | None

    def of(self, median_s: Any) -> Any:
        """Return median times in seconds, a number or an array, in the unit."""
        return self.work / median_s / self.unit.size if self.work else median_s / self.unit.size

    def share_of_peak(self, median_s: Any) -> Any:
        """Return median times in seconds, a number or an array, as shares of the limit; None where it is not known."""
        return None if self.peak is None else self.work / median_s / self.peak


def rate_of(problem: Problem, device: Device) -> Rate:
    """Return the rate of a problem on a device."""
    flops, bandwidth = known_flops(problem), float(device.memory_bytes_per_s) or None
    if flops:
        peak = peak_of(problem, device)
        by_memory = not problem.is_product and bandwidth and problem.bytes / bandwidth > flops / peak
        if not by_memory:
            return Rate(TFLOPS, flops, peak)
    return Rate(GB_PER_S, problem.bytes, bandwidth) if problem.bytes else Rate(MS, 0, None)


def peak_of(problem: Problem, device: Device) -> float:
    """Return the peak of the fastest unit that does a problem's arithmetic, operations per second.

    >>> from mltune.device.known import H200
    >>> from mltune.problem.gemm import GemmProblem
    >>> [round(peak_of(GemmProblem(one, "N", "N", 8, 8, 8), H200) / 1e12, 1) for one in "sd"]
    [66.9, 66.9]
    """
    tensor = f"tensor_{problem.arithmetic}"
    by_tensor_cores = problem.is_product and problem.arithmetic == "fp64" and has_unit(device, tensor)
    return float(peak_flops(device, tensor if by_tensor_cores else problem.arithmetic))


def known_flops(problem: Problem) -> int:
    """Return the operations of a problem; 0 where they are not known (a recorded problem then counts 1)."""
    return problem.flops if problem.flops > 1 else 0


def rating(problem: Problem, device: Device, median_s: float, reference_s: float | None) -> dict[str, float | None]:
    """Rate one time of a kernel: ``median_s``, ``tflops``, ``gb_per_s``, ``share_of_peak`` and ``share_of_reference``.

    Of TFLOPS and GB/s, the one that is not the unit of :func:`rate_of` is None, as are shares without a known peak or
    reference. ``share_of_reference`` is above 1 where the kernel is faster than the reference.
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
    """Rate a declared winner by its times in the finals: :func:`rating`, its interval, ties and verification.

    `reference_s` is the median time of the reference outside the finals, used where it did not take part in them.
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
