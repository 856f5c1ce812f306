"""Races: several kernels timed in turn, once per round, so that a slower GPU slows them all alike."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mltune.measure.clock_monitor import Disturbance, Series, UsualClock, disturbance
from mltune.records.trial import TrialState

BUDGET_S = 3.0
"""Most seconds of runs and rests in a race."""

SHARE, LEAST_S = 0.2, 0.3
"""Most of a race as a share of the seconds of the run before it, and the least of that: a short run is not to end with
a long race."""

MAX_ROUNDS = 31
"""Most rounds of a race: enough for an interval of the median that spans the middle 13 of 31 samples."""

MIN_ROUNDS = 3
"""Fewest rounds of a race."""

_WARM_UP_S = 0.5  # a first round shorter than this is a warm-up and not kept
_REST_S = 0.05  # after a disturbed round


@dataclass(frozen=True, slots=True)
class RaceResult:
    """The result of a race.

    Attributes
    ----------
    state : TrialState
        ``OK``; ``UNSTABLE`` when the clock was throttled so often that disturbed rounds count too; otherwise the state
        of a kernel that failed, and then there are no samples.
    detail : str
        Empty, or the reason of the state.
    samples_s : tuple of tuple of float
        Run times, seconds: one row per round, one column per entry, in the order of entry.
    reference_s : tuple of float
        Run times of the reference implementation in the same rounds; empty where it did not take part.
    """

    state: TrialState
    detail: str = ""
    samples_s: tuple[tuple[float, ...], ...] = ()
    reference_s: tuple[float, ...] = ()

    @property
    def rounds(self) -> int:
        """Number of rounds."""
        return len(self.samples_s)


@dataclass(frozen=True, slots=True)
class Rounds:
    """The rounds of a race: times by round and runner, discarded rounds, and the disturbance of those that count."""

    times_s: tuple[tuple[float, ...], ...]
    discarded: int
    disturbed: Disturbance | None


def starting_orders(count: int) -> list[list[int]]:
    """Return the orders in which ``count`` runners are timed, one per round, to be repeated.

    They form a Latin square balanced for carry-over effects (Williams, Experimental designs balanced for the estimation
    of residual effects of treatments, 1949): every runner takes every position, and directly follows every other,
    equally often. An odd number of runners needs twice as many rounds.
    """
    first = [0]
    for step in range(1, count):
        first.append(-(step // 2) % count if step % 2 == 0 else (step + 1) // 2)
    orders = [[(runner + shift) % count for runner in first] for shift in range(count)]
    return orders if count % 2 == 0 else orders + [order[::-1] for order in orders]


def how_many_fit(times_s: Sequence[float], budget_s: float = BUDGET_S) -> int:
    """Return how many of the fastest kernels can be raced in time: at least the fewest rounds must fit.

    The times are in seconds, fastest first. The reference implementation, which takes part too, counts as fast as the
    fastest kernel.
    """
    count = len(times_s)
    while count:
        round_s = sum(times_s[:count]) + times_s[0]
        warm_up_s = round_s if round_s < _WARM_UP_S else 0.0
        if warm_up_s + MIN_ROUNDS * round_s <= budget_s:
            break
        count -= 1
    return count


def budget_after(run_s: float) -> float:
    """Return the most seconds of a race after a run that took some seconds.

    Examples
    --------
    >>> budget_after(0.5), budget_after(5.0), budget_after(60.0)
    (0.3, 1.0, 3.0)
    """
    return min(BUDGET_S, max(LEAST_S, SHARE * run_s))


def run_rounds(
    runners: int,
    take: Callable[[Sequence[int]], Series],
    rest: Callable[[float], None],
    usual: UsualClock,
    budget_s: float = BUDGET_S,
) -> Rounds:
    """Run a race.

    A disturbed round is discarded and repeated after a rest while there is time. If too few rounds are left at the end,
    the disturbed ones count as well, because the disturbance affected all runners alike.

    Parameters
    ----------
    take : callable
        Times runners once each in the given order.
    rest : callable
        Leaves the GPU idle for a number of seconds.
    budget_s : float
        Most seconds of runs and rests; the first round is always run.
    """
    orders = starting_orders(runners)
    kept: list[tuple[float, ...]] = []
    disturbed: list[tuple[float, ...]] = []
    found: Disturbance | None = None
    spent_s = longest_s = 0.0
    warm = False
    while len(kept) < MAX_ROUNDS and (not warm or spent_s + longest_s <= budget_s):
        order = orders[len(kept) % len(orders)]
        series = take(order)
        by_runner = dict(zip(order, series.samples_s, strict=True))
        times_s = tuple(by_runner[runner] for runner in range(runners))
        spent_s, longest_s = spent_s + sum(times_s), max(longest_s, sum(times_s))
        usual.add(series.states)
        if not warm and sum(times_s) < _WARM_UP_S:
            longest_s = 0.0
        elif (why := disturbance(series.states, usual.hz)) is not None:
            found = why
            disturbed.append(times_s)
            rest(_REST_S)
            spent_s += _REST_S
        else:
            kept.append(times_s)
        warm = True
    if len(kept) >= MIN_ROUNDS or not disturbed:
        return Rounds(tuple(kept), len(disturbed), None)
    return Rounds((*kept, *disturbed), 0, found)
