"""The result of a run."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mltune.device.facts import Device
from mltune.device.peaks import peak_flops
from mltune.problem.problem import Problem
from mltune.records.declaration import Declaration
from mltune.records.header import RunHeader
from mltune.records.reference import Reference
from mltune.records.trial import TrialRecord, TrialState
from mltune.results.audit import SkipAudit, audit_skips
from mltune.results.rating import declared_rating, known_flops, rating
from mltune.results.wording import configuration, percent, spaced_duration, speed, states

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, slots=True)
class TuneResult:
    """The result of a run, or of the part of a run that is on record.

    Attributes
    ----------
    directory : pathlib.Path
        The run directory.
    slug : str
        Name of the problem in its plan; outside a plan made of the problem's label.
    header : RunHeader
        Kernel, parameters, seed, versions and settings of the run.
    records : sequence of TrialRecord
        All trials by number. Every time in them is finite and not negative.
    seconds : mapping of str to float
        Time that the run spent in each of :data:`mltune.records.seconds.PHASES`.
    declaration : Declaration or None
        Winner, finalists and rejected trials; None where the run ended before its finals.
    reference_s : float or None
        Median time of the reference kernel, measured at the start of the run, seconds.
    references : sequence of Reference
        Repeated timings of the reference kernel, in the order in which they were made.
    limit : mapping or None
        Budget of the run while it goes on or after an interruption: ``trials`` and ``time_s``. None once it is spent.
    stopped : str
        Why the run ended before its budget was spent; empty if it did not.
    interrupted : bool
        Whether a signal ended the run.

    Examples
    --------
    >>> import mltune, tempfile
    >>> dataset, run = "replay:h200-sgemm-nt-4096-random", tempfile.mkdtemp() + "/run"
    >>> result = mltune.tune(trials=20, device=dataset, run=run, progress=None)
    >>> list(result.best_config)[:3], result.best_time_s < 3e-3
    (['BLK_M', 'BLK_N', 'BLK_K'], True)
    >>> len(mltune.load_run(run).to_dataframe())
    20
    """

    directory: Path
    slug: str
    header: RunHeader
    problem: Problem
    device: Device
    records: Sequence[TrialRecord]
    seconds: Mapping[str, float]
    declaration: Declaration | None
    reference_s: float | None
    references: Sequence[Reference]
    limit: Mapping[str, float | None] | None
    stopped: str
    interrupted: bool = False

    @property
    def kernel(self) -> str:
        """Name of the kernel."""
        return self.header.kernel

    @property
    def flops(self) -> int:
        """Floating-point operations of the problem; 0 where they are not known."""
        return known_flops(self.problem)

    @property
    def replayed(self) -> bool:
        """Whether the times were recorded earlier: seconds of the run then do not describe a GPU."""
        return str(self.header.settings.get("target", "")).startswith("replay:")

    @property
    def peak_flops(self) -> float:
        """Peak of the device for the problem's arithmetic, operations per second."""
        return float(peak_flops(self.device, self.problem.arithmetic))

    @property
    def best(self) -> TrialRecord | None:
        """The declared winner, else the fastest trial that succeeded; None where none did."""
        if self.declaration is not None:
            return self.trial(self.declaration.number)
        return next(iter(fastest(self.records, 1)), None)

    @property
    def best_config(self) -> dict[str, int] | None:
        """Configuration of the best trial."""
        return None if self.best is None else dict(self.best.configuration)

    @property
    def best_time_s(self) -> float | None:
        """Median time of the best trial, seconds: as measured in the finals, where there were any."""
        if self.declaration is not None:
            return self.declaration.winner.median_s
        return None if self.best is None else self.best.median_s

    @property
    def unit(self) -> str:
        """Unit of :meth:`figure`: ``"TFLOPS"``, or ``"ms"`` where the problem does not count its operations."""
        return "TFLOPS" if self.flops else "ms"

    def figure(self, median_s: Any) -> Any:
        """Return median times in seconds, a number or an array, in :attr:`unit`."""
        return self.flops / median_s / 1e12 if self.flops else 1e3 * median_s

    def predicted_s(self, log_share: float) -> float:
        """Return the time in seconds at the predicted logarithm of the share of the device's peak."""
        return max(self.flops, 1) / (self.peak_flops * math.exp(min(max(log_share, -700.0), 700.0)))

    @property
    def counts(self) -> dict[str, int]:
        """Number of trials by state."""
        return counts(record.state for record in self.records)

    @property
    def elapsed_s(self) -> float:
        """Seconds that the run took, without interruptions.

        A run that was killed has not written its last total: the time of its last trial then counts.
        """
        return max(self.seconds.get("total", 0.0), max((record.elapsed_s for record in self.records), default=0.0))

    def trial(self, number: int) -> TrialRecord | None:
        """Return the record of a trial; None where it is not on record."""
        return next((record for record in self.records if record.number == number), None)

    def measured(self) -> list[TrialRecord]:
        """Return the trials that succeeded, by number."""
        return _measured(self.records)

    def improvements(self, *, by_time: bool) -> list[tuple[float, float]]:
        """Return the steps of the best time so far.

        Parameters
        ----------
        by_time : bool
            Whether to order trials by the time at which they ended, not by number.

        Returns
        -------
        list of (float, float)
            When (seconds of the run, or number of trials), and the best median time from then on, seconds.
        """
        steps: list[tuple[float, float]] = []
        for record in sorted(self.measured(), key=lambda one: (one.elapsed_s if by_time else 0.0, one.number)):
            if record.median_s and (not steps or record.median_s < steps[-1][1]):
                steps.append((record.elapsed_s if by_time else record.number + 1.0, record.median_s))
        return steps

    def best_rating(self) -> dict[str, Any] | None:
        """Return the rating of the best trial.

        The result of :func:`mltune.results.rating.declared_rating` for a declared winner, else that of
        :func:`mltune.results.rating.rating` for the fastest trial; None where no trial succeeded.
        """
        if self.declaration is not None:
            return declared_rating(self.problem, self.device, self.declaration, self.reference_s)
        if self.best_time_s is None:
            return None
        return dict(rating(self.problem, self.device, self.best_time_s, self.reference_s))

    def audit(self) -> SkipAudit:
        """Return the audit of the skipped configurations."""
        return audit_skips(self.records, self.seconds.get("search", 0.0))

    def to_json(self) -> dict[str, Any]:
        """Return the result as plain JSON values: most of the output of ``mltune tune --json``."""
        best, figures = self.best, self.best_rating()
        return {
            "problem": self.problem.to_json(),
            "device": self.device.to_json(),
            "kernel": self.kernel,
            "trials": len(self.records),
            "counts": self.counts,
            "best": None if best is None or figures is None else {"configuration": dict(best.configuration), **figures},
            "seconds": dict(self.seconds),
            "run": str(self.directory),
            "stopped": self.stopped,
            "skips": self.audit().to_json(),
        }

    def to_dataframe(self) -> pd.DataFrame:
        """Return all trials as a table, one row per trial.

        Returns
        -------
        pandas.DataFrame
            ``number``, ``batch``, ``state``, ``detail``, ``proposed_by``; one column per parameter; ``predicted_s``
            (the time that the search expected); ``skipped_by`` (the gate) and ``audited`` (skipped, but measured to
            check the gate); ``compile_s``, ``registers``, ``spill_bytes``; ``median_s``, ``noise``; ``tflops``, where
            the problem counts its operations; ``elapsed_s``.
        """
        import pandas as pd

        rows: list[dict[str, Any]] = []
        for record in self.records:
            row: dict[str, Any] = {
                "number": record.number,
                "batch": record.batch,
                "state": str(record.state),
                "detail": record.detail,
                "proposed_by": record.proposed_by,
                **record.configuration,
                "predicted_s": None if record.predicted is None else self.predicted_s(record.predicted),
                "skipped_by": getattr(record.skip, "gate", None),
                "audited": record.audited,
                **{name: getattr(record.build, name, None) for name in ("compile_s", "registers", "spill_bytes")},
                **{name: getattr(record.measurement, name, None) for name in ("median_s", "noise")},
            }
            if self.flops:
                row["tflops"] = None if record.median_s is None else self.figure(record.median_s)
            rows.append(row | {"elapsed_s": record.elapsed_s})
        whole = dict.fromkeys(("registers", "spill_bytes"), "Int64")
        real = dict.fromkeys(("predicted_s", "compile_s", "median_s", "noise", "tflops"), "float64")
        table = pd.DataFrame(rows)
        return table.astype({name: kind for name, kind in {**whole, **real}.items() if name in table})

    def plot(self, ax: Any = None) -> Any:
        """Plot the best result so far over the time of the run, with the reference kernel as a dashed line.

        The vertical axis is in TFLOPS, or in milliseconds where the problem does not count its operations. The
        horizontal axis counts trials for a replayed run.

        Parameters
        ----------
        ax : matplotlib.axes.Axes, optional
            Where to plot; new axes without it.

        Returns
        -------
        matplotlib.axes.Axes
        """
        if ax is None:
            from matplotlib import pyplot

            ax = pyplot.subplots()[1]
        by_time = not self.replayed
        steps = self.improvements(by_time=by_time)
        if steps:
            last = max(steps[-1][0], self.elapsed_s if by_time else float(len(self.records)))
            at, medians = zip(*steps, (last, steps[-1][1]), strict=True)
            ax.step(at, [self.figure(median_s) for median_s in medians], where="post", label=self.kernel)
        if self.reference_s is not None:
            name = self.problem.reference or "reference"
            ax.axhline(self.figure(self.reference_s), color="0.4", linestyle="--", label=name)
        ax.set(
            title=self.problem.label,
            xlabel="seconds" if by_time else "trials",
            ylabel="TFLOPS" if self.flops else "time, ms",
        )
        if ax.get_legend_handles_labels()[0]:
            ax.legend()
        return ax

    def _repr_html_(self) -> str:
        figures = self.best_rating()
        facts = {"problem": self.problem.label, "kernel": self.kernel, "device": self.device.name}
        if figures is None:
            facts["best"] = "no trial succeeded"
        else:
            facts["best"] = speed(figures["tflops"], figures["median_s"])
            if figures["share_of_reference"] is not None:
                facts["best"] += (
                    f", {percent(figures['share_of_reference'])} of {self.problem.reference or 'reference'}"
                )
            facts["configuration"] = configuration(self.best_config)
        facts["trials"] = f"{len(self.records)}: {states(self.counts)}"
        facts["time"] = spaced_duration(self.elapsed_s)
        rows = (f"<tr><th>{name}</th><td>{escape(value)}</td></tr>" for name, value in facts.items())
        return f"<table>{''.join(rows)}</table>"


def fastest(records: Iterable[TrialRecord], count: int) -> list[TrialRecord]:
    """Return the fastest trials that succeeded, fastest first."""
    return sorted(_measured(records), key=lambda record: (record.median_s or 0.0, record.number))[:count]


def _measured(records: Iterable[TrialRecord]) -> list[TrialRecord]:
    return [record for record in records if record.state is TrialState.OK and record.median_s is not None]


def counts(found: Iterable[TrialState]) -> dict[str, int]:
    """Count trials by state: every state is named, in the order of :class:`TrialState`."""
    counter = Counter(found)
    return {str(state): counter[state] for state in TrialState}
