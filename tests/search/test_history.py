"""The end of a trial in Optuna, and the history that is read from a study."""

import math

import numpy as np
import optuna
import pytest
from endings import add_ended
from hypothesis import given
from hypothesis import strategies as st

from mltune.records.trial import Skip, TrialRecord, TrialState
from mltune.records.trials import Trials
from mltune.search.history import FAILED_SCORE, HistoryReader, milestone, tell
from mltune.search.sampling import BatchSampler

FINISHED = optuna.trial.TrialState


def record(landscape, index, state, **more):
    configuration = {name: int(column[index]) for name, column in landscape.columns.items()}
    return TrialRecord(index, 0, index, configuration, state, **more)  # its number is its index


def endings(landscape):
    skip = Skip("after_compile", -2.0, -1.5)
    return [
        (record(landscape, 0, TrialState.OK), -0.5),
        (record(landscape, 1, TrialState.UNSTABLE, proposed_by="model"), -0.4),
        (record(landscape, 2, TrialState.SKIPPED, skip=skip), None),
        (record(landscape, 3, TrialState.OK, skip=skip, audited=True), -3.0),
        (record(landscape, 4, TrialState.CRASHED), None),
        (record(landscape, 5, TrialState.COMPILE_ERROR), None),
    ]


@pytest.fixture
def sampler(landscape):
    return BatchSampler(landscape.space, seed=0)


def reported(landscape, sampler):
    study = optuna.create_study(direction="maximize", sampler=sampler)
    for ended, score in endings(landscape):
        study.enqueue_trial(dict(ended.configuration))
        tell(study, study.ask(sampler.distributions), ended, score)
    return study


def test_each_ending_has_its_place_in_the_study(landscape, sampler):
    trials = reported(landscape, sampler).get_trials()
    assert [trial.state for trial in trials] == [
        FINISHED.COMPLETE,
        FINISHED.COMPLETE,
        FINISHED.PRUNED,
        FINISHED.COMPLETE,
        FINISHED.PRUNED,
        FINISHED.PRUNED,
    ]
    assert [trial.value for trial in trials[:2]] == [-0.5, -0.4]
    assert trials[2].intermediate_values == {1: -2.0}
    assert trials[4].intermediate_values == {0: FAILED_SCORE}


def recalled(landscape, sampler):
    records, scores = zip(*endings(landscape), strict=True)
    reader = HistoryReader(landscape.space)
    trials = Trials.from_records(records, landscape.space.names)
    reader.recall(trials, np.array([np.nan if score is None else score for score in scores]))
    return reader.read(optuna.create_study(direction="maximize", sampler=sampler))


def read(landscape, sampler):
    return HistoryReader(landscape.space).read(reported(landscape, sampler))


@pytest.mark.parametrize("make", [read, recalled])
def test_what_is_read_back(landscape, sampler, make):
    history = make(landscape, sampler)
    assert history.indices.tolist() == [0, 1, 3, 4, 5]
    np.testing.assert_array_equal(history.scores, [-0.5, -0.4, -3.0, math.nan, math.nan])
    assert history.tried == {0, 1, 2, 3, 4, 5}
    assert history.skipped.tolist() == [2]
    assert history.predicted.tolist() == [-2.0]
    assert history.gates.tolist() == [1]
    assert history.running.tolist() == []
    assert history.measured == 3
    assert history.best(10).tolist() == [1, 0, 3]


def test_a_prediction_that_was_reported_stays(landscape, sampler):
    study = optuna.create_study(direction="maximize", sampler=sampler)
    study.enqueue_trial(dict(endings(landscape)[2][0].configuration))
    trial = study.ask(sampler.distributions)
    trial.report(-2.5, 1)
    tell(study, trial, endings(landscape)[2][0], None)
    assert study.trials[0].intermediate_values == {1: -2.5}


def test_trials_of_another_space_are_not_read(landscape, sampler):
    study = optuna.create_study(direction="maximize", sampler=sampler)
    other = {"X": optuna.distributions.CategoricalDistribution((1, 2))}
    study.add_trial(optuna.trial.create_trial(params={"X": 1}, distributions=other, value=0.0))
    history = HistoryReader(landscape.space).read(study)
    assert len(history.indices) == 0
    assert history.tried == set()


def test_order_is_that_of_the_trials_whichever_ended_first(landscape, sampler):
    """A reader that has read before finds the same as one that reads for the first time."""
    study = optuna.create_study(direction="maximize", sampler=sampler)
    now_and_then = HistoryReader(landscape.space)
    trials = []
    for ended, _ in endings(landscape):
        study.enqueue_trial(dict(ended.configuration))
        trials.append(study.ask(sampler.distributions))
    for done, at in enumerate((3, 0, 5, 2, 1, 4)):
        history = now_and_then.read(study)
        assert len(history.running) == 6 - done
        assert history.tried == set(range(6))
        tell(study, trials[at], *endings(landscape)[at])
        once = HistoryReader(landscape.space).read(study)
        again = now_and_then.read(study)
        for name in ("indices", "scores", "skipped", "predicted", "running"):
            np.testing.assert_array_equal(getattr(again, name), getattr(once, name))
        assert (np.diff(again.indices) > 0).all()  # numbers are indices here
    assert now_and_then.read(study).indices.tolist() == [0, 1, 3, 4, 5]


def test_what_was_read_stays_as_it_was(landscape, sampler):
    study = optuna.create_study(direction="maximize", sampler=sampler)
    reader = HistoryReader(landscape.space)
    ended, score = endings(landscape)[0]
    add_ended(study, sampler.distributions, ended, score)
    first = reader.read(study)
    add_ended(study, sampler.distributions, endings(landscape)[1][0], -0.4)
    reader.read(study)
    assert first.tried == {0}
    assert first.indices.tolist() == [0]


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
