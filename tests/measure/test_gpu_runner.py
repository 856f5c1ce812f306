"""The runner with workers that die, hang and fail, with and without a GPU that stays usable."""

import contextlib
import os
import signal
import time

import pytest
from imaginary_gpu import FOLDER, PROBLEM, REFERENCE_S, ImaginaryBuilder, imaginary_runner

from mltune.errors import BundleError, DeviceError, DeviceLostError, WorkerError
from mltune.measure import runner as runner_module
from mltune.measure.messages import Baseline
from mltune.measure.pipeline import SamplingRule
from mltune.process.child import ChildPool
from mltune.records.trial import Measurement, TrialState

DEEDS = [
    "",
    "die",
    "hang",
    "retire",
    "lose",
    "be killed, once",
    "take the GPU along and retire",
    "take the GPU along and die",
    "take the GPU along and hang",
    "say the best",
]
HASTE_S = 2.0
"""Deadline where a kernel hangs; the others answer in milliseconds."""
BUILDER = ImaginaryBuilder({number: {"deed": deed} for number, deed in enumerate(DEEDS)})


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv(FOLDER, str(tmp_path))
    monkeypatch.setattr(runner_module, "_PAUSES_S", ())
    return tmp_path


@pytest.fixture
def serving(idle_workers, monkeypatch):
    """Return idle workers, of which one has begun the problem."""
    monkeypatch.setattr(runner_module, "_PAUSES_S", ())
    with imaginary_runner(pool=idle_workers.pool) as runner:
        ask(runner, "").result()
    (idle_workers.folder / "starts").write_text("")
    return idle_workers


def ask(runner, deed):
    number = DEEDS.index(deed)
    return runner.submit({"MISDEED": number, "REPEAT": 1}, BUILDER.build(number))


def starts(folder):
    return len((folder / "starts").read_text())


def test_a_default_configuration_that_kills_a_worker_is_not_tried_again(folder, monkeypatch):
    monkeypatch.setattr(runner_module, "_WORKER", "imaginary_worker:make")
    with contextlib.closing(ChildPool()) as pool:
        runner_module.start_worker(pool, 0)
        with imaginary_runner(pool=pool, baseline=lambda: Baseline(b"die", "", ())) as runner:
            with pytest.raises(BundleError, match="must give the right answer"):
                ask(runner, "").result()
            assert starts(folder) == 2  # each of two requests: to begin, and to measure


def test_the_worker_starts_while_the_default_configuration_is_compiled(folder):
    def compiled():
        until = time.monotonic() + 300
        while not (folder / "starts").exists():
            assert time.monotonic() < until
            time.sleep(0.01)
        return Baseline(b"", "", ())

    with imaginary_runner(baseline=compiled) as runner:
        assert ask(runner, "").result().state is TrialState.OK
    assert starts(folder) == 1


def test_a_build_is_measured(folder):
    with imaginary_runner() as runner:
        measured = ask(runner, "").result()

    assert measured.state is TrialState.OK
    assert measured.median_s == 2e-3
    assert starts(folder) == 1


def test_a_queued_build_gets_the_best_time_known_when_it_runs(serving):
    with imaginary_runner(pool=serving.pool) as runner:
        waiting = [ask(runner, deed) for deed in ("say the best", "say the best")]
        known = runner.submit({"MISDEED": 0, "REPEAT": 1}, BUILDER.build(len(DEEDS) - 1), best_s=1e-3)
        details = [one.result().detail for one in (*waiting, known)]

    assert details == ["None", "0.002", "0.001"]


@pytest.mark.parametrize(
    ("deed", "state"), [("die", TrialState.CRASHED), ("retire", TrialState.CRASHED), ("hang", TrialState.TIMEOUT)]
)
@pytest.mark.sampled(2, nightly=99)
def test_where_the_next_worker_runs_the_failure_is_the_kernels(serving, deed, state):
    with imaginary_runner(timeout_s=HASTE_S, pool=serving.pool) as runner:
        ask(runner, "").result()
        measured = ask(runner, deed).result()
        begun = starts(serving.folder)
        after = ask(runner, "").result()

    died = 1 + (deed == "die")  # a worker that died may have been killed from outside: the request is repeated
    assert measured.state is state
    assert begun == died, "the next worker is started at once: it shows whether the GPU is usable"
    assert after.state is TrialState.OK
    assert starts(serving.folder) == died
    assert runner.restarts == died


def test_a_worker_that_is_killed_from_outside_costs_no_trial(serving):
    """The first worker is killed, as by the operating system when memory runs out; the next one measures."""
    with imaginary_runner(pool=serving.pool) as runner:
        ask(runner, "").result()
        measured = ask(runner, "be killed, once").result()

    assert measured.state is TrialState.OK
    assert runner.restarts == 1
    assert starts(serving.folder) == 1


def test_of_several_builds_that_wait_each_failure_costs_itself_alone(serving):
    deeds = ["", "", "die", "", "retire", "be killed, once", ""]
    with imaginary_runner(pool=serving.pool) as runner:
        ask(runner, "").result()
        measured = [future.result() for future in [ask(runner, deed) for deed in deeds]]

    ok, crashed = TrialState.OK, TrialState.CRASHED
    assert [result.state for result in measured] == [ok, ok, crashed, ok, crashed, ok, ok]
    assert runner.restarts == 4


def test_the_worker_in_a_pool_serves_the_next_runner(serving):
    for _ in range(2):
        with imaginary_runner(pool=serving.pool) as runner:
            assert ask(runner, "").result().state is TrialState.OK

    assert starts(serving.folder) == 0


@pytest.mark.parametrize("deed", ["die", "retire", "hang"])
@pytest.mark.sampled(2, nightly=99)
def test_a_worker_that_is_not_usable_is_replaced_for_the_next_runner(serving, deed):
    with imaginary_runner(timeout_s=HASTE_S, pool=serving.pool) as runner:
        ask(runner, deed).result()
    with imaginary_runner(pool=serving.pool) as runner:
        assert ask(runner, "").result().state is TrialState.OK


def test_a_worker_that_was_killed_while_it_waited_is_replaced_at_once(serving):
    with imaginary_runner(pool=serving.pool) as runner:
        ask(runner, "").result()
        pid = runner._child.pid
    os.kill(pid, signal.SIGKILL)
    with imaginary_runner(pool=serving.pool) as runner:
        assert ask(runner, "").result().state is TrialState.OK

    assert starts(serving.folder) == 1
    assert runner.restarts == 0


def test_what_is_under_way_at_the_end_of_a_runner_does_not_hold_up_the_next(serving):
    with imaginary_runner(timeout_s=60, pool=serving.pool) as runner:
        ask(runner, "").result()
        hanging, waiting = ask(runner, "hang"), ask(runner, "")
        time.sleep(0.2)
    with imaginary_runner(pool=serving.pool) as after:
        assert ask(after, "").result().state is TrialState.OK

    assert waiting.cancelled()
    with pytest.raises(WorkerError, match="was given up"):
        hanging.result()


@pytest.mark.parametrize("deed", ["take the GPU along and die", "take the GPU along and hang", "lose"])
@pytest.mark.sampled(2, nightly=99)
def test_where_the_gpu_is_lost_no_trial_fails(serving, deed):
    with imaginary_runner(timeout_s=HASTE_S, pool=serving.pool) as runner:
        ask(runner, "").result()
        with pytest.raises(DeviceLostError, match=r"cannot be used now: .+; see"):
            ask(runner, deed).result()


def test_a_gpu_that_comes_back_is_used_again(serving):
    with imaginary_runner(pool=serving.pool) as runner:
        with pytest.raises(DeviceLostError):
            ask(runner, "take the GPU along and die").result()
        with pytest.raises(DeviceLostError):
            ask(runner, "").result()
        (serving.folder / "gone").unlink()

        assert ask(runner, "").result().state is TrialState.OK


def test_a_gpu_that_is_back_within_the_pauses_is_not_lost(serving, monkeypatch):
    monkeypatch.setattr(runner_module, "_PAUSES_S", (0.2,) * 50)
    with imaginary_runner(pool=serving.pool) as runner:
        asked = ask(runner, "take the GPU along and retire")
        while not (serving.folder / "gone").exists():
            time.sleep(0.01)
        (serving.folder / "gone").unlink()

        assert asked.result().state is TrialState.CRASHED


def test_a_gpu_that_is_taken_at_first_may_come_free(folder):
    (folder / "gone").touch()
    with imaginary_runner() as runner, pytest.raises(DeviceLostError, match="no GPU answers"):
        ask(runner, "").result()


def test_a_gpu_that_does_not_exist_is_a_device_error(folder):
    (folder / "absent").touch()
    with imaginary_runner() as runner, pytest.raises(DeviceError, match="no GPU answers"):
        ask(runner, "").result()


def test_a_gpu_that_has_worked_may_come_back(serving):
    with imaginary_runner(pool=serving.pool) as runner:
        ask(runner, "").result()
        (serving.folder / "absent").touch()
        with pytest.raises(DeviceLostError):
            ask(runner, "die").result()


def test_a_worker_that_cannot_be_started_is_a_worker_error(folder):
    (folder / "broken").touch()
    with imaginary_runner() as runner, pytest.raises(WorkerError, match="cannot be started"):
        ask(runner, "").result()


def test_a_build_that_runs_when_the_runner_is_closed_is_not_measured(folder):
    with imaginary_runner(timeout_s=60) as runner:
        ask(runner, "").result()
        asked = ask(runner, "hang")
        while not asked.running():
            time.sleep(0.01)
        begun = time.monotonic()

    assert time.monotonic() - begun < 50
    with pytest.raises(WorkerError, match="given up"):
        asked.result()
    assert starts(folder) == 1


def test_a_hanging_kernel_that_is_given_up_leaves_a_runner_that_runs(serving):
    with imaginary_runner(timeout_s=60, pool=serving.pool) as runner:
        ask(runner, "").result()
        asked, waiting = ask(runner, "hang"), ask(runner, "")
        while not runner._measuring:
            time.sleep(0.01)
        runner.abandon()
        assert ask(runner, "").result().state is TrialState.OK

    assert waiting.cancelled()
    with pytest.raises(WorkerError, match="given up"):
        asked.result()
    assert runner.restarts == 1


def test_what_ends_at_once_is_not_given_up(serving):
    with imaginary_runner(pool=serving.pool) as runner:
        asked = ask(runner, "")
        asked.result()
        runner.abandon()
        assert ask(runner, "").result().state is TrialState.OK

    assert runner.restarts == 0
    assert starts(serving.folder) == 0


@pytest.mark.parametrize(("timeout_s", "least_s", "known"), [(60, 0.3, True), (0.3, 60, False)])
def test_the_deadline_follows_from_what_is_known(timeout_s, least_s, known, serving, monkeypatch):
    """Of a kernel that hangs, once another one has taken 2 ms, and where none has succeeded yet."""
    monkeypatch.setattr(runner_module, "LEAST_TIMEOUT_S", least_s)
    with imaginary_runner(timeout_s=timeout_s, pool=serving.pool) as runner:
        if known:
            ask(runner, "").result()
        measured = ask(runner, "hang").result()

    assert measured.state is TrialState.TIMEOUT
    assert "within 0.3 s" in measured.detail


def test_a_kernel_that_is_much_slower_than_the_fastest_is_no_hang(serving, monkeypatch):
    monkeypatch.setattr(runner_module, "LEAST_TIMEOUT_S", 0.1)
    builder = ImaginaryBuilder({0: {"time_s": 0.5}})
    with imaginary_runner(timeout_s=60, pool=serving.pool) as runner:
        runner.submit({"MISDEED": 0, "REPEAT": 1}, builder.build(0)).result()
        assert runner._deadline_s() == 50 * 0.5
        runner._best = Measurement(TrialState.OK, verify_s=3.0)  # of the default configuration, which is not timed yet
        assert runner._deadline_s() == 60 + 2 * 3.0
        runner._best = Measurement(TrialState.OK, verify_s=0.01)
        assert runner._deadline_s() == 50 * 0.01 + 2 * 0.01


def test_the_reference_is_timed(serving):
    with imaginary_runner(pool=serving.pool) as runner:
        assert runner.time_reference().median_s == REFERENCE_S
        assert runner.time_reference(SamplingRule()).median_s == REFERENCE_S


def test_a_race_has_a_column_for_every_entry(serving):
    builder = ImaginaryBuilder({0: {"time_s": 2e-3}, 1: {"time_s": 4e-3}})
    with imaginary_runner(pool=serving.pool) as runner:
        result = runner.race([({"MISDEED": number, "REPEAT": 1}, builder.build(number)) for number in (1, 0)])

    assert result.state is TrialState.OK
    assert result.rounds == len(result.reference_s) == 31
    assert all(slow == pytest.approx(2 * fast) for slow, fast in result.samples_s)


def test_a_race_in_which_the_worker_dies_has_no_times(serving):
    builder = ImaginaryBuilder({0: {"deed": "die in a race"}})
    with imaginary_runner(pool=serving.pool) as runner:
        result = runner.race([({"MISDEED": 0, "REPEAT": 1}, builder.build(0))])

    assert result.state is TrialState.CRASHED
    assert result.rounds == 0


def test_the_verification_of_a_winner_is_prepared_while_no_build_waits(serving):
    problems = [PROBLEM, *PROBLEM.winner_problems()]
    with imaginary_runner(pool=serving.pool) as runner:
        runner.expect_winner()
        assert ask(runner, "").result().state is TrialState.OK
        until = time.monotonic() + 300
        while runner._unprepared or runner._under_way:
            assert time.monotonic() < until
            time.sleep(0.01)

    assert (serving.folder / "prepared").read_text().splitlines() == [problem.label for problem in problems]


def test_with_a_baseline_nothing_is_prepared(folder):
    with imaginary_runner(baseline=lambda: Baseline(b"", "", ())) as runner:
        runner.expect_winner()
        assert ask(runner, "").result().state is TrialState.OK
    assert not (folder / "prepared").exists()
