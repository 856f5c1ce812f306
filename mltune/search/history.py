"""The history of a search: results, predictions of skipped configurations and the compiler's reports, as arrays."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from mltune.cost.features import BUILD_COLUMNS
from mltune.kernel.coding import Floats, Indices
from mltune.records.trial import GATES, Build, TrialState
from mltune.records.trials import Trials


@dataclass(frozen=True, slots=True)
class History:
    """The trials that a batch is planned from, as arrays of configurations' indices and log shares of peak.

    ``scores`` are those of ``indices``, the finished trials in the order of their numbers; NaN for failures.
    ``predicted`` and ``gates`` (positions in :data:`mltune.records.trial.GATES`) belong to ``skipped``. ``tried`` are
    all configurations proposed so far.
    """

    indices: Indices
    scores: Floats
    skipped: Indices
    predicted: Floats
    gates: Indices
    running: Indices
    tried: set[int]

    @classmethod
    def of(cls, indices: Iterable[int], scores: Floats, running: Iterable[int] = ()) -> Self:
        """Return a history of scores alone, without gates."""
        ended, under_way = np.array([*indices], dtype=np.int64), np.array([*running], dtype=np.int64)
        return cls(ended, scores, ended[:0], scores[:0], ended[:0], under_way, {*ended.tolist(), *under_way.tolist()})

    @property
    def measured(self) -> int:
        """Number of configurations with a score."""
        return int(np.isfinite(self.scores).sum())

    def best(self, count: int) -> Indices:
        """Return up to ``count`` of the fastest configurations, the fastest first."""
        order = np.argsort(-self.scores, kind="stable")[: min(count, self.measured)]  # NaN sorts last
        return self.indices[order]

    def scores_of(self, indices: Indices) -> Floats:
        """Return the scores of configurations: an array of the same shape, NaN where there is none."""
        order = np.argsort(self.indices, kind="stable")
        place = order[np.minimum(np.searchsorted(self.indices, indices, sorter=order), len(order) - 1)]
        return np.where(self.indices[place] == indices, self.scores[place], math.nan)


class Results:
    """The results of a search, in the order of trial numbers; ``best`` is the largest log share of peak so far."""

    def __init__(self) -> None:
        self.best = -math.inf
        self._ended: tuple[array[Any], ...] = array("q"), array("d")
        self._skipped: tuple[array[Any], ...] = array("q"), array("d"), array("q")
        self._tried: set[int] = set()
        self._build_of: dict[int, int] = {}
        self._builds: Mapping[str, array[float]] = {name: array("d", [math.nan]) for name in BUILD_COLUMNS}
        self._compile_s, self._compiled = 0.0, 0
        self._run_s, self._ran = 0.0, 0

    def learn(self, trials: Trials, scores: Floats) -> None:
        """Add trials, told or on record, in the order of their numbers, with their log shares of the device's peak."""
        indices, skipped = trials.column("index"), trials.in_state(TrialState.SKIPPED)
        gated = skipped & trials.column("gate").astype(bool) & np.isfinite(trials.column("predicted"))
        self._tried.update(indices.tolist())
        self.best = float(np.max(scores[trials.in_state(TrialState.OK)], initial=self.best))
        _extend(self._ended, indices[~skipped], scores[~skipped])
        gates = np.array([GATES.index(gate) for gate in trials.column("gate")[gated]], dtype=np.int64)
        _extend(self._skipped, indices[gated], trials.column("predicted")[gated], gates)
        self._learn_builds(trials)
        for run_s in (trials.column("verify_s") + trials.column("time_s")).tolist():
            if not math.isnan(run_s):
                self._run_s += run_s
                self._ran += 1

    def _learn_builds(self, trials: Trials) -> None:
        built = trials.column("build_state").astype(bool)
        first = len(self._builds[BUILD_COLUMNS[0]])
        self._build_of |= {index: first + at for at, index in enumerate(trials.column("index")[built].tolist())}
        _extend(self._builds.values(), *(trials.column(name)[built] for name in self._builds))
        compiled_s = np.where(trials.column("cached") == 1, 0.0, trials.column("compile_s"))
        for compile_s in compiled_s[built].tolist():  # the same sum, however the trials are divided
            self._compile_s += compile_s
            self._compiled += 1

    def history(self, running: Sequence[int] = ()) -> History:
        """Return the history, with the configurations that are under way."""
        indices, scores = map(np.array, self._ended)
        skipped, predicted, gates = map(np.array, self._skipped)
        under_way = np.array(running, dtype=np.int64)
        return History(indices, scores, skipped, predicted, gates, under_way, self._tried.union(running))

    def builds(self, indices: Indices) -> dict[str, Floats]:
        """Return the compiler's reports of configurations: columns of shape (n_indices,), NaN where not known."""
        rows = np.array([self._build_of.get(index, 0) for index in indices.tolist()], dtype=np.int64)
        return {name: np.array(column)[rows] for name, column in self._builds.items()}

    def is_bound_by_runner(self, compilers: float) -> bool:
        """Return whether builds wait for the runner; otherwise a skip after compiling saves no time."""
        compile_s, run_s = self._means
        return run_s > compile_s / compilers

    def occupancy(self, compilers: float) -> float:
        """Return how many trials in flight keep the slower of compilers and runner busy (Little, 1961), or 1."""
        compile_s, run_s = self._means
        if math.isinf(compilers) or compile_s + run_s == 0.0:
            return 1.0
        return (compile_s + run_s) / max(run_s, compile_s / compilers)

    @property
    def _means(self) -> tuple[float, float]:
        """Mean seconds of a build on one core, and of a run."""
        return self._compile_s / max(self._compiled, 1), self._run_s / max(self._ran, 1)


def _extend(columns: Iterable[array[Any]], *new: NDArray[np.float64] | NDArray[np.int64]) -> None:
    for column, values in zip(columns, new, strict=True):
        column.frombytes(values.tobytes())


def build_columns(builds: Sequence[Build | None]) -> dict[str, Floats]:
    """Return the compiler's reports as columns of shape (n_builds,); NaN where a value is not known."""
    return {
        name: np.array([getattr(build, name, None) for build in builds], dtype=np.float64)  # None is NaN
        for name in BUILD_COLUMNS
    }


def milestone(count: int, *, first: int = 8, growth: float = 1.25) -> int:
    """Return the number of earliest trials, of ``count`` finished ones, that a model is fitted to.

    It grows by a factor from fit to fit, so that the cost of fitting per trial falls. Because the earliest trials never
    change, a resumed run fits the same models as the interrupted one.
    """
    at, following = 0, first
    while following <= count:
        at, following = following, max(following + first, int(following * growth))
    return at


def fastest_and_some(speed: Floats, most: int, fastest: int, rng: np.random.Generator) -> Indices:
    """Return the sorted rows that a model is fitted to: all, or the fastest and a random sample; NaN ranks last."""
    if len(speed) <= most:
        return np.arange(len(speed))
    first, slower = np.split(np.argsort(-speed, kind="stable"), [fastest])
    return np.sort(np.concatenate([first, rng.choice(slower, most - fastest, replace=False)]))
