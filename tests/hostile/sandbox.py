"""A process that runs a command on a hostile input: in a fork of itself, watched from outside.

The imports are made once, so that a command starts within milliseconds. Its terminal is a pseudo-terminal, so that the
command writes what a person's terminal would receive; ``TERM=dumb`` keeps mltune's own colours away, so that any escape
sequence comes from the input.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import os
import resource
import select
import signal
import socket
import struct
import subprocess
import sys
import termios
import time
import traceback
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tests.environment import importing

DEADLINE_S = 10.0
"""Seconds that a command may take, without those for which it waits for a processor."""

LONGEST_WAIT_S = 60.0
"""Seconds that a command may take longer because others use the processors."""

MEMORY_BYTES = 1_500_000_000
"""Memory that a command and its processes may use above the start."""

OUTPUT_BYTES = 4_000_000
"""Most bytes that a command may print."""

POLL_S = 0.02

MODULES = (
    "mltune.api",
    "mltune.cli",
    "mltune.comparison.comparison",
    "mltune.comparison.results",
    "mltune.dataset.importing",
    "mltune.dataset.dataset",
    "mltune.search.search",
    "mltune.measure.build",
    "mltune.dataset.replay",
    "mltune.campaign.campaign",
    "mltune.campaign.forecast",
    "mltune.resolve.placement",
    "mltune.resolve.plan_file",
    "mltune.show.report.writing",
    "mltune.results.summary",
    "mltune.show.follow",
    "mltune.show.live",
    "mltune.show.study",
    "mltune.show.inventory",
    "mltune.show.tables",
    "mltune.tuning.tuner",
    "matplotlib.pyplot",
    "pandas",
    "pyarrow.parquet",
    "sklearn.ensemble",
    "tuned_functions",
    "imaginary_gpu",
)
OF_DATABASES = ("psycopg", "alembic.command", "mltune.records.database_runs", "mltune.records.database_tables")


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a command did.

    Attributes
    ----------
    status : int
        Exit status; negative for the number of the signal that ended it.
    output : str
        What its terminal received; undecodable bytes as surrogates.
    wall_s, cpu_s : float
        Seconds, the latter with those of its processes.
    grown_bytes : int
        Most memory above the start.
    opened : list of str
        Files outside the allowed folders that were opened, written or removed.
    late, large, left : bool
        Whether it was killed at its deadline or for its memory, and whether it left a process behind.
    """

    status: int
    output: str
    wall_s: float
    cpu_s: float
    grown_bytes: int
    opened: list[str] = field(default_factory=list)
    late: bool = False
    large: bool = False
    left: bool = False


class Sandbox:
    """A process that runs commands; a context manager.

    Parameters
    ----------
    preload : pathlib.Path, optional
        A library that is loaded into it before all others.
    """

    def __init__(self, preload: Path | None = None) -> None:
        ours, theirs = socket.socketpair()
        root = str(Path(__file__).resolve().parents[2])
        environment = importing(Path(root, "tests"), OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1")
        environment |= {"TERM": "dumb", "MPLBACKEND": "Agg", "PYTHONFAULTHANDLER": ""}
        environment |= {"LD_PRELOAD": str(preload)} if preload else {}
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-c", f"from tests.hostile.sandbox import serve; serve({theirs.fileno()})"],
                pass_fds=[theirs.fileno()],
                env=environment,
                cwd=root,
            )
        self._file = ours.makefile("rw")
        ours.close()

    def run(self, command: str, folder: Path, *arguments: Any) -> Outcome:
        """Run a command of :mod:`tests.hostile.commands` on the input in a folder."""
        self._file.write(json.dumps({"command": command, "folder": str(folder), "arguments": arguments}) + "\n")
        self._file.flush()
        return Outcome(**json.loads(self._file.readline()))

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()
        self._process.wait(timeout=300)


def serve(descriptor: int) -> None:
    """Answer requests until the other end is closed."""
    import importlib

    for module in MODULES:
        importlib.import_module(module)
    if find_spec("psycopg") is not None:
        for module in OF_DATABASES:
            importlib.import_module(module)
    importlib.import_module("tests.hostile.commands")
    gc.collect()
    gc.freeze()
    pr_set_child_subreaper = 36
    ctypes.CDLL(None).prctl(pr_set_child_subreaper, 1)
    watch = Watch()
    with socket.socket(fileno=descriptor) as connection, connection.makefile("rw") as file:
        for line in file:
            request = json.loads(line)
            folder = Path(request["folder"])
            watch.begin(folder / "canary")
            outcome = _run(request["command"], folder, request["arguments"], descriptor)
            document = asdict(outcome)
            document["opened"] += watch.end()
            file.write(json.dumps(document) + "\n")
            file.flush()


def _run(command: str, folder: Path, arguments: list[Any], descriptor: int) -> Outcome:
    """Run a command in a fork, and wait for its end."""
    master, slave = os.openpty()
    _plain_terminal(slave)
    reader, writer = os.pipe()  # of the names of files
    started = time.monotonic()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(master), os.close(reader), os.close(descriptor)
            os.setsid()
            for number in (1, 2):
                os.dup2(slave, number)
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            _guarded(command, folder, arguments, writer)
        finally:
            os._exit(99)
    os.close(slave)
    os.close(writer)
    start_bytes = _resident_bytes(pid)
    output, names, late, large = _watch(pid, master, reader, started)
    _, status, used = os.wait4(pid, 0)
    wall_s = time.monotonic() - started
    left = _end_descendants()
    os.close(master)
    os.close(reader)
    return Outcome(
        status=os.waitstatus_to_exitcode(status),
        output=output.decode(errors="surrogateescape"),
        wall_s=wall_s,
        cpu_s=used.ru_utime + used.ru_stime,
        grown_bytes=max(0, used.ru_maxrss * 1024 - start_bytes),
        opened=sorted({name for name in names.decode(errors="surrogateescape").split("\0") if name}),
        late=late,
        large=large,
        left=left,
    )


def _watch(pid: int, master: int, reader: int, started: float) -> tuple[bytes, bytes, bool, bool]:
    """Collect what a process prints until it ends; kill its session at the deadline or when it grows too large.

    The libraries that several processes map are in memory once, so only memory of their own counts.
    """
    start_bytes = _resident_bytes(pid, of_files=False)
    output, names = bytearray(), bytearray()
    ended = os.pidfd_open(pid)
    poll = select.poll()
    for one in (master, reader, ended):
        poll.register(one, select.POLLIN)
    late = large = False
    try:
        while True:
            ready = {number for number, event in poll.poll(POLL_S * 1000) if event & select.POLLIN}
            for number, found in ((master, output), (reader, names)):
                if number in ready:
                    try:
                        found += os.read(number, 1 << 16)
                    except OSError:  # the terminal was closed
                        poll.unregister(number)
            if ended in ready and not ready & {master, reader}:
                return bytes(output), bytes(names), late, large
            late = late or time.monotonic() - started > DEADLINE_S + min(_waited_s(pid), LONGEST_WAIT_S)
            own_bytes = sum(_resident_bytes(one, of_files=False) for one in _descendants(pid))
            large = large or own_bytes > start_bytes + MEMORY_BYTES
            if late or large or len(output) > OUTPUT_BYTES:
                _kill(list(_descendants(pid)))
                late = late or len(output) > OUTPUT_BYTES
    finally:
        os.close(ended)


def _descendants(pid: int) -> Iterator[int]:
    """Yield a process and its living descendants."""
    yield pid
    try:
        for path in Path(f"/proc/{pid}/task").glob("*/children"):
            for child in path.read_text().split():
                yield from _descendants(int(child))
    except OSError:
        return


def _resident_bytes(pid: int, *, of_files: bool = True) -> int:
    try:
        resident, shared = map(int, Path(f"/proc/{pid}/statm").read_text().split()[1:3])
        return (resident - (0 if of_files else shared)) * resource.getpagesize()
    except (OSError, ValueError):
        return 0


def _waited_s(pid: int) -> float:
    """Return the seconds for which a process and its descendants were ready to run and others ran (Linux)."""
    total = 0
    for one in _descendants(pid):
        with contextlib.suppress(OSError, IndexError):
            total += int(Path(f"/proc/{one}/schedstat").read_text().split()[1])
    return total / 1e9


def _end_descendants(grace_s: float = 1.0) -> bool:
    """Wait for what the command has left behind, which is now a child of this process; kill it after a grace period."""
    deadline = time.monotonic() + grace_s
    left = False
    while True:
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG) != (0, 0):
                pass
        others = set(_descendants(os.getpid())) - {os.getpid()}
        if not others:
            return left
        if time.monotonic() > deadline:
            left = True
            _kill(others)
        time.sleep(0.002)


def _kill(processes: Iterable[int]) -> None:
    for pid in processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _plain_terminal(descriptor: int) -> None:
    """Let a terminal pass on what is written to it unchanged."""
    import fcntl

    flags = termios.tcgetattr(descriptor)
    flags[1] &= ~termios.OPOST
    flags[3] &= ~termios.ECHO
    termios.tcsetattr(descriptor, termios.TCSANOW, flags)
    fcntl.ioctl(descriptor, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 120, 0, 0))


def _guarded(command: str, folder: Path, arguments: list[Any], writer: int) -> None:
    """Run a command in this process, which ends with it."""
    from tests.hostile import commands

    home, here = folder / "home", folder / "cwd"
    for path in (home, here):
        path.mkdir(exist_ok=True)
    os.chdir(here)
    os.environ.update(
        HOME=str(home), XDG_CACHE_HOME=str(home / "cache"), XDG_DATA_HOME=str(home / "data"), TMPDIR=str(home)
    )
    os.environ.pop("PYTHONPATH")
    sys.stdout = open(1, "w", buffering=1, encoding="utf-8", closefd=False)  # noqa: SIM115 - the terminal
    sys.stderr = open(2, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115
    import tempfile

    tempfile.tempdir = str(home)
    sys.addaudithook(Guard([folder / "named", here, home], writer))
    status = 1
    try:
        status = commands.COMMANDS[command](folder, *arguments)
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status or 0)


class Guard:
    """An audit hook that reports the files outside of some folders that Python code opens, changes or lists."""

    EVENTS: Mapping[str, tuple[int, ...]] = {
        "open": (0,),
        "os.listdir": (0,),
        "os.scandir": (0,),
        "os.mkdir": (0,),
        "os.remove": (0,),
        "os.rename": (0, 1),
        "os.rmdir": (0,),
        "os.link": (0, 1),
        "os.symlink": (1,),
        "os.truncate": (0,),
        "os.chmod": (0,),
        "os.utime": (0,),
        "shutil.rmtree": (0,),
        "sqlite3.connect": (0,),
    }

    def __init__(self, folders: list[Path], writer: int) -> None:
        root = Path(__file__).resolve().parents[2]
        allowed = [
            *folders,
            folders[0].parent / "elsewhere",
            sys.prefix,
            sys.base_prefix,
            *sys.path,
            root / "mltune",
            root / "tests" / "hostile",
        ]
        allowed += [root / "datasets", root / "kernels", root / "search", "/proc", "/sys/devices", "/sys/fs/cgroup"]
        allowed += ["/dev/null", "/dev/urandom", "/usr/lib", "/usr/share/zoneinfo", "/etc/localtime"]
        self._root = os.path.realpath(root)  # an entry of sys.path, which imports list
        self._allowed = tuple(f"{os.path.realpath(path)}/" for path in allowed if str(path) not in ("", str(root)))
        self._writer = writer
        self._busy = False

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event not in self.EVENTS or self._busy:
            return
        self._busy = True
        try:
            for position in self.EVENTS[event]:
                # O_PATH opens nothing, and what a directory holds is read by other events
                if event != "open" or not arguments[2] & (os.O_PATH | os.O_DIRECTORY):
                    self._check(event, arguments[position])
        finally:
            self._busy = False

    def _check(self, event: str, path: Any) -> None:
        if not isinstance(path, str | bytes | os.PathLike):
            return
        name = os.fsdecode(path).removeprefix("file:").partition("?")[0]
        follows = event in (
            "open",
            "os.listdir",
            "os.scandir",
            "os.truncate",
            "os.chmod",
            "os.utime",
            "sqlite3.connect",
        )
        real = os.path.realpath(name)
        if not follows:
            real = os.path.join(os.path.realpath(os.path.dirname(name) or "."), os.path.basename(name))
        if event in ("os.listdir", "os.scandir") and real == self._root:
            return
        if not f"{real}/".startswith(self._allowed) and (os.path.lexists(real) or event != "open"):
            os.write(self._writer, f"{event} {real}\0".encode(errors="surrogateescape"))


class Watch:
    """Reports whatever opens or changes the canaries, also from C and from other processes (Linux's inotify)."""

    _EVENTS = 0x1 | 0x2 | 0x4 | 0x20 | 0x40 | 0x80 | 0x100 | 0x200  # access, modify, attributes, open, move, create ...
    _HEADER = struct.Struct("iIII")

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._descriptor = self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        self._folders: dict[int, Path] = {}

    def begin(self, folder: Path) -> None:
        """Watch a folder and the folders in it."""
        for path in [folder, *(path for path in folder.rglob("*") if path.is_dir())]:
            number = self._libc.inotify_add_watch(self._descriptor, os.fsencode(path), self._EVENTS)
            self._folders[number] = path
        self._read()

    def end(self) -> list[str]:
        """Return what was seen since the begin."""
        found = self._read()
        for number in self._folders:
            self._libc.inotify_rm_watch(self._descriptor, number)
        self._folders.clear()
        self._read()
        return sorted(found)

    def _read(self) -> set[str]:
        found = set()
        while True:
            try:
                data = os.read(self._descriptor, 1 << 16)
            except BlockingIOError:
                return found
            while data:
                number, mask, _, length = self._HEADER.unpack_from(data)
                name = data[16 : 16 + length].rstrip(b"\0").decode(errors="surrogateescape")
                data = data[16 + length :]
                if number in self._folders and not mask & 0x8000:
                    found.add(f"canary {mask & 0xFFF:#x} {self._folders[number] / name}")
