"""Following a run: every state is shown, and the run is not disturbed."""

import os
import signal
import subprocess
import sys
import time

import pytest

from mltune.dataset.dataset import load_manifest
from mltune.records.directory import FILE, PLAN_FILE, lock_directory
from mltune.records.events import FILE as EVENTS_FILE
from mltune.records.events import EventLog
from mltune.records.store import Store
from mltune.records.trial import TrialState
from mltune.show import follow as watching
from mltune.show.follow import Watch, follow
from mltune.show.live import RunDisplay
from tests.environment import importing

ENVIRONMENT = importing(CUDA_VISIBLE_DEVICES="")


@pytest.fixture(autouse=True)
def _in_a_hurry(monkeypatch):
    monkeypatch.setattr(watching, "GRACE_S", 0.5)
    monkeypatch.setattr(watching, "LOOK_EVERY_S", 0.05)


@pytest.fixture
def running(tmp_path):
    """Hold the lock of the directory, as a run does."""
    held = lock_directory(tmp_path)
    yield tmp_path
    os.close(held)


class TestOneRun:
    def test_shows_what_is_on_record(self, tmp_path, make_run, make_trial):
        records = [make_trial(0), make_trial(1, median_s=2.5e-3), make_trial(2, TrialState.SKIPPED)]
        make_run(tmp_path, *records, limit={"trials": 10, "time_s": None})
        (run,) = Watch(tmp_path).look().runs
        assert (run.problem, run.device, run.trials, run.trials_limit) == ("sgemm NT 4096", "replay:toy", 3, 10)
        assert run.best_tflops == pytest.approx(2 * 4096**3 / 2.5e-3 / 1e12)
        assert run.best_share_of_reference == pytest.approx(2.65 / 2.5)
        assert {state: count for state, count in run.counts.items() if count} == {"ok": 2, "skipped": 1}
        assert run.elapsed_s == 1.5

    def test_shows_gigabytes_per_second_where_only_bytes_are_counted(self, tmp_path, make_run, make_trial):
        problem = load_manifest("h200-transpose-8192x8192-random").problem
        make_run.of(problem=problem.to_json())(tmp_path, make_trial(0))
        (run,) = Watch(tmp_path).look().runs
        assert (run.best_tflops, run.best_gb_per_s) == (None, pytest.approx(8 * 8192**2 / 3e-3 / 1e9))

    def test_knows_the_device_from_the_event_log(self, tmp_path, make_run, make_trial):
        make_run(tmp_path, make_trial(0))
        EventLog(tmp_path).snapshot([{"slug": "", "device": "cuda:1"}, 5])
        assert Watch(tmp_path).look().runs[0].device == "cuda:1"

    def test_sees_what_is_added_and_what_is_begun_anew(self, tmp_path, make_run, make_trial):
        make_run(tmp_path, make_trial(0))
        watch = Watch(tmp_path)
        assert watch.look().runs[0].trials == 1
        make_run(tmp_path, make_trial(1), make_trial(2))
        assert watch.look().runs[0].trials == 3
        (tmp_path / FILE).unlink()
        make_run.of(created_at=1.8e9)(tmp_path, make_trial(0), make_trial(1))
        assert watch.look().runs[0].trials == 2

    def test_what_has_not_begun_is_waited_for(self, tmp_path, make_run, make_trial):
        watch = Watch(tmp_path / "run")
        for _ in range(3):
            seen = watch.look()
            assert (seen.begun, seen.ended, seen.runs) == (False, False, ())
        make_run(tmp_path / "run", make_trial(0))
        assert watch.look().begun

    def test_a_run_that_says_that_it_ended_has_when_it_lets_go(self, tmp_path):
        held = lock_directory(tmp_path)
        (tmp_path / FILE).touch()
        log = EventLog(tmp_path)
        log.write("run_started")
        watch = Watch(tmp_path)
        assert not watch.look().ended
        log.write("run_ended", outcome="interrupted")
        assert not watch.look().ended  # a report, say, is still being written
        os.close(held)
        seen = watch.look()
        assert (seen.ended, seen.message) == (True, None)

    def test_a_run_that_ended_before_has_ended_at_once(self, tmp_path, make_run, make_trial):
        make_run(tmp_path, make_trial(0))
        log = EventLog(tmp_path)
        for event in ("run_started", "run_ended"):
            log.write(event)
        assert Watch(tmp_path).look().ended

    def test_a_resumed_run_goes_on(self, tmp_path, make_run, make_trial):
        make_run(tmp_path, make_trial(0))
        log = EventLog(tmp_path)
        for event in ("run_started", "run_ended", "resumed"):
            log.write(event)
        assert not Watch(tmp_path).look().ended

    def test_a_run_that_was_killed_is_found_out(self, tmp_path, make_run, make_trial):
        make_run(tmp_path, make_trial(0))
        EventLog(tmp_path).write("run_started")
        watch = Watch(tmp_path)
        assert not watch.look().ended
        deadline = time.monotonic() + 300
        while not (seen := watch.look()).ended and time.monotonic() < deadline:
            time.sleep(0.05)
        assert seen.ended
        assert "no process" in seen.message

    def test_the_last_old_events_and_all_new_ones_are_shown(self, running):
        log = EventLog(running)
        for number in range(50):
            log.write("best", number=number)
            log.snapshot([], at_once=True)
        watch = Watch(running)
        assert [event["number"] for event in watch.look().events] == list(range(40, 50))
        assert watch.look().events == ()
        for number in range(50, 70):
            log.write("best", number=number)
        assert [event["number"] for event in watch.look().events] == list(range(50, 70))

    @pytest.mark.parametrize("content", [b"", b"SQLite format 3\x00" + b"\x00" * 84, b"\x00" * 5000, b"no store"])
    def test_a_store_that_is_none_shows_nothing(self, running, content):
        (running / FILE).write_bytes(content)
        (running / EVENTS_FILE).write_bytes(content + b'\n{"at": "x", "event": "progress", "done": "many"}\n')
        seen = Watch(running).look()
        assert (seen.runs, seen.events, seen.ended) == ((), (), False)

    def test_facts_of_another_kind_are_passed_over(self, tmp_path, make_run, make_trial):
        make_run(tmp_path, make_trial(0), limit=["a"], reference_median_s="fast")
        (run,) = Watch(tmp_path).look().runs
        assert (run.trials, run.trials_limit, run.best_share_of_reference) == (1, None, None)

    def test_looking_writes_nothing(self, tmp_path, make_run, make_trial):
        make_run(tmp_path, make_trial(0))
        with Store.open(tmp_path) as store:
            before = sorted(path.name for path in tmp_path.iterdir())
            watch = Watch(tmp_path)
            for number in range(1, 20):
                store.append(make_trial(number))
                assert watch.look().runs[0].trials == number + 1
            assert sorted(path.name for path in tmp_path.iterdir()) == sorted({*before, f"{FILE}-wal", f"{FILE}-shm"})


class TestPlan:
    @pytest.fixture
    def plan(self, running, make_run, make_trial):
        """Return a plan of three problems: one is at work, one was, one was not begun."""
        (running / PLAN_FILE).write_text("")
        make_run(running / "problems/a", make_trial(0))
        make_run(running / "problems/b", make_trial(0), make_trial(1))
        log = EventLog(running)
        log.write("plan_started", problems=["b", "a", "c"])
        log.write("slice_started", slug="b", device="cuda:1")
        log.write("progress", runs=[], done=1, problems=3, elapsed_s=60.0, left_s=120.0)
        return running

    def test_shows_the_problems_at_work(self, plan):
        held = lock_directory(plan / "problems/b")
        seen = Watch(plan).look()
        os.close(held)
        ((run,), done, problems) = seen.runs, seen.done, seen.problems
        assert (run.slug, run.device, run.trials, done, problems) == ("b", "cuda:1", 2, 1, 3)
        assert (seen.elapsed_s, seen.left_s) == (pytest.approx(60.0, abs=1.0), pytest.approx(120.0, abs=1.0))

    def test_counts_what_every_time_slice_has_brought(self, plan):
        log = EventLog(plan)
        log.write("plan_started", problems=["b", "a", "c"], budget_trials=48)
        watch = Watch(plan)
        for number, slug in enumerate("abc", 1):
            log.write("slice_ended", slug=slug, trials=12, done=number)
            seen = watch.look()
            assert (seen.done, seen.problems, seen.trials, seen.trials_limit) == (number, 3, 12 * number, 48)
        log.write("slice_ended", slug="a", trials=20, done=3)
        assert watch.look().trials == 44
        log.write("resumed", trials=44, budget_trials=96)
        assert watch.look().trials_limit == 96

    def test_the_end_of_one_problem_is_not_the_end(self, plan):
        EventLog(plan).write("run_ended", slug="b", outcome="ended")
        assert not Watch(plan).look().ended

    def test_without_an_event_log_it_shows_what_the_stores_say(self, plan):
        (plan / EVENTS_FILE).unlink()
        seen = Watch(plan).look()
        assert (seen.is_plan, seen.problems, seen.events) == (True, 2, ())


def test_follow_tells_what_happens_until_the_end(tmp_path, make_run, make_trial, capsys):
    make_run(tmp_path, make_trial(0))
    log = EventLog(tmp_path)
    log.write("gpu_lost", device="cuda:0", detail="fell off\x1b[2J the bus")
    log.write("run_ended", outcome="ended")
    with RunDisplay(stderr=False) as display:
        follow(tmp_path, display)
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(" ")[2] for line in lines] == [
        "cuda:0: GPU lost: fell off [2J the bus",
        "ended: ?, best ?",
    ]


@pytest.mark.parametrize("end", [signal.SIGKILL, None], ids=["killed", "to its end"])
@pytest.mark.sampled(0, system=1)
def test_a_real_run_is_watched_from_before_it_begins(tmp_path, end):
    budget = ["--trials", "64"] if end is None else ["--time", "10m"]
    arguments = ["tune", "sgemm", *budget, "--no-stop", "--run", tmp_path / "run"]
    watch, trials, ended = Watch(tmp_path / "run"), [0], False
    assert not watch.look().begun
    with subprocess.Popen(
        [sys.executable, "-m", "mltune", *arguments], env=ENVIRONMENT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    ) as process:
        deadline = time.monotonic() + 300
        while not ended and time.monotonic() < deadline:
            seen = watch.look()
            trials += [run.trials for run in seen.runs]
            ended = seen.ended
            if end is not None and trials[-1] > 50:
                process.send_signal(end)
                process.wait()
            time.sleep(0.3)
        errors = process.stderr.read().decode()
    assert ended
    assert "in use" not in errors
    assert "Traceback" not in errors
    assert trials == sorted(trials)
    with Store.read_only(tmp_path / "run") as store:
        assert trials[-1] == len(store) > 0
