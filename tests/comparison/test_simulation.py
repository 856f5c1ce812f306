"""A simulated run: the evaluations that count, their costs, and the end."""

import contextlib
import time

import numpy as np
import pytest

from mltune.comparison.simulation import IDLE_MOVES, Recording, Simulation, Trace, simulate
from tests.effort import at_most_cpu_s


class Script:
    """A strategy that runs a given function."""

    name = "script"

    def __init__(self, search):
        self.search = search


def played(recording: Recording, evaluations: int, search) -> Trace:
    return simulate(Script(search), recording, evaluations, 0)


def test_a_run_ends_when_the_budget_is_spent(recording: Recording) -> None:
    def search(simulation: Simulation, seed: int) -> None:
        for index in range(100):
            simulation.evaluate(index)

    assert played(recording, 7, search).indices.tolist() == list(range(7))


def test_a_strategy_that_forgives_errors_does_not_forgive_the_end(recording: Recording) -> None:
    def search(simulation: Simulation, seed: int) -> None:
        for index in range(100):
            with contextlib.suppress(Exception):
                simulation.evaluate(index)

    assert len(played(recording, 5, search).indices) == 5


def test_the_budget_is_never_more_than_there_is(recording: Recording) -> None:
    def search(simulation: Simulation, seed: int) -> None:
        for index in range(recording.space.count):
            simulation.evaluate(index)

    trace = played(recording, 10**6, search)
    assert sorted(trace.indices.tolist()) == list(range(recording.space.count))


def test_repeats_and_invalid_proposals_cost_nothing_and_are_counted(recording: Recording) -> None:
    def search(simulation: Simulation, seed: int) -> None:
        assert simulation.evaluate(3) == simulation.evaluate(3) == pytest.approx(recording.median_s[3])
        assert simulation.evaluate(-1) is None
        simulation.evaluate(4)

    trace = played(recording, 2, search)
    assert trace.indices.tolist() == [3, 4]
    assert (trace.repeats, trace.invalid) == (1, 1)


def test_a_failure_is_told_as_none_and_costs_an_evaluation(recording: Recording) -> None:
    failed = int(np.flatnonzero(np.isnan(recording.median_s))[0])
    trace = played(recording, 1, lambda simulation, seed: simulation.evaluate(failed))
    assert trace.indices.tolist() == [failed]


def test_a_skip_after_compiling_costs_the_compile_time_on_the_next_evaluation(recording: Recording) -> None:
    def search(simulation: Simulation, seed: int) -> None:
        simulation.skip(0, after_compile=False)
        simulation.skip(1, after_compile=True)
        simulation.evaluate(2)
        simulation.evaluate(3)

    trace = played(recording, 2, search)
    assert trace.recorded_s.tolist() == [2.0 + 2.0 + 0.5, 2.0 + 0.5]
    assert (trace.skipped_before, trace.skipped_after) == (1, 1)


def test_thinking_goes_to_the_evaluation_that_follows_and_preparing_to_none(recording: Recording) -> None:
    def think(seconds: float) -> None:
        until = time.process_time() + seconds
        while time.process_time() < until:
            pass

    def search(simulation: Simulation, seed: int) -> None:
        think(0.05)
        simulation.begin()
        simulation.evaluate(0)
        think(0.03)
        simulation.evaluate(1)

    first, second = played(recording, 2, search).own_s.tolist()
    assert first < 0.05 / 2
    assert second >= 0.03


def test_a_strategy_that_stalls_is_stopped(recording: Recording) -> None:
    def search(simulation: Simulation, seed: int) -> None:
        simulation.evaluate(0)
        while True:
            simulation.evaluate(0)

    trace = played(recording, 4, search)
    assert trace.repeats == 4 * IDLE_MOVES + 1


def test_an_evaluation_takes_microseconds(recording: Recording) -> None:
    def search(simulation: Simulation, seed: int) -> None:
        for index in range(1000):
            simulation.evaluate(index)

    with at_most_cpu_s(1000 * 500e-6):
        played(recording, 1000, search)
