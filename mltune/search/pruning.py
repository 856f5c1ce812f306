"""Pruning: measure configurations that may be fast, leave out those that are surely slow, and audit the decision.

Decisions follow from the seed and the speeds alone, so that an interrupted sweep goes on with the same ones.
docs/explanation/pruning.md has the rules and the limits of their promise.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass

import numpy as np
from numpy.typing import NDArray

from mltune.cost.gaussian_process import Hyperparameters
from mltune.cost.regressors import Ensemble, compress
from mltune.errors import UsageError
from mltune.kernel.coding import Floats, Indices
from mltune.search.history import milestone
from mltune.search.strata import FALSE_SHARE, Stratum, audit_size, combinations_of

FIRST = 128
"""Configurations of the first round, drawn at random."""

SAMPLE = 320
"""Configurations of the random sample: those of the first round, and some beside each of the next."""

ROUND = 48
"""Configurations that a round chooses."""

BESIDE = 24
"""Configurations of the random sample beside those of a round: the compilers build them meanwhile."""

LEADING = 32
"""Configurations that a pretrained model adds to the first round."""

NEAR = 0.15
"""Largest share by which a configuration near the fastest is slower; such a one leads the model to its group."""

MOST_AUDITED = 0.1
"""Largest share of the space in the random sample and the audit of the strata together."""

HIDDEN = 20
"""Configurations of a hidden group that the confidence speaks of, or fewer where the group that was found has fewer."""

FASTEST = 8
"""Fastest configurations whose partners, which differ in one or two switches, the audit measures."""

STRANGE = 0.1
"""Share of the configurations, those that the model knows least of, that are a stratum too."""

FAST_SHARE = 3
"""Residuals come from the fastest third of the measured configurations."""

FEWEST = 100
"""Fewest configurations whose residuals calibrate the tail."""

TAIL = 0.1
"""Share of the residuals from which the tail beyond them is extrapolated."""

RECENT = 3
"""Last rounds whose errors are residuals too, and whose expected numbers of fast ones are compared with the actual."""

DOUBT = 0.5
"""Fast configurations that are added to both sides of that comparison."""

LEAST_CALIBRATION = 0.5
"""Least factor by which that comparison corrects what is expected: few rounds prove no more."""


@dataclass(frozen=True, slots=True)
class Promise:
    """The promise of a pruned sweep: nothing within a share of the best is unmeasured, with some confidence.

    A configuration counts as fast if it is slower than the fastest by at most the share ``within``. The sweep ends once
    the model expects fewer fast ones among the rest than ``1 - confidence``.
    """

    within: float = 0.01
    confidence: float = 0.95

    def __post_init__(self) -> None:
        if not 0.0 <= self.within <= 0.5:
            raise UsageError(f"within cannot be {self.within:.6g}: it is from 0 % to 50 % of the best.")
        if not 0.5 <= self.confidence < 1.0:
            raise UsageError(f"confidence cannot be {self.confidence:.6g}: it is from 50 % to below 100 %.")

    def goal(self, best: float) -> float:
        """Return the least log speed that counts as fast, given the fastest log speed."""
        return best - math.log1p(self.within)


@dataclass(frozen=True, slots=True)
class Round:
    """Configurations to be measured: the next round is planned from the speeds of ``chosen``.

    The one after the next is planned from those ``beside``, of the random sample: the compilers build them meanwhile.
    """

    number: int
    chosen: Indices
    beside: Indices
    proposed_by: str


@dataclass(frozen=True, slots=True)
class PruningAudit:
    """The promise of a pruned sweep, and the outcome of its audit."""

    valid: int
    measured: int
    within: float
    """See :class:`Promise`."""
    confidence: float
    """The requested confidence, or, if less, that of the weakest stratum's audit to meet a hidden ``group``."""
    expected_missed: float
    """Fast configurations that the model expects among those not measured; as good as its calibration."""
    audited: int
    """Configurations of the random sample that the rule leaves out, judged by a model that did not see them."""
    false: int
    """Audited configurations that are fast: false skips."""
    false_share_at_most: float
    """Upper bound, at 95 % confidence, of the fast share of all left out (Clopper and Pearson, 1934)."""
    group: int
    """Size of a group unknown to the model: see :data:`HIDDEN`."""
    surely_met: int
    """Least size of a group that the audit of every stratum meets with 95 % confidence."""
    weakest_left_out: int
    weakest_audited: int
    weakest_share_at_most: float


@dataclass(eq=False)
class Pruner:
    """Choose the configurations of a pruned sweep, round by round.

    ``X`` has the features of the whole space (:meth:`mltune.cost.features.Features.before`), of which the first
    ``parameters`` are parameters. ``expected`` are log speeds by a pretrained model: one more feature, whose fastest
    are measured first.
    """

    X: Floats
    _: KW_ONLY
    seed: int
    promise: Promise = Promise()
    expected: Floats | None = None
    parameters: int | None = None

    def __post_init__(self) -> None:
        X, values = self.X, self.X[:, : self.parameters]
        self._X = X if self.expected is None else np.column_stack([X, self.expected])
        self._order = np.random.default_rng(self.seed).permutation(len(X))
        two_valued = np.array([len(np.unique(column)) == 2 for column in values.T])
        self._sizes = values[:, ~two_valued]
        switches = values[:, two_valued]
        self._switches = switches == switches.max(axis=0, initial=-np.inf)
        self._strata = combinations_of(self._switches)
        self._drawn = 0  # the random sample is the beginning of the order
        self._random = 0  # configurations of the sample and of the audit
        self._speed = np.full(len(X), np.nan)
        self._told = np.zeros(len(X), dtype=bool)
        self._asked = np.zeros(len(X), dtype=bool)
        self._open = np.zeros(len(X), dtype=bool)  # the next round is planned from these
        self._beside = np.empty(0, dtype=np.int64)
        self._rounds = 0
        self._result: PruningAudit | None = None
        self._errors: list[Floats] = []
        self._bets: list[tuple[Indices, float]] = []  # of each round: the configurations chosen, and how many were fast
        self._predicted: tuple[Indices, Floats, Floats] | None = None
        self._hyperparameters: tuple[int, Hyperparameters | None] = (0, None)

    @property
    def measured(self) -> NDArray[np.bool_]:
        """The configurations whose results are known: ndarray of shape (n_configs,)."""
        return self._told.copy()

    @property
    def ready(self) -> bool:
        """Whether all results that the next round is planned from are reported."""
        return bool(self._told[self._open].all())

    def tell(self, speeds: Mapping[int, float]) -> None:
        """Report log speeds by index of the configuration; NaN for one that failed."""
        for index, speed in speeds.items():
            self._speed[index], self._told[index] = speed, True

    def ask(self) -> Round | None:
        """Return the next round, once the sweep is :attr:`ready`; None when it is at its end."""
        if self._result is not None:
            return None
        if not self._rounds:
            return self._first()
        if not self.ready:
            raise RuntimeError("the next round is planned from the results of those before it")
        if self._asked.all():
            nothing = Stratum(0, 0, 0, self._order[:0])
            return self._end(0.0, nothing, 0, [nothing])
        if not np.isfinite(self._speed[self._open]).any():
            return self._round(self._draw(FIRST), 0, "random")
        chances = self._chances()
        expected = self._calibration() * float(chances.left.sum())
        if expected > 1.0 - self.promise.confidence:
            fastest = np.argsort(-chances.left, kind="stable")[:ROUND]
            self._bets.append((chances.indices[fastest], float(chances.left[fastest].sum())))
            return self._round(chances.indices[fastest], min(BESIDE, SAMPLE - self._drawn), "model")
        return self._close(chances, expected)

    def audit(self) -> PruningAudit:
        """Return the promise of a sweep that has ended, and the outcome of its audit."""
        if self._result is None:
            raise RuntimeError("a pruned sweep is audited at its end")
        return self._result

    def _first(self) -> Round:
        chosen = self._draw(FIRST)
        if self.expected is not None:
            liked = np.argsort(-self.expected, kind="stable")[:LEADING]
            chosen = np.concatenate([liked, chosen[~np.isin(chosen, liked)]])
        return self._round(chosen, BESIDE, "random")

    def _draw(self, count: int) -> Indices:
        """Extend the random sample; return its new configurations that were not requested before."""
        drawn = self._order[self._drawn : self._drawn + max(count, 0)]
        self._drawn += len(drawn)
        return drawn[~self._asked[drawn]]

    def _round(self, chosen: Indices, beside: int, proposed_by: str) -> Round:
        """Return a round of chosen configurations, with some of the random sample beside them."""
        self._open[self._beside] = True
        self._open[chosen] = self._asked[chosen] = True
        self._beside = self._draw(beside)
        self._asked[self._beside] = True
        self._random += len(self._beside) + (0 if proposed_by == "model" else len(chosen))
        self._rounds += 1
        return Round(self._rounds - 1, chosen, self._beside, proposed_by)

    def _close(self, chances: _Chances, expected: float) -> Round | None:
        """Judge the audit; return a round that extends it, or None when it is sufficient or at its limit."""
        if not self._open[self._beside].all():
            return self._round(np.empty(0, dtype=np.int64), 0, "random")
        everything = self._stratum(np.ones(len(self._open), dtype=bool), chances)
        if len(partners := self._partners()):
            return self._round(partners, 0, "model")
        if everything.share_at_most >= FALSE_SHARE and len(everything.next):
            missing = audit_size(everything.left_out, everything.false) - everything.audited
            return self._round(everything.next[:missing], 0, "audit")
        group = max(int((mask & chances.near).sum()) for mask in self._strata)
        strange = chances.spread >= np.quantile(chances.spread[chances.indices], 1.0 - STRANGE)
        strata = [self._stratum(mask, chances) for mask in (*self._strata, strange)]
        room = max(int(MOST_AUDITED * len(self._open)) - self._random, 0)

        def rows_at(confidence: float) -> Indices:
            return np.unique(np.concatenate([stratum.next[: stratum.needed(group, confidence)] for stratum in strata]))

        levels = np.append(np.arange(self.promise.confidence, 0.0, -0.01), 0.0)
        chosen = rows_at(levels[bisect_left(levels, True, key=lambda level: len(rows_at(level)) <= room)])
        if len(chosen):
            return self._round(chosen, 0, "audit")
        return self._end(expected, everything, min(group, HIDDEN), strata)

    def _partners(self) -> Indices:
        """Return the unmeasured configurations that differ from one of the fastest in one or two switches alone."""
        fastest = np.argsort(-np.nan_to_num(self._speed, nan=-np.inf), kind="stable")[:FASTEST]
        unasked = np.flatnonzero(~self._asked)
        near = [
            (self._sizes[unasked] == self._sizes[row]).all(axis=1)
            & ((self._switches[unasked] != self._switches[row]).sum(axis=1) <= 2)
            for row in fastest[np.isfinite(self._speed[fastest])]
        ]
        return unasked[np.logical_or.reduce(near)]

    def _stratum(self, mask: NDArray[np.bool_], chances: _Chances) -> Stratum:
        """Return the part of the space that the rule leaves out under a mask, with its audit."""
        order = self._order[mask[self._order]]
        following = order[~self._asked[order]]
        sample = order[: int(np.argmin(self._asked[order])) if len(following) else None]
        audited = sample[chances.unseen[sample] <= chances.left.max(initial=-1.0)]
        false = int((self._speed[audited] >= self._goal()).sum())
        return Stratum(len(following) + len(audited), len(audited), false, following)

    def _end(self, expected: float, everything: Stratum, group: int, strata: Sequence[Stratum]) -> Round | None:
        """End the sweep, or wait in an empty round for results that are missing."""
        if not self._open[self._asked].all():
            return self._round(np.empty(0, dtype=np.int64), 0, "random")
        weakest = min(strata, key=lambda stratum: (stratum.sees(group), -stratum.share_at_most))
        self._result = PruningAudit(
            valid=len(self._open),
            measured=int(self._open.sum()),
            within=self.promise.within,
            confidence=min(self.promise.confidence, weakest.sees(group)),
            expected_missed=expected,
            audited=everything.audited,
            false=everything.false,
            false_share_at_most=everything.share_at_most,
            group=min(group, weakest.left_out),
            surely_met=max(stratum.surely_met for stratum in strata),
            weakest_left_out=weakest.left_out,
            weakest_audited=weakest.audited,
            weakest_share_at_most=weakest.share_at_most,
        )
        return None

    def _goal(self) -> float:
        """Return the least log speed that counts as fast, by the fastest so far."""
        return self.promise.goal(float(np.nanmax(self._speed[self._open])))

    def _calibration(self) -> float:
        """Return the number of fast configurations measured in the last rounds, relative to the number expected.

        The probabilities were computed before the measurements (Dawid, 1984, "The prequential approach").
        """
        goal, recent = self._goal(), self._bets[-RECENT:]
        hits = sum(int((self._speed[chosen] >= goal).sum()) for chosen, _ in recent)
        return max(LEAST_CALIBRATION, (DOUBT + hits) / (DOUBT + sum(expected for _, expected in recent)))

    def _chances(self) -> _Chances:
        """Return the probability of every configuration to be fast, by a model that was not fitted to it."""
        seen, unasked = np.flatnonzero(self._open), np.flatnonzero(~self._asked)
        speed = self._speed[seen]
        slowest = np.nanmin(speed)
        first = self._speed[self._order[:FIRST]]
        knee = float(np.nanmedian(first)) if np.isfinite(first).any() else float(slowest)
        target = compress(np.where(np.isfinite(speed), speed, slowest), knee)
        goal = float(compress(np.array(self._goal()), knee))
        model = self._fitted(seen, target)
        unseen, spread = model.unseen()
        error = target - unseen
        judged = np.isfinite(error) & np.isfinite(spread)
        offset = max(float(np.median(np.abs(error[judged]))) / 2, 1e-6)
        self._note_errors(dict(zip(seen.tolist(), target.tolist(), strict=True)))
        rank = np.argsort(-np.maximum(target, np.where(judged, unseen, -np.inf)), kind="stable")
        fast = rank[: max(FEWEST, len(seen) // FAST_SHARE)]
        fast = fast[judged[fast]]
        residuals = np.concatenate([error[fast] / (spread[fast] + offset), *self._errors[-RECENT:]])
        mean, wide = model.predict(self._X[unasked])
        self._predicted = unasked, mean, wide + offset
        chances, spreads, expected = np.ones(len(self._open)), *np.full((2, len(self._open)), np.nan)
        chances[seen[judged]] = upper_tail(((goal - unseen) / (spread + offset))[judged], residuals)
        spreads[seen], spreads[unasked], expected[seen], expected[unasked] = spread, wide, target, mean
        near = expected >= compress(np.array(np.nanmax(speed) - math.log1p(NEAR)), knee)
        return _Chances(unasked, upper_tail((goal - mean) / (wide + offset), residuals), chances, spreads, near)

    def _note_errors(self, targets: Mapping[int, float]) -> None:
        """Record the errors of the last predictions for the configurations measured since."""
        if self._predicted is not None:
            indices, mean, width = self._predicted
            new = self._open[indices]
            measured = np.array([targets[index] for index in indices[new].tolist()])
            self._errors.append((measured - mean[new]) / width[new])

    def _fitted(self, seen: Indices, target: Floats) -> Ensemble:
        """Return the model of a round; hyperparameters are estimated anew when the rows have grown by a quarter."""
        at, hyperparameters = self._hyperparameters
        due = milestone(len(seen))
        model = Ensemble(random_state=self.seed, hyperparameters=hyperparameters if at == due else None)
        model.fit(self._X[seen], target)
        self._hyperparameters = due, model.hyperparameters
        return model


@dataclass(frozen=True, slots=True)
class _Chances:
    """Probabilities to be fast: ``left`` of the unrequested ``indices``, ``unseen`` of measured ones, held out.

    ``unseen`` (1 for the others), ``spread`` of the predictions and ``near`` (:data:`NEAR`) have the shape
    (n_configs,).
    """

    indices: Indices
    left: Floats
    unseen: Floats
    spread: Floats
    near: NDArray[np.bool_]


def upper_tail(z: Floats, residuals: Floats) -> Floats:
    """Return the probability that a residual is at least ``z``: ndarray of shape (n_configs,).

    Up to the upper tenth of the residuals it is their empirical one; beyond, an exponential tail with the mean excess
    of that tenth (peaks over a threshold; Pickands, 1975, with shape 0).
    """
    ordered = np.sort(residuals)
    threshold = float(np.quantile(ordered, 1.0 - TAIL))
    excess = ordered[ordered > threshold] - threshold
    mean = max(float(excess.mean()) if len(excess) else 0.0, 1e-6)
    empirical = 1.0 - np.searchsorted(ordered, z, side="left") / (len(ordered) + 1)
    return np.where(z <= threshold, empirical, TAIL * np.exp(-np.maximum(z - threshold, 0.0) / mean))
