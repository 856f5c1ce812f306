"""Rooflines: the winners on one device under the limits of its memory and its arithmetic, or of its memory alone."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from mltune.kernel.columns import Floats
from mltune.results.rating import GB_PER_S, peak_of
from mltune.show.report.evidence import Evidence
from mltune.show.report.figures import LONGEST_LABEL, WIDE_IN, shortened
from mltune.show.report.svg import INK, SERIES, Plot, axes, dots, finish

LOWEST = 1e-6
"""Share of the roof below which, or above whose inverse, a winner is not drawn."""

DECADES = 1.5
"""Powers of ten that the vertical axis shows below the highest peak at least."""

LONGEST_NAME = 26


def not_drawn(each: Evidence) -> str:
    """Return why the winner of a problem is in no roofline; empty where it is in one."""
    run, rate, intensity = each.run, each.run.rate, each.intensity
    if run.best_time_s is None:
        return "no trial succeeded"
    if not rate.work:
        return "neither its operations nor its memory traffic is known"
    if run.flops and intensity is None:
        return "its memory traffic is not known"
    bandwidth = run.device.memory_bytes_per_s
    if bandwidth <= 0.0 or rate.peak is None:
        return "the memory bandwidth of its device is not known"
    if intensity is None:
        shares = [rate.share_of_peak(run.best_time_s)]
    else:
        peak = peak_of(run.problem, run.device)
        shares = [run.flops / run.best_time_s / peak, intensity * bandwidth / peak]
    if not all(LOWEST < share < 1.0 / LOWEST for share in shares):
        at = "" if intensity is None else f" at {intensity:.3g} flop per byte"
        return f"{rate.of(run.best_time_s):.3g} {rate.unit.name}{at} is too far from the limits of its device"
    return ""


def bandwidths(evidence: Mapping[str, Evidence], name: str) -> Plot | None:
    """Plot the winners of one device whose traffic alone is counted as bars, under its bandwidth; None without any.

    Their operations are not counted, so they have no arithmetic intensity and no place in a roofline. ``evidence`` is
    by label.
    """
    runs = {
        label: each.run
        for label, each in evidence.items()
        if each.run.rate.unit == GB_PER_S and not each.run.flops and not not_drawn(each)
    }
    if not runs:
        return None
    device = next(iter(runs.values())).device
    speeds = np.array([run.rate.of(run.best_time_s) for run in runs.values()])
    limit = device.memory_bytes_per_s / GB_PER_S.size
    longest = min(max(map(len, runs)), LONGEST_LABEL)
    made = axes(WIDE_IN, 0.95 + 0.24 * len(runs), left=0.25 + 0.085 * longest, top=0.3)
    place = np.arange(len(runs))
    made.barh(place, speeds, height=0.7, color=SERIES[0])
    made.axvline(limit, color=INK, linewidth=1.1)
    made.annotate(
        f"memory {limit / 1e3:.3g} TB/s", (limit, -0.5), (-3, 4), textcoords="offset points", ha="right", va="bottom"
    )
    made.set_yticks(place, [shortened(label) for label in runs])
    made.set(xlabel=GB_PER_S.name, xlim=(0.0, 1.05 * max(limit, speeds.max())), ylim=(len(runs) - 0.5, -0.5))
    made.grid(visible=False, axis="y")
    ends = dict.fromkeys(f"{100 * speed / limit:.3g}" for speed in (speeds.min(), speeds.max()))
    return finish(
        made,
        name,
        f"Memory bandwidth of {device.name}",
        f"{device.name}: the best of {len(runs)} problem{'' if len(runs) == 1 else 's'} whose memory traffic alone is "
        f"counted, at {' to '.join(ends)} % of the memory bandwidth. The traffic counts each array once.",
    )


def roofline(evidence: Sequence[Evidence], name: str) -> Plot | None:
    """Plot the winners of one device and of known intensity under its roofline; None without any."""
    drawn = [each for each in evidence if each.intensity is not None and not not_drawn(each)]
    if not drawn:
        return None
    runs = [each.run for each in drawn]
    device = runs[0].device
    rates = np.array([run.flops / (run.best_time_s or math.inf) for run in runs])
    intensities = np.array([each.intensity for each in drawn])
    ordered = sorted(runs, key=lambda run: run.problem.arithmetic)
    roofs = {run.problem.arithmetic: peak_of(run.problem, run.device) for run in ordered}
    made = axes(5.4, 3.1, left=0.75)
    _draw_roofs(made, roofs, device.memory_bytes_per_s, rates, float(intensities.max()))
    kinds = _kinds([run.problem.name for run in runs])
    for kind, colour in zip(dict.fromkeys(sorted(kinds)), (*SERIES, INK), strict=False):
        some = np.array(kinds) == kind
        dots(made, intensities[some], rates[some] / 1e12, colour, size=6.0, label=kind[:LONGEST_NAME])
    made.set(xlabel="arithmetic intensity, flop per byte", ylabel="TFLOPS")
    made.legend(loc="lower right", handlelength=0.3)
    shares = [rate / roofs[run.problem.arithmetic] for run, rate in zip(runs, rates, strict=True)]
    ends = dict.fromkeys(f"{100 * share:.3g}" for share in (min(shares), max(shares)))
    return finish(
        made,
        name,
        f"Roofline of {device.name}",
        f"{device.name}: the best of {len(runs)} problem{'' if len(runs) == 1 else 's'} under the limits of "
        f"memory and arithmetic, at {' to '.join(ends)} % of the peak. The intensity counts each operand once.",
    )


def _kinds(names: Sequence[str]) -> list[str]:
    """Return the names, with "other" in place of the rarest ones where there are more names than colours."""
    known = sorted(set(names), key=names.count, reverse=True)[: len(SERIES)]
    return [name if name in known else "other" for name in names]


def _draw_roofs(made: Any, roofs: Mapping[str, float], bytes_per_s: float, rates: Floats, highest: float) -> None:
    """Draw a roofline for each arithmetic: the limit of the memory, then the peak.

    The vertical axis begins :data:`DECADES` below the highest peak, or below the slowest winner; the horizontal one
    where the limit of the memory crosses its beginning.
    """
    from matplotlib.ticker import LogLocator, NullLocator

    peak = max(roofs.values())
    low, top = min(peak / 10**DECADES, rates.min() / 2.0), 2.0 * max(peak, rates.max())
    left, right = low / bytes_per_s, 2.0 * max(highest, peak / bytes_per_s)
    for arithmetic, roof in roofs.items():
        x = np.array([left, roof / bytes_per_s, right])
        made.plot(x, np.minimum(x * bytes_per_s, roof) / 1e12, color=INK, linewidth=1.1)
        text = f"{arithmetic} peak {roof / 1e12:.3g} TFLOPS"
        made.annotate(text, (right, roof / 1e12), (0, 3), textcoords="offset points", ha="right")
    made.set(xscale="log", yscale="log", xlim=(left, right), ylim=(low / 1e12, top / 1e12))
    text = f"memory {bytes_per_s / 1e12:.3g} TB/s"
    made.annotate(text, (left, low / 1e12), (30, 6), textcoords="offset points")
    for axis, (first, last) in ((made.xaxis, (left, right)), (made.yaxis, (low, top))):
        axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if last < 500.0 * first else (1.0,)))
        axis.set_major_formatter(lambda value, _: f"{value:g}")
        axis.set_minor_locator(NullLocator())
