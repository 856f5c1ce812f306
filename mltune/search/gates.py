"""The gates: choose the proposals that are compiled and the builds that are measured, and audit the skips."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Self

import numpy as np
from numpy.typing import NDArray

from mltune.cost.features import Features, build_columns
from mltune.cost.regressors import CostModel, ExtraTreesModel, compress, expand
from mltune.kernel.coding import Columns, Floats, Indices
from mltune.kernel.space import SearchSpace
from mltune.records.trial import GATES, Build, Skip
from mltune.search.history import History, Results, fastest_and_some, milestone

Decisions = tuple[list[Skip | None], NDArray[np.bool_]]
"""For each configuration the reason why it is skipped, or None; and whether the audit measures it nevertheless."""

MOST_ROWS = 1000
"""Most configurations that a model is fitted to: the fastest make up a fifth, the others are drawn at random."""

GROWTH = 1.5
"""Factor by which the number of measured configurations grows between two fits."""

MINIMUM = 24
"""Fewest measured configurations that a gate is calibrated on."""

SMALLEST_OFFSET = 1e-6

FIRST = 8
"""Measurements at the beginning of a run: a gate skips nothing that may be as fast as the best of them."""

FASTEST_SHARE, MOST_FASTEST = 0.1, 100
"""Share of the measured configurations that count as the fastest, and their largest number."""

AUDIT = 0.02
"""Share of the proposals skipped before compiling that are compiled all the same."""

EXPLORING = frozenset({"default", "wisdom", "random", "start"})
"""Sources of proposals that are never skipped: a wrong model would otherwise confirm itself."""

NEAR_SHARE, NEAR = 0.25, 3
"""Share of the parameters, and most of them, in which a configuration near one of the fastest differs from it."""


def upper_quantile(scores: Floats, confidence: float) -> float:
    """Return a bound that a new score is below with at least the given probability, from scores of shape (n,).

    It is the ``ceil((n + 1) * confidence)``-th smallest score (Vovk, Gammerman and Shafer, 2005), infinite if n is too
    small for the confidence. Coverage holds for any n and any distribution if the new score is exchangeable with the
    others.

    Examples
    --------
    >>> upper_quantile(np.arange(99.0), 0.95)
    94.0
    >>> upper_quantile(np.arange(9.0), 0.95)
    inf
    """
    rank = math.ceil((len(scores) + 1) * confidence - 1e-9)
    return float(np.partition(scores, rank - 1)[rank - 1]) if 1 <= rank <= len(scores) else math.inf


@dataclass(frozen=True, slots=True)
class UpperEnd:
    """The upper end of a one-sided interval, in log share of peak: ``predicted + width * (spread + offset)``.

    The interval is wide where the standard deviation of the model is large (Lei and others, 2018, "Distribution-free
    predictive inference for regression", section 5.2). The offset is half of the median error: members of an ensemble
    that agree by chance do not make the interval arbitrarily narrow. The width is infinite if there are too few
    measurements.

    On the scale of :func:`mltune.cost.regressors.compress` a distance below ``knee``, the median of the measured
    speeds, counts a fifth: errors among slow configurations do not widen the interval of the fast ones. Coverage is the
    same on any monotone scale.
    """

    width: float = math.inf
    offset: float = 1.0
    knee: float = 0.0

    @classmethod
    def calibrate(cls, measured: Floats, predicted: Floats, spread: Floats, confidence: float) -> Self:
        """Return the end with marginal coverage ``confidence``, from finite, out-of-sample predictions."""
        if len(measured) == 0:
            return cls()
        shape = cls(0.0, 0.0, float(np.median(measured)))
        errors = shape.compress(measured) - shape.compress(predicted)
        offset = max(float(np.median(np.abs(errors))) / 2, SMALLEST_OFFSET)
        return cls(upper_quantile(errors / (spread + offset), confidence), offset, shape.knee)

    def scores(self, measured: Floats, predicted: Floats, spread: Floats) -> Floats:
        """Return the width at which the end equals each measurement: ndarray of shape (n_configs,)."""
        return (self.compress(measured) - self.compress(predicted)) / (spread + self.offset)

    def end(self, predicted: Floats, spread: Floats) -> Floats:
        """Return the upper end for each configuration: ndarray of shape (n_configs,)."""
        return expand(self.compress(predicted) + self.width * (spread + self.offset), self.knee)

    def compress(self, speed: Floats) -> Floats:
        """Return speeds on the scale of the interval."""
        return compress(speed, self.knee)


@dataclass(slots=True)
class Gate:
    """Skip a configuration if the optimistic end of its predicted speed is below the best at first, less a margin.

    Not below the best so far: a configuration unlike all measured ones is underrated, and a search that has gained much
    since its first measurements may gain as much again.

    ``interval`` has marginal coverage: the speed of a share ``confidence`` of all configurations lies below its end
    (:class:`UpperEnd`). A skip is a mistake only if the configuration is fast, and models underestimate the fastest
    (regression to the mean). The gate therefore decides by ``cautious``: the wider of ``interval`` and of an interval
    calibrated on the fastest tenth of the measurements alone (class-conditional), or on as many of the fastest as
    ``confidence`` requires.

    A search measures mostly proposals of its own model, where the model errs least. Random proposals and audited
    configurations are therefore part of the calibration, and the audit of a share of the skips estimates how often a
    skip was wrong (:mod:`mltune.results.funnel`).
    """

    name: str
    _: KW_ONLY
    confidence: float = 0.95
    margin: float = 0.02
    audit: float = 0.05
    minimum: int = MINIMUM
    interval: UpperEnd = field(default_factory=UpperEnd, init=False)
    cautious: UpperEnd = field(default_factory=UpperEnd, init=False)

    @property
    def is_open(self) -> bool:
        """Whether every configuration passes, because the gate is not calibrated yet."""
        return not math.isfinite(self.cautious.width)

    def calibrate(self, measured: Floats, predicted: Floats, spread: Floats) -> None:
        """Calibrate both intervals on measured log shares of peak and out-of-sample predictions; NaN is unknown."""
        judged = np.isfinite(measured) & np.isfinite(predicted) & np.isfinite(spread)
        self.interval = self.cautious = UpperEnd()
        if judged.sum() < self.minimum:
            return
        measured, predicted, spread = measured[judged], predicted[judged], spread[judged]
        self.interval = UpperEnd.calibrate(measured, predicted, spread, self.confidence)
        fewest = math.ceil(self.confidence / (1.0 - self.confidence) - 1e-9)
        fastest = np.argsort(-measured, kind="stable")[: max(fewest, len(measured) // 10)]
        scores = self.interval.scores(measured[fastest], predicted[fastest], spread[fastest])
        width = max(0.0, self.interval.width, upper_quantile(scores, self.confidence))
        self.cautious = replace(self.interval, width=width)

    def decide(self, predicted: Floats, spread: Floats, first: float) -> tuple[NDArray[np.bool_], Floats]:
        """Return which configurations to skip, and their optimistic ends, in log shares of peak as ``first`` is."""
        optimistic = self.cautious.end(np.asarray(predicted, dtype=np.float64), np.asarray(spread, dtype=np.float64))
        return optimistic < first + math.log1p(-self.margin), optimistic


@dataclass(frozen=True, slots=True, eq=False)
class Gates:
    """The models before and after compiling, as of the time when a batch was planned, and their skips.

    Before compiling, the fastest of several times as many proposals are kept (:meth:`screen`); after compiling, a gate
    decides (:meth:`decide`). The models are extra trees on all features: another kind of model than the one that
    proposes, so that their errors differ. They are fitted to the earliest ``fitted_to`` trials of ``history`` on a
    fixed schedule (:func:`mltune.search.history.milestone`), so that a resumed run makes the same decisions.
    """

    features: Features
    results: Results
    space: SearchSpace
    seed: int
    history: History | None = None
    fitted_to: int = 0
    _models: dict[str, tuple[Gate, CostModel | None]] = field(default_factory=dict)

    def following(self, history: History | None) -> Self:
        """Return the gates of the next batch, with the same models until the schedule demands another fit."""
        if history is None:
            return replace(self, history=None, fitted_to=0, _models={})
        fitted_to = milestone(len(history.indices), first=Gate(GATES[0]).minimum, growth=GROWTH)
        if fitted_to in (0, self.fitted_to):
            return self
        return replace(self, history=history, fitted_to=fitted_to, _models={})

    @property
    def screens(self) -> bool:
        """Whether enough is measured for the model before compiling to choose among proposals."""
        return not self._fitted(GATES[0])[0].is_open

    def screen(self, columns: Columns, most: int, rng: np.random.Generator) -> tuple[Indices, list[Skip | None]]:
        """Return the positions, ascending, of the proposals to compile, and why an audited one would be skipped.

        They are the proposals predicted to be the fastest. For the audit, a share of the others replaces the slowest of
        them, at most half of all.
        """
        gate, model = self._fitted(GATES[0])
        assert model is not None  # noqa: S101 - it screens
        predicted, spread = model.predict(self.features.before(columns))
        optimistic = gate.cautious.end(predicted, spread)
        order = np.argsort(-predicted, kind="stable")
        slower = order[most:]
        drawn = slower[rng.random(len(slower)) < AUDIT][: most // 2]
        skips = {at: Skip(gate.name, float(predicted[at]), float(optimistic[at])) for at in drawn.tolist()}
        kept = np.sort(np.concatenate([order[: most - len(drawn)], drawn]))
        return kept, [skips.get(at) for at in kept.tolist()]

    def decide(
        self, columns: Columns, numbers: Sequence[int], exempt: NDArray[np.bool_], builds: Sequence[Build]
    ) -> Decisions:
        """Decide after compiling which configurations to skip; the trial numbers determine the draw of the audit."""
        nothing: Decisions = [None] * len(numbers), np.zeros(len(numbers), dtype=bool)
        if exempt.all():
            return nothing
        gate, model = self._fitted(GATES[1])
        if model is None or self.history is None or gate.is_open:
            return nothing
        scores = self.history.scores
        first = float(scores[np.isfinite(scores)][:FIRST].max())
        predicted, spread = model.predict(self.features.after(columns, build_columns(builds)))
        slow, optimistic = gate.decide(predicted, spread, first)
        skips = [
            Skip(gate.name, float(mean), float(end)) if skip else None
            for skip, mean, end in zip(slow & ~exempt & ~self.near(columns), predicted, optimistic, strict=True)
        ]
        drawn = [float(np.random.default_rng((self.seed, number, 1)).random()) for number in numbers]
        return skips, np.array([skip is not None for skip in skips]) & (np.array(drawn) < gate.audit)

    def near(self, columns: Columns) -> NDArray[np.bool_]:
        """Return a mask of the configurations near one of the fastest, never skipped: most improvements are there."""
        assert self.history is not None  # noqa: S101 - the models are fitted to it
        scores = self.history.scores[: self.fitted_to]
        count = math.ceil(min(FASTEST_SHARE * np.isfinite(scores).sum(), MOST_FASTEST))
        fastest = self.space.rows(self.history.indices[np.argsort(-scores, kind="stable")[:count]])  # NaN is last
        differing = np.sum([columns[name][:, None] != values for name, values in fastest.items()], axis=0)
        varied = sum(len(values) > 1 for values in self.space.values.values())
        near: NDArray[np.bool_] = (differing <= min(math.ceil(NEAR_SHARE * varied), NEAR)).any(axis=1)
        return near

    def _fitted(self, name: str) -> tuple[Gate, CostModel | None]:
        """Return a gate with its model; an open gate without a model where too little is measured."""
        if name not in self._models:
            self._models[name] = self._fit(name)
        return self._models[name]

    def _fit(self, name: str) -> tuple[Gate, CostModel | None]:
        gate, history = Gate(name), self.history
        scores = np.empty(0) if history is None else history.scores[: self.fitted_to]
        if history is None or np.isfinite(scores).sum() < gate.minimum:
            return gate, None
        rng = np.random.default_rng((self.seed, len(scores)))
        rows = fastest_and_some(scores, MOST_ROWS, MOST_ROWS // 5, rng)
        indices, scores = history.indices[rows], scores[rows]
        columns = self.space.rows(indices)
        if name == GATES[0]:
            table = self.features.before(columns)
        else:
            builds = self.results.builds(indices)
            if not any(np.isfinite(column).any() for column in builds.values()):
                return gate, None
            table = self.features.after(columns, builds)
        model = ExtraTreesModel(random_state=self.seed).fit(table, scores)
        gate.calibrate(scores, *model.unseen())
        return gate, model
