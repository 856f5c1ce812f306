"""The contract of search strategies."""

from __future__ import annotations

import itertools
import random

import numpy as np

from mltune.comparison.simulation import Recording, Strategy, simulate
from mltune.device.known import H200
from mltune.kernel.bundle import Kernel
from mltune.kernel.parts import KernelSpace
from mltune.kernel.space import TableSpace
from mltune.problem.kinds import timed_problem

_VALUES = {"P": (1, 2, 4, 8, 16), "Q": (1, 2, 4, 8), "R": tuple(range(6)), "S": (0, 1), "T": (0, 1, 2, 3, 4)}


def hill(*, failures: bool = True, order: list[tuple[int, ...]] | None = None) -> Recording:
    """Return a recording of 1,200 configurations whose times have one valley.

    With ``failures`` large tiles, about a quarter, fail; ``order`` has other configurations, or these in another order.
    """
    rows = np.array(order or list(itertools.product(*_VALUES.values())), dtype=np.int64)
    columns = dict(zip(_VALUES, rows.T, strict=True))
    p, q, r, s, t = (column.astype(float) for column in columns.values())
    noise = np.sin(1e3 * (p + 3 * q + 7 * r + 11 * s + 13 * t)) / 100
    depth = np.square(np.log2(p) - 3) + np.square(np.log2(q) + r - 5) / 2 + 0.3 * np.abs(t - 2 * s)
    median_s = 1e-3 * np.exp(0.15 * depth + noise)
    if failures:
        median_s[p * q > 64] = np.nan
    problem = timed_problem("hill")
    return Recording(
        name="hill",
        kernel=Kernel(name="hill", problem=problem.kind, space=KernelSpace(parameters=_VALUES)),
        problem=problem,
        device=H200,
        space=TableSpace(columns),
        median_s=median_s,
        compile_s=np.full(len(rows), 2.0),
        run_s=np.full(len(rows), 0.5),
    )


class StrategyContract:
    """The laws of :class:`~mltune.comparison.simulation.Strategy`.

    Override :meth:`make`. A strategy that may return before its budget is spent sets ``ends_early``, and one that
    cannot repeat itself clears ``repeats_itself``.

    Attributes
    ----------
    ends_early, repeats_itself : bool
    evaluations : int
        Budget of a run.
    """

    ends_early = False
    repeats_itself = True
    evaluations = 60

    def make(self) -> Strategy:
        """Return a strategy; each run gets a new one."""
        raise NotImplementedError

    def test_it_is_a_strategy_with_a_name(self) -> None:
        """Its name is what tables show, but for a strategy that is given as text: that is shown as the text."""
        strategy = self.make()
        assert isinstance(strategy, Strategy)
        assert strategy.name

    def test_it_evaluates_each_configuration_once_and_spends_its_budget(self) -> None:
        """No evaluation is counted twice, and only a strategy that says so leaves some."""
        trace = simulate(self.make(), hill(failures=False), self.evaluations, seed=1)
        assert len(set(trace.indices.tolist())) == len(trace.indices)
        least = self.evaluations // 4 if self.ends_early else self.evaluations
        assert least <= len(trace.indices) <= self.evaluations
        assert (trace.own_s >= 0).all()

    def test_it_lives_with_failures(self) -> None:
        """A configuration that failed has no time."""
        recording = hill()
        trace = simulate(self.make(), recording, self.evaluations, seed=0)
        assert np.isfinite(recording.median_s[trace.indices]).any()

    def test_the_same_seed_makes_the_same_moves(self) -> None:
        """And another seed makes others."""
        import pytest

        if not self.repeats_itself:
            pytest.skip("it says that it does not repeat itself")
        recording = hill()
        first, second, other = (simulate(self.make(), recording, 30, seed).indices.tolist() for seed in (3, 3, 4))
        assert first == second
        assert first != other

    def test_it_leaves_the_global_generator_alone(self) -> None:
        """Runs in one process do not disturb each other."""
        state = random.getstate()
        simulate(self.make(), hill(), 10, seed=0)
        assert random.getstate() == state
