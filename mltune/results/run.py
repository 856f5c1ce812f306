"""The result of a run, and that of a kernel given in Python, which is also what Kernel Tuner returns."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from mltune.device.facts import Device
from mltune.device.peaks import peak_flops
from mltune.files.text import html_table, many
from mltune.problem.problem import STRICTEST, Problem
from mltune.records.declaration import Declaration, Reference
from mltune.records.directory import WINNER
from mltune.records.header import RunHeader
from mltune.records.trial import TrialRecord, TrialState
from mltune.records.trials import Trials
from mltune.results.funnel import Funnel, SkipAudit, audit_skips, funnel_of
from mltune.results.leader import Leader, rating_of, result_of
from mltune.results.rating import Rate, known_flops, rate_of, rating_text, speed
from mltune.results.wording import configuration, spaced_duration, states, verification

if TYPE_CHECKING:
    import optuna
    import pandas as pd

    from mltune.results.study import StudyMirror
    from mltune.results.tuned_kernel import TunedKernel


@dataclass(frozen=True)
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
    records : Trials
        All trials by number: a sequence of :class:`~mltune.records.trial.TrialRecord`, kept as columns.
    seconds : mapping of str to float
        Time that the run spent in each of :data:`mltune.records.store.PHASES`.
    declaration : Declaration or None
        Winner, finalists and rejected trials; None where the run ended before its finals.
    reference_s : float or None
        Median time of the reference kernel, measured at the start of the run, seconds.
    references : sequence of Reference
        Repeated timings of the reference kernel, in the order in which they were made.
    limit : mapping or None
        Budget of the run while it goes on or after an interruption: ``trials`` and ``time_s``. None once it is spent.
    model : str
        Name of the pretrained model that the search starts from; empty if there is none.
    accuracy : str
        Accuracy class of the kernel (:data:`mltune.problem.problem.ACCURACIES`).
    choice : str
        Name of the choice among kernels that the run belongs to; empty if there is none.
    rivals : tuple of TuneResult
        The runs of all kernels of that choice, this one included, the fastest first. Only in the result of
        :func:`mltune.tune` and :func:`mltune.load_run`.
    valid, scored : int or None
        Valid configurations, and those whose speed was predicted (:class:`~mltune.results.funnel.Funnel`); None where
        they are not on record.
    never_compiled : int
        Configurations that were proposed and skipped before compiling.
    compilers : float
        Configurations that were compiled at the same time; 1 where it is not on record.
    stopped : str
        Why the run ended before its budget was spent; empty if it did not.
    whole : str
        What measuring every configuration was expected to take, and whether that was done; empty without a forecast.
    notice : str
        What may be missing from the records of the run; empty if nothing is.
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
    records: Trials
    seconds: Mapping[str, float]
    declaration: Declaration | None
    reference_s: float | None
    references: Sequence[Reference]
    limit: Mapping[str, float | None] | None
    stopped: str
    whole: str = ""
    notice: str = ""
    interrupted: bool = False
    model: str = ""
    accuracy: str = STRICTEST
    choice: str = ""
    rivals: tuple[TuneResult, ...] = ()
    valid: int | None = None
    scored: int | None = None
    never_compiled: int = 0
    compilers: float = 1.0

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
        return self.header.replayed

    @property
    def settled(self) -> bool:
        """Whether the winner of all trials is declared, and verified where it can be; or no trial succeeded."""
        if self.declaration is None:
            return self.best is None
        return self.declaration.as_of == len(self.records) and (self.declaration.verified or self.replayed)

    @property
    def peak_flops(self) -> float:
        """Peak of the device for the problem's arithmetic, operations per second."""
        return float(peak_flops(self.device, self.problem.arithmetic))

    @property
    def best(self) -> TrialRecord | None:
        """The declared winner, else the fastest trial that succeeded; None where none did.

        Its configuration is :attr:`best_config`.
        """
        leader = self.leader
        return None if leader is None else replace(leader.record, configuration=leader.configuration)  # type: ignore[arg-type]

    @cached_property
    def leader(self) -> Leader | None:
        """The record of the best trial, from which all documents are written."""
        declared = self.declaration
        record = next(iter(self.records.fastest(1)), None) if declared is None else self.trial(declared.number)
        if record is None:
            return None
        configuration = self.header.labelled(record.configuration)
        return Leader(self.problem, self.device, record, configuration, self.reference_s, declared)

    @property
    def best_record(self) -> TrialRecord | None:
        """The same trial as in `records`: values of a parameter that are not integers are given by their positions."""
        return None if self.leader is None else self.leader.record

    @property
    def best_config(self) -> dict[str, int | float | str] | None:
        """Configuration of the best trial."""
        return None if self.leader is None else dict(self.leader.configuration)

    @property
    def best_time_s(self) -> float | None:
        """Median time of the best trial, seconds: as measured in the finals, where there were any."""
        return None if self.leader is None else self.leader.median_s

    @property
    def error(self) -> float | None:
        """Largest error of the best trial in its verification, as a share of the bound on rounding errors.

        That bound is gamma(k + 3) abs(A) abs(B) for a real GEMM (:mod:`mltune.problem.gemm`). None where it was not
        verified, as in most recorded timings.
        """
        return None if self.leader is None else self.leader.error

    @property
    def rate(self) -> Rate:
        """How times of the problem are shown: in TFLOPS, GB/s or milliseconds."""
        return rate_of(self.problem, self.device)

    def predicted_s(self, log_share: Any) -> Any:
        """Return the time in seconds at a predicted log share of the device's peak: a number or an array."""
        return max(self.flops, 1) / (self.peak_flops * np.exp(np.clip(log_share, -700.0, 700.0)))

    @property
    def counts(self) -> dict[str, int]:
        """Number of trials by state."""
        return counts(self.records.column("state").tolist())

    @property
    def elapsed_s(self) -> float:
        """Seconds that the run took, without interruptions.

        A run that was killed has not written its last total: the time of its last trial then counts.
        """
        return max(self.seconds.get("total", 0.0), float(np.max(self.records.column("elapsed_s"), initial=0.0)))

    def trial(self, number: int) -> TrialRecord | None:
        """Return the record of a trial; None where it is not on record."""
        return next(iter(self.records.take(self.records.column("number") == number)), None)

    def parameter(self, name: str) -> Any:
        """Return the values of a parameter in all trials: ndarray of shape (n_trials,)."""
        values, labels = self.records.parameter(name), self.header.labels.get(name)
        return values if labels is None else np.array(labels)[values]

    @property
    def measured(self) -> Trials:
        """The trials that succeeded, by number."""
        return self.records.take(self.records.succeeded)

    def improvements(self, *, by_time: bool, noisy: bool = False) -> list[tuple[float, float]]:
        """Return the steps of the best time so far.

        Parameters
        ----------
        by_time : bool
            Whether to order trials by the time at which they ended, not by number.
        noisy : bool
            Whether times count that were too noisy for a trial to succeed.

        Returns
        -------
        list of (float, float)
            When (seconds of the run, or number of trials), and the best median time from then on, seconds.
        """
        measured = self.records.take(self.records.timed) if noisy else self.measured
        ends = measured.column("elapsed_s") if by_time else measured.column("number") + 1.0
        order = np.argsort(ends, kind="stable")
        medians = measured.column("median_s")[order]
        better = np.diff(np.minimum.accumulate(medians), prepend=np.inf) < 0.0
        return list(zip(ends[order][better].tolist(), medians[better].tolist(), strict=True))

    @property
    def best_rating(self) -> dict[str, Any] | None:
        """The rating of the best trial.

        The result of :func:`mltune.results.rating.declared_rating` for a declared winner, else that of
        :func:`mltune.results.rating.rating` for the fastest trial; None where no trial succeeded.
        """
        return None if self.leader is None else rating_of(self.leader)

    @property
    def audit(self) -> SkipAudit:
        """The audit of the skipped configurations."""
        return audit_skips(self.records, self.funnel.skipped_before)

    @property
    def funnel(self) -> Funnel:
        """How many configurations each stage of the run left over, and the seconds that this saved."""
        finalists = 0 if self.declaration is None else len(self.declaration.finalists)
        return funnel_of(
            self.records,
            valid=self.valid,
            scored=self.scored,
            never_compiled=self.never_compiled,
            finalists=finalists,
            compilers=self.compilers,
        )

    @property
    def facts(self) -> dict[str, Any]:
        """What every document says of a run: what was tuned, and what that took."""
        return {
            "label": self.problem.label,
            "problem": self.problem.to_json(),
            "reference": self.problem.reference,
            "device": self.device.to_json(),
            **{name: getattr(self, name) for name in ("kernel", "accuracy", "choice", "replayed")},
            "trials": len(self.records),
            "counts": self.counts,
            "seconds": dict(self.seconds),
            "stopped": self.stopped,
            "funnel": self.funnel.to_json(),
        }

    def to_json(self) -> dict[str, Any]:
        """Return the result as plain JSON values: most of the output of ``mltune tune --json``."""
        return {
            **self.facts,
            "best": None if self.leader is None else result_of(self.leader),
            "run": str(self.directory),
            **{name: getattr(self, name) for name in ("model", "whole", "notice")},
            "skips": self.audit.to_json(),
        }

    def to_dataframe(self) -> pd.DataFrame:
        """Return all trials as a table, one row per trial.

        Returns
        -------
        pandas.DataFrame
            ``number``, ``batch``, ``state``, ``detail``, ``proposed_by``; one column per parameter, where one that has
            the name of another column begins with ``parameter_``; ``predicted_s``
            (the time that the search expected); ``skipped_by`` (the gate) and ``audited`` (skipped, but measured to
            check the gate); ``compile_s``, ``registers``, ``spill_bytes``; ``median_s``, ``noise``; ``tflops``, or
            ``gb_per_s`` where the problem counts only its memory traffic; ``elapsed_s``.
        """
        import pandas as pd

        trials = self.records
        columns: dict[str, Any] = {
            **{name: trials.column(name) for name in ("number", "batch", "state", "detail", "proposed_by")},
            "predicted_s": self.predicted_s(trials.column("expected")),
            "skipped_by": trials.column("gate"),
            "audited": trials.column("audited").astype(bool),
            "compile_s": trials.column("compile_s"),
            **{name: pd.array(trials.column(name), dtype="Int64") for name in ("registers", "spill_bytes")},
            **{name: trials.column(name) for name in ("median_s", "noise")},
        }
        rate = self.rate
        if rate.unit.higher_is_better:
            columns[rate.unit.key] = rate.of(trials.column("median_s"))
        table = pd.DataFrame(columns | {"elapsed_s": trials.column("elapsed_s")})
        for place, name in enumerate(trials.parameters, start=5):
            table.insert(place, f"parameter_{name}" if name in columns else name, self.parameter(name))
        return table

    @cached_property
    def study(self) -> optuna.Study:
        """All trials as an Optuna study in memory, such as ``optuna.visualization`` takes; see :meth:`to_study`."""
        return self.to_study()

    def to_study(self, storage: optuna.storages.BaseStorage | str | None = None, name: str = "") -> optuna.Study:
        """Return all trials as an Optuna study, and keep it in a storage of Optuna's if one is given.

        Trials that succeeded are complete, with their TFLOPS, GB/s or milliseconds as value; skipped ones are pruned,
        with the predicted value as intermediate value; all others failed. Their user attributes are the facts that
        optuna-dashboard shows (docs/how-to/watch-a-run.md). A study that is there already gets what it lacks, so a run
        that goes on can be shown by calling this again with the result of :func:`mltune.load_run`.

        Parameters
        ----------
        storage : optuna.storages.BaseStorage or str, optional
            Such as ``"sqlite:///runs.db"``. In memory by default.
        name : str, optional
            Name of the study. That of the run's directory by default.

        Examples
        --------
        >>> import mltune, tempfile
        >>> dataset, run = "replay:h200-sgemm-nt-4096-random", tempfile.mkdtemp() + "/run"
        >>> result = mltune.tune(trials=20, device=dataset, run=run, progress=None)
        >>> study = result.study
        >>> len(study.trials), study.best_params == result.best_config, study.metric_names
        (20, True, ['TFLOPS'])
        """
        return self.study_mirror.study(self.records, storage, name or self.directory.resolve().name)

    @property
    def study_mirror(self) -> StudyMirror:
        """What translates trials of this run into Optuna's."""
        from mltune.results.study import StudyMirror

        return StudyMirror(self.header, self.problem, self.device, self.reference_s, self.predicted_s)

    def compile(self) -> TunedKernel:
        """Return the winner as a function: a kernel with its launch, which takes CuPy arrays and NumPy scalars.

        Raises
        ------
        RunDirectoryError
            There is no machine code: the run was replayed, or has not declared a winner.
        DeviceError
            There is no CuPy or no GPU.
        """
        from mltune.results.tuned_kernel import load_winner

        return load_winner(self.directory / WINNER)

    def plot(self, ax: Any = None) -> Any:
        """Plot the best result so far over the time of the run, with the reference kernel as a dashed line.

        The vertical axis is in the unit of :attr:`rate`. The horizontal axis counts trials for a replayed run.

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
        rate, by_time = self.rate, not self.replayed
        steps = self.improvements(by_time=by_time)
        if steps:
            last = max(steps[-1][0], self.elapsed_s if by_time else float(len(self.records)))
            at, medians = zip(*steps, (last, steps[-1][1]), strict=True)
            ax.step(at, [rate.of(median_s) for median_s in medians], where="post", label=self.kernel)
        if self.reference_s is not None:
            name = self.problem.reference or "reference"
            ax.axhline(rate.of(self.reference_s), color="0.4", linestyle="--", label=name)
        ax.set(
            title=self.problem.label,
            xlabel="seconds" if by_time else "trials",
            ylabel=rate.unit.name if rate.unit.higher_is_better else "time, ms",
        )
        if ax.get_legend_handles_labels()[0]:
            ax.legend()
        return ax

    def __repr__(self) -> str:
        figures = self.best_rating
        best = "no trial succeeded" if figures is None else speed(figures)
        trials = many(len(self.records), "trial")
        return f"{type(self).__name__}({self.problem.label} by {self.kernel}: {best}, {trials}, {self.directory})"

    def _repr_html_(self) -> str:
        figures = self.best_rating
        facts = {"problem": self.problem.label, "kernel": self.kernel, "device": self.device.name}
        if figures is None:
            facts["best"] = "no trial succeeded"
        else:
            text = rating_text(figures, self.problem.reference or "reference", of_limit=False)
            facts["best"] = f"{text}, {verification(figures.get('verified', False), self.replayed)}"
            facts["configuration"] = configuration(self.best_config)
        facts["trials"] = f"{len(self.records)}: {states(self.counts)}"
        facts["time"] = spaced_duration(self.elapsed_s)
        return html_table(facts)


def counts(trial_states: Iterable[TrialState | str]) -> dict[str, int]:
    """Count trials by state: every state is named, in the order of :class:`TrialState`."""
    counter: Counter[str] = Counter(trial_states)
    return {str(state): counter[state] for state in TrialState}


Metric = Callable[[dict[str, Any]], Any]


class KernelResult(TuneResult, tuple[list[dict[str, Any]], dict[str, Any]]):
    """The result of :func:`mltune.tune_kernel`: a :class:`TuneResult` that is also the tuple ``(results, env)``.

    So ``results, env = tune_kernel(...)`` and ``json.dump(tune_kernel(...), file)`` work as they do in Kernel Tuner.
    """

    @classmethod
    def of(cls, result: TuneResult, metrics: Mapping[str, Metric]) -> Self:
        """Make it from any result; ``metrics`` are figures of each entry of `results`, as functions of it."""
        entries = [_entry(result, record, metrics) for record in result.measured]
        env: dict[str, Any] = {"device_name": result.device.name, **result.header.versions}
        instance = tuple.__new__(cls, (entries, env))
        for field in dataclasses.fields(result):
            object.__setattr__(instance, field.name, getattr(result, field.name))
        return instance

    @property
    def results(self) -> list[dict[str, Any]]:
        """The configurations that were measured, in Kernel Tuner's form.

        Each has the parameters, ``time`` and ``times`` (milliseconds), ``compile_time``, ``verification_time`` and
        ``benchmark_time`` (milliseconds), and the metrics.
        """
        return self[0]

    @property
    def env(self) -> dict[str, Any]:
        """The GPU and the versions."""
        return self[1]


def _entry(result: TuneResult, record: Any, metrics: Mapping[str, Metric]) -> dict[str, Any]:
    measured, build = record.measurement, record.build
    entry: dict[str, Any] = result.header.labelled(record.configuration)
    entry |= {
        "time": 1e3 * measured.median_s,
        "times": [1e3 * sample for sample in measured.samples_s],
        "compile_time": 1e3 * build.compile_s if build is not None else 0.0,
        "verification_time": 1e3 * measured.verify_s,
        "benchmark_time": 1e3 * measured.time_s,
        "strategy_time": 0.0,
        "framework_time": 0.0,
        "timestamp": record.finished_at,
    }
    for name, metric in metrics.items():
        entry[name] = metric(entry)
    return entry


def disagreement(result: TuneResult) -> str:
    """Return a warning where most outputs disagree with those of the default configuration; empty otherwise."""
    states = (TrialState.WRONG_RESULT, TrialState.OK)
    wrong, right = (result.records.take(result.records.in_state(state)) for state in states)
    if len(wrong) <= len(right):
        return ""
    return (
        f"{len(wrong)} of {len(wrong) + len(right)} configurations disagree with the default configuration "
        f"and count as wrong ({wrong[0].detail}); where outputs may differ, such as sums of parts, give `answer` and "
        "`verify`."
    )
