"""Our own strategies, and the plain ones that everything is measured against."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from mltune.compare.projection import Projection, is_sparse
from mltune.kernel.columns import row
from mltune.records.trial import Build, Measurement, Skip, TrialRecord, TrialState

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.study import Study
    from optuna.trial import Trial

    from mltune.compare.simulation import Simulation
    from mltune.kernel.columns import Columns
    from mltune.kernel.space import TableSpace
    from mltune.learn.features import Features
    from mltune.learn.gates import Gates


@dataclass(frozen=True, slots=True)
class Random:
    """Uniformly, without replacement."""

    name: str = "random"

    def search(self, game: Simulation, seed: int) -> None:
        """Play in a random order; see :class:`mltune.compare.simulation.Strategy`."""
        order = np.random.default_rng(seed).permutation(game.space.count).tolist()
        game.begin()
        for index in order:
            game.evaluate(index)


@dataclass(frozen=True, slots=True)
class Astra:
    """ASTRA's hand-set thresholds, and what they keep at random (:class:`mltune.learn.astra.AstraThresholds`).

    What the thresholds discard before compiling costs nothing, what they discard after it its compile time. When
    everything that they keep has been measured, the others follow. Where the bundle does not name what the thresholds
    are computed from, nothing is discarded.
    """

    name: str = "astra"

    def search(self, game: Simulation, seed: int) -> None:
        """Play what is kept in a random order; see :class:`mltune.compare.simulation.Strategy`."""
        from mltune.errors import BundleError
        from mltune.learn.astra import AstraThresholds

        recording = game.recording
        columns = game.space.rows(np.arange(game.space.count))
        try:
            thresholds = AstraThresholds(recording.kernel, recording.problem, recording.device)
        except BundleError:
            before = after = np.ones(game.space.count, dtype=bool)
        else:
            before = thresholds.keeps(columns)
            after = thresholds.keeps(columns, recording.builds) if recording.builds else before
        order = np.random.default_rng(seed).permutation(game.space.count)
        game.begin()
        discarded = []
        for index in order[before[order]].tolist():
            if after[index]:
                game.evaluate(index)
            else:
                game.skip(index, after_compile=True)
                discarded.append(index)
        for index in (*discarded, *order[~before[order]].tolist()):
            game.evaluate(index)


@dataclass(frozen=True, slots=True)
class Learned:
    """mltune's own search: :class:`mltune.learn.sampling.BatchSampler` with the gates of the skip.

    Attributes
    ----------
    name : str
    batch : int
        Proposals that are planned at a time.
    skip : bool
        Whether gates skip.
    build : bool
        Whether what the compiler says is used: without it there is no gate after compiling.
    resources : bool
        Whether features are derived from the bundle's ``[resources]``: otherwise there are the raw parameters.
    """

    name: str = "mltune"
    batch: int = 4
    skip: bool = True
    build: bool = True
    resources: bool = True

    def search(self, game: Simulation, seed: int) -> None:
        """Play as a run of the tuner would; see :class:`mltune.compare.simulation.Strategy`."""
        from mltune.learn.gates import Gates
        from mltune.learn.search import make_sampler

        features = _features(game, resources=self.resources)
        sampler = make_sampler("model", game.space, features, seed)
        study = _study(sampler)
        table = _Referee(game, study)
        judgement: Gates | None = None
        game.begin()
        for batch in itertools.count():
            proposals = sampler.plan(study, batch, self.batch)
            if not proposals:
                return
            sampler.enqueue(proposals)
            trials = [study.ask(sampler.distributions) for _ in proposals]
            indices = [proposal.index for proposal in proposals]
            kinds = [proposal.proposed_by for proposal in proposals]
            history = sampler.history if self.skip else None
            judgement = Gates(features, history, table.builds, game.space, seed, judgement)
            table.settle(trials, indices, kinds, judgement, after=self.build)


@dataclass(frozen=True, slots=True)
class StockTpe:
    """Optuna's TPESampler as it comes, one categorical parameter each.

    A proposal outside the space is told as PRUNED with a score below any that ran (a bare PRUNED has no order, a FAIL
    is ignored); one that was tried before is told what it was told before. Neither costs an evaluation. In a sparse
    space (:func:`mltune.compare.projection.is_sparse`), a random sample of a larger one say, it would hardly ever get
    an answer: there its proposals are projected to the nearest configuration not tried yet.

    Attributes
    ----------
    name : str
    skip : bool
        Whether mltune's gates judge the proposals.
    """

    name: str = "tpe"
    skip: bool = False

    def search(self, game: Simulation, seed: int) -> None:
        """Play one proposal at a time; see :class:`mltune.compare.simulation.Strategy`."""
        import optuna

        from mltune.learn.gates import Gates
        from mltune.learn.history import HistoryReader
        from mltune.learn.sampling import distributions_of

        study = _study(optuna.samplers.TPESampler(seed=seed))
        distributions = distributions_of(game.space)
        features = _features(game) if self.skip else None
        table = _Referee(game, study)
        projection = Projection(game.space) if is_sparse(game.space) else None
        judgement: Gates | None = None
        reader = HistoryReader(game.space)
        game.begin()
        while projection is None or not projection.exhausted:
            trial = study.ask(distributions)
            if projection is not None:
                index = projection.take(projection.code(trial.params))
                trial = _moved(study, trial, game.space, index, distributions)
            else:
                index = int(game.space.index_of({name: np.array([value]) for name, value in trial.params.items()})[0])
            if index < 0 or table.known(index):
                table.repeat(trial, index)
                continue
            if features is not None:
                history = reader.read(study)
                judgement = Gates(features, history, table.builds, game.space, seed, judgement)
            table.settle([trial], [index], ["tpe"], judgement, after=True)


class _Referee:
    """Judges, evaluates and tells the study: what is between a batch of proposals and the next."""

    def __init__(self, game: Simulation, study: Study) -> None:
        self.game = game
        self.study = study
        self.records: dict[int, TrialRecord] = {}
        self.builds: dict[int, Build] = {}
        self._rows: Mapping[str, list[float]] = {
            name: game.recording.builds[name].tolist() for name in game.recording.builds
        }
        self._scale = _operations_over_peak(game)

    def known(self, index: int) -> bool:
        """Return whether a configuration was settled before."""
        return index in self.records

    def repeat(self, trial: Trial, index: int) -> None:
        """Tell again what is known of a configuration, or that it lies outside the space."""
        from mltune.learn.history import FAILED_SCORE, tell

        if index < 0:
            import optuna

            self.game.evaluate(index)
            trial.report(FAILED_SCORE, 0)
            self.study.tell(trial, state=optuna.trial.TrialState.PRUNED)
            return
        record = self.records[index]
        if record.state != TrialState.SKIPPED:
            self.game.evaluate(index)
        tell(self.study, trial, record, self._score(record.median_s))

    def settle(
        self,
        trials: Sequence[Trial],
        indices: Sequence[int],
        kinds: Sequence[str],
        judgement: Gates | None,
        *,
        after: bool,
    ) -> None:
        """Judge configurations before compiling and after it, evaluate what no gate skips, and tell the study."""
        from mltune.learn.history import tell

        skips = self._judge(trials, indices, kinds, judgement, after=after and bool(self._rows))
        for trial, index, kind, (skip, audited) in zip(trials, indices, kinds, skips, strict=True):
            record = self._settled(trial, index, kind, skip, audited)
            self.records[index] = record
            tell(self.study, trial, record, self._score(record.median_s))

    def _judge(
        self,
        trials: Sequence[Trial],
        indices: Sequence[int],
        kinds: Sequence[str],
        judgement: Gates | None,
        *,
        after: bool,
    ) -> list[tuple[Skip | None, bool]]:
        verdicts: list[tuple[Skip | None, bool]] = [(None, False)] * len(indices)
        if judgement is None:
            return verdicts
        from mltune.learn.gates import spared
        from mltune.records.trial import GATES

        numbers = [trial.number for trial in trials]
        skips, audited = judgement.before(self._columns(indices), numbers, spared(kinds, GATES[0]))
        verdicts = [(skip, bool(drawn)) for skip, drawn in zip(skips, audited, strict=True)]
        built = [at for at, (skip, drawn) in enumerate(verdicts) if skip is None or drawn]
        if not after or not built:
            return verdicts
        some = [indices[at] for at in built]
        exempt = spared([kinds[at] for at in built], GATES[1]) | np.array([verdicts[at][1] for at in built])
        seconds = judgement.after(
            self._columns(some), [self._build(index) for index in some], [numbers[at] for at in built], exempt
        )
        for at, skip, drawn in zip(built, *seconds, strict=True):
            if skip is not None:
                verdicts[at] = (skip, bool(drawn))
        return verdicts

    def _settled(self, trial: Trial, index: int, kind: str, skip: Skip | None, audited: bool) -> TrialRecord:
        build = self._build(index)
        record = TrialRecord(
            trial.number, 0, index, trial.params, TrialState.SKIPPED, proposed_by=kind, skip=skip, build=build
        )
        if skip is not None and not audited:
            self.game.skip(index, after_compile=skip.gate == "after_compile")
            return record
        median_s = self.game.evaluate(index)
        self.builds[index] = build
        if median_s is None:
            return replace(record, state=TrialState.LAUNCH_ERROR, audited=audited)
        return replace(
            record, state=TrialState.OK, audited=audited, measurement=Measurement(TrialState.OK, median_s=median_s)
        )

    def _build(self, index: int) -> Build:
        values = {name: column[index] for name, column in self._rows.items()}
        known: dict[str, Any] = {name: None if math.isnan(value) else int(value) for name, value in values.items()}
        return Build(TrialState.OK, compile_s=float(self.game.recording.compile_s[index]), **known)

    def _columns(self, indices: Sequence[int]) -> Columns:
        return self.game.space.rows(np.array(indices, dtype=np.int64))

    def _score(self, median_s: float | None) -> float | None:
        return None if median_s is None else math.log(self._scale / median_s)


def _features(game: Simulation, *, resources: bool = True) -> Features:
    """Return the features of a game's kernel; without resources those of its raw parameters."""
    from mltune.learn.features import Features

    recording = game.recording
    kernel = recording.kernel if resources else replace(recording.kernel, resources={}, accesses={})
    return Features(kernel, recording.problem, recording.device)


def _study(sampler: Any) -> Study:
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna.create_study(direction="maximize", sampler=sampler)


def _moved(
    study: Study, trial: Trial, space: TableSpace, index: int, distributions: Mapping[str, BaseDistribution]
) -> Trial:
    """Have a study propose another configuration in place of a trial's: that one is forgotten (FAIL is ignored)."""
    from optuna.trial import TrialState as OptunaState

    study.tell(trial, state=OptunaState.FAIL)
    study.enqueue_trial(row(space.rows(np.array([index])), 0))
    return study.ask(dict(distributions))


def _operations_over_peak(game: Simulation) -> float:
    """Return the seconds that the problem takes at the device's peak; 1 where either is not known."""
    from mltune.device.peaks import peak_flops
    from mltune.errors import DeviceError

    recording = game.recording
    try:
        return max(recording.problem.flops, 1.0) / peak_flops(recording.device, recording.problem.arithmetic)
    except DeviceError:
        return 1.0
