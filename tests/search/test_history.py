"""The history of a search: results told and recalled are the same, in the order of trials."""

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from mltune.records.trial import Build, Measurement, Skip, TrialRecord, TrialState
from mltune.records.trials import Trials
from mltune.search.history import Results, milestone

SKIP = Skip("after_compile", -2.0, -1.5)
BUILD = Build(TrialState.OK, registers=128, compile_s=0.5)
ENDINGS = [
    (TrialRecord(0, 0, 70, {}, TrialState.OK, build=BUILD, measurement=Measurement(TrialState.OK, time_s=0.1)), -0.5),
    (TrialRecord(1, 0, 71, {}, TrialState.UNSTABLE, proposed_by="model"), -0.4),
    (TrialRecord(2, 0, 72, {}, TrialState.SKIPPED, skip=SKIP, build=BUILD), math.nan),
    (TrialRecord(3, 0, 73, {}, TrialState.OK, skip=SKIP, audited=True), -3.0),
    (TrialRecord(4, 0, 74, {}, TrialState.CRASHED), math.nan),
    (TrialRecord(5, 0, 75, {}, TrialState.COMPILE_ERROR), math.nan),
]


def learned(*parts):
    results = Results()
    for part in parts:
        records, scores = zip(*ENDINGS[part], strict=True)
        results.learn(Trials.from_records(records, ()), np.array(scores))
    return results


def test_every_ending_has_its_place():
    results = learned(slice(0, 6))
    history = results.history(running=[80, 79])
    assert history.indices.tolist() == [70, 71, 73, 74, 75]
    np.testing.assert_array_equal(history.scores, [-0.5, -0.4, -3.0, math.nan, math.nan])
    assert history.tried == {70, 71, 72, 73, 74, 75, 79, 80}
    assert history.skipped.tolist() == [72]
    assert history.predicted.tolist() == [-2.0]
    assert history.gates.tolist() == [1]
    assert history.running.tolist() == [80, 79]
    assert history.measured == 3
    assert history.best(10).tolist() == [71, 70, 73]
    assert results.best == -0.5  # of those that succeeded
    np.testing.assert_array_equal(results.builds(np.array([74, 70]))["registers"], [math.nan, 128.0])


def test_a_skipped_trial_whose_prediction_is_lost_is_tried_but_predicts_nothing():
    results, lost = Results(), Skip("after_compile", None, None)
    records = [TrialRecord(0, 0, 72, {}, TrialState.SKIPPED, skip=lost, build=BUILD)]
    results.learn(Trials.from_records(records, ()), np.array([math.nan]))
    assert results.history().skipped.tolist() == []
    assert results.history().tried == {72}


def test_results_in_parts_are_those_at_once():
    once, parts = learned(slice(0, 6)), learned(slice(0, 1), slice(1, 4), slice(4, 6))
    for name in ("indices", "scores", "skipped", "predicted", "gates", "running"):
        np.testing.assert_array_equal(getattr(parts.history(), name), getattr(once.history(), name))
    assert parts.history().tried == once.history().tried
    assert parts.best == once.best


def test_a_history_stays_as_it_was():
    results = learned(slice(0, 1))
    first = results.history()
    records, scores = zip(*ENDINGS[1:], strict=True)
    results.learn(Trials.from_records(records, ()), np.array(scores))
    assert first.tried == {70}
    assert first.indices.tolist() == [70]


def test_a_trial_that_was_skipped_without_a_reason_is_only_tried():
    results = Results()
    results.learn(Trials.from_records([TrialRecord(0, 0, 7, {}, TrialState.SKIPPED)], ()), np.array([math.nan]))
    history = results.history()
    assert (history.tried, len(history.indices), len(history.skipped)) == ({7}, 0, 0)


def test_builds_wait_for_the_runner_where_runs_take_longer():
    results = learned(slice(0, 1))  # 0.5 s to compile, 0.1 s to run
    assert not results.is_bound_by_runner(1)
    assert results.is_bound_by_runner(8)
    assert not Results().is_bound_by_runner(math.inf)


SCHEDULES = st.tuples(st.integers(1, 40), st.floats(1.0, 3.0))


@given(st.integers(0, 3000), st.integers(0, 300), SCHEDULES)
def test_milestones_never_fall_and_never_run_ahead(count, more, schedule):
    first, growth = schedule
    here, later = (milestone(at, first=first, growth=growth) for at in (count, count + more))
    assert here <= count
    assert here <= later
    assert (here == 0) == (count < first)


@given(st.integers(0, 3000), SCHEDULES)
def test_a_milestone_is_where_it_is_reached(count, schedule):
    """Whoever comes by later is sent back to the same one: a resumed run fits what the interrupted one had."""
    first, growth = schedule
    at = milestone(count, first=first, growth=growth)
    assert all(milestone(between, first=first, growth=growth) == at for between in range(max(at, count - 50), count))


@given(st.integers(0, 10**6))
def test_fits_are_the_rarer_the_more_is_known(count):
    at = milestone(count)
    assert count - at <= max(8, 0.25 * at)
