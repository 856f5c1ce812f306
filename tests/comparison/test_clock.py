"""The clock of simulated runs: cores compile in parallel, the GPU measures one by one, results come in batches."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from mltune.comparison.clock import best_over_time, ended_seconds
from mltune.comparison.scores import best_so_far
from mltune.comparison.simulation import BUILD, Recording, Trace, simulate
from mltune.comparison.strategies import strategy


def trace(*builds: tuple[int, int, float], skipped: Sequence[int] = ()) -> Trace:
    """Return a trace of builds, each with its configuration, the results that it uses, and the thinking before it."""
    return Trace(np.array([(index, index not in skipped, known, own_s, 0.0) for index, known, own_s in builds], BUILD))


def with_seconds(recording: Recording, compile_s: Sequence[float], run_s: Sequence[float]) -> Recording:
    """Return a recording whose first configurations take some seconds."""
    whole = recording.compile_s.copy(), recording.run_s.copy()
    for column, seconds in zip(whole, (compile_s, run_s), strict=True):
        column[: len(seconds)] = seconds
    return replace(recording, compile_s=whole[0], run_s=whole[1])


@pytest.mark.parametrize("cores", [1, 2, 64])
def test_one_by_one_nothing_overlaps(recording: Recording, cores: int) -> None:
    played = trace((4, 0, 0.25), (2, 1, 0.5), (3, 2, 0.0))
    assert ended_seconds(played, recording, cores).tolist() == [2.75, 5.75, 8.25]


@pytest.mark.parametrize(
    ("cores", "ends_s"), [(1, [2.5, 4.5, 6.5, 8.5]), (2, [2.5, 3.0, 4.5, 5.0]), (4, [2.5, 3.0, 3.5, 4.0])]
)
def test_a_batch_is_compiled_by_all_cores_and_measured_by_one_gpu(recording: Recording, cores: int, ends_s) -> None:
    assert ended_seconds(trace(*((index, 0, 0.0) for index in range(4))), recording, cores).tolist() == ends_s


def test_the_gpu_takes_builds_as_they_are_ready(recording: Recording) -> None:
    uneven = with_seconds(recording, [5.0, 1.0, 2.0], [1.0, 3.0, 1.0])
    assert ended_seconds(trace((0, 0, 0.0), (1, 0, 0.0), (2, 0, 0.0)), uneven, 3).tolist() == [6.0, 4.0, 5.0]


def test_what_is_skipped_or_does_not_run_takes_a_core_but_not_the_gpu(recording: Recording) -> None:
    failing = with_seconds(recording, [2.0, 2.0, 2.0], [9.0, 0.0, 1.0])
    played = trace((0, 0, 0.0), (1, 0, 0.0), (2, 2, 0.0), skipped=[0])
    assert ended_seconds(played, failing, 1).tolist() == [4.0, 7.0]
    assert ended_seconds(played, failing, 2).tolist() == [2.0, 5.0]


def test_a_batch_in_flight_hides_compiling_and_thinking_but_waits_for_the_results_it_uses(recording: Recording) -> None:
    early = trace((0, 0, 1.0), (1, 0, 0.0), (2, 0, 1.0), (3, 0, 0.0))
    late = trace((0, 0, 1.0), (1, 0, 0.0), (2, 2, 1.0), (3, 2, 0.0))
    assert ended_seconds(early, recording, 4).tolist() == [3.5, 4.0, 4.5, 5.0]
    assert ended_seconds(late, recording, 4).tolist() == [3.5, 4.0, 7.5, 8.0]


def test_a_proposal_waits_for_the_results_that_were_told_not_for_earlier_ones(recording: Recording) -> None:
    uneven = with_seconds(recording, [9.0, 1.0, 1.0], [1.0, 1.0, 1.0])
    played = trace((0, 0, 0.0), (1, 0, 0.0), (2, 1, 0.0))
    assert ended_seconds(played, uneven, 2).tolist() == [10.0, 2.0, 12.0]
    assert ended_seconds(replace(played, told=np.array([1])), uneven, 2).tolist() == [10.0, 2.0, 4.0]


@pytest.mark.parametrize("cores", [2, 16])
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.sampled(3, nightly=99)
def test_the_search_is_told_what_ends_first_and_nothing_before_its_end(recording: Recording, cores: int, seed) -> None:
    """Without thinking, the seconds of the simulated run are those of its clock."""
    uneven = replace(recording, compile_s=np.random.default_rng(seed).lognormal(size=recording.space.count))
    played = simulate(strategy(f"mltune:compilers={cores}"), uneven, 80, seed)
    played.builds["own_s"] = 0.0
    assert played.is_possible
    assert not played.skipped_after
    told_s = ended_seconds(played, uneven, cores)[played.told]
    assert (np.diff(told_s) >= 0).all()
    assert (cores == 2) or (np.diff(played.told) < 0).any()


def test_apart_from_thinking_a_seed_has_one_time(recording: Recording) -> None:
    ends_s = []
    for _ in range(2):
        builds = simulate(strategy("mltune:in_flight=2"), recording, 48, seed=1).builds
        builds["own_s"] = 0.001
        ends_s.append(ended_seconds(Trace(builds), recording, 16).tolist())
    assert ends_s[0] == ends_s[1]


def test_the_best_is_that_of_what_has_ended() -> None:
    median_s = np.array([3.0, np.nan, 1.0, 2.0])
    played = trace((0, 0, 0.0), (1, 0, 0.0), (2, 0, 0.0), (3, 0, 0.0))
    best_s = best_over_time(median_s, [played], [np.array([5.0, 1.0, 4.0, 2.0])], np.array([1.0, 2.0, 3.9, 4.0, 9.0]))
    assert best_s.tolist() == [[np.inf, 2.0, 2.0, 1.0, 1.0]]


def test_where_all_costs_are_the_same_one_by_one_scores_the_same_over_time(recording: Recording) -> None:
    traces = [simulate(strategy("random"), recording, 60, seed) for seed in range(5)]
    for one in traces:
        one.builds["own_s"] = 0.0
    at_s = recording.evaluation_s * np.arange(1.0, 61.0)
    best_s = best_over_time(recording.median_s, traces, [ended_seconds(one, recording, 16) for one in traces], at_s)
    np.testing.assert_array_equal(best_s, best_so_far(recording.median_s, traces, 60))
