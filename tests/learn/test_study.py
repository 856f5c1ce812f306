"""How the end of a trial reaches Optuna, and what is read back."""

import math

import numpy as np
import optuna
import pytest

from mltune.learn.sampling import BatchSampler
from mltune.learn.study import FAILED_SCORE, frozen_trial, read_history, tell
from mltune.records.trial import Skip, TrialRecord, TrialState

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
    return BatchSampler(landscape.space, landscape.features, None, seed=0)


def told(landscape, sampler):
    study = optuna.create_study(direction="maximize", sampler=sampler)
    for ended, score in endings(landscape):
        study.enqueue_trial(dict(ended.configuration))
        tell(study, study.ask(sampler.distributions), ended, score)
    return study


def rebuilt(landscape, sampler):
    study = optuna.create_study(direction="maximize", sampler=sampler)
    study.add_trials([frozen_trial(ended, sampler.distributions, score) for ended, score in endings(landscape)])
    return study


@pytest.mark.parametrize("make", [told, rebuilt])
def test_each_ending_has_its_place_in_the_study(landscape, sampler, make):
    trials = make(landscape, sampler).get_trials()
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


@pytest.mark.parametrize("make", [told, rebuilt])
def test_what_is_read_back(landscape, sampler, make):
    history = read_history(make(landscape, sampler), landscape.space, {})
    assert history.indices.tolist() == [0, 1, 3, 4, 5]
    np.testing.assert_array_equal(history.scores, [-0.5, -0.4, -3.0, math.nan, math.nan])
    assert history.tried == {0, 1, 2, 3, 4, 5}
    assert history.by_model.tolist() == [False, True, False, False, False]
    assert history.measured == 3
    assert history.best(10).tolist() == [1, 0, 3]


def test_a_prediction_that_was_reported_stays(landscape, sampler):
    study = optuna.create_study(direction="maximize", sampler=sampler)
    trial = study.ask(sampler.distributions)
    trial.report(-2.5, 1)
    tell(study, trial, endings(landscape)[2][0], None)
    assert study.trials[0].intermediate_values == {1: -2.5}


def test_trials_of_another_space_are_not_read(landscape, sampler):
    study = optuna.create_study(direction="maximize", sampler=sampler)
    other = {"X": optuna.distributions.CategoricalDistribution((1, 2))}
    study.add_trial(optuna.trial.create_trial(params={"X": 1}, distributions=other, value=0.0))
    history = read_history(study, landscape.space, {})
    assert len(history.indices) == 0
    assert history.tried == set()
