"""Locks: one holder at a time, and a word and a deadline for all who wait."""

import os
import re
import signal
import subprocess
import sys
import threading
import time

import pytest

from mltune.files import locks
from mltune.files.locks import HeldError, Holder, locked_file

HOLD = """
import sys
from pathlib import Path
from mltune.files.locks import locked_file
with locked_file(Path(sys.argv[1]), 10.0, print):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def path(tmp_path):
    return tmp_path / ".file.lock"


@pytest.fixture
def holder(path):
    """Return a process that holds the lock."""
    command = [sys.executable, "-c", HOLD, str(path), "postgresql://me:secret@host/runs"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout.readline() == b"held\n"
    yield process
    process.kill()
    process.wait()
    process.stdin.close()
    process.stdout.close()


def test_a_stopped_holder_is_waited_for_briefly_and_named(holder, path, monkeypatch):
    monkeypatch.setattr(locks, "SPEAK_S", 0.2)
    holder.send_signal(signal.SIGSTOP)
    begun = time.monotonic()
    with pytest.raises(HeldError) as error, locked_file(path, 600.0, print):
        pass
    assert 0.2 <= time.monotonic() - begun < 300
    assert f"process {holder.pid} ({sys.executable} -c" in str(error.value)
    assert "since 20" in str(error.value)
    assert f"which is stopped: `kill -CONT {holder.pid}` lets it go on" in str(error.value)


def test_a_working_holder_is_named_once_and_waited_for_until_the_deadline(holder, path, monkeypatch):
    monkeypatch.setattr(locks, "SPEAK_S", 0.2)
    spoken = []
    with pytest.raises(HeldError, match=f"process {holder.pid} "), locked_file(path, 2.0, spoken.append):
        pass
    (words,) = spoken
    assert words.startswith(f"it is held by process {holder.pid} (")
    assert re.search(r"this process waits for at most [0-2] s more$", words)


@pytest.mark.parametrize("is_killed", [True, False])
def test_a_lock_is_taken_when_its_holder_ends(is_killed, holder, path):
    ending = threading.Timer(0.3, holder.kill if is_killed else holder.stdin.close)
    ending.start()
    with locked_file(path, 600.0, print):
        assert path.read_text().startswith(f"{os.getpid()} ")
    ending.join()
    assert path.read_text() == ""


def test_one_thread_at_a_time_has_a_lock_whose_file_is_removed(path):
    inside, most = [], []

    def enter():
        for _ in range(20):
            with locked_file(path, 60.0, print, is_removed=True):
                inside.append(1)
                most.append(len(inside))
                time.sleep(0.0005)
                inside.pop()

    threads = [threading.Thread(target=enter) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1] * 160
    assert not path.exists()


def test_a_password_in_a_command_is_not_shown(holder):
    words = str(Holder(holder.pid, os.uname().nodename, time.time()))
    assert "secret" not in words


@pytest.mark.parametrize("note", [b"", b"12\n", b"x host 1.0", b"1 host 1e300", b"9" * 4000, b"\xff\0 a nan"])
def test_a_note_that_says_nothing_is_no_holder(note, path):
    path.write_bytes(note)
    descriptor = os.open(path, os.O_RDONLY)
    assert locks.holder_of(descriptor) is None
    os.close(descriptor)
