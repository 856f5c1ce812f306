"""The history of a search: results, predictions of skipped configurations and the compiler's reports, as arrays."""

from __future__ import annotations

import math
import operator
from array import array
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from mltune.cost.features import BUILD_COLUMNS
from mltune.kernel.coding import Floats, Indices
from mltune.records.trial import GATES, TrialState
from mltune.records.trials import Trials


@dataclass(frozen=True, slots=True)
class History:
    """The trials that a batch is planned from, as arrays of configurations' indices and log shares of peak.

    ``scores`` are those of ``indices``, the finished trials in the order in which they were told; NaN for failures.
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


RECENT = 32
"""Latest trials whose seconds are compared with those of all."""


@dataclass(frozen=True, slots=True)
class Pace:
    """The seconds of trials: means of a build, of one that was made and not found in the cache, and of a run.

    ``sums`` are the seconds of builds and of runs, then the numbers of builds, of those that were made, and of runs.
    """

    sums: Floats = field(default_factory=lambda: np.zeros(5))

    @staticmethod
    def seconds(trials: Trials) -> Floats:
        """Return what each trial adds to the sums: ndarray of shape (n_trials, 5)."""
        built, run_s = trials.column("build_state").astype(bool), trials.column("verify_s") + trials.column("time_s")
        fresh, ran = built & (trials.column("cached") != 1), np.isfinite(run_s)
        compile_s = np.where(fresh, trials.column("compile_s"), 0.0)
        return np.column_stack([compile_s, np.where(ran, run_s, 0.0), built, fresh, ran])

    @classmethod
    def of(cls, seconds: Iterable[Floats], sums: Floats | float = 0.0) -> Self:
        """Return the pace of trials, added to sums one after the other: the same, however they are divided."""
        return cls(np.asarray(reduce(operator.add, seconds, sums + np.zeros(5))))

    @property
    def compile_s(self) -> float:
        """Mean seconds of a build on one core; one from the cache takes none."""
        return float(self.sums[0] / max(self.sums[2], 1.0))

    @property
    def build_s(self) -> float:
        """Mean seconds of a build that was made."""
        return float(self.sums[0] / max(self.sums[3], 1.0))

    @property
    def trial_s(self) -> float:
        """Mean seconds of a run on the GPU."""
        return float(self.sums[1] / max(self.sums[4], 1.0))

    def busiest_s(self, compilers: float) -> float:
        """Return the seconds of a trial where compilers and GPU never wait."""
        return max(self.trial_s, self.compile_s / compilers)


class Results:
    """The results of a search, in the order of their ends; ``best`` is the largest log share of peak so far.

    ``told`` is their number, ``pace`` that of all, ``last`` of the latest, which ended after ``elapsed_s`` of the run.
    """

    def __init__(self) -> None:
        self.best = -math.inf
        self._ended: tuple[array[Any], ...] = array("q"), array("d")
        self._skipped: tuple[array[Any], ...] = array("q"), array("d"), array("q")
        self._tried: set[int] = set()
        self._build_of: dict[int, int] = {}
        self._builds: Mapping[str, array[float]] = {name: array("d", [math.nan]) for name in BUILD_COLUMNS}
        self.told, self.pace, self.elapsed_s = 0, Pace(), 0.0
        self._recent: deque[Floats] = deque(maxlen=RECENT)

    def learn(self, trials: Trials, scores: Floats) -> None:
        """Add trials, told or on record, in the order of their ends, with their log shares of the device's peak."""
        indices, skipped = trials.column("index"), trials.in_state(TrialState.SKIPPED)
        gated = skipped & trials.column("gate").astype(bool) & np.isfinite(trials.column("predicted"))
        self._tried.update(indices.tolist())
        self.best = float(np.max(scores[trials.in_state(TrialState.OK)], initial=self.best))
        _extend(self._ended, indices[~skipped], scores[~skipped])
        gates = np.array([GATES.index(gate) for gate in trials.column("gate")[gated]], dtype=np.int64)
        _extend(self._skipped, indices[gated], trials.column("predicted")[gated], gates)
        self._learn_builds(trials)
        seconds = Pace.seconds(trials)
        self.told, self.pace = self.told + len(trials), Pace.of(seconds, self.pace.sums)
        self._recent.extend(seconds)
        self.elapsed_s = float(np.fmax.reduce(trials.column("elapsed_s"), initial=self.elapsed_s))

    @property
    def last(self) -> Pace:
        """The pace of the latest trials."""
        return Pace.of(self._recent)

    def _learn_builds(self, trials: Trials) -> None:
        built = trials.column("build_state").astype(bool)
        first = len(self._builds[BUILD_COLUMNS[0]])
        self._build_of |= {index: first + at for at, index in enumerate(trials.column("index")[built].tolist())}
        _extend(self._builds.values(), *(trials.column(name)[built] for name in self._builds))

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
        return self.pace.trial_s > self.pace.compile_s / compilers


def _extend(columns: Iterable[array[Any]], *new: NDArray[np.float64] | NDArray[np.int64]) -> None:
    for column, values in zip(columns, new, strict=True):
        column.frombytes(values.tobytes())


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
