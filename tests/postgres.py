"""A PostgreSQL server of its own for tests: in a folder, on a socket in it."""

import contextlib
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path


def programs() -> Path | None:
    """Return the folder with ``initdb`` and ``postgres``; None if there is none."""
    found = shutil.which("initdb")
    folders = [Path(found).resolve().parent] if found else []
    folders += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    if (package := find_spec("pgserver")) is not None and package.origin:  # importing it prepares its own servers
        folders.append(Path(package.origin).parent / "pginstall" / "bin")
    return next((folder for folder in folders if (folder / "postgres").exists()), None)


class Server:
    """A server that can be killed and started again.

    Attributes
    ----------
    folder : pathlib.Path
        Its socket and data.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._programs = programs() or Path()
        self._user = None if os.geteuid() else _unprivileged()
        self._process: subprocess.Popen[bytes] | None = None
        if self._user is not None:
            os.chown(folder, pwd.getpwnam(self._user).pw_uid, -1)
            self._programs = _readable(self._programs, folder)
        self._run("initdb", "-D", folder / "data", "-U", "mltune", "-A", "trust", "-E", "UTF8", "--no-sync")

    def url(self, name: str) -> str:
        """Return the URL of a database, which is created."""
        import psycopg

        connection = psycopg.connect(f"host={self.folder} user=mltune dbname=postgres", autocommit=True)
        with contextlib.closing(connection):
            connection.execute(f'CREATE DATABASE "{name}"')
        return f"postgresql://mltune@/{name}?host={self.folder}"

    def start(self) -> None:
        """Start the server, and wait until it answers."""
        import psycopg

        options = ["-D", self.folder / "data", "-k", self.folder, "-c", "listen_addresses="]
        command = [self._programs / "postgres", *options, "-c", "max_connections=200"]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(command, user=self._user, stdout=log, stderr=log)
        for _ in range(600):
            with contextlib.suppress(psycopg.OperationalError):
                psycopg.connect(f"host={self.folder} user=mltune dbname=postgres").close()
                return
            time.sleep(0.05)
        raise RuntimeError((self.folder / "log").read_text())

    def stop(self, number: int = signal.SIGINT) -> None:
        """End the server: by default all connections are closed first, by SIGQUIT nothing is."""
        assert self._process is not None
        self._process.send_signal(number)
        self._process.wait()

    def _run(self, name: str, *arguments: object) -> None:
        subprocess.run([self._programs / name, *arguments], check=True, capture_output=True, user=self._user)


@contextlib.contextmanager
def server() -> Iterator[Server]:
    """Start a server that ends with the block."""
    with tempfile.TemporaryDirectory(prefix="pg-", ignore_cleanup_errors=True) as folder:  # a socket's path is short
        running = Server(Path(folder))
        running.start()
        try:
            yield running
        finally:
            running.stop()


def _readable(programs: Path, folder: Path) -> Path:
    """Return the folder of the programs, or of a copy: that of a wheel may lie where only root may look."""
    if programs.parent.name != "pginstall":
        return programs
    wheel = programs.parent.parent
    for part in (wheel, wheel.with_name("pgserver.libs")):
        shutil.copytree(part, folder / part.name)
    return folder / wheel.name / "pginstall" / "bin"


def _unprivileged() -> str:
    """Return a user who may run a server: root may not."""
    names = {entry.pw_name for entry in pwd.getpwall()}
    return next(name for name in ("postgres", "nobody") if name in names)
