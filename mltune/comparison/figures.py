"""Figures of a comparison: the mean fraction of the optimum over evaluations, for each space and for all."""

from __future__ import annotations

import io
import math
from typing import TYPE_CHECKING, Any

import numpy as np

from mltune.comparison.scores import bands

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mltune.comparison.summary import Comparison

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#8c8c00")
"""Colours that colour-blind readers can distinguish (Okabe and Ito, 2008, "Color Universal Design"), and one more."""

DASHES = ("-", "--", ":", "-.")
COLUMNS = 4
LOWEST = 0.5
"""Fractions below this are not drawn, to show the relevant range in detail."""


def draw(comparison: Comparison, order: Sequence[str]) -> dict[str, bytes]:
    """Draw the curves with their 95 % confidence bands, as SVG and PNG.

    Parameters
    ----------
    order : sequence of str
        The strategies, in the order of their colours.

    Returns
    -------
    dict of str to bytes
        Files by name: ``curves.svg`` and ``curves.png`` show all spaces together, ``curves-spaces`` each space.
    """
    from matplotlib.figure import Figure

    every = list(comparison.recordings)
    together = Figure(figsize=(8, 5), layout="constrained")
    _panel(together.add_subplot(), comparison, order, every, f"mean over {len(every)} recorded spaces", labels=True)
    rows, columns = math.ceil(len(every) / COLUMNS), min(COLUMNS, len(every))
    apart = Figure(figsize=(4 * columns, 3 * rows), layout="constrained")
    for position, dataset in enumerate(every):
        axes = apart.add_subplot(rows, columns, position + 1)
        _panel(axes, comparison, order, [dataset], dataset, labels=False)
    handles, names = apart.axes[0].get_legend_handles_labels()
    apart.legend(handles, names, loc="outside lower center", ncols=min(6, len(names)), frameon=False)
    files = {}
    for figure, name in ((together, "curves"), (apart, "curves-spaces")):
        for suffix, metadata in (("svg", {"Date": None}), ("png", {})):
            buffer = io.BytesIO()
            figure.savefig(buffer, format=suffix, dpi=150, metadata=metadata)
            files[f"{name}.{suffix}"] = buffer.getvalue()
    return files


def _panel(
    axes: Any, comparison: Comparison, order: Sequence[str], datasets: Sequence[str], title: str, *, labels: bool
) -> None:
    """Draw the curves of all strategies, averaged over some datasets, into one panel."""
    evaluations = np.arange(1, comparison.evaluations + 1)
    ends = {}
    for position, name in enumerate(order):
        colour = COLOURS[position % len(COLOURS)]
        runs = [comparison.fraction(name, dataset) for dataset in datasets]
        mean = np.mean([each.mean(axis=0) for each in runs], axis=0)
        low, high = bands(runs, np.random.default_rng(0))
        dashes = DASHES[position // len(COLOURS) % len(DASHES)]
        axes.plot(evaluations, mean, color=colour, linestyle=dashes, linewidth=1.5, label=name)
        axes.fill_between(evaluations, low, high, color=colour, alpha=0.15, linewidth=0)
        ends[name] = (mean[-1], colour)
    lowest = max(LOWEST, math.floor(10 * min(line.get_ydata()[9:].min() for line in axes.lines)) / 10)
    axes.set(ylim=(lowest, 1.005), xlim=(1, comparison.evaluations), title=title)
    axes.set_xlabel("distinct configurations evaluated")
    axes.set_ylabel("fraction of the optimum")
    axes.grid(visible=True, alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    if labels:
        _label(axes, ends, (1.0 - lowest) / 24)


def _label(axes: Any, ends: dict[str, tuple[float, str]], apart: float) -> None:
    """Write each name beside the end of its curve, moved down if it would cover the label above."""
    above = math.inf
    for name, (value, colour) in sorted(ends.items(), key=lambda item: -item[1][0]):
        above = min(value, above - apart)
        axes.annotate(
            f"{name} {value:.3f}",
            xy=(1, above),
            xytext=(6, 0),
            xycoords=("axes fraction", "data"),
            textcoords="offset points",
            color=colour,
            va="center",
            fontsize=9,
            annotation_clip=False,
        )
