"""The strategies of mltune: random search, ASTRA's thresholds, Optuna's TPE, and the search of ``mltune tune``."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from mltune.comparison.clock import Bench
from mltune.cost.features import Features
from mltune.cost.model_file import NONE, ChosenModel, choose_model
from mltune.kernel.coding import row
from mltune.kernel.parts import KernelResources
from mltune.kernel.placed import PlacedKernel
from mltune.kernel.space import TableSpace, find
from mltune.records.trial import BATCH, Build, Candidate, Measurement, TrialRecord, TrialState
from mltune.search.search import KernelSearch, SearchSettings, Start, gradually

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.study import Study
    from optuna.trial import Trial

    from mltune.comparison.simulation import Recording, Simulation
    from mltune.cost.pretrained import PretrainedModel


SPARSE = 0.04
"""Share of the raw combinations of values below which a space is sparse: few proposals of TPE are in it."""


def is_sparse(space: TableSpace) -> bool:
    """Return whether nearly all combinations of values are outside a space, as in a sample of a larger space."""
    return space.count < SPARSE * math.prod(len(values) for values in space.values.values())


class Projection:
    """The nearest untried configuration for any values, by their positions as shares of each parameter's list."""

    def __init__(self, space: TableSpace) -> None:
        columns = space.rows(np.arange(space.count))
        self._names = space.names
        self._values = {name: np.array(space.values[name]) for name in space.names}
        self.codes = np.column_stack([np.searchsorted(self._values[name], columns[name]) for name in space.names])
        self._scaled = (self.codes / np.maximum(self.codes.max(axis=0), 1)).astype(np.float32)
        self._tried = np.zeros(space.count, dtype=bool)

    @property
    def exhausted(self) -> bool:
        """Whether all configurations have been tried."""
        return bool(self._tried.all())

    def take(self, codes: Any) -> int:
        """Return the nearest untried configuration to the positions of values in their lists; mark it as tried."""
        targets = np.asarray(codes) / np.maximum(self.codes.max(axis=0), 1)
        distance = np.abs(self._scaled - targets.astype(np.float32)).sum(axis=1)
        distance[self._tried] = np.inf
        index = int(np.argmin(distance))
        self._tried[index] = True
        return index

    def code(self, configuration: Mapping[str, int]) -> list[int]:
        """Return the position of each value of a configuration among the values of its parameter."""
        return [int(np.searchsorted(self._values[name], configuration[name])) for name in self._names]


@dataclass(frozen=True, slots=True)
class Random:
    """Uniform random search without replacement."""

    name: str = "random"

    def search(self, simulation: Simulation, seed: int) -> None:
        """Evaluate in a random order; see :class:`mltune.comparison.simulation.Strategy`."""
        order = np.random.default_rng(seed).permutation(simulation.space.count).tolist()
        simulation.begin()
        for index in order:
            simulation.evaluate(index)


@dataclass(frozen=True, slots=True)
class Astra:
    """ASTRA's hand-set thresholds, with random search among the kept configurations (:mod:`mltune.search.astra`).

    A configuration that is discarded before compiling costs nothing, one discarded after compiling its compile time.
    When all kept ones have been measured, the others follow. Without the resources of the thresholds all are kept.
    """

    name: str = "astra"

    def search(self, simulation: Simulation, seed: int) -> None:
        """Evaluate the kept configurations in random order; see :class:`mltune.comparison.simulation.Strategy`."""
        from mltune.errors import BundleError
        from mltune.search.astra import AstraThresholds

        recording, count = simulation.recording, simulation.space.count
        columns = simulation.space.rows(np.arange(count))
        try:
            thresholds = AstraThresholds(Features(PlacedKernel(recording.kernel, recording.problem, recording.device)))
        except BundleError:
            before = after = np.ones(count, dtype=bool)
        else:
            before = thresholds.keeps(columns)
            after = thresholds.keeps(columns, recording.builds) if recording.builds else before
        order = np.random.default_rng(seed).permutation(count)
        simulation.begin()
        discarded = []
        for index in order[before[order]].tolist():
            if after[index]:
                simulation.evaluate(index)
            else:
                simulation.skip(index, after_compile=True)
                discarded.append(index)
        for index in (*discarded, *order[~before[order]].tolist()):
            simulation.evaluate(index)


@dataclass(frozen=True, slots=True)
class StockTpe:
    """Optuna's TPESampler without changes, with one categorical parameter each.

    An invalid proposal is reported as PRUNED without a value, which TPE ranks below every configuration that ran (FAIL
    is ignored); a repeated one with its known result. Neither costs an evaluation. In a sparse space
    (:func:`is_sparse`) almost every proposal would be invalid: there each is projected to the nearest untried
    configuration.
    """

    name: str = "tpe"

    def search(self, simulation: Simulation, seed: int) -> None:
        """Evaluate one proposal at a time; see :class:`mltune.comparison.simulation.Strategy`."""
        import optuna

        from mltune.search.tpe import distributions_of, new_study

        space = simulation.space
        study = new_study(optuna.samplers.TPESampler(seed=seed))
        distributions = distributions_of(space)
        projection = Projection(space) if is_sparse(space) else None
        simulation.begin()
        while projection is None or not projection.exhausted:
            trial = study.ask(distributions)
            if projection is None:
                index = find(space, trial.params)
            else:
                index = projection.take(projection.code(trial.params))
                trial = _moved(study, trial, space, index, distributions)
            median_s = simulation.evaluate(index)
            if median_s is None:
                study.tell(trial, state=optuna.trial.TrialState.PRUNED)
            else:
                study.tell(trial, -math.log(median_s))


def _moved(
    study: Study, trial: Trial, space: TableSpace, index: int, distributions: Mapping[str, BaseDistribution]
) -> Trial:
    """Replace a trial by one of another configuration: the first ends as FAIL, which samplers ignore."""
    from optuna.trial import TrialState

    study.tell(trial, state=TrialState.FAIL)
    study.enqueue_trial(row(space.rows(np.array([index])), 0))
    return study.ask(dict(distributions))


@dataclass(frozen=True, slots=True)
class ShippedSearch:
    """:class:`mltune.search.search.KernelSearch`, by default with batches that adapt as in a run on a GPU.

    ``batch`` is the number of proposals of a batch, ``in_flight`` the most batches in flight
    (:func:`mltune.search.search.gradually`); if only one is given, the other is 16 or 3; if neither is, batches adapt
    to ``compilers`` parallel builds.

    Without ``skip`` no gate skips. Without ``build`` the compiler's reports are not used, and there is no gate after
    compiling. Without ``resources`` features are the raw parameters. ``prior`` names the pretrained model
    (:func:`mltune.cost.model_file.choose_model`), which may be trained on the recording; ``pretrained`` is one that is
    not.
    """

    name: str = "mltune"
    batch: int | None = None
    in_flight: int | None = None
    proposer: str = "model"
    skip: bool = True
    build: bool = True
    resources: bool = True
    compilers: float = math.inf
    prior: str = NONE
    pretrained: PretrainedModel | None = None

    def search(self, simulation: Simulation, seed: int) -> None:
        """Search as the tuner does; see :class:`mltune.comparison.simulation.Strategy`."""
        recording, pretrained = simulation.recording, self.pretrained
        if model := self.model(recording):
            pretrained = model.load(recording.problem, recording.device)
        settings = SearchSettings(
            search=self.proposer,
            seed=seed,
            batch=self.batch or BATCH,
            adapts=self.adapts,
            in_flight=gradually(1 if self.adapts else self.in_flight or 3),
            skip=self.skip,
            stop=False,
            compilers=self.compilers,
        )
        search = KernelSearch(simulation.space, self._features(simulation), settings, Start(pretrained=pretrained))
        _Measuring(simulation, search, self.compilers, after_compile=self.build).play()

    @property
    def adapts(self) -> bool:
        """Whether the sizes of batches adapt to recorded seconds."""
        return self.batch is None and self.in_flight is None

    def model(self, recording: Recording) -> ChosenModel | None:
        """Return the pretrained model that the search starts from on a recording."""
        return choose_model(self.prior, recording.kernel)

    def _features(self, simulation: Simulation) -> Features:

        recording = simulation.recording
        kernel = recording.kernel
        if not self.resources:
            kernel = replace(kernel, resources=KernelResources(unit=kernel.resources.unit))
        return Features(PlacedKernel(kernel, recording.problem, recording.device))


class _Measuring:
    """The simulated builder and runner: results of candidates from a recording."""

    def __init__(self, simulation: Simulation, search: KernelSearch, compilers: float, *, after_compile: bool) -> None:
        self._simulation = simulation
        self._search = search
        self._compilers = compilers
        self._reports = {name: column.tolist() for name, column in simulation.recording.builds.items()}
        self._after_compile = after_compile and bool(self._reports)

    def play(self) -> None:
        """Search until the search or the simulation ends; results are told in the order in which trials end.

        Without a number of compilers trials take no time, and end in their order.
        """
        simulation, search, overlaps = self._simulation, self._search, math.isfinite(self._compilers)
        recorded = simulation.recording.compile_s, simulation.recording.run_s
        compile_s, run_s = ((overlaps * column).tolist() for column in recorded)
        bench, records, now_s = Bench(int(self._compilers) if overlaps else 1), dict[int, TrialRecord](), 0.0
        simulation.known = 0
        simulation.begin()
        while True:
            while not search.waits and (candidates := search.ask()):
                for record in self._results(candidates):
                    records[record.number] = record
                    running_s = 0.0 if record.measurement is None else run_s[record.index]
                    bench.begin(record.number, now_s, compile_s[record.index], running_s)
            if len(simulation.told) == len(records):
                return
            now_s, number = bench.end()
            simulation.told.append(number)
            simulation.known += 1
            search.tell([records[number]])

    def _results(self, candidates: Sequence[Candidate]) -> list[TrialRecord]:
        """Build and measure candidates, except those that a gate skips."""
        if self._after_compile:
            candidates = self._search.decide([(candidate, self._build(candidate.index)) for candidate in candidates])
        return [self._result(candidate) for candidate in candidates]

    def _result(self, candidate: Candidate) -> TrialRecord:
        simulation, index = self._simulation, candidate.index
        if candidate.is_skipped:
            simulation.skip(index, after_compile=True)
            return candidate.record(TrialState.SKIPPED)
        median_s = simulation.evaluate(index)
        state = TrialState.LAUNCH_ERROR if median_s is None else TrialState.OK
        measurement = Measurement(state, median_s=median_s, time_s=float(simulation.recording.run_s[index]))
        return candidate.record(state, build=self._build(index), measurement=measurement)

    def _build(self, index: int) -> Build:
        values = {name: column[index] for name, column in self._reports.items()}
        facts: dict[str, Any] = {name: None if math.isnan(value) else int(value) for name, value in values.items()}
        return Build(TrialState.OK, compile_s=float(self._simulation.recording.compile_s[index]), **facts)
