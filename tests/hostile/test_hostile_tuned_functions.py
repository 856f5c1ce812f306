"""Tuned functions when files are damaged or cannot be written, when processes are killed, and when several call at once."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import tuned_functions
from tuned_functions import World, arguments, function

from mltune.errors import MltuneWarning, RunDirectoryError, WisdomError
from mltune.known.entry import Entry
from mltune.known.wisdom import Wisdom
from mltune.records.directory import lock_directory
from mltune.records.store import Store
from tests.environment import importing

TESTS = Path(tuned_functions.__file__).parent


@pytest.fixture
def world(tmp_path, idle_workers, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("MLTUNE_EFFORT", "quick")
    return World(monkeypatch, tmp_path, idle_workers.pool)


@pytest.fixture
def file(tmp_path):
    return tmp_path / "add.json"


def process(file, n=1000, deed=""):
    """Begin a process that calls a tuned function."""
    command = [sys.executable, tuned_functions.__file__, str(file), str(n), str(deed)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=importing(TESTS))


def answers(*processes):
    """Return what processes print."""
    found = [one.communicate(timeout=300) for one in processes]
    assert [one.returncode for one in processes] == [0] * len(processes), found
    return [out.strip() for out, _ in found]


@pytest.mark.parametrize("effort", ["none", "quick"])
@pytest.mark.parametrize("content", [b"", b"{", b'{"format": 1, "entries": [{"kernel": "add"}]}', b"\xff" * 1000])
def test_a_damaged_file_is_an_error_and_stays_as_it_is(world, file, content, effort):
    file.write_bytes(content)
    with pytest.raises(WisdomError, match="is no wisdom of mltune"):
        function(file, effort=effort)(*arguments())
    assert file.read_bytes() == content
    assert (world.tuned, world.launches) == (0, [])


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo, lambda path: path.symlink_to("/dev/zero")])
def test_what_is_no_file_is_refused(world, file, make):
    make(file)
    with pytest.raises(WisdomError):
        function(file)(*arguments())
    assert world.tuned == 0


def test_a_configuration_that_the_file_makes_up_is_not_launched(world, file):
    function(file)(*arguments())
    entry, *_ = (one for one in Wisdom.load(file) if isinstance(one, Entry))
    for made_up in ({"block_size_x": 100}, {"block_size_x": "256; evil"}, {"other": 1}, {"block_size_x": 2**40}):
        Wisdom([entry.model_copy(update={"configuration": {**entry.configuration, **made_up}})]).save(
            file, overwrite=True
        )
        with pytest.warns(MltuneWarning, match="outside the search space"):
            assert function(file, effort="none").chosen(*arguments()).configuration["block_size_x"] == 64


def a_folder(file):
    file.with_name(f".{file.name}.lock").mkdir()


def read_only(file):
    if not os.geteuid():
        pytest.skip("root writes everywhere")
    file.parent.chmod(0o555)


@pytest.mark.parametrize("protect", [a_folder, read_only])
def test_what_cannot_be_written_is_read_and_refused_before_tuning(world, file, protect):
    function(file)(*arguments())
    file.with_name(f".{file.name}.lock").unlink()
    protect(file)
    try:
        add = function(file)
        add(*arguments())
        assert add.chosen(*arguments()).origin == "file"
        with pytest.raises(WisdomError, match=r"cannot be written.*; MLTUNE_EFFORT=none takes what is known"):
            add(*arguments(2000))
        assert world.tuned == 1
        assert function(file, effort="none").chosen(*arguments(2000)).origin == "nearest"
    finally:
        file.parent.chmod(0o755)


def test_a_kill_before_the_file_is_written_loses_no_measurement(world, file):
    victim = process(file, deed="die")
    victim.communicate(timeout=300)
    assert victim.returncode == -signal.SIGKILL
    assert not file.exists()
    (run,) = (file.parent / "cache/mltune/tuned").iterdir()
    with Store.read_only(run) as store:
        trials = len(store)
    assert trials > 0

    assert answers(process(file)) == ["256"]

    assert {one.trials for one in Wisdom.load(file) if isinstance(one, Entry)} == {trials}
    assert not run.exists()


def test_a_damaged_run_is_begun_again(world, file):
    process(file, deed="die").communicate(timeout=300)
    (run,) = (file.parent / "cache/mltune/tuned").iterdir()
    for path in run.iterdir():
        if path.is_file():
            path.write_bytes(b"damaged")
    add = function(file)
    add(*arguments())
    assert add.chosen(*arguments()).origin == "tuned"


def test_a_run_that_is_under_way_is_left_alone(world, file):
    """As if somebody had removed the lock beside the file."""
    process(file, deed="die").communicate(timeout=300)
    (run,) = (file.parent / "cache/mltune/tuned").iterdir()
    held = lock_directory(run)
    with pytest.raises(RunDirectoryError, match="is in use by process"):
        function(file)(*arguments())
    os.close(held)
    with Store.read_only(run) as store:
        assert len(store) > 0
    assert answers(process(file)) == ["256"]


def test_a_kill_while_one_tunes_lets_the_next_one_in(world, file):
    victim = process(file, deed="hang")
    while not file.with_name("hangs").exists():
        assert victim.poll() is None
        time.sleep(0.01)
    other = process(file)
    time.sleep(1)
    assert other.poll() is None  # it waits
    victim.kill()
    victim.communicate()
    assert answers(other) == ["256"]


def test_of_processes_that_call_at_once_one_tunes_and_all_take_the_same(world, file, tmp_path):
    several = [process(file, deed=tmp_path / "go") for _ in range(2)]
    (tmp_path / "go").touch()
    assert answers(*several) == ["256"] * 2
    assert world.tuned == 1


@pytest.mark.nightly
def test_different_sizes_at_once_are_all_kept(world, file):
    assert answers(*(process(file, n) for n in (1000, 2000))) == ["256"] * 2
    assert {one.problem["sizes"]["problem_size_x"] for one in Wisdom.load(file)} == {1000, 2000}
    assert world.tuned == 2
