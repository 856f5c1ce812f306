"""A cost model that is trained on recorded sweeps, from which runs on other GPUs and problems start.

Each sweep has a regressor from the parameters to the log of the relative speed; the prediction is the mean of the
closest ones: what was fast everywhere is expected to be fast here. On recorded GPUs of other architectures this order
beats one regressor over all sweeps with features of the device (benchmarks/transfer.py).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, zip_longest
from typing import Any, Self

import numpy as np

from mltune.cost.encoding import Source
from mltune.cost.features import signed_log2
from mltune.device.facts import NO_CUDA, Device
from mltune.files.text import html_table, many
from mltune.kernel.coding import Columns, Floats
from mltune.problem.problem import Problem

SLOWEST = -3.0
"""Log of the relative speed of the slowest configurations that are distinguished; failures have it too."""

MOST_ROWS = 4000
"""Most configurations of a sweep that a regressor is fitted to, besides its fastest."""

FASTEST = 300
"""Fastest configurations of a sweep that are always among the fitted ones."""

FAR = 30.0
"""Ratio of the operations of two problems from which they are far from each other."""

FEWEST_FITTED = 250
"""Fewest configurations of a sweep that a regressor is fitted to beside larger ones."""

EMPHASIS = 2.0
"""Power of the relative speed that is a configuration's weight: the fast ones matter."""


REMEMBERED = 3
"""Fastest configurations of a sweep that a model remembers."""

DIFFERENT = 3
"""Fewest parameters in which the remembered configurations differ from each other."""

FIRST = 4
"""Most remembered configurations of the closest sweeps that a search measures first."""

ELSEWHERE = 1
"""Most of them from another device: more would displace those of the sources, and were no faster."""

LARGEST_RATIO = 1e6
"""Largest ratio of a measured time and that of physics, either way; a larger one is a mistake."""

IMPORTANCE_ROWS = 1000
"""Most configurations of a sweep from which the importance of parameters is estimated."""


@dataclass(frozen=True, slots=True, eq=False)
class Sweep:
    """Measured configurations of one problem on one device; ``median_s``, of shape (n_configs,), is NaN for failures.

    The sweeps of a ``group`` are left out together when a model is judged: an architecture
    (:attr:`mltune.device.facts.Device.architecture`), or one sweep. ``flops`` are the problem's operations, 0 where
    unknown.
    """

    name: str
    group: str
    architecture: str
    case: str
    cost_class: str
    flops: float
    columns: Columns
    median_s: Floats
    device: str = ""

    @classmethod
    def of(cls, name: str, group: str, problem: Problem, device: Device, columns: Columns, median_s: Floats) -> Self:
        """Return a sweep of a problem on a device."""
        facts = device.architecture, problem.cost_case, problem.cost_class, float(problem.flops)
        return cls(name, group, *facts, columns, median_s, device.name)

    def relative(self) -> Floats:
        """Return the logs of the speeds, relative to the fastest."""
        logs = np.log(np.nanmin(self.median_s) / self.median_s)
        relative: Floats = np.maximum(np.nan_to_num(logs, nan=SLOWEST), SLOWEST)
        return relative


@dataclass(frozen=True, slots=True, eq=False)
class Member:
    """The regressor of one sweep, none for a small one, and its fastest configurations, different from each other.

    ``over_physics`` is the measured over the expected (by physics) time of the sweep's first choice, by what chose it:
    ``"model"``, trained on other groups alone, or ``"physics"``.
    """

    sweep: str
    architecture: str
    case: str
    cost_class: str
    flops: float
    regressor: Any
    fastest: tuple[Mapping[str, int], ...] = ()
    over_physics: Mapping[str, float] = field(default_factory=dict)
    device: str = ""

    @property
    def has_regressor(self) -> bool:
        """Whether the member predicts."""
        return self.regressor is not None


@dataclass(frozen=True, slots=True, eq=False)
class PretrainedModel:
    """Regressors of several sweeps of one kernel.

    Attributes
    ----------
    parameters : tuple of str
        The features of the regressors: log2(1 + value) of each.
    same_problem : bool
        Whether all that it predicts from was measured of the problem that it was chosen for.
    first, elsewhere : tuple of mapping of str to int
        Configurations to measure first, for the problem and the device that it was chosen for: those that were fast on
        such a device, and on others of its architecture.
    facts : mapping
        Further content of the card: datasets, versions, scores.
    digest : str
        Identifies its file, where it was loaded from one.
    """

    kernel: str
    parameters: tuple[str, ...]
    members: tuple[Member, ...]
    first: tuple[Mapping[str, int], ...] = ()
    elsewhere: tuple[Mapping[str, int], ...] = ()
    same_problem: bool = False
    facts: Mapping[str, Any] = field(default_factory=dict)
    digest: str = ""

    def __repr__(self) -> str:
        return f"PretrainedModel({self.kernel}, of {many(len(self.members), 'sweep')})"

    def _repr_html_(self) -> str:
        return html_table(
            {"kernel": self.kernel, "learned from": many(len(self.members), "sweep"), "hash": self.digest}
        )

    def closest(self, problem: Problem, device: Device) -> PretrainedModel | None:
        """Return the model of the sweeps that are closest to a problem and a device.

        The sweeps are narrowed down step by step, each step only if it leaves some: the problem's class; a similar
        number of operations (:data:`FAR`), where none is known the same case; the device's architecture. Where none is
        similar, those of fewer operations count. The fastest configurations of sweeps on that architecture and of a
        similar number of operations are its ``first`` and ``elsewhere``, those of the problem's case before others.

        The result is None where all were of larger problems: what is fast for them is slow for one that cannot fill
        the GPU with such tiles (products of a thousandth of the operations: rank correlation -.2, of physics .8).
        Sweeps with CUDA say nothing of a device without it, nor the reverse. (Orders of a convolution on AMD's GPUs
        reach .6 to .7 of the optimum of NVIDIA's with the first choice, physics alone .9.)
        """
        fitted = _closest([member for member in self.members if member.has_regressor], problem, device)
        near = _closest(self.members, problem, device)
        near = [member for member in near if member.flops == problem.flops or are_near(member.flops, problem.flops)]
        near = [member for member in near if member.architecture == device.architecture]
        near.sort(key=lambda member: (member.case != problem.cost_case, distance(member.flops, problem.flops)))
        first = _in_turn([member.fastest for member in near if member.device == device.name])
        of_other_devices = _in_turn([member.fastest for member in near if member.device != device.name])
        elsewhere = tuple(configuration for configuration in of_other_devices if configuration not in first)[
            : min(ELSEWHERE, FIRST - len(first))
        ]
        members = (*fitted, *(member for member in near if not member.has_regressor))
        same = all((member.case, member.flops) == (problem.cost_case, problem.flops) for member in fitted)
        return replace(self, members=members, first=first, elsewhere=elsewhere, same_problem=same) if fitted else None

    def predict(self, columns: Columns) -> Floats:
        """Return the expected logs of speeds relative to the fastest: ndarray of shape (n_configs,)."""
        X = features(columns, self.parameters)
        mean: Floats = np.mean([member.regressor.predict(X) for member in self.members if member.has_regressor], axis=0)
        return mean

    @property
    def source(self) -> Source:
        """The model as a source of knowledge for a search."""
        least, decides = SLOWEST, self.same_problem
        return Source(lambda columns: np.minimum(self.predict(columns), 0.0), least, smooth=False, decides=decides)


def _closest(members: Sequence[Member], problem: Problem, device: Device) -> list[Member]:
    candidates = [member for member in members if is_comparable(member.architecture, device)]
    candidates = [member for member in candidates if member.cost_class == problem.cost_class] or candidates
    near = [
        member
        for member in candidates
        if are_near(member.flops, problem.flops) or (member.flops == 0 and member.case == problem.cost_case)
    ]
    candidates = near or [member for member in candidates if member.flops <= problem.flops]
    return [member for member in candidates if member.architecture == device.architecture] or candidates


def are_near(flops: float, other_flops: float) -> bool:
    """Return whether two numbers of operations are known and similar."""
    return 0.0 < flops <= FAR * other_flops and other_flops <= FAR * flops


def distance(flops: float, other_flops: float) -> float:
    """Return the absolute log of the ratio of two numbers of operations."""
    return abs(math.log(max(flops, 1.0) / max(other_flops, 1.0)))


def _in_turn(lists: Sequence[Sequence[Mapping[str, int]]]) -> tuple[Mapping[str, int], ...]:
    """Return the first of each list, then the second of each, distinct, at most :data:`FIRST`."""
    configurations: list[Mapping[str, int]] = []
    for configuration in chain.from_iterable(zip_longest(*lists)):
        if configuration is not None and configuration not in configurations:
            configurations.append(configuration)
    return tuple(configurations[:FIRST])


def fastest_of(sweep: Sweep) -> tuple[dict[str, int], ...]:
    """Return the fastest configurations of a sweep that differ in :data:`DIFFERENT` parameters, the fastest first."""
    names = list(sweep.columns)
    table = np.column_stack([sweep.columns[name] for name in names])
    chosen: list[int] = []
    for row in np.argsort(sweep.median_s, kind="stable")[:FASTEST]:
        if len(chosen) == REMEMBERED or not np.isfinite(sweep.median_s[row]):
            break
        if all((table[row] != table[other]).sum() >= min(DIFFERENT, len(names)) for other in chosen):
            chosen.append(int(row))
    return tuple(dict(zip(names, table[row].tolist(), strict=True)) for row in chosen)


def is_comparable(architecture: str, device: Device) -> bool:
    """Return whether an architecture and a device both have CUDA, or neither has."""
    return (architecture == NO_CUDA) == (device.architecture == NO_CUDA)


def features(columns: Columns, parameters: Sequence[str]) -> Floats:
    """Return the features of configurations: ndarray of shape (n_configs, n_parameters)."""
    return np.column_stack([signed_log2(columns[name]) for name in parameters])


def fit_members(sweeps: Sequence[Sweep], parameters: Sequence[str], *, seed: int = 0) -> tuple[Member, ...]:
    """Return the members of sweeps, without regressors of short searches (:data:`FEWEST_FITTED`) beside larger ones."""
    large = [len(sweep.median_s) >= FEWEST_FITTED for sweep in sweeps]
    return tuple(
        fit_member(sweep, parameters, seed=seed) if fits or not any(large) else member_of(sweep, None)
        for sweep, fits in zip(sweeps, large, strict=True)
    )


def fit_member(sweep: Sweep, parameters: Sequence[str], *, seed: int = 0) -> Member:
    """Fit the regressor of a sweep."""
    from sklearn.ensemble import HistGradientBoostingRegressor

    target = sweep.relative()
    rng = np.random.default_rng(seed)
    drawn = rng.permutation(len(target))[:MOST_ROWS]
    rows = np.union1d(drawn, np.argsort(-target, kind="stable")[:FASTEST])
    regressor = HistGradientBoostingRegressor(
        max_iter=60, learning_rate=0.2, max_leaf_nodes=31, early_stopping=False, random_state=seed
    )
    regressor.fit(
        features(sweep.columns, parameters)[rows], target[rows], sample_weight=np.exp(EMPHASIS * target[rows])
    )
    return member_of(sweep, regressor)


def member_of(sweep: Sweep, regressor: Any) -> Member:
    """Return the member of a sweep with a regressor, or None."""
    fastest = fastest_of(sweep)
    facts = sweep.name, sweep.architecture, sweep.case, sweep.cost_class, sweep.flops
    return Member(*facts, regressor, fastest, device=sweep.device)


def importance(model: PretrainedModel, sweeps: Sequence[Sweep], *, seed: int = 0) -> dict[str, float]:
    """Return each parameter's share in the fall of R2 when it is permuted, over all members."""
    from sklearn.inspection import permutation_importance

    total = np.zeros(len(model.parameters))
    for member, sweep in zip(model.members, sweeps, strict=True):
        if not member.has_regressor:
            continue
        measured = sweep.relative()
        rows = np.random.default_rng(seed).permutation(len(measured))[:IMPORTANCE_ROWS]
        X = features(sweep.columns, model.parameters)[rows]
        permuted = permutation_importance(member.regressor, X, measured[rows], n_repeats=3, random_state=seed)
        total += np.maximum(permuted.importances_mean, 0.0)
    total /= max(float(total.sum()), 1e-12)
    order = np.argsort(-total, kind="stable")
    return {model.parameters[at]: round(float(total[at]), 4) for at in order}
