"""The first signal asks for a clean stop; a process that does not stop says so and ends."""

import signal
import subprocess
import sys
import threading
import time

import pytest

from mltune.process.bounded import done_before
from mltune.process.signals import Interrupt

SCRIPT = """
import sys, time
from mltune.process.signals import Interrupt
with Interrupt(float(sys.argv[1])) as interrupt:
    print("ready", flush=True)
    while not interrupt() or sys.argv[2] == "deaf":
        time.sleep(0.01)
    print(interrupt.signal, 0.0 < interrupt.deadline - time.monotonic() <= float(sys.argv[1]))
"""


def interrupted(patience_s: float, ear: str) -> subprocess.CompletedProcess:
    """Send SIGTERM to a loop that hears it, or does not."""
    command = [sys.executable, "-c", SCRIPT, str(patience_s), ear]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=300)
    return subprocess.CompletedProcess(command, process.returncode, out, err)


def test_a_loop_that_hears_a_signal_knows_how_long_it_has():
    done = interrupted(60.0, "hears")
    assert (done.returncode, done.stdout, done.stderr) == (0, "SIGTERM True\n", "")


def test_a_loop_that_does_not_is_ended_with_a_message():
    done = interrupted(0.3, "deaf")
    assert done.returncode == 128 + signal.SIGTERM
    assert done.stderr.startswith("mltune: it did not end within 0.3 s of SIGTERM")
    assert "every trial is on record" in done.stderr


def test_without_a_signal_there_is_no_deadline():
    assert Interrupt().deadline == float("inf")


def test_work_that_is_late_is_left_behind_and_its_exceptions_are_raised():
    released, moments = threading.Event(), []
    assert not done_before(lambda: time.monotonic() - 0.1, released.wait)
    released.set()
    assert done_before(lambda: float("inf"), lambda: moments.append(1))
    assert moments == [1]
    with pytest.raises(ZeroDivisionError):
        done_before(lambda: float("inf"), lambda: moments.append(1 // 0))


LEAVING = """
import atexit, sys, time
import mltune.cli
from mltune.process.bounded import done_before
atexit.register(print, "Python ends as usual")
mltune.cli._run = lambda arguments: sys.exit(130 + done_before(lambda: {deadline}, lambda: time.sleep({seconds})))
print("the last line", end="")
mltune.cli.main()
"""


@pytest.mark.parametrize(("seconds", "status", "printed"), [(600, 130, ""), (0, 131, "Python ends as usual\n")])
def test_a_command_that_leaves_work_behind_ends_at_once_with_its_exit_code(seconds, status, printed):
    """Python would end its thread in native code, and crash."""
    command = [sys.executable, "-c", LEAVING.format(seconds=seconds, deadline=0.0 if seconds else "float('inf')")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (status, f"the last line{printed}", "")


IMPORTING = """
import os, signal, sys
class Finder:
    def find_spec(name, path, target=None):
        if name == "typer":
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Finder)
import mltune.__main__
"""

INTERRUPTED = """
import os, signal, sys, time
import mltune.cli
def command(*arguments, **options):
    try:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(60)
    except KeyboardInterrupt:
        if sys.argv[1] == "twice":
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(60)
        raise AttributeError("partially initialized module")
mltune.cli._command = lambda: command
mltune.cli.main()
"""


FAILED = """
import os, signal, sys
import mltune.cli
from mltune.api.display import attended
def command(*arguments, **options):
    with attended() as attendance:
        os.kill(os.getpid(), signal.SIGINT)
        while not attendance["interrupt"]():
            pass
        raise mltune.RunError("nothing has ended yet")
mltune.cli._command = lambda: command
mltune.cli.main()
"""


@pytest.mark.parametrize(
    ("program", "times", "said"),
    [
        (IMPORTING, "once", ""),
        (INTERRUPTED, "once", "mltune: interrupted\n"),
        (INTERRUPTED, "twice", ""),
        (FAILED, "once", "mltune: nothing has ended yet\n"),
    ],
)
def test_a_command_that_is_interrupted_ends_with_130_and_no_traceback(program, times, said):
    command = [sys.executable, "-c", f"import signal\nsignal.signal(2, signal.default_int_handler)\n{program}", times]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", said)
