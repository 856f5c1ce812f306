"""Figures of a report; every figure has a caption that also serves as its text alternative."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import numpy as np

from mltune.files.text import many
from mltune.kernel.coding import Floats
from mltune.records.declaration import drifts
from mltune.results.rating import GB_PER_S, peak_of
from mltune.results.wording import REFERENCE
from mltune.show.report.evidence import TIME_USE, Cells, Curve, Evidence, Predictions, time_use
from mltune.show.report.svg import FAINT, INK, SERIES, NotDrawableError, Plot, axes, dots, finish

WIDE_IN, NARROW_IN = 5.4, 3.1
"""Widths of a figure by itself, and of one in a grid: both fit a phone."""

CURVE_FROM = 0.7
"""Share of the final best at which the vertical axis of a curve begins."""

CLIPPED = 1.5
"""Largest end of the axes of predicted and measured speed, as a share of the peak."""

SLOWEST, FEWEST_CUT = 0.02, 20
"""Share of the trials, the slowest of at least so many, that lie outside the axes of predicted and measured speed."""

MOST_POINTS = 5_000
"""Largest number of trials that are drawn: each takes 40 bytes of the page."""

MOST_BARS = 60
"""Largest number of problems with a bar each: a figure of 60 is as high as a screen."""

LONGEST_LABEL = 26
MOST_SECONDS = 1e9
"""Seconds of a run, about 30 years, beyond which its times are not drawn."""

FEWEST_REFERENCES = 5
"""Fewest timings of the reference kernel that are plotted although none drifted."""

_Value = TypeVar("_Value")
_TIME_COLOURS = (SERIES[1], SERIES[0], SERIES[3], SERIES[2], SERIES[4], FAINT)


class Shade(NamedTuple):
    """A cell of a heat map: its text, its background (``#rrggbb``), and whether that needs dark text."""

    text: str
    colour: str
    bright: bool


@dataclass(frozen=True, slots=True)
class HeatMap:
    """A table of coloured cells: ``shades`` by row and column of ``cells``, None without a measurement."""

    cells: Cells
    shades: Sequence[Sequence[Shade | None]]
    caption: str


def best_so_far(curve: Curve, name: str, label: str, *, alone: bool) -> Plot:
    """Plot the best so far of one problem over its run, from :data:`CURVE_FROM` of the final best on."""
    final, end_at = float(curve.share[-1]), float(curve.at[-1])
    if not 1e-6 < final < 1e6:
        raise NotDrawableError(f"the final best is {final:.3g} times as fast as {curve.of}")
    if not end_at < MOST_SECONDS:
        raise NotDrawableError(f"its last time on record is after {end_at:.3g} {curve.unit}")
    lowest, highest = CURVE_FROM * final, (1.04 if 0.85 < final < 1.0 else 1.04 * final)
    width, height = (WIDE_IN, 2.9) if alone else (NARROW_IN, 1.8)
    panel = axes(width, height, left_in=0.72)
    scale, unit = _time_unit(end_at) if curve.unit == "s" else (1.0, "trials")
    panel.axhline(1.0, color=INK, linewidth=0.9, linestyle=(0, (4, 3)))
    panel.step(curve.at / scale, curve.share, where="post", color=SERIES[0])
    panel.set(ylim=(lowest, highest), xlim=(0.0, end_at / scale or 1.0), xlabel=unit)
    panel.set_ylabel(f"of {shortened(curve.of)}")
    panel.yaxis.set_major_formatter(_percent)
    panel.locator_params(nbins=5)
    end = f"{100 * curve.share[-1]:.1f} % of {curve.of} after {curve.at[-1] / scale:.3g} {unit}"
    improved = float(curve.at[-2]) / scale if len(curve.at) > 1 else 0.0
    return finish(panel, name, f"Best so far: {label}", f"{label}: {end}, last improved at {improved:.3g}.")


def predicted_and_measured(predictions: Predictions, name: str, label: str) -> Plot:
    """Plot measured over predicted speed, as shares of the peak."""
    both = np.stack([predictions.predicted, predictions.measured])
    high = min(1.05 * float(both.max()), CLIPPED)
    if not high > 1e-9:
        raise NotDrawableError(f"the fastest trial is at {both.max():.3g} of the peak")
    panel = axes(NARROW_IN, 2.7, left_in=0.8)
    slowest = np.quantile(both, SLOWEST if both.shape[1] >= FEWEST_CUT else 0.0, axis=1, keepdims=True)
    inside = ((both <= high) & (both >= slowest)).all(axis=0)
    shown = both[:, inside] if inside.any() else np.array([[0.0, high], [0.0, high]])
    lows, highs = shown.min(axis=1), shown.max(axis=1)
    margins = np.maximum(0.05 * (highs - lows), 0.005 * high)
    lows, highs = np.maximum(lows - margins, 0.0), highs + margins
    equal = [lows.max(), max(highs.min(), lows.max())]
    panel.plot(equal, equal, color=INK, linewidth=0.9, linestyle=(0, (4, 3)))
    every = int(inside.sum()) // MOST_POINTS + 1
    dots(panel, predictions.predicted[inside][::every], predictions.measured[inside][::every], SERIES[0])
    panel.set(xlim=(lows[0], highs[0]), ylim=(lows[1], highs[1]))
    panel.set(xlabel="predicted share of peak", ylabel="measured share of peak")
    panel.xaxis.set_major_formatter(_percent)
    panel.yaxis.set_major_formatter(_percent)
    panel.locator_params(nbins=5)
    rank, outside = predictions.rank_correlation, int((~inside).sum())
    ranked = "too few for a rank correlation" if rank is None else f"rank correlation {rank:.2f}"
    sampled = f" One in {every} is drawn." if every > 1 else ""
    beyond = f" Not drawn: {outside}, the slowest or beyond {100 * CLIPPED:.0f} % of the peak." if outside else ""
    return finish(
        panel,
        name,
        f"Predicted and measured: {label}",
        f"{label}: {many(len(predictions.measured), 'trial')} predicted and measured; {ranked}. "
        f"Correct predictions are on the dashed line.{sampled}{beyond}",
    )


def steps(values: Floats, noise: float, *, higher_is_better: bool) -> Floats:
    """Return the rank of each value from 0, the worst, to 1; values that differ by no more than the noise share one.

    >>> steps(np.array([54.0, 53.9, 50.0, 5.0, np.nan]), 0.01, higher_is_better=True).tolist()
    [1.0, 1.0, 0.5, 0.0, 0.0]
    """
    flat = values.ravel()
    order = np.argsort(-flat if higher_is_better else flat)[: int(np.isfinite(flat).sum())]
    ranks, rank, first = np.full(flat.shape, np.nan), -1, math.nan
    for place in order:
        if not abs(flat[place] - first) <= noise * abs(first):
            rank, first = rank + 1, flat[place]
        ranks[place] = rank
    return np.nan_to_num(1.0 - ranks / max(rank, 1)).reshape(values.shape)


def heat_map(cells: Cells, label: str) -> HeatMap:
    """Colour the best result in every cell of two parameters, as a table that screen readers can read."""
    import matplotlib
    from matplotlib.colors import to_hex

    low, high = float(np.nanmin(cells.values)), float(np.nanmax(cells.values))
    if not math.isfinite(high - low):
        raise NotDrawableError(f"its cells hold {low:.3g} to {high:.3g} {cells.unit.name}")
    shares = steps(cells.values, cells.noise, higher_is_better=cells.unit.higher_is_better)
    shades = matplotlib.colormaps["viridis"](shares)
    rows = [
        [
            None if math.isnan(value) else Shade(_figure(value), to_hex(shade), bool(share > 0.6))
            for value, shade, share in zip(*row, strict=True)
        ]
        for row in zip(cells.values, shades, shares, strict=True)
    ]
    better = np.nanargmax if cells.unit.higher_is_better else np.nanargmin
    row, column = np.unravel_index(int(better(cells.values)), shares.shape)
    best = f"{cells.names[0]}={cells.rows[row]}, {cells.names[1]}={cells.columns[column]}"
    missing, count = int(np.isnan(cells.values).sum()), cells.values.size
    return HeatMap(
        cells,
        rows,
        f"{label}: best {cells.unit.name} found in each cell; {_figure(cells.values[row, column])} at {best} is best. "
        f"Cells within {100 * cells.noise:.2g} % of each other, the noise, have one colour. "
        f"Nothing was measured in {missing} of {count} cells.",
    )


def time_bars(seconds: Mapping[str, Mapping[str, float]], name: str) -> Plot | None:
    """Plot a bar per problem (by label) with the seconds of its phases; None where no time is known."""
    parts = {label: time_use(of) for label, of in seconds.items() if of.get("total", 0.0) > 0.0}
    spent = {label: use for label, use in parts.items() if sum(use.values()) < MOST_SECONDS}
    left_out = [f"{label}, with {sum(use.values()):.3g} s" for label, use in parts.items() if label not in spent]
    if not spent:
        return None
    totals = {phase: sum(parts[phase] for parts in spent.values()) for phase in TIME_USE}
    spent, few = _most({label: sum(use.values()) for label, use in spent.items()}, spent, "that took longest")
    panel, place = _bars(spent, 1.05, 0.6)
    scale, unit = _time_unit(max(sum(parts.values()) for parts in spent.values()))
    done = np.zeros(len(spent))
    for (phase, meaning), colour in zip(TIME_USE.items(), _TIME_COLOURS, strict=True):
        if not totals[phase]:
            continue
        widths = np.array([parts[phase] for parts in spent.values()]) / scale
        panel.barh(place, widths, left=done, height=0.7, color=colour, label=meaning)
        done += widths
    panel.set(xlabel=unit, ylim=(len(spent) - 0.4, -0.6))
    panel.figure.legend(loc="upper left", ncols=2, borderpad=0.0, handlelength=1.0, columnspacing=1.0)
    everything = max(sum(totals.values()), 1e-9)
    shares = ", ".join(
        f"{100 * totals[phase] / everything:.0f} % {meaning}" for phase, meaning in TIME_USE.items() if totals[phase]
    )
    omitted = f" Not drawn: {'; '.join(left_out)}." if left_out else ""
    return finish(panel, name, "Time use", f"{everything / scale:.3g} {unit} in all: {shares}.{few}{omitted}")


def reference_over_time(evidence: Evidence, name: str, label: str) -> Plot | None:
    """Plot the time of the reference kernel over the run, relative to its usual time; None if it shows nothing."""
    references, change = evidence.run.references, evidence.reference_changes
    if len(references) < FEWEST_REFERENCES and not drifts(references):
        return None
    at = np.array([reference.elapsed_s for reference in references])
    reach = max(0.005, 1.2 * float(np.abs(change).max()))
    if not (reach < 1e6 and at.max() < MOST_SECONDS):
        raise NotDrawableError(f"it differs by up to {reach:.3g} times from its usual time, in {at.max():.3g} s")
    panel = axes(NARROW_IN, 1.8, left_in=0.8)
    scale, unit = _time_unit(float(at.max()))
    panel.plot(at / scale, change, color=SERIES[1])
    dots(panel, at / scale, change, SERIES[1], size=4.0)
    panel.set(ylim=(-reach, reach), xlabel=unit, ylabel="change of time")
    panel.yaxis.set_major_formatter(lambda value, _: f"{100 * value:+.3g} %")
    panel.locator_params(nbins=5)
    return finish(
        panel,
        name,
        f"Reference kernel over time: {label}",
        f"{label}: {evidence.run.problem.reference or REFERENCE} was timed {len(references)} times, between "
        f"{100 * change.min():+.2f} and {100 * change.max():+.2f} % from its usual time.",
    )


def _most(sizes: Mapping[str, float], values: Mapping[str, _Value], which: str) -> tuple[dict[str, _Value], str]:
    """Return the values of the :data:`MOST_BARS` labels with the largest sizes, in their order, and a caption."""
    chosen = set(sorted(sizes, key=sizes.__getitem__, reverse=True)[:MOST_BARS])
    few = f" Bars are of the {len(chosen)} problems {which}." if len(chosen) < len(values) else ""
    return {label: value for label, value in values.items() if label in chosen}, few


def _bars(labels: Collection[str], margins_in: float, top_in: float) -> tuple[Any, Any]:
    """Return axes with room for a bar of each label, and the places of the bars."""
    longest, place = min(max(map(len, labels)), LONGEST_LABEL), np.arange(len(labels))
    panel = axes(WIDE_IN, margins_in + 0.32 * len(labels), left_in=0.25 + 0.085 * longest, top_in=top_in)
    panel.set_yticks(place, [shortened(label) for label in labels])
    panel.grid(visible=False, axis="y")
    return panel, place


def shortened(label: str) -> str:
    """Write a label in two lines where one is too short; no word of it is cut."""
    return "\n".join(textwrap.wrap(label, LONGEST_LABEL, max_lines=2, placeholder=" …"))


def _percent(value: float, _: int) -> str:
    return f"{100 * value:.3g} %"


def _figure(value: float) -> str:
    """Write the value of a cell."""
    return f"{value:.{0 if value >= 1e3 else 1}f}" if 10 <= value < 1e5 else f"{value:.3g}"


def _time_unit(longest_s: float) -> tuple[float, str]:
    """Return the seconds of the unit that suits a duration, and its name."""
    if longest_s < 180.0:
        return 1.0, "seconds"
    return (60.0, "minutes") if longest_s < 3 * 3600.0 else (3600.0, "hours")


LOWEST = 1e-6
"""Share of the roof below which, or above whose inverse, a winner is not drawn."""

DECADES = 1.5
"""Fewest powers of ten on the vertical axis below the highest peak."""

ONE_LABEL = 1.4
"""Largest ratio of two peaks whose labels would overlap."""

LONGEST_NAME = 26


def not_drawn(evidence: Evidence) -> str:
    """Return why the winner of a problem is in no roofline; empty if it is in one."""
    run, rate, intensity = evidence.run, evidence.run.rate, evidence.intensity
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
    """Plot the winners of a device whose operations are not counted as bars under its bandwidth, if any."""
    runs = {
        label: item.run
        for label, item in evidence.items()
        if item.run.rate.unit == GB_PER_S and not item.run.flops and not not_drawn(item)
    }
    if not runs:
        return None
    device, count = next(iter(runs.values())).device, len(runs)
    shares = {label: run.rate.share_of_peak(run.best_time_s) or 0.0 for label, run in runs.items()}
    runs, few = _most({label: -share for label, share in shares.items()}, runs, "that are slowest")
    speeds = np.array([run.rate.of(run.best_time_s) for run in runs.values()])
    limit = device.memory_bytes_per_s / GB_PER_S.size
    panel, place = _bars(runs, 0.95, 0.3)
    panel.barh(place, speeds, height=0.7, color=SERIES[0])
    panel.axvline(limit, color=INK, linewidth=1.1)
    panel.annotate(
        f"memory {limit / 1e3:.3g} TB/s", (limit, -0.5), (-3, 4), textcoords="offset points", ha="right", va="bottom"
    )
    panel.set(xlabel=GB_PER_S.name, xlim=(0.0, 1.05 * max(limit, speeds.max())), ylim=(len(runs) - 0.5, -0.5))
    ends = dict.fromkeys(f"{100 * share:.3g}" for share in (min(shares.values()), max(shares.values())))
    return finish(
        panel,
        name,
        f"Memory bandwidth of {device.name}",
        f"{device.name}: the best of {many(count, 'problem')} whose memory traffic alone is "
        f"counted, at {' to '.join(ends)} % of the memory bandwidth. The traffic counts each array once.{few}",
    )


def roofline(evidence: Sequence[Evidence], name: str) -> Plot | None:
    """Plot the winners of one device and of known intensity under its roofline; None without any."""
    drawn = [item for item in evidence if item.intensity is not None and not not_drawn(item)]
    if not drawn:
        return None
    runs = [item.run for item in drawn]
    device = runs[0].device
    rates = np.array([run.flops / (run.best_time_s or math.inf) for run in runs])
    intensities = np.array([item.intensity for item in drawn])
    ordered = sorted(runs, key=lambda run: run.problem.arithmetic)
    roofs = {run.problem.arithmetic: peak_of(run.problem, run.device) for run in ordered}
    kinds = _kinds([run.problem.name for run in runs])
    legend_in = 0.2 + 0.2 * math.ceil(len(set(kinds)) / 2)
    panel = axes(WIDE_IN, 2.9 + legend_in, left_in=0.75, top_in=legend_in)
    _draw_roofs(panel, roofs, device.memory_bytes_per_s, rates, float(intensities.max()))
    for kind, colour in zip(dict.fromkeys(sorted(kinds)), (*SERIES, INK), strict=False):
        of_kind = np.array(kinds) == kind
        dots(panel, intensities[of_kind], rates[of_kind] / 1e12, colour, size=6.0, label=kind[:LONGEST_NAME])
    panel.set(xlabel="arithmetic intensity, flop per byte", ylabel="TFLOPS")
    panel.figure.legend(loc="upper left", ncols=2, borderpad=0.0, handlelength=0.3)  # above: points may be anywhere
    shares = [rate / roofs[run.problem.arithmetic] for run, rate in zip(runs, rates, strict=True)]
    ends = dict.fromkeys(f"{100 * share:.3g}" for share in (min(shares), max(shares)))
    return finish(
        panel,
        name,
        f"Roofline of {device.name}",
        f"{device.name}: the best of {many(len(runs), 'problem')} under the limits of "
        f"memory and arithmetic, at {' to '.join(ends)} % of the peak. The intensity counts each operand once.",
    )


def _kinds(names: Sequence[str]) -> list[str]:
    """Return the names, with "other" in place of the rarest if there are more names than colours."""
    frequent = sorted(set(names), key=names.count, reverse=True)[: len(SERIES)]
    return [name if name in frequent else "other" for name in names]


def _peak_labels(roofs: Mapping[str, float]) -> list[tuple[str, float]]:
    """Return labels of peaks with the heights of their lines; peaks near to each other share a label.

    >>> _peak_labels({"fp64": 66.9e12, "fp32": 66.9e12, "fp16": 134e12})
    [('fp64, fp32 peak 66.9 TFLOPS', 66900000000000.0), ('fp16 peak 134 TFLOPS', 134000000000000.0)]
    >>> _peak_labels({"tensor_fp16": 1066.9e12})
    [('tensor_fp16 peak 1,070 TFLOPS', 1066900000000000.0)]
    """
    groups: list[dict[str, float]] = []
    for name, roof in sorted(roofs.items(), key=lambda roof: roof[1]):
        if not groups or roof > ONE_LABEL * max(groups[-1].values()):
            groups.append({})
        groups[-1][name] = roof
    labels = []
    for group in groups:
        names: dict[str, list[str]] = {}
        for name, roof in group.items():
            names.setdefault(f"{float(f'{roof / 1e12:.3g}'):,g}", []).append(name)
        parts = ", ".join(f"{', '.join(labels)} peak {text}" for text, labels in names.items())
        labels.append((f"{parts} TFLOPS", max(group.values())))
    return labels


def _draw_roofs(panel: Any, roofs: Mapping[str, float], bytes_per_s: float, rates: Floats, highest: float) -> None:
    """Draw a roofline for each arithmetic from :data:`DECADES` below the highest peak, or the slowest winner, on."""
    from matplotlib.ticker import LogLocator, NullLocator

    peak = max(roofs.values())
    low, top = min(peak / 10**DECADES, rates.min() / 2.0), 2.0 * max(peak, rates.max())
    lowest, right = low / bytes_per_s, 2.0 * max(highest, peak / bytes_per_s)
    for roof in roofs.values():
        x = np.array([lowest, roof / bytes_per_s, right])
        panel.plot(x, np.minimum(x * bytes_per_s, roof) / 1e12, color=INK, linewidth=1.1)
    for text, roof in _peak_labels(roofs):
        panel.annotate(text, (right, roof / 1e12), (0, 3), textcoords="offset points", ha="right")
    panel.set(xscale="log", yscale="log", xlim=(lowest, right), ylim=(low / 1e12, top / 1e12))
    text = f"memory {bytes_per_s / 1e12:.3g} TB/s"
    panel.annotate(text, (lowest, low / 1e12), (30, 6), textcoords="offset points")
    for axis, (first, last) in ((panel.xaxis, (lowest, right)), (panel.yaxis, (low, top))):
        axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if last < 500.0 * first else (1.0,)))
        axis.set_major_formatter(lambda value, _: f"{value:g}")
        axis.set_minor_locator(NullLocator())
