"""A run as an Optuna study: the same trials, in memory or in a storage that already has some of them."""

import subprocess
import sys

import optuna
import pytest

import mltune
from mltune.records.trial import TrialState
from mltune.results.reader import RunReader


@pytest.fixture
def run(tmp_path, make_run, make_trial):
    states = TrialState.OK, TrialState.SKIPPED, TrialState.WRONG_RESULT, TrialState.OK
    return make_run(tmp_path / "run", *(make_trial(number, state) for number, state in enumerate(states)))


def test_a_result_has_its_study(run):
    result = RunReader(run).read()
    study = result.study
    assert study.study_name == "run"
    assert [trial.state.name for trial in study.trials] == ["COMPLETE", "PRUNED", "FAIL", "COMPLETE"]
    assert [trial.params for trial in study.trials] == [dict(record.configuration) for record in result.records]
    assert study.best_value == pytest.approx(result.rate.of(result.best_time_s))
    assert result.study is study


def test_a_storage_gets_the_trials_that_it_lacks(run, tmp_path, make_run, make_trial):
    storage = optuna.storages.InMemoryStorage()
    assert len(RunReader(run).read().to_study(storage).trials) == 4
    make_run(run, make_trial(5), make_trial(4))
    result = mltune.load_run(run)
    for _ in range(2):
        study = result.to_study(storage)
        assert [trial.user_attrs["trial"] for trial in study.trials] == [0, 1, 2, 3, 4, 5]
    assert result.to_study(storage, "another").study_name == "another"


def test_values_that_are_no_integers_are_shown_as_they_are(tmp_path, make_run, make_trial):
    make_run.of(labels={"STAGES": ("one", "two", "three")}, parameters={"BLK_M": (16, 32), "STAGES": (0, 1, 2)})(
        tmp_path / "run", make_trial(0)
    )
    result = mltune.load_run(tmp_path / "run")
    assert result.study.best_params == result.best_config
    assert result.study.best_params["STAGES"] == "two"


def test_the_log_of_optuna_stays_as_its_user_set_it(run):
    level = optuna.logging.get_verbosity()
    assert RunReader(run).read().study.trials
    assert optuna.logging.get_verbosity() == level


def test_a_tune_does_not_import_optuna(tmp_path):
    script = (
        "import sys, mltune; "
        f"mltune.tune(trials=10, device='replay:convolution_rtx_a4000', run={str(tmp_path / 'run')!r}, progress=None); "
        "print('optuna' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=300, check=True)
    assert done.stdout.strip() == "False"
