"""A run keeps its time on an imaginary GPU: kernels hang, none succeeds, or the start takes all of it."""

import os
import time
from dataclasses import replace

import pytest
from imaginary_gpu import HOSTILE, PROBLEM, ImaginaryBuilder, built, imaginary_runner

from mltune.device.known import H200
from mltune.errors import UsageError
from mltune.kernel.placed import PlacedKernel
from mltune.kernel.reader import load_kernel
from mltune.kernel.space import TableSpace
from mltune.measure import runner as runner_module
from mltune.records.trial import TrialState
from mltune.resolve.device import Target
from mltune.resolve.request import TuneRequest
from mltune.tuning import loop, tuner
from mltune.tuning.session import Session

KERNEL = load_kernel(HOSTILE)
LONG_S = 600.0
"""Deadline of a build: no test waits for it."""


class Builder(ImaginaryBuilder):
    """A builder of an imaginary GPU's cubins: configurations from some number on do a deed."""

    def __init__(self, deed, first):
        self.deed, self.first = deed, first

    def submit(self, configuration):
        deed = self.deed if configuration["REPEAT"] >= self.first else ""
        return built(time_s=2e-3, noise=0.0, deed=deed)


@pytest.fixture
def run(tmp_path, idle_workers, monkeypatch):
    """Return a function that tunes for some seconds and returns the result and the seconds that it took."""
    monkeypatch.setattr(runner_module, "_PAUSES_S", ())
    monkeypatch.setattr(runner_module, "LEAST_TIMEOUT_S", LONG_S)

    def tune(time_s, deed="", first=0, start_s=0.0, timeout_s=LONG_S, **options):
        space = TableSpace({"MISDEED": [0] * 64, "REPEAT": list(range(64))})
        runner = imaginary_runner(kernel=KERNEL, problem=PROBLEM, pool=idle_workers.pool, timeout_s=timeout_s)
        session = Session(
            PlacedKernel(KERNEL, PROBLEM, H200, space),
            Builder(deed, first),
            runner,
            {"driver": "13.0", "nvrtc": "13.0"},
            gpu=runner,
        )
        session = replace(session, begun=session.begun - start_s)
        monkeypatch.setattr(tuner, "open_session", lambda *_, **__: session)
        request = TuneRequest(
            PROBLEM,
            KERNEL,
            Target(cuda=0),
            time_s=time_s,
            run=tmp_path / "run",
            wisdom="none",
            search="random",
            skip=False,
            **options,
        )
        begun = time.monotonic()
        return tuner.tune(request), time.monotonic() - begun

    return tune


def test_the_worker_of_the_gpu_starts_before_the_session_is_opened_and_ends_with_the_run(tmp_path, monkeypatch):
    started = []

    def opened(*_, pool, **__):
        worker = pool.take(runner_module._WORKER, (0,))
        started.append(worker.thread.submit(lambda: worker.child.pid).result())
        pool.give_back(worker)
        raise UsageError("enough")

    monkeypatch.setattr(tuner, "open_session", opened)
    with pytest.raises(UsageError, match="enough"):
        tuner.tune(TuneRequest(PROBLEM, KERNEL, Target(cuda=0), time_s=1.0, run=tmp_path / "run"))
    (pid,) = started
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_a_kernel_that_hangs_when_the_time_is_up_is_given_up(run):
    result, took_s = run(3.0, "hang", first=60)

    assert took_s < LONG_S / 2
    assert result.best is not None
    assert result.declaration.verified
    assert not result.counts[TrialState.TIMEOUT], "nobody knows how long it would have taken"


def test_a_start_counts(run):
    result, took_s = run(LONG_S, start_s=LONG_S)

    assert took_s < LONG_S / 2
    assert result.seconds["start"] >= LONG_S
    assert result.seconds["total"] >= result.seconds["start"]
    assert result.best is not None
    assert result.declaration.verified


def test_where_nothing_succeeds_the_run_ends_all_the_same(run, monkeypatch):
    monkeypatch.setattr(loop, "FRUITLESS_S", 0.2)
    result, took_s = run(0.5, "retire")

    assert took_s < LONG_S / 2
    assert result.best is None
    assert result.counts[TrialState.CRASHED]


def test_without_finals_the_times_on_record_decide_and_no_winner_is_written(run, tmp_path, monkeypatch):
    monkeypatch.setattr(runner_module.GpuRunner, "race", None)  # nothing is timed again
    result, _ = run(2.0, finals=False)
    assert result.best is not None
    assert result.declaration is not None
    assert not result.declaration.verified
    assert not (tmp_path / "run" / "winner").exists()
    again, _ = run(4.0, finals=False)
    assert again.declaration.as_of == len(again.records)
