"""The times of candidates at sizes, the choice of a portfolio and a dispatcher from them, and what that loses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mltune.library.dispatcher import Dispatcher, expected, learn
from mltune.library.portfolio import choose_portfolio, geometric_mean, shares

_PARTS = 8
_OF_EXPECTED = 0.3  # the weight of a size at which times are expected, relative to that of one with measured times

Around = Callable[[Sequence[int]], tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.float64]]]
"""Further sizes (n, n_extents), the expected times there of some candidates, and their tiles."""

ALIGNED = 8
"""Elements: half-precision lines that begin at multiples of 16 bytes."""


@dataclass(frozen=True, slots=True)
class Measured:
    """Times of candidates at sizes, (n_sizes, n_candidates): not finite where invalid, failed or not timed.

    `sizes` are (n_sizes, n_extents), `weights` and `crossed`, whether all candidates were timed there, (n_sizes,),
    `is_fallback`, whether a candidate is valid at every size, (n_candidates,). `found_at` has for each candidate the
    sizes whose tuning found it. `tiles` are (n_sizes, n_candidates, 2) as in :func:`mltune.library.content.tiles_at`,
    NaN where one is not valid; one that is, but has no time, counts as speed 0. `seen_s` are all times before some were
    chosen, from which follows what is expected elsewhere.
    """

    sizes: NDArray[np.int64]
    times_s: NDArray[np.float64]
    weights: NDArray[np.float64]
    is_fallback: NDArray[np.bool_]
    found_at: tuple[frozenset[int], ...]
    tiles: NDArray[np.float64]
    processors: int
    crossed: NDArray[np.bool_]
    seen_s: NDArray[np.float64]

    @property
    def timed(self) -> NDArray[np.intp]:
        """The sizes at which there are times."""
        return np.flatnonzero(np.isfinite(self.times_s).any(axis=1))

    def whole(self, chosen: Sequence[int]) -> NDArray[np.intp]:
        """Return the sizes at which each of the chosen candidates that is valid has a time."""
        lacking = np.isfinite(self.tiles[..., 0]) & ~np.isfinite(self.times_s)
        return np.setdiff1d(self.timed, np.flatnonzero(lacking[:, [*chosen]].any(axis=1)))

    def speed(self) -> NDArray[np.float64]:
        """Return the shares that candidates are chosen by: as timed where all were, elsewhere as expected."""
        times_s, elsewhere = self.seen_s.copy(), ~self.crossed
        lacking = elsewhere & (np.isfinite(self.tiles[..., 0]) & ~np.isfinite(times_s)).T
        numbers = np.flatnonzero(lacking.any(axis=1))
        seen, at = (self.sizes, times_s[:, numbers], self.tiles[:, numbers]), np.ix_(elsewhere, numbers)
        elsewhere_s = expected(seen, self.sizes[elsewhere], self.tiles[at], self.processors)
        times_s[at] = np.where(np.isfinite(times_s[at]), times_s[at], elsewhere_s)
        return shares(times_s)

    def portfolio(self, *, most: int | None, floor: float) -> list[int]:
        """Return the candidates that a library holds."""
        return choose_portfolio(self.speed(), self.weights, self.is_fallback, most=most, floor=floor)

    def learn(self, chosen: Sequence[int], around: Around | None = None) -> Dispatcher:
        """Return a dispatcher to some of the candidates, which also learns what is expected of them at other sizes."""
        at = self.timed
        sizes, times_s, tiles = self.sizes[at], self.times_s[at][:, chosen], self.tiles[at][:, chosen]
        weights = self.weights[at]
        if around is not None:
            further, expected_s, of_further = around(chosen)
            sizes, times_s = np.concatenate([sizes, further]), np.concatenate([times_s, expected_s])
            weights = np.concatenate([weights, np.full(len(further), _OF_EXPECTED * weights.mean())])
            tiles = np.concatenate([tiles, of_further])
        return learn(sizes, times_s, weights, tiles, self.processors)

    def without(self, sizes: NDArray[np.intp]) -> tuple[Measured, NDArray[np.intp]]:
        """Return what is known without sizes and what their tuning alone found, and the candidates left."""
        rows = np.setdiff1d(np.arange(len(self.sizes)), sizes)
        remaining = np.array(
            [number for number, at in enumerate(self.found_at) if at - {*sizes.tolist()}], dtype=np.intp
        )
        kept: dict[str, Any] = {name: getattr(self, name)[rows] for name in ("sizes", "weights", "crossed")}
        kept |= {name: getattr(self, name)[np.ix_(rows, remaining)] for name in ("times_s", "tiles", "seen_s")}
        found_at = tuple(self.found_at[number] for number in remaining)
        return replace(self, is_fallback=self.is_fallback[remaining], found_at=found_at, **kept), remaining


@dataclass(frozen=True, slots=True)
class Chosen:
    """A portfolio, its dispatcher, and what the choice loses.

    `chosen` are candidates by number; those of the dispatcher are places in it. `held_out` are the shares of the best
    at each size that portfolio and dispatcher reach which were made without it.
    """

    chosen: tuple[int, ...]
    dispatcher: Dispatcher
    held_out: list[float]
    held_out_weights: NDArray[np.float64]

    def picked(self, measured: Measured) -> list[int]:
        """Return the place in the portfolio of the configuration that is dispatched to, at each size that was timed."""
        tiles = measured.tiles[:, self.chosen]
        return [_pick(self.dispatcher, measured.sizes[row], tiles[row]) for row in measured.timed]

    def used(self, measured: Measured) -> list[float]:
        """Return the speed of what is dispatched as a share of the best, at each size that was timed."""
        speed = shares(measured.times_s)[:, self.chosen]
        return [float(speed[row, place]) for row, place in zip(measured.timed, self.picked(measured), strict=True)]

    def against(self, measured: Measured, opponent_s: NDArray[np.float64]) -> dict[str, Any]:
        """Return the speeds of what is dispatched relative to the opponent's, of aligned sizes and of the others.

        A size is aligned whose extents of 8 and more are multiples of 8.
        """
        at = measured.timed
        time_s = measured.times_s[at, np.array(self.chosen)[self.picked(measured)]]
        speed = opponent_s[at] / time_s
        sizes, has_opponent = measured.sizes[at], np.isfinite(speed)
        is_aligned = ((sizes % ALIGNED == 0) | (sizes < ALIGNED)).all(axis=1)
        groups = {"aligned": has_opponent & is_aligned, "unaligned": has_opponent & ~is_aligned}
        return {
            name: {**_summary(speed[rows], measured.weights[at][rows]), "sizes": int(rows.sum())}
            for name, rows in groups.items()
            if rows.any()
        }

    def report(self, measured: Measured, opponent_s: NDArray[np.float64]) -> dict[str, Any]:
        """Return what is lost, and where each configuration wins, as plain JSON values."""
        picked, used, at = self.picked(measured), self.used(measured), measured.timed
        kept, weights = shares(measured.times_s)[:, self.chosen].max(axis=1)[at], measured.weights[at]
        return {
            "portfolio": _summary(kept, weights),
            "dispatched": _summary(used, weights),
            "held_out": _summary(self.held_out, self.held_out_weights) if self.held_out else None,
            "sizes": [
                {
                    "size": size.tolist(),
                    "weight": float(weight),
                    "configuration": pick,
                    "share": float(share),
                    "best_s": float(np.nanmin(times)),
                    "opponent_s": float(opponent) if np.isfinite(opponent) else None,
                }
                for size, weight, pick, share, times, opponent in zip(
                    measured.sizes[at], weights, picked, used, measured.times_s[at], opponent_s[at], strict=True
                )
            ],
        }


def _summary(shares_of_best: Any, weights: NDArray[np.float64]) -> dict[str, float]:
    return {"mean": geometric_mean(shares_of_best, weights), "least": float(np.min(shares_of_best))}


def _pick(dispatcher: Dispatcher, size: NDArray[np.int64], tiles: NDArray[np.float64]) -> int:
    """Return the first configuration of a dispatcher's order that is valid."""
    order = dispatcher.order(size.tolist(), tiles)
    return next((number for number in order if np.isfinite(tiles[number, 0])), order[0])


def choose(
    measured: Measured, *, most: int | None, floor: float, are_listed: bool = False, around: Around | None = None
) -> Chosen:
    """Choose a portfolio and its dispatcher, and find what both lose at sizes which they have not seen.

    Where the sizes `are_listed` by the description, each that was timed has the configuration that was the fastest. Of
    others the dispatcher learns what is expected `around`.

    Every size at which all candidates were timed is left out once, with an eighth of the others and what their tuning
    alone found; where only one is known, nothing is held out.
    """
    speed, crossed = shares(measured.times_s), np.flatnonzero(measured.crossed)
    parts = np.array_split(np.random.default_rng(0).permutation(crossed), min(_PARTS, len(crossed)))
    held_out: list[float] = []
    kept: list[NDArray[np.intp]] = []
    for part in parts if len(crossed) > 1 else ():
        rest, left_out = measured.without(part)
        if not len(left_out):  # all was found at these sizes
            continue
        kept.append(part)
        chosen = rest.portfolio(most=most, floor=floor)
        dispatcher = rest.learn(chosen)
        for size in part:
            pick = _pick(dispatcher, measured.sizes[size], measured.tiles[size, left_out[chosen]])
            held_out.append(float(speed[size, left_out[chosen]][pick]))
    weights = measured.weights[np.concatenate(kept)] if kept else measured.weights[:0]
    chosen = measured.portfolio(most=most, floor=floor)
    dispatcher = measured.learn(chosen, around)
    if are_listed:
        timed = measured.whole(chosen)
        fastest = np.nanargmin(measured.times_s[timed][:, chosen], axis=1)
        dispatcher = replace(dispatcher, exact=sorted(np.column_stack([measured.sizes[timed], fastest]).tolist()))
    return Chosen(tuple(chosen), dispatcher, held_out, weights)
