"""The times of candidates at sizes, the choice of a portfolio and a dispatcher from them, and what that loses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mltune.library.dispatcher import LEARNERS, Dispatcher, learn
from mltune.library.portfolio import choose_portfolio, geometric_mean, shares


@dataclass(frozen=True, slots=True)
class Measured:
    """Times of candidates at sizes.

    Attributes
    ----------
    sizes : ndarray of shape (n_sizes, n_extents)
    times_s : ndarray of shape (n_sizes, n_candidates)
        Not finite where a candidate is not valid, failed or was not timed.
    weights : ndarray of shape (n_sizes,)
    is_fallback : ndarray of shape (n_candidates,)
        Whether a candidate is valid at every size.
    found_at : tuple of frozenset of int
        For each candidate the sizes whose tuning found it.
    blocks : ndarray of shape (n_sizes, n_candidates)
        Of the launches of candidates; NaN where one is not valid. One that is, but has no time, counts as speed 0.
    processors : int
        Multiprocessors of the GPU.
    """

    sizes: NDArray[np.int64]
    times_s: NDArray[np.float64]
    weights: NDArray[np.float64]
    is_fallback: NDArray[np.bool_]
    found_at: tuple[frozenset[int], ...]
    blocks: NDArray[np.float64]
    processors: int

    def learn(self, learner: str, chosen: Sequence[int]) -> Dispatcher:
        """Return a dispatcher to some of the candidates."""
        times_s, blocks = self.times_s[:, chosen], self.blocks[:, chosen]
        return learn(learner, self.sizes, times_s, self.weights, blocks, self.processors)

    def without(self, size: int) -> tuple[Measured, NDArray[np.intp]]:
        """Return what is known without a size and what its tuning alone found, and the candidates that are left."""
        rows = np.arange(len(self.sizes)) != size
        left = np.array([number for number, at in enumerate(self.found_at) if at != {size}], dtype=np.intp)
        return Measured(
            self.sizes[rows],
            self.times_s[np.ix_(rows, left)],
            self.weights[rows],
            self.is_fallback[left],
            tuple(self.found_at[number] for number in left),
            self.blocks[np.ix_(rows, left)],
            self.processors,
        ), left


@dataclass(frozen=True, slots=True)
class Chosen:
    """A portfolio, its dispatcher, and what the choice loses.

    ``chosen`` are candidates by number; those of the dispatcher are places in it. ``held_out`` are, for each learner,
    the shares of the best at each size that portfolio and dispatcher reach which were made without it.
    """

    chosen: tuple[int, ...]
    dispatcher: Dispatcher
    held_out: dict[str, list[float]]

    def picked(self, measured: Measured) -> list[int]:
        """Return the place in the portfolio of the configuration that is dispatched to, at each size."""
        blocks = measured.blocks[:, self.chosen]
        return [_pick(self.dispatcher, size, blocks[row]) for row, size in enumerate(measured.sizes)]

    def used(self, measured: Measured) -> list[float]:
        """Return the share of the best that it has, at each size."""
        speed = shares(measured.times_s)[:, self.chosen]
        return [float(speed[row, place]) for row, place in enumerate(self.picked(measured))]

    def report(self, measured: Measured) -> dict[str, Any]:
        """Return what is lost, and where each configuration wins, as plain JSON values."""
        picked, used = self.picked(measured), self.used(measured)
        kept = shares(measured.times_s)[:, self.chosen].max(axis=1)
        return {
            "portfolio": _summary(kept, measured.weights),
            "dispatched": _summary(used, measured.weights),
            "held_out": {name: _summary(found, measured.weights) for name, found in self.held_out.items()},
            "sizes": [
                {
                    "size": size.tolist(),
                    "weight": float(weight),
                    "configuration": pick,
                    "share": float(share),
                    "best_s": float(np.nanmin(times)),
                }
                for size, weight, pick, share, times in zip(
                    measured.sizes, measured.weights, picked, used, measured.times_s, strict=True
                )
            ],
        }


def _summary(found: Any, weights: NDArray[np.float64]) -> dict[str, float]:
    return {"mean": geometric_mean(found, weights), "least": float(np.min(found))}


def _mean(found: Sequence[float], measured: Measured) -> float:
    return geometric_mean(found, measured.weights) if found else 0.0


def _pick(dispatcher: Dispatcher, size: NDArray[np.int64], blocks: NDArray[np.float64]) -> int:
    """Return the first configuration of a dispatcher's order that is valid."""
    order = dispatcher.order(size.tolist(), blocks)
    return next((number for number in order if np.isfinite(blocks[number])), order[0])


def choose(measured: Measured, *, most: int, floor: float) -> Chosen:
    """Choose a portfolio and the dispatcher that is best at sizes which it has not seen, or of equal ones at all.

    Every size with a time is left out once, with what its tuning alone found; where only one is known, nothing is held
    out, and the dispatcher has one answer.
    """
    speed = shares(measured.times_s)
    held_out: dict[str, list[float]] = {name: [] for name in LEARNERS}
    for size in range(len(measured.sizes)) if len(measured.sizes) > 1 else ():
        rest, left = measured.without(size)
        rest_speed = shares(rest.times_s)
        chosen = choose_portfolio(rest_speed, rest.weights, rest.is_fallback, most=most, floor=floor)
        for name, found in held_out.items():
            pick = _pick(rest.learn(name, chosen), measured.sizes[size], measured.blocks[size, left[chosen]])
            found.append(float(speed[size, left[chosen]][pick]))
    chosen = choose_portfolio(speed, measured.weights, measured.is_fallback, most=most, floor=floor)
    made = [Chosen(tuple(chosen), measured.learn(name, chosen), held_out) for name in LEARNERS]
    return max(
        made, key=lambda one: (_mean(held_out[one.dispatcher.learner], measured), _mean(one.used(measured), measured))
    )
