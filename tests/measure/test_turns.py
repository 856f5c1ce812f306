"""Turns of processes at a GPU."""

import multiprocessing
import os
import signal
import threading
import time

import pytest

from mltune.errors import MltuneWarning
from mltune.files import locks
from mltune.measure import turns


@pytest.fixture(autouse=True)
def gpus(monkeypatch, tmp_path):
    """Two GPUs, and a cache folder of the test."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(turns, "_name", lambda index: f"gpu-{index}")
    monkeypatch.setattr(turns, "cache_folder", lambda: tmp_path)
    return tmp_path


def _hold(index, begun):
    with turns.turn(index):
        begun.set()
        time.sleep(60)


def _holder():
    """Start a process that keeps its turn at GPU 0."""
    context = multiprocessing.get_context("fork")
    begun = context.Event()
    holder = context.Process(target=_hold, args=(0, begun))
    holder.start()
    assert begun.wait(300)
    return holder


def _take_and_end(index):
    with turns.turn(index):
        pass


def test_others_wait_for_the_end_of_a_turn_but_not_at_another_gpu():
    order, begun = [], threading.Event()

    def first():
        with turns.turn(0):
            begun.set()
            time.sleep(0.2)
            order.append("first")

    thread = threading.Thread(target=first)
    thread.start()
    begun.wait()
    with turns.turn(1):
        order.append("other GPU")
    with turns.turn(0):
        order.append("second")
    thread.join()
    assert order == ["other GPU", "first", "second"]


def test_a_turn_that_ends_in_a_warning_as_an_error_is_free_for_others(monkeypatch):
    monkeypatch.setattr(locks, "SPEAK_S", 0.1)
    holder = _holder()
    with pytest.raises(MltuneWarning, match="the turn at GPU 0 is not free"), turns.turn(0):
        pass
    os.kill(holder.pid, signal.SIGKILL)
    holder.join()
    for thread in threading.enumerate():
        if thread.name.endswith("(_wait)"):
            thread.join()  # it gets the lock that it waited for, and a process forked meanwhile would have a copy
    other = multiprocessing.get_context("fork").Process(target=_take_and_end, args=(0,))
    other.start()
    other.join(300)
    assert other.exitcode == 0


def test_the_turn_of_a_killed_process_ends():
    holder = _holder()
    os.kill(holder.pid, signal.SIGKILL)
    with turns.turn(0):
        pass
    holder.join()


@pytest.mark.parametrize("damage", ["a folder", "a link", "a file in the place of the folder"])
def test_nobody_waits_where_no_file_can_be_made(gpus, damage):
    if damage == "a file in the place of the folder":
        (gpus / "gpus").write_text("")
    else:
        (gpus / "gpus").mkdir()
        place = gpus / "gpus" / "gpu-0"
        place.mkdir() if damage == "a folder" else place.symlink_to("/etc/passwd")
    with turns.turn(0):
        pass


def test_nobody_waits_without_a_gpu(monkeypatch, gpus):
    monkeypatch.setattr(turns, "_name", lambda _: "")
    with turns.turn(0):
        pass
    assert not (gpus / "gpus").exists()


def test_a_stopped_process_keeps_nobody_from_a_gpu(monkeypatch):
    """It measures nothing; others wait for it once."""
    monkeypatch.setattr(locks, "SPEAK_S", 0.3)
    holder = _holder()
    os.kill(holder.pid, signal.SIGSTOP)
    with pytest.warns(MltuneWarning, match=rf"process {holder.pid} .*is stopped.*measures beside it"), turns.turn(0):
        pass
    monkeypatch.setattr(locks, "SPEAK_S", 300.0)
    started = time.monotonic()
    for _ in range(10):
        with turns.turn(0):
            pass
    assert time.monotonic() - started < 300  # nobody has waited again
    holder.kill()
    holder.join()
