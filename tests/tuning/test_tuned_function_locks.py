"""Tuned functions beside a stopped process that holds a lock."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import tuned_functions
from tuned_functions import World, arguments, function

from mltune.errors import MltuneWarning
from mltune.files import locks
from mltune.known.entry import Entry
from mltune.known.wisdom import Wisdom
from mltune.known.wisdom_file import locked
from mltune.records.store import Store
from mltune.tuning import tuned_function
from tests.environment import importing

HOLD = """
import sys, time
from pathlib import Path
from mltune.known.wisdom_file import locked
with locked(Path(sys.argv[1])):
    Path(sys.argv[2]).touch()
    time.sleep(100)
"""


@pytest.fixture
def world(tmp_path, idle_workers, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("MLTUNE_EFFORT", "quick")
    monkeypatch.setattr(locks, "SPEAK_S", 0.3)
    return World(monkeypatch, tmp_path, idle_workers.pool)


@pytest.fixture
def stopped():
    """Return a function that starts a process, and stops it when a file tells that it holds its lock."""
    processes = []

    def start(note, *command):
        process = subprocess.Popen([sys.executable, *map(str, command)], env=importing(TESTS))
        processes.append(process)
        while not note.exists():
            assert process.poll() is None
            time.sleep(0.01)
        process.send_signal(signal.SIGSTOP)
        return process

    yield start
    for process in processes:
        process.kill()
        process.wait()


TESTS = Path(tuned_functions.__file__).parent


def test_a_process_that_is_stopped_while_it_tunes_blocks_no_size(world, tmp_path, stopped, monkeypatch):
    file = tmp_path / "add.json"
    process = stopped(tmp_path / "hangs", tuned_functions.__file__, file, 1000, "hang")
    monkeypatch.setattr(tuned_function, "START_S", 600.0)
    add, begun = function(file), time.monotonic()
    add(*arguments(2000))
    assert add.chosen(*arguments(2000)).origin == "tuned"
    with pytest.warns(MltuneWarning, match=rf"runs the best known .* process {process.pid} \(.*is stopped"):
        add(*arguments(1000))
    assert (add.chosen(*arguments(1000)).origin, world.tuned) == ("nearest", 1)
    assert time.monotonic() - begun < tuned_function.START_S / 2  # of a process that works the end is waited for
    with pytest.warns(MltuneWarning, match="is stopped"):
        assert function(tmp_path / "add.json", seed=1).prepare(*arguments(1000)).origin == "nearest"


def test_an_outcome_is_kept_while_a_stopped_process_holds_the_file(world, tmp_path, stopped):
    file = tmp_path / "add.json"
    process = stopped(tmp_path / "holds", "-c", HOLD, file, tmp_path / "holds")
    add = function(file)
    with pytest.warns(MltuneWarning, match=rf"process {process.pid} .*the next process .* writes the outcome"):
        add(*arguments())
    assert (add.chosen(*arguments()).origin, add.chosen(*arguments()).configuration["block_size_x"]) == ("tuned", 256)
    assert not file.exists()
    (run,) = (tmp_path / "cache/mltune/tuned").iterdir()
    with Store.read_only(run) as store:
        trials = len(store)

    process.kill()
    process.wait()
    assert function(file).prepare(*arguments()).configuration["block_size_x"] == 256
    assert {entry.trials for entry in Wisdom.load(file) if isinstance(entry, Entry)} == {trials}
    assert not any((tmp_path / "cache/mltune/tuned").iterdir())


@pytest.fixture
def opened(tmp_path):
    """Return the reads of the file so far: an audit hook cannot be taken away, but it can be told to do nothing."""
    opened, is_on, file = [], [True], str(tmp_path / "add.json")

    def note(event, details):
        if is_on and event == "open" and str(details[0]) == file:
            opened.append(file)

    sys.addaudithook(note)
    yield opened
    is_on.clear()


def test_the_first_call_reads_the_file_once(world, tmp_path, opened):
    file = tmp_path / "add.json"
    function(file).prepare(*arguments())
    assert len(opened) == 1  # before it tunes; nothing has changed when it adds the winner
    tuned = function(file)
    tuned.prepare(*arguments())
    assert len(opened) == 2
    tuned.prepare(*arguments(2000))
    assert (len(opened), world.tuned) == (2, 2)
    function(file).prepare(*arguments(3000))
    tuned.prepare(*arguments(3000))
    assert (len(opened), world.tuned) == (4, 3)  # another process has written it


def test_the_first_call_makes_the_kernel_once(world, tmp_path):
    """A function that restricts is called for each combination of values, whenever a kernel is made."""
    calls = []
    add = function(tmp_path / "add.json", restrictions=lambda values: calls.append(values) or True)
    add.prepare(*arguments())
    assert (len(calls), world.tuned) == (len(tuned_functions.PARAMETERS["block_size_x"]), 1)


def test_nothing_but_the_lock_of_the_file_stays_beside_it(world, tmp_path):
    function(tmp_path / "add.json").prepare(*arguments())
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"add.json", ".add.json.lock", "cache", "tunings"}


def test_the_lock_of_the_file_is_free_while_sizes_are_tuned(world, tmp_path, stopped):
    file = tmp_path / "add.json"
    stopped(tmp_path / "hangs", tuned_functions.__file__, file, 1000, "hang")
    with locked(file, 1.0) as path:
        assert os.path.samefile(path.parent, tmp_path)
