"""The lock of a directory: one process holds it, and testing it does not interfere."""

import os
import subprocess
import sys
import threading

import pytest

from mltune.errors import RunDirectoryError
from mltune.records.directory import FILE, LOCK, in_use, lock_directory


def test_one_holds_it_until_it_lets_go(tmp_path):
    assert not in_use(tmp_path / "nothing")
    held = lock_directory(tmp_path)
    assert in_use(tmp_path)
    with pytest.raises(RunDirectoryError, match=f"in use by process {os.getpid()}"):
        lock_directory(tmp_path)
    os.close(held)
    assert not in_use(tmp_path)
    os.close(lock_directory(tmp_path))


def test_what_the_file_holds_does_not_reach_the_terminal(tmp_path):
    held = lock_directory(tmp_path)
    (tmp_path / FILE).touch()  # without a run, a file that is no lock of mltune is refused before
    (tmp_path / LOCK).write_text("\x1b[2J")
    with pytest.raises(RunDirectoryError, match=r"in use by an unknown process, and"):
        lock_directory(tmp_path)
    os.close(held)


def test_a_dead_process_holds_none(tmp_path):
    script = (
        "import os, signal, sys; from pathlib import Path; from mltune.records.directory import lock_directory;"
        "lock_directory(Path(sys.argv[1])); print(flush=True); signal.pause()"
    )
    with subprocess.Popen([sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        assert in_use(tmp_path)
        process.kill()
    assert not in_use(tmp_path)


def test_nobody_is_refused_because_others_look(tmp_path):
    done = threading.Event()

    def look():
        while not done.wait(0.0005):
            in_use(tmp_path)

    lookers = [threading.Thread(target=look) for _ in range(3)]
    for looker in lookers:
        looker.start()
    try:
        for _ in range(300):
            os.close(lock_directory(tmp_path))
    finally:
        done.set()
        for looker in lookers:
            looker.join()
