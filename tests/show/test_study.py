"""A run exported as an Optuna study agrees with its records; the dashboard serves it to this machine only."""

import http.client
import json
import math
import re
import subprocess
import sys
import time
from dataclasses import replace

import optuna
import pytest

import mltune
from mltune.dataset.dataset import load_manifest
from mltune.errors import MltuneWarning, RunDirectoryError, UsageError
from mltune.records.directory import FILE, PLAN_FILE, STUDY
from mltune.records.store import Store
from mltune.records.trial import TrialState
from mltune.show.study import Studies
from tests.effort import at_most_cpu_s

PEAK_TFLOPS = 132 * 128 * 2 * 1.98e9 / 1e12


def load(studies, name):
    """Read a study from its file, as somebody else does."""
    storage = optuna.storages.JournalStorage(optuna.storages.journal.JournalFileBackend(str(studies.path)))
    return optuna.load_study(study_name=name, storage=storage)


class TestStudies:
    def test_trials_are_complete_pruned_or_failed(self, tmp_path, make_run, make_trial):
        make_run(
            tmp_path / "run",
            make_trial(0),
            make_trial(1, TrialState.SKIPPED),
            make_trial(2, TrialState.WRONG_RESULT),
            make_trial(3, median_s=2e-3),
        )
        study = load(Studies(tmp_path / "run"), "run")
        assert [trial.state.name for trial in study.trials] == ["COMPLETE", "PRUNED", "FAIL", "COMPLETE"]
        assert study.best_trial.number == 3
        assert study.best_value == pytest.approx(2 * 4096**3 / 2e-3 / 1e12)
        assert study.best_params == {"BLK_M": 16, "STAGES": 2}
        assert study.metric_names == ["TFLOPS"]
        assert study.user_attrs["problem"] == "sgemm NT 4096"
        assert study.trials[1].intermediate_values == {1: pytest.approx(math.exp(-2.0) * PEAK_TFLOPS)}
        found = study.trials[2].user_attrs
        assert (found["trial"], found["state"], found["registers"]) == (2, "wrong_result", 128)
        assert found["detail"] == "what went wrong with 2"
        assert found["predicted_tflops"] == pytest.approx(math.exp(-0.5) * PEAK_TFLOPS)

    def test_values_are_in_the_unit_of_the_problem(self, tmp_path, make_run, make_trial):
        transpose = load_manifest("h200-transpose-8192x8192-random").problem.to_json()
        uncounted = {"kind": "recorded", "name": "convolution"}
        for name, problem in (("bytes", transpose), ("nothing", uncounted)):
            make_run.of(problem=problem)(tmp_path / name, make_trial(0), make_trial(1, median_s=2e-3))
        bytes_, nothing = (load(Studies(tmp_path / name), name) for name in ("bytes", "nothing"))
        assert bytes_.metric_names == ["GB/s"]
        assert bytes_.best_value == pytest.approx(8 * 8192**2 / 2e-3 / 1e9)
        assert bytes_.user_attrs["peak_gb_per_s"] == pytest.approx(4800, rel=0.01)
        assert bytes_.user_attrs["reference_gb_per_s"] == pytest.approx(8 * 8192**2 / 2.65e-3 / 1e9)
        found = bytes_.trials[1].user_attrs
        assert found["share_of_peak"] == pytest.approx(bytes_.best_value / bytes_.user_attrs["peak_gb_per_s"])
        predicted_s = math.exp(0.5) / (PEAK_TFLOPS * 1e12)  # of a problem that counts no operation as one
        assert found["predicted_gb_per_s"] == pytest.approx(8 * 8192**2 / predicted_s / 1e9)
        assert (nothing.metric_names, nothing.best_value) == (["ms"], 2.0)
        assert "predicted_ms" in nothing.trials[0].user_attrs
        assert "share_of_peak" not in nothing.trials[0].user_attrs

    def test_of_a_very_long_run_the_latest_trials_are_shown(self, tmp_path, make_run, make_trial, monkeypatch):
        monkeypatch.setattr("mltune.show.study.MOST_TRIALS", 3)
        make_run(tmp_path, *(make_trial(number) for number in range(5)))
        studies = Studies(tmp_path)
        make_run(tmp_path, make_trial(5))
        assert studies.update() == 1
        assert [trial.user_attrs["trial"] for trial in load(studies, tmp_path.name).trials] == [2, 3, 4, 5]

    def test_a_damaged_run_of_a_campaign_is_left_out(self, tmp_path, make_run, make_trial):
        (tmp_path / "plan.toml").write_text("")
        make_run(tmp_path / "problems" / "whole", make_trial(0))
        (make_run(tmp_path / "problems" / "broken", make_trial(0)) / FILE).write_bytes(b"no store" * 100)
        with pytest.warns(MltuneWarning, match=r"broken is not in the dashboard: .*is a damaged store"):
            studies = Studies(tmp_path)
        assert studies.update() == 0
        assert len(load(studies, "whole").trials) == 1

    def test_times_are_those_of_the_run_not_of_the_clock(self, tmp_path, make_run, make_trial):
        make_run(tmp_path, *(make_trial(number, finished_at=-5.0 * number) for number in range(3)))
        trials = load(Studies(tmp_path), tmp_path.name).trials
        assert [trial.datetime_complete.timestamp() - 1.75e9 for trial in trials] == [0.5, 1.0, 1.5]
        assert all(trial.duration.total_seconds() == pytest.approx(0.2) for trial in trials)

    def test_what_ends_later_is_added(self, tmp_path, make_run, make_trial):
        make_run(tmp_path, make_trial(0))
        studies = Studies(tmp_path)
        assert studies.update() == 0
        make_run(tmp_path, make_trial(2), make_trial(1))
        assert studies.update() == 2
        assert [trial.user_attrs["trial"] for trial in load(studies, tmp_path.name).trials] == [0, 2, 1]
        again = load(Studies(tmp_path), tmp_path.name)
        assert [trial.user_attrs["trial"] for trial in again.trials] == [0, 2, 1]

    def test_a_plan_has_a_study_for_each_problem(self, tmp_path, make_run, make_trial):
        (tmp_path / PLAN_FILE).write_text("")
        make_run(tmp_path / "problems/sgemm-nt-64", make_trial(0))
        studies = Studies(tmp_path)
        make_run(tmp_path / "problems/dgemm-nn-64", make_trial(0), make_trial(1))
        assert studies.update() == 2
        assert [len(load(studies, slug).trials) for slug in ("sgemm-nt-64", "dgemm-nn-64")] == [1, 2]

    def test_one_that_was_deleted_in_the_dashboard_stays_deleted(self, tmp_path, make_run, make_trial):
        make_run(tmp_path, make_trial(0))
        studies = Studies(tmp_path)
        optuna.delete_study(study_name=tmp_path.name, storage=studies.storage)
        make_run(tmp_path, make_trial(1))
        assert studies.update() == 0

    def test_a_configuration_outside_the_space_is_refused(self, tmp_path, make_run, make_trial):
        make_run(tmp_path, replace(make_trial(0), configuration={"BLK_M": 17, "STAGES": 1}))
        with pytest.raises(RunDirectoryError, match="17"):
            Studies(tmp_path)

    def test_thousands_of_trials_take_seconds(self, tmp_path, make_run, make_trial):
        make_run(tmp_path, *map(make_trial, range(2000)))
        with at_most_cpu_s(20.0):
            Studies(tmp_path)

    def test_leaves_nothing_but_the_file(self, tmp_path, make_run, make_trial):
        before = {path.name for path in make_run(tmp_path, make_trial(0)).iterdir()}
        Studies(tmp_path)
        assert {path.name for path in tmp_path.iterdir()} == before | {STUDY}

    def test_a_lock_that_a_killed_dashboard_left_does_not_hang(self, tmp_path, make_run, make_trial):
        make_run(tmp_path, make_trial(0))
        (tmp_path / f"{STUDY}.lock").symlink_to("nowhere")
        studies = Studies(tmp_path)
        with Store.open(tmp_path) as store:
            store.append(make_trial(1))
        assert studies.update() == 1

    def test_where_there_is_no_run_there_is_no_study(self, tmp_path):
        with pytest.raises(RunDirectoryError):
            Studies(tmp_path)
        with pytest.raises(RunDirectoryError):
            Studies(tmp_path / "nothing")
        assert list(tmp_path.iterdir()) == []


@pytest.mark.system
def test_the_dashboard_shows_the_run_to_this_machine_alone(tmp_path, make_run, make_trial):
    pytest.importorskip("optuna_dashboard")
    make_run(tmp_path / "run", make_trial(0), make_trial(1))
    with mltune.dashboard(tmp_path / "run", port=0) as address:
        host, port = re.fullmatch(r"http://(127\.0\.0\.1):(\d+)/", address).groups()

        def get(path, name="localhost"):
            connection = http.client.HTTPConnection(host, int(port), timeout=300)
            connection.request("GET", path, headers={"Host": name})
            response = connection.getresponse()
            content = response.read()
            connection.close()
            return response.status, content

        assert b"Optuna Dashboard" in get("/dashboard")[1]
        (summary,) = json.loads(get("/api/studies")[1])["study_summaries"]
        assert summary["study_name"] == "run"
        found = json.loads(get(f"/api/studies/{summary['study_id']}?after=0")[1])
        assert [trial["state"] for trial in found["trials"]] == ["Complete", "Complete"]
        for name, status in (("127.0.0.1", 200), (f"localhost:{port}", 200), ("example.org:80", 403), ("", 403)):
            assert get("/api/studies", name)[0] == status
        with pytest.raises(UsageError, match="another port"), mltune.dashboard(tmp_path / "run", port=int(port)):
            pass
    with pytest.raises(OSError, match="refused"):
        get("/dashboard")


@pytest.mark.system
def test_trials_that_end_are_added_while_it_is_served(tmp_path, make_run, make_trial, monkeypatch):
    pytest.importorskip("optuna_dashboard")
    monkeypatch.setattr("mltune.show.study.UPDATE_EVERY_S", 0.1)
    make_run(tmp_path, make_trial(0))
    with mltune.dashboard(tmp_path, port=0):
        journal = optuna.storages.journal.JournalFileBackend(str(tmp_path / STUDY))
        study = optuna.load_study(storage=optuna.storages.JournalStorage(journal), study_name=tmp_path.name)
        make_run(tmp_path, make_trial(1))
        for _ in range(300):
            if len(study.trials) == 2:
                break
            time.sleep(0.1)
        else:
            pytest.fail("the second trial was not added within 30 s")


def test_without_the_extra_the_study_is_written_all_the_same(tmp_path, make_run, make_trial):
    make_run(tmp_path, make_trial(0))
    script = "import sys; sys.modules['optuna_dashboard'] = None; from mltune.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", script, "dashboard", tmp_path], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 2
    assert "pip install 'mltune-gpu[dashboard]'" in done.stderr
    assert "Traceback" not in done.stderr
    assert (tmp_path / STUDY).exists()


def test_a_campaign_without_runs_has_a_study_file_that_can_be_updated(tmp_path):
    (tmp_path / PLAN_FILE).write_text("[plan]\n")
    (tmp_path / "problems").mkdir()

    studies = Studies(tmp_path)

    assert studies.update() == 0
    assert studies.storage.get_all_studies() == []
