"""Child processes that hang, die or fail, with real processes and signals."""

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time

import pytest

from mltune.errors import WorkerError
from mltune.process.child import STARTS, Child, ChildDiedError, ChildTimeoutError, ThreadedChild

DEEDS = "tests.process.deeds"
TARGET = f"{DEEDS}:make"


@pytest.fixture
def child():
    made = Child(TARGET)
    yield made
    made.kill()


def is_alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_until_dead(pid, seconds=60.0):
    until = time.monotonic() + seconds
    while is_alive(pid) and time.monotonic() < until:
        time.sleep(0.02)
    return not is_alive(pid)


def test_answers_come_back(child):
    assert child.call(("greet", "world"), 60) == "hello world"
    assert child.call(("greet", "again"), 60) == "hello again"


def test_arguments_reach_the_factory():
    child = Child(TARGET, ("good day",))
    assert child.call(("greet", "sir"), 60) == "good day sir"
    child.kill()


def test_large_requests_and_answers_pass(child):
    assert child.call(("length", b"y" * 5_000_000), 60) == 5_000_000
    assert len(child.call(("large", 5_000_000), 60)) == 5_000_000


def test_one_process_serves_all_requests(child):
    first = child.call(("pid",), 60)

    assert child.call(("pid",), 60) == first == child.pid
    assert first != os.getpid()


def test_what_a_child_prints_disturbs_nothing(child, capfd):
    assert child.call(("chatter",), 60) == "done"
    assert child.call(("greet", "world"), 60) == "hello world"
    assert capfd.readouterr().out == ""


@pytest.mark.parametrize("deed", [("sleep", 100), ("hang_in_native_code",), ("ignore_signals",)])
def test_late_child_is_killed_and_replaced(child, deed):
    child.start()
    pid = child.pid
    with pytest.raises(ChildTimeoutError, match="no answer within"):
        child.call(deed, 0.3)

    assert not is_alive(pid)
    assert child.pid is None
    assert child.call(("greet", "next"), 60) == "hello next"


@pytest.mark.parametrize(("deed", "words"), [("segfault", "SIGSEGV"), ("abort", "SIGABRT"), ("leave", "exit status 7")])
def test_dead_child_is_reported_and_replaced(child, deed, words):
    with pytest.raises(ChildDiedError, match=words):
        child.call((deed, 7) if deed == "leave" else (deed,), 60)

    assert child.call(("greet", "next"), 60) == "hello next"


def test_exception_in_a_child_is_reported_with_its_place(child):
    with pytest.raises(ChildDiedError, match=r"ArithmeticError: two and two is five \(deeds.py:\d+\)"):
        child.call(("fail",), 60)

    assert child.call(("greet", "next"), 60) == "hello next"


def test_killed_child_is_replaced(child):
    child.start()
    os.kill(child.pid, signal.SIGKILL)
    with pytest.raises(ChildDiedError, match="SIGKILL"):
        child.call(("greet", "nobody"), 60)

    assert child.call(("greet", "next"), 60) == "hello next"


def test_whole_process_group_is_killed(child):
    grandchild = child.call(("grandchild",), 60)
    assert is_alive(grandchild)

    child.kill()

    assert wait_until_dead(grandchild)


def test_factory_that_fails_is_a_worker_error():
    with pytest.raises(WorkerError, match="nothing to serve with"):
        Child(f"{DEEDS}:make_failing").start()


def test_factory_that_does_not_exist_is_a_worker_error():
    with pytest.raises(WorkerError, match="no_such_name"):
        Child(f"{DEEDS}:no_such_name").start()


def test_factory_that_hangs_is_a_worker_error():
    child = Child(f"{DEEDS}:make_hanging", start_s=0.5)
    with pytest.raises(WorkerError, match=r"within 0\.5 s"):
        child.start()

    assert child.pid is None


def test_child_that_cannot_be_started_is_a_worker_error_and_leaves_nothing_open():
    opened = os.listdir("/proc/self/fd")
    with pytest.raises(WorkerError, match="Argument list too long"):
        Child(TARGET, environment={"LONG": "x" * 200_000}).start()
    assert os.listdir("/proc/self/fd") == opened


@pytest.fixture
def killed_as_they_start(monkeypatch):
    """Kill the first children as soon as they run; return the list with their number, and the ids of all."""
    to_kill, pids, popen = [0], [], subprocess.Popen

    class Killed(popen):
        def __init__(self, *arguments, **options):
            super().__init__(*arguments, **options)
            pids.append(self.pid)
            if len(pids) <= to_kill[0]:
                self.send_signal(signal.SIGKILL)

    monkeypatch.setattr(subprocess, "Popen", Killed)
    return to_kill, pids


@pytest.mark.parametrize("kills", [1, STARTS - 1])
def test_a_child_that_is_killed_while_it_starts_is_started_again(child, kills, killed_as_they_start):
    to_kill, pids = killed_as_they_start
    to_kill[0] = kills
    assert child.call(("greet", "you"), 60) == "hello you"
    assert len(pids) == kills + 1


def test_children_that_are_all_killed_while_they_start_are_a_worker_error(child, killed_as_they_start):
    to_kill, pids = killed_as_they_start
    to_kill[0] = 100
    with pytest.raises(WorkerError, match=r"did not start .*SIGKILL"):
        child.start()
    assert (len(pids), child.pid) == (STARTS, None)


def test_a_child_that_is_given_up_while_it_starts_is_not_started_again():
    slow = Child("time:sleep", (100,))

    def give_up():
        while slow.pid is None:
            time.sleep(0.01)
        slow.interrupt()

    giving_up = threading.Thread(target=give_up)
    giving_up.start()
    begun = time.monotonic()
    with pytest.raises(WorkerError):
        slow.start()
    assert time.monotonic() - begun < 90
    giving_up.join()


def test_interrupt_ends_a_call_from_another_thread(child):
    child.start()
    timer = threading.Timer(0.3, child.interrupt)
    timer.start()
    with pytest.raises(ChildDiedError, match="SIGKILL"):  # a late one would be killed with another error
        child.call(("sleep", 100), 60)

    timer.join()


def test_child_survives_control_c(child):
    child.start()
    os.kill(child.pid, signal.SIGINT)

    assert child.call(("greet", "world"), 60) == "hello world"


def test_killing_twice_is_harmless(child):
    child.start()
    child.kill()

    assert child.kill() is None
    child.interrupt()


def test_child_dies_with_its_parent(tmp_path):
    script = textwrap.dedent(
        """
        import sys, time
        from mltune.process.child import Child
        child = Child("time:sleep", (0,))  # the factory answers None; the child then waits for a request
        child.start()
        print(child.pid, flush=True)
        time.sleep(100)
        """
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as parent:
        pid = int(parent.stdout.readline())
        assert is_alive(pid)
        parent.kill()

    gone = wait_until_dead(pid)
    if not gone:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    assert gone


AT_EXIT = f"""
import atexit, os
from mltune.process.child import Child, ThreadedChild

template = ThreadedChild("mltune.process.child:make_template", ("{DEEDS}:prepare",), idle_s=60.0)
child = Child("{TARGET}", template=template)
pids = [child.call(("pid",), 60), template.child.pid]
if not (forked := os.fork()):
    atexit._run_exitfuncs()
    os._exit(0)
os.waitpid(forked, 0)
assert [child.call(("pid",), 60), template.child.pid] == pids  # the forked one has ended none
print(*pids)
"""


def test_a_program_waits_for_its_children_at_its_end():
    done = subprocess.run(
        [sys.executable, "-W", "default", "-W", "ignore::DeprecationWarning", "-c", AT_EXIT],  # of forks with threads
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (0, "")  # no ResourceWarning
    assert not any(map(is_alive, map(int, done.stdout.split())))


class TestForkedFromATemplate:
    """Children that a prepared process forks."""

    @pytest.fixture
    def template(self):
        made = ThreadedChild("mltune.process.child:make_template", (f"{DEEDS}:prepare",), idle_s=60.0)
        yield made
        made.thread.submit(made.child.kill).result()
        made.thread.shutdown()

    @pytest.fixture
    def forked(self, template):
        children = [Child(TARGET, (greeting,), template=template) for greeting in ("hello", "good day")]
        yield children
        for child in children:
            child.kill()

    def test_they_have_what_was_prepared_and_arguments_of_their_own(self, forked, template):
        assert [child.call(("greet", "sir"), 60) for child in forked] == ["hello sir", "good day sir"]
        assert [child.call(("prepared",), 60) for child in forked] == [template.child.pid] * 2
        assert len({template.child.pid, *(child.pid for child in forked)}) == 3
        assert all(os.getpgid(child.pid) == child.pid for child in forked)  # killed with what they start

    def test_a_death_has_its_signal_and_the_next_call_another_process(self, forked):
        first = forked[0].call(("pid",), 60)
        with pytest.raises(ChildDiedError, match="signal SIGABRT"):
            forked[0].call(("signal", signal.SIGABRT), 60)
        assert forked[0].call(("pid",), 60) != first
        assert forked[1].call(("greet", "you"), 60) == "good day you"

    def test_one_that_is_late_is_killed_alone(self, forked):
        assert forked[1].call(("greet", "you"), 60) == "good day you"
        pids = [forked[0].call(("pid",), 60), forked[1].pid]
        with pytest.raises(ChildTimeoutError):
            forked[0].call(("sleep", 600), 0.2)
        assert wait_until_dead(pids[0])
        assert forked[1].call(("pid",), 60) == pids[1]

    def test_they_die_with_their_template_and_are_forked_from_a_new_one(self, forked, template):
        pid = forked[0].call(("pid",), 60)
        os.kill(template.child.pid, signal.SIGKILL)
        assert wait_until_dead(pid)
        assert forked[0].call(("greet", "you"), 60, attempts=2) == "hello you"
        assert forked[0].pid != pid

    def test_a_template_that_is_not_used_ends_after_its_children(self):
        template = ThreadedChild("mltune.process.child:make_template", (f"{DEEDS}:prepare",), idle_s=0.3)
        child = Child(TARGET, template=template)
        assert child.call(("greet", "you"), 60) == "hello you"
        pid = template.child.pid
        time.sleep(1.0)
        assert child.call(("greet", "you"), 60) == "hello you"
        assert template.child.pid == pid
        child.kill()
        assert wait_until_dead(pid)
        assert child.call(("greet", "again"), 60) == "hello again"
        child.kill()
        template.thread.submit(template.child.kill).result()
