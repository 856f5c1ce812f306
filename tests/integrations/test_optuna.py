"""The sampler for Optuna: storages, threads, processes, failures, and what is used of its interface."""

import contextlib
import doctest
import itertools
import logging
import math
import multiprocessing
import os
import pickle
import signal
import threading
import time
from datetime import timedelta

import numpy as np
import optuna
import pytest
from optuna.trial import TrialState

from mltune.errors import SpaceError, UsageError
from mltune.integrations import optuna as adapter
from mltune.integrations.optuna import ATTRIBUTE, MltuneSampler

PARAMETERS = {
    "block": [16, 32, 64, 128, 256],
    "factor": [0.5, 1.0, 1.5],
    "order": ["row", "column", None],
    "vector": [False, True],
    "stages": [1, 2, 3, 4],
}
RESTRICTIONS = ("block * stages <= 512", lambda one: one["order"] != "row" or one["vector"])


def valid():
    every = (dict(zip(PARAMETERS, values, strict=True)) for values in itertools.product(*PARAMETERS.values()))
    return [one for one in every if one["block"] * one["stages"] <= 512 and RESTRICTIONS[1](one)]


def suggest(trial):
    return {
        "block": trial.suggest_categorical("block", PARAMETERS["block"]),
        "factor": trial.suggest_float("factor", 0.5, 1.5, step=0.5),
        "order": trial.suggest_categorical("order", PARAMETERS["order"]),
        "vector": trial.suggest_categorical("vector", PARAMETERS["vector"]),
        "stages": trial.suggest_int("stages", 1, 4),
    }


def loss(one):
    """Return an objective of both signs."""
    slow = {"row": 0.0, "column": 0.5, None: 1.0}[one["order"]]
    return slow + abs(math.log2(one["block"] / 64)) + one["factor"] + abs(one["stages"] - 3) - 2.0 * one["vector"]


def objective(trial):
    return loss(suggest(trial))


def keys(study):
    return [tuple(trial.params.items()) for trial in study.trials]


@pytest.fixture(autouse=True)
def quiet():
    level = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    yield
    optuna.logging.set_verbosity(level)


@pytest.fixture
def sampler():
    return MltuneSampler(PARAMETERS, RESTRICTIONS, seed=1)


@pytest.fixture(params=["memory", "sqlite", "journal"])
def storage(request, tmp_path):
    return make_storage(request.param, tmp_path)


def make_storage(kind, folder):
    if kind == "sqlite":
        return f"sqlite:///{folder}/study.db"
    if kind == "journal":
        backend = optuna.storages.journal.JournalFileBackend(f"{folder}/study.log")
        return optuna.storages.JournalStorage(backend)
    return None


@pytest.mark.parametrize("jobs", [1, 3])
@pytest.mark.sampled(2)
def test_trials_are_valid_and_distinct_in_any_storage(sampler, storage, jobs):
    study = optuna.create_study(sampler=sampler, storage=storage)
    study.optimize(objective, n_trials=20, n_jobs=jobs)
    assert len(set(keys(study))) == 20
    assert all(trial.params in valid() for trial in study.trials)


@pytest.mark.parametrize("direction", ["minimize", "maximize"])
def test_a_study_follows_its_direction(direction):
    every = sorted(map(loss, valid()), reverse=direction == "maximize")
    for seed in range(2):
        study = optuna.create_study(direction=direction, sampler=MltuneSampler(PARAMETERS, RESTRICTIONS, seed=seed))
        study.optimize(objective, n_trials=50)
        assert every.index(study.best_value) <= 6


def test_a_study_goes_on_where_it_was_interrupted(storage, sampler):
    whole = optuna.create_study(sampler=sampler)
    whole.optimize(objective, n_trials=16)
    part = optuna.create_study(sampler=sampler, storage=storage, study_name="part")
    part.optimize(objective, n_trials=9)
    fresh = MltuneSampler(PARAMETERS, RESTRICTIONS, seed=1)
    again = optuna.load_study(study_name="part", storage=storage or part._storage, sampler=fresh)
    again.optimize(objective, n_trials=7)
    assert keys(again) == keys(whole)


def test_failed_and_pruned_trials_are_learned(sampler):
    def fragile(trial):
        one = suggest(trial)
        if one["block"] == 256:
            raise optuna.TrialPruned
        if one["block"] == 16:
            raise RuntimeError("does not run")
        return math.nan if one["stages"] == 1 else loss(one)

    study = optuna.create_study(sampler=sampler)
    study.optimize(fragile, n_trials=60, catch=(RuntimeError,))
    assert {trial.state for trial in study.trials} == {TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL}
    assert len(set(keys(study))) == 60
    share = sum(one["block"] in (16, 256) or one["stages"] == 1 for one in valid()) / len(valid())
    assert sum(trial.state != TrialState.COMPLETE for trial in study.trials) / 60 < 0.9 * share


def test_a_trial_that_fails_before_it_suggests_is_not_proposed_again(sampler):
    def broken(trial):
        trial.suggest_int("stages", 1, 4)
        raise RuntimeError

    study = optuna.create_study(sampler=sampler)
    study.optimize(broken, n_trials=12, catch=(RuntimeError,))
    assert len({tuple(trial.system_attrs[ATTRIBUTE].values()) for trial in study.trials}) == 12


def test_a_study_ends_when_everything_was_tried():
    sampler = MltuneSampler({"stages": [1, 2, 3]})
    study = optuna.create_study(sampler=sampler)
    study.optimize(lambda trial: trial.suggest_int("stages", 1, 3), n_trials=50)
    assert sorted(trial.value for trial in study.trials) == [1, 2, 3]
    study.optimize(lambda trial: trial.suggest_int("stages", 1, 3), n_trials=50)
    assert len(study.trials) == 4


def best_then_killed(storage, number):
    """Run a study in a process that is killed in the trial whose number is given."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    sampler = MltuneSampler({"x": list(range(12))}, seed=1)
    study = optuna.load_study(study_name="killed", storage=storage, sampler=sampler)

    def deadly(trial):
        if trial.number == number:
            os.kill(os.getpid(), signal.SIGKILL)
        return parabola(trial)

    study.optimize(deadly, n_trials=number + 1)


def parabola(trial):
    return (trial.suggest_int("x", 0, 11) - 7) ** 2


def killed_study(tmp_path, number=3):
    storage = f"sqlite:///{tmp_path}/study.db"
    study = optuna.create_study(
        study_name="killed", storage=storage, sampler=MltuneSampler({"x": list(range(12))}, seed=1)
    )
    process = multiprocessing.get_context("spawn").Process(target=best_then_killed, args=(storage, number))
    process.start()
    process.join(300)
    assert process.exitcode == -signal.SIGKILL
    assert [trial.state for trial in study.trials][-1] == TrialState.RUNNING
    return study


def test_what_a_killed_process_ran_is_proposed_again_and_first(tmp_path):
    study = killed_study(tmp_path)
    lost = study.trials[3].system_attrs[ATTRIBUTE]
    study.optimize(parabola, n_trials=1)
    assert [study.trials[3].state, study.trials[4].params] == [TrialState.FAIL, lost]
    study.optimize(parabola, n_trials=50)
    assert {trial.params["x"] for trial in study.trials if trial.state == TrialState.COMPLETE} == set(range(12))
    assert (len(study.trials), study.best_params) == (13, {"x": 7})


@pytest.mark.filterwarnings("ignore")
def test_optunas_retry_of_a_lost_trial_has_its_configuration(tmp_path):
    retry = optuna.storages.RetryHeartbeatStaleTrialCallback(max_retry=2)
    study = killed_study(tmp_path)
    study._storage.set_trial_state_values(study.trials[3]._trial_id, TrialState.FAIL)
    retry(study, study.trials[3])
    study.optimize(parabola, n_trials=50)
    assert study.trials[4].params == study.trials[3].system_attrs[ATTRIBUTE]
    assert sorted(trial.params["x"] for trial in study.trials if trial.state == TrialState.COMPLETE) == list(range(12))


def test_a_configuration_that_kills_the_process_is_tried_three_times():
    study = optuna.create_study(sampler=MltuneSampler({"x": list(range(12))}, seed=1))

    def deadly(trial):
        if trial.suggest_int("x", 0, 11) == 7:
            raise SystemExit
        return parabola(trial)

    for _ in range(20):
        with contextlib.suppress(SystemExit):
            study.optimize(deadly, n_trials=50)
    lost = [trial.number for trial in study.trials if trial.params.get("x") == 7]
    assert lost[:3] == [lost[0], lost[0] + 1, lost[0] + 2]
    assert {trial.params["x"] for trial in study.trials} == set(range(12))


def test_a_trial_that_was_never_told_is_proposed_again_when_it_is_old():
    study = optuna.create_study(sampler=MltuneSampler({"x": list(range(12))}, seed=1, stale_after=600.0))
    never_told = study.ask()
    lost = never_told.suggest_int("x", 0, 11)
    study.optimize(parabola, n_trials=2)
    (trial,) = (trial for trial in study.get_trials(deepcopy=False) if trial.number == never_told.number)
    trial.datetime_start -= timedelta(seconds=601)
    study.optimize(parabola, n_trials=1)
    assert study.trials[-1].params == {"x": lost}


def test_a_trial_that_was_never_told_does_not_end_the_search():
    study = optuna.create_study(sampler=MltuneSampler({"x": list(range(4))}, seed=1))
    never_told = [study.ask().suggest_int("x", 0, 3) for _ in range(2)]
    study.optimize(parabola, n_trials=50)
    assert [trial.params["x"] for trial in study.trials[-2:]] == never_told
    assert len(study.trials) == 6


def test_threads_that_try_everything_repeat_nothing():
    study = optuna.create_study(sampler=MltuneSampler({"x": list(range(12))}, seed=1))

    def slow(trial):
        time.sleep(0.3 if trial.number == 2 else 0.01)
        return parabola(trial)

    study.optimize(slow, n_trials=50, n_jobs=3)
    assert len({trial.params["x"] for trial in study.trials}) == 12


def test_trials_may_be_asked_for_and_told_in_any_order(sampler):
    study = optuna.create_study(sampler=sampler)
    waiting = []
    for _ in range(12):
        waiting += [study.ask() for _ in range(2)]
        for trial in waiting:
            suggest(trial)
        last = waiting.pop()
        study.tell(last, loss(last.params))
    assert len(set(keys(study))) == 24


class TestEnqueued:
    def test_a_whole_configuration_is_tried_as_it_is(self, sampler):
        study = optuna.create_study(sampler=sampler)
        wanted = {"block": 256, "factor": 1.5, "order": "row", "vector": False, "stages": 4}  # not valid
        study.enqueue_trial(wanted)
        study.optimize(objective, n_trials=3)
        assert study.trials[0].params == wanted
        assert all(trial.params in valid() for trial in study.trials[1:])

    def test_the_rest_of_a_configuration_is_chosen_to_be_valid(self, sampler):
        study = optuna.create_study(sampler=sampler)
        for _ in range(5):
            study.enqueue_trial({"block": 256, "order": "row"})
        study.optimize(objective, n_trials=5)
        assert {(trial.params["block"], trial.params["order"]) for trial in study.trials} == {(256, "row")}
        assert len(set(keys(study))) == 5
        assert all(trial.params in valid() for trial in study.trials)

    def test_a_part_that_no_configuration_has_is_refused(self, sampler):
        study = optuna.create_study(sampler=sampler)
        study.enqueue_trial({"block": 256, "stages": 4})
        with pytest.raises(UsageError, match="enqueue a trial with all its parameters"):
            study.optimize(objective, n_trials=1)

    def test_what_others_tried_is_known(self, sampler):
        study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
        study.optimize(objective, n_trials=20)
        study.sampler = sampler
        before = set(keys(study))
        study.optimize(objective, n_trials=20)
        assert not before & set(keys(study)[20:])


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (lambda trial: trial.suggest_categorical("block", [8, 1024]), "block in"),
        (lambda trial: trial.suggest_int("blok", 1, 4), "blok in"),
        (lambda trial: trial.suggest_int("order", 1, 4), "order in"),
        (lambda trial: trial.suggest_float("stages", 8.0, 9.0), "stages in"),
    ],
)
def test_an_objective_with_other_parameters_is_refused(sampler, asked, message):
    with pytest.raises(UsageError, match=message):
        optuna.create_study(sampler=sampler).optimize(asked, n_trials=1)


def test_several_objectives_are_refused(sampler):
    study = optuna.create_study(directions=["minimize", "maximize"], sampler=sampler)
    with pytest.raises(UsageError, match="the study has 2"):
        study.ask()


def test_values_are_those_that_storages_write(tmp_path):
    sampler = MltuneSampler({"block": np.array([16, 32]), "factor": [np.float64(0.5), 1.0]})
    study = optuna.create_study(sampler=sampler, storage=make_storage("sqlite", tmp_path))
    study.optimize(lambda trial: trial.suggest_int("block", 16, 32) * trial.suggest_float("factor", 0.5, 1), n_trials=4)
    assert study.best_params == {"block": 16, "factor": 0.5}
    with pytest.raises(UsageError, match=r"\(1, 2\) cannot be a value of 'block'"):
        MltuneSampler({"block": [(1, 2), (3, 4)]})


def test_trials_of_other_parameters_do_not_count(sampler):
    study = optuna.create_study(sampler=MltuneSampler({"old": [1, 2, 3], "block": [16, 32]}))
    study.optimize(lambda trial: trial.suggest_int("old", 1, 3), n_trials=4)
    study.sampler = sampler
    study.optimize(objective, n_trials=3)
    assert all(trial.params in valid() for trial in study.trials[4:])


def test_a_sampler_needs_a_valid_configuration():
    with pytest.raises(SpaceError, match="block < 3"):
        MltuneSampler(PARAMETERS, ["block < 3"])


def test_a_pruner_that_hides_trials_hides_no_configurations(sampler):
    study = optuna.create_study(sampler=sampler, pruner=optuna.pruners.HyperbandPruner(1, 9))
    study.optimize(objective, n_trials=30)
    assert len(set(keys(study))) == 30


def test_threads_never_choose_the_same(sampler):
    study = optuna.create_study(sampler=sampler)
    barrier = threading.Barrier(6)

    def asks():
        for _ in range(4):
            barrier.wait()
            suggest(study.ask())

    threads = [threading.Thread(target=asks) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(keys(study))) == 24


def work(kind, folder, trials):
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    sampler = MltuneSampler(PARAMETERS, [RESTRICTIONS[0], only_vectors_in_rows], seed=1)
    study = optuna.load_study(study_name="shared", storage=make_storage(kind, folder), sampler=sampler)
    study.optimize(objective, n_trials=trials)


def only_vectors_in_rows(one):
    return one["order"] != "row" or one["vector"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sqlite", "journal"])
def test_processes_share_a_study(tmp_path, kind):
    """Two processes with the same seed: what one has begun the other does not begin too."""
    optuna.create_study(study_name="shared", storage=make_storage(kind, tmp_path))
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=work, args=(kind, tmp_path, 12)) for _ in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(300)
    assert [process.exitcode for process in processes] == [0, 0]
    study = optuna.load_study(study_name="shared", storage=make_storage(kind, tmp_path))
    assert len(study.trials) == 24
    assert len(set(keys(study))) == 24
    assert all(trial.params in valid() for trial in study.trials)


def test_a_sampler_can_be_pickled():
    sampler = pickle.loads(pickle.dumps(MltuneSampler(PARAMETERS, [RESTRICTIONS[0]], seed=1)))  # noqa: S301 - our own
    study = optuna.create_study(sampler=sampler)
    study.optimize(objective, n_trials=3)


def test_the_study_goes_on_logging(sampler, caplog):
    optuna.logging.set_verbosity(optuna.logging.INFO)
    optuna.logging.enable_propagation()
    try:
        with caplog.at_level(logging.INFO, "optuna"):
            optuna.create_study(sampler=sampler).optimize(objective, n_trials=3)
    finally:
        optuna.logging.disable_propagation()
    assert {f"Trial {number} finished" in caplog.text for number in range(3)} == {True}


def test_the_example_runs():
    failed, tried = doctest.testmod(adapter)
    assert (failed, tried > 0) == (0, True)


class TestContract:
    """What the sampler uses of Optuna."""

    def test_a_sampler_is_told_before_each_trial_and_asked_for_each_parameter(self):
        calls = []

        class Recorder(optuna.samplers.BaseSampler):
            def before_trial(self, study, trial):
                calls.append(("before_trial", trial.number, trial._trial_id))

            def infer_relative_search_space(self, study, trial):
                return {}

            def sample_relative(self, study, trial, search_space):
                assert search_space == {}
                return {}

            def sample_independent(self, study, trial, param_name, param_distribution):
                calls.append((param_name, type(param_distribution).__name__, trial.system_attrs.get("seen")))
                return 2

        study = optuna.create_study(sampler=Recorder())
        trial = study.ask()
        study._storage.set_trial_system_attr(trial._trial_id, "seen", [1])
        assert trial.suggest_int("a", 1, 3) == trial.suggest_categorical("b", [1, 2]) == 2
        assert [call[0] for call in calls] == ["before_trial", "a", "b"]
        assert calls[1:] == [("a", "IntDistribution", [1]), ("b", "CategoricalDistribution", [1])]

    def test_the_storage_knows_all_trials_with_their_attributes(self):
        study = optuna.create_study()
        study.enqueue_trial({"a": 1})
        trial = study.ask()
        study._storage.set_trial_system_attr(trial._trial_id, ATTRIBUTE, [1, "x"])
        (found,) = study._storage.get_all_trials(study._study_id, deepcopy=False)
        assert (found.state, found.system_attrs[ATTRIBUTE]) == (TrialState.RUNNING, [1, "x"])
        assert found.system_attrs["fixed_params"] == {"a": 1}

    def test_to_stop_outside_a_loop_is_an_error_of_this_kind(self):
        with pytest.raises(RuntimeError, match=r"supposed to be invoked inside"):
            optuna.create_study().stop()
