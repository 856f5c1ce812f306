"""Child processes that serve one function, with a deadline that the parent enforces; pools of them.

Compilers hang and kernels corrupt their process, so both run in a child that can be killed and replaced. The child
leads its own process group, dies with its parent, and communicates over a socket pair, so that its output cannot mix
with the answers. The parent enforces the deadline, because native code that never returns to Python defeats any timer
inside the child. The design follows the benchmark worker of Helion (pytorch/helion).
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import math
import os
import pkgutil
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import KW_ONLY, dataclass, field
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle, send_handle
from pathlib import Path
from typing import Any, Self, TypeVar

from mltune.errors import WorkerError

Result = TypeVar("Result")

SAFE_PATH = "PYTHONSAFEPATH"
"""Environment variable of Python that keeps imports from the working directory."""

_LOUD = "MLTUNE_LOUD_WORKERS"
"""Environment variable that shows the children's stderr: CUDA prints errors there that are also on record."""

STARTS = 4
"""Processes that are started one after the other if each is killed from outside before it has started."""

TEMPLATE_S, POLL_S = 120.0, 0.01
"""Seconds in which a template forks or answers, and between questions for an exit status."""

DYING_S, SIGNAL_S = 1.0, 0.05
"""Seconds that a child has to die whose connection has ended, and any other one: its own signal is worth reporting."""

_ANSWER, _FAILURE, _MESSAGE = True, False, None
"""The kinds of transmissions from a child: the answer, a failure in place of it, or a message before it."""

_PACKAGE = str(Path(__file__).resolve().parents[1] / "__init__.py")
_BOOTSTRAP = """
import importlib.util, sys
spec = importlib.util.spec_from_file_location("mltune", sys.argv[1])  # the package of the parent, wherever it lies
package = sys.modules["mltune"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(package)
from mltune.process.child import serve
serve(int(sys.argv[2]), int(sys.argv[3]))
"""


_WITHOUT_FAULT = (signal.SIGKILL, signal.SIGTERM, signal.SIGHUP, 0)
"""Ends that are no fault of a process: by signals from outside, or of its own accord while it had nothing to do."""


def available_cores() -> int:
    """Return the number of cores that this process may use: its affinity, limited by the CPU quota of its container."""
    cores = len(os.sched_getaffinity(0))
    with contextlib.suppress(OSError, ValueError):
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text("ascii").split()
        cores = min(cores, max(1, int(quota) // int(period)))
    return cores


class ChildTimeoutError(Exception):
    """The child did not answer in time. It has been killed."""


class ChildDiedError(Exception):
    """The child died before it answered; ``was_killed`` by a person, a job scheduler, or the kernel without memory.

    One that ended because it was idle counts as killed, too: its next request comes too late.
    """

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.was_killed = status is not None and -status in _WITHOUT_FAULT


@dataclass(eq=False)
class Child:
    """A child process that serves one function, started at the first call and again at the first call after its death.

    It imports the module of ``target``, ``"module:factory"``, and serves requests by the result of
    ``factory(*arguments)``; imports and factory have ``start_s`` seconds. ``environment`` adds variables to those of
    this process.

    The child imports from the folders of this process except the working directory: an empty or relative entry of
    ``sys.path``, as interactive sessions have it, is not passed on. On Linux it dies with the thread that started it,
    not only with that thread's process. Its standard output is discarded.

    With a ``template``, which runs :func:`make_template`, it is forked from that one: it has its imports and its
    environment, and dies with it. Without a request for ``idle_s`` seconds, if that is not 0, it ends, unless it has
    children.
    """

    target: str
    arguments: tuple[Any, ...] = ()
    _: KW_ONLY
    start_s: float = 120.0
    environment: Mapping[str, str] = field(default_factory=dict)
    template: ThreadedChild | None = None
    idle_s: float = 0.0
    has_answered: bool = field(default=False, init=False)  # the process that is running, a request
    _process: subprocess.Popen[bytes] | _Forked | None = field(default=None, init=False)
    _connection: Connection | None = field(default=None, init=False)
    _is_given_up: bool = field(default=False, init=False)  # while it starts

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.kill()

    @property
    def pid(self) -> int | None:
        """Process id of the running child, or None."""
        return self._process.pid if self._process is not None else None

    def start(self) -> None:
        """Start the child if it is not running, up to :data:`STARTS` times if it is killed from outside."""
        if self._process is not None:
            return
        self._is_given_up = False
        try:
            self._repeated(STARTS, self._start)
        except (OSError, ChildTimeoutError, ChildDiedError) as error:
            fact = f"the worker process {self.target} did not start within {self.start_s:g} s"
            raise WorkerError(f"{fact}: {error}") from error

    def _start(self) -> None:
        with self._exchanging():
            parent, child = socket.socketpair()
            with parent, child:
                started = self._spawned if self.template is None else functools.partial(_Forked, self.template)
                self._process = started(child.fileno())
                self._connection = Connection(parent.detach())
            self._connection.send([entry for entry in sys.path if os.path.isabs(entry)])
            self._connection.send((self.target, self.arguments, self.idle_s))
            self._receive(self.start_s)

    def _spawned(self, descriptor: int) -> subprocess.Popen[bytes]:
        return subprocess.Popen(  # noqa: S603
            [sys.executable, "-P", "-c", _BOOTSTRAP, _PACKAGE, str(descriptor), str(os.getpid())],
            env={**os.environ, SAFE_PATH: "1", **self.environment},  # of its own children, too
            pass_fds=[descriptor],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=None if os.environ.get(_LOUD) else subprocess.DEVNULL,
            start_new_session=True,
        )

    def call(
        self,
        request: Any,
        timeout_s: float,
        on_message: Callable[[Any], None] | None = None,
        *,
        attempts: int = 1,
        descriptor: int | None = None,
    ) -> Any:
        """Send one picklable request, and return its answer; ``on_message`` gets the messages before it.

        The answer, or the next message, must come within the timeout: a :class:`ChildTimeoutError` follows the kill of
        the child. A death, or an exception as the answer, is a :class:`ChildDiedError`. Up to ``attempts`` processes
        get the request while each is killed from outside, which blames no request; a kill by :meth:`interrupt` ends the
        call. A ``descriptor`` of this process follows the request.
        """
        return self._repeated(attempts, lambda: self._call(request, timeout_s, on_message, descriptor))

    def _repeated(self, attempts: int, exchange: Callable[[], Result]) -> Result:
        """Repeat an exchange while its process is killed from outside, unless :meth:`interrupt` has done that."""
        for _ in range(attempts - 1):
            try:
                return exchange()
            except ChildDiedError as error:
                if not error.was_killed or self._is_given_up:
                    raise
        return exchange()

    def _call(self, request: Any, timeout_s: float, on_message: Any, descriptor: int | None) -> Any:
        self.start()
        assert self._connection is not None  # noqa: S101
        with self._exchanging():
            self._connection.send(request)
            if descriptor is not None:
                send_handle(self._connection, descriptor, None)
            while True:
                kind, answer = self._receive(timeout_s)
                if kind is _ANSWER:
                    self.has_answered = True
                    return answer
                if on_message is not None:
                    on_message(answer)

    @contextlib.contextmanager
    def _exchanging(self) -> Iterator[None]:
        """Kill the child after an error; where its connection has ended the error is how it died."""
        try:
            yield
        except (OSError, EOFError) as error:
            if (status := self.kill(DYING_S)) is None:  # none has started
                raise
            raise ChildDiedError(f"the worker process died: {_describe(status)}", status) from error
        except (ChildTimeoutError, ChildDiedError):
            self.kill()
            raise

    def kill(self, patience_s: float = SIGNAL_S) -> int | None:
        """Kill the child with its process group; return its exit status, or None if it was not running.

        It may be dying of a fatal signal, which is worth reporting, and is waited for meanwhile.
        """
        process, self._process, self.has_answered = self._process, None, False
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
        if process is None:
            return None
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(patience_s)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        return process.wait()

    def interrupt(self, number: signal.Signals = signal.SIGKILL) -> None:
        """Send a signal to the child's process group, from another thread than the call; its death ends the call."""
        process = self._process
        self._is_given_up = self._is_given_up or number == signal.SIGKILL
        if process is not None and process.returncode is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, number)

    def _receive(self, timeout_s: float) -> tuple[bool | None, Any]:
        assert self._connection is not None  # noqa: S101
        if not self._connection.poll(timeout_s):
            raise ChildTimeoutError(f"no answer within {timeout_s:g} s")
        kind, answer = self._connection.recv()
        if kind is _FAILURE:
            raise ChildDiedError(f"the worker process failed: {answer}")
        return kind, answer


def _describe(status: int) -> str:
    """Return the end of a process as text."""
    if status < 0:
        with contextlib.suppress(ValueError):
            return f"signal {signal.Signals(-status).name}"
    return f"exit status {status}"


def _die_with_parent(parent: int) -> None:
    """Request SIGKILL from the kernel when the parent dies (Linux)."""
    with contextlib.suppress(OSError, AttributeError):
        pr_set_pdeathsig = 1
        ctypes.CDLL(None, use_errno=True).prctl(pr_set_pdeathsig, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


_to_parent: Connection | None = None


def send_to_parent(message: Any) -> None:
    """Send a message to the parent before the answer, from the thread that serves the request in a child."""
    if _to_parent is None:
        raise WorkerError("this is no child process, which alone can send a message to its parent.")
    _to_parent.send((_MESSAGE, message))


def serve(descriptor: int, parent: int) -> None:
    """Make the function in the child, then answer requests until the parent process closes the socket pair."""
    _die_with_parent(parent)
    for number in (signal.SIGINT, signal.SIGTERM):  # a job may receive them as a whole; the parent decides
        signal.signal(number, signal.SIG_IGN)
    global _to_parent
    connection = _to_parent = Connection(descriptor)
    sys.path[:] = connection.recv()
    try:
        target, arguments, idle_s = connection.recv()
        function = pkgutil.resolve_name(target)(*arguments)
        connection.send((_ANSWER, None))
        while (request := _next_request(connection, idle_s)) is not None:
            connection.send((_ANSWER, function(request[0])))
    except BaseException as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        with contextlib.suppress(OSError):
            connection.send((_FAILURE, f"{type(error).__name__}: {error} ({Path(last.filename).name}:{last.lineno})"))


def _next_request(connection: Connection, idle_s: float) -> tuple[Any] | None:
    """Return a request; None once the parent has closed the connection, or nobody needs this process."""
    try:
        while idle_s and not connection.poll(idle_s):  # which fails where no file may be opened
            while os.waitpid(-1, os.WNOHANG)[0]:  # a ChildProcessError where none is left
                pass
        return (connection.recv(),)
    except (EOFError, ChildProcessError):
        return None


class ThreadedChild:
    """A child and the only thread that may call it: a child dies with the thread that started it."""

    def __init__(self, target: str, arguments: tuple[Any, ...], **options: Any) -> None:
        self.target, self.arguments = target, arguments
        self.child = Child(target, arguments, **options)
        self.thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="mltune-child")
        weakref.finalize(self, _end_here, self.child, os.getpid())

    def submit(self, request: Any, timeout_s: float, descriptor: int | None = None) -> Future[Any]:
        """Call in the thread; a process that has ended, as one may that is not used, is replaced."""
        return self.thread.submit(self.child.call, request, timeout_s, attempts=2, descriptor=descriptor)


def _end_here(child: Child, process: int) -> None:
    """Kill a child at the end of the process that started it, not of one that was forked from that one."""
    if os.getpid() == process:
        child.kill()


class _Forked:
    """A process that a template forked, with what a :class:`Child` uses of :class:`subprocess.Popen`."""

    def __init__(self, template: ThreadedChild, descriptor: int) -> None:
        self._template = template
        self.returncode: int | None = None
        self.pid: int = self._asked(None, descriptor)

    def poll(self) -> int | None:
        """Return the exit status; None while it runs."""
        if self.returncode is None:
            try:
                self.returncode = self._asked(self.pid)
            except (ChildDiedError, ChildTimeoutError, WorkerError, RuntimeError):  # the template is gone, and it, too
                self.returncode = -signal.SIGKILL
        return self.returncode

    def wait(self, timeout: float = math.inf) -> int:
        """Wait for the exit status."""
        end = time.monotonic() + timeout
        while (status := self.poll()) is None:
            if time.monotonic() > end:
                raise subprocess.TimeoutExpired(self._template.target, timeout)
            time.sleep(POLL_S)
        return status

    def _asked(self, pid: int | None, descriptor: int | None = None) -> Any:
        return self._template.submit(pid, TEMPLATE_S, descriptor).result()


def make_template(preparation: str) -> Callable[[int | None], int | None]:
    """Call ``"module:function"``; return a function that forks, or returns a status; the factory of a template.

    The process must have no threads.
    """
    pkgutil.resolve_name(preparation)()

    def answer(pid: int | None) -> int | None:
        if pid is None:
            return _fork()
        try:
            ended, status = os.waitpid(pid, os.WNOHANG)
        except ChildProcessError:  # of an earlier template, with which it died
            return -signal.SIGKILL
        return os.waitstatus_to_exitcode(status) if ended else None

    return answer


def _fork() -> int:
    """Fork a process that serves the connection whose end follows the request; return its number."""
    assert _to_parent is not None  # noqa: S101
    descriptor, template = recv_handle(_to_parent), os.getpid()
    if not (pid := os.fork()):
        os.setsid()
        _to_parent.close()
        serve(descriptor, template)
        os._exit(0)
    os.close(descriptor)
    return pid


class ChildPool:
    """Children that wait for their next user: two competing kernels take turns with two compilers of one target."""

    def __init__(self) -> None:
        self._idle: list[ThreadedChild] = []

    def take(self, target: str, arguments: tuple[Any, ...]) -> ThreadedChild:
        """Return a waiting child, or a new one; end children with other arguments, except the latest."""
        different = [child for child in self._idle if child.target == target and child.arguments != arguments]
        ended = [child for child in different if child.arguments != different[-1].arguments]
        self._idle = [child for child in self._idle if child not in ended]
        _end(ended)
        fits = next((child for child in self._idle if (child.target, child.arguments) == (target, arguments)), None)
        if fits is None:
            return ThreadedChild(target, arguments)
        self._idle.remove(fits)
        return fits

    def give_back(self, child: ThreadedChild) -> None:
        """Keep a child, whose thread must be idle, for its next user."""
        self._idle.append(child)

    def close(self) -> None:
        """End the waiting children."""
        _end(self._idle)
        self._idle = []


def stop(children: Sequence[Child], calls: Sequence[Future[Any]]) -> None:
    """Kill children until the calls in other threads, which reap them, have ended."""
    while running := [call for call in calls if not call.done()]:
        for child in children:
            child.interrupt()
        wait(running, timeout=0.05)


def fulfilled(result: Result) -> Future[Result]:
    """Return a future that has its result already."""
    future: Future[Result] = Future()
    future.set_result(result)
    return future


def done_until(futures: Iterable[Future[Result]], until: float) -> set[Future[Result]]:
    """Wait for futures until a time of the clock of :func:`time.perf_counter`; return those that are done."""
    return wait(futures, min(max(until - time.perf_counter(), 0.0), threading.TIMEOUT_MAX)).done


def _end(children: list[ThreadedChild]) -> None:
    stop([child.child for child in children], [child.thread.submit(child.child.kill) for child in children])
    for child in children:
        child.thread.shutdown()
