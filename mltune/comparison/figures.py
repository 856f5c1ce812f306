"""Figures of a comparison: the mean fraction of the optimum over evaluations, for each space and for all."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from mltune.comparison.scores import bands
from mltune.files.owned import CREATOR
from mltune.files.text import many
from mltune.kernel.coding import Floats

COLOURS = (
    *("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000"),
    *("#882255", "#999933", "#332288", "#888888", "#aa7744"),
)
"""Colours that colour-blind readers can distinguish: Okabe and Ito (2008), "Color Universal Design", and five more."""

DASHES: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (1, 1.5)), (0, (5, 1.5, 1, 1.5)), (0, (5, 1.5, 1, 1.5, 1, 1.5)))
"""Dashes that distinguish colours which some readers could confuse."""

COLUMNS = 4
FARTHEST, NEAREST = 0.5, 1e-3
"""Distances from the optimum between which curves are drawn."""

FRACTIONS = (0.5, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99, 0.995, 0.998, 0.999)
"""Ticks of the vertical axis; the last one is also the limit of the curves."""


def line_style(position: int) -> tuple[str, Any]:
    """Return colour and dashes of the curve at a position: 12 colours, and 60 styles before one occurs again."""
    return COLOURS[position % len(COLOURS)], DASHES[position % len(DASHES)]


def draw(curves: Mapping[str, Mapping[str, Floats]]) -> dict[str, bytes]:
    """Draw the curves with their 95 % confidence bands; return SVG and PNG files by name.

    ``curves`` has fractions of the optimum, of shape (n_seeds, n_evaluations), by strategy, in the order of their
    colours, and by dataset. ``curves.svg`` shows all spaces together, ``curves-spaces.svg`` each space.
    """
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context():
        matplotlib.rcdefaults()  # no matplotlibrc, such as one of the working directory, changes a figure
        every = list(next(iter(curves.values())))
        together = Figure(figsize=(8, 5), layout="constrained")
        _panel(together.add_subplot(), curves, every, f"mean over {many(len(every), 'recorded space')}", labels=True)
        rows, columns = math.ceil(len(every) / COLUMNS), min(COLUMNS, len(every))
        apart = Figure(figsize=(4 * columns, 3 * rows), layout="constrained")
        for position, dataset in enumerate(every):
            axes = apart.add_subplot(rows, columns, position + 1)
            _panel(axes, curves, [dataset], dataset, labels=False)
        handles, names = apart.axes[0].get_legend_handles_labels()
        apart.legend(handles, names, loc="outside lower center", ncols=min(3 * columns // 2, len(names)), frameon=False)
        files = {}
        for figure, name in ((together, "curves"), (apart, "curves-spaces")):
            for suffix, metadata in (("svg", {"Date": None, "Creator": CREATOR}), ("png", {"Software": CREATOR})):
                buffer = io.BytesIO()
                figure.savefig(buffer, format=suffix, dpi=150, metadata=metadata)
                files[f"{name}.{suffix}"] = buffer.getvalue()
        return files


def _panel(
    axes: Any, curves: Mapping[str, Mapping[str, Floats]], datasets: Sequence[str], title: str, *, labels: bool
) -> None:
    """Draw the curves of all strategies, averaged over some datasets, into one panel."""
    ends = {}
    for position, (name, of_datasets) in enumerate(curves.items()):
        colour, dashes = line_style(position)
        runs = [of_datasets[dataset] for dataset in datasets]
        mean = np.mean([curves.mean(axis=0) for curves in runs], axis=0)
        evaluations = np.arange(1, len(mean) + 1)
        low, high = (_distance(band) for band in bands(runs, np.random.default_rng(0)))
        (line,) = axes.plot(evaluations, _distance(mean), color=colour, linestyle=dashes, linewidth=1.5, label=name)
        axes.fill_between(evaluations, low, high, color=colour, alpha=0.12, linewidth=0)
        ends[name] = (float(mean[-1]), line)
    axes.set(xlim=(1, len(mean)), title=title, xlabel="distinct configurations evaluated")
    axes.set_ylabel("fraction of the optimum")
    scale_to_optimum(axes, min(line.get_ydata()[-1] for line in axes.lines))
    axes.grid(visible=True, alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    if labels:
        label_ends(axes, ends)


def scale_to_optimum(axes: Any, nearest: float) -> None:
    """Scale a vertical axis by the log distance from the optimum, near which a linear axis draws all curves as one."""
    from matplotlib.ticker import FixedFormatter, FixedLocator, NullLocator

    axes.set(yscale="log", ylim=(FARTHEST, max(nearest, NEAREST) / 1.2))
    axes.yaxis.set_major_locator(FixedLocator([1.0 - fraction for fraction in FRACTIONS]))
    axes.yaxis.set_major_formatter(FixedFormatter([f"{100 * fraction:g} %" for fraction in FRACTIONS]))
    axes.yaxis.set_minor_locator(NullLocator())


def _distance(fraction: Floats) -> Floats:
    """Return the distance from the optimum, within the range of the axis."""
    return np.clip(1.0 - fraction, NEAREST, None)


def label_ends(axes: Any, ends: Mapping[str, tuple[float, Any]]) -> None:
    """List the curves beside the axes, the best first, each with its last fraction of the optimum, and its line."""
    best_first = sorted(ends, key=lambda name: -ends[name][0])
    labels = [f"{name} {100 * ends[name][0]:.1f} %" for name in best_first]
    lines = [ends[name][1] for name in best_first]
    axes.legend(lines, labels, loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False, labelcolor="linecolor")
