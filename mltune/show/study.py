"""Export of runs as Optuna studies, copies in a journal file, and a server of optuna-dashboard on them."""

from __future__ import annotations

import contextlib
import tempfile
import threading
import warnings
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

import optuna
from optuna.storages import BaseStorage, JournalStorage
from optuna.storages.journal import BaseJournalBackend, JournalFileBackend

from mltune.errors import DamagedRunError, MltuneError, MltuneWarning, RunDirectoryError, UsageError
from mltune.files import owned
from mltune.files.reading import raising, reason
from mltune.records.directory import STUDY, is_plan, runs_in
from mltune.records.versions import import_package
from mltune.results.reader import RunReader, readable

MOST_TRIALS = 20_000
"""Most trials in the study of a run at the start, the latest: Optuna takes 11 kB for each."""

UPDATE_EVERY_S = 5.0
"""Seconds between two updates while the dashboard is served."""


class Studies:
    """The runs of a directory as Optuna studies, in a new file ``path`` there, read and written through ``storage``.

    The trials are those of :class:`mltune.results.study.StudyMirror`, in the order in which they ended, only the latest
    :data:`MOST_TRIALS`. A run of a campaign that cannot be read is left out, with a warning.
    """

    def __init__(self, directory: Path) -> None:
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._directory = Path(directory)
        runs_in(self._directory)  # refuses a directory without a run before anything is written
        self._readers: dict[str, RunReader] = {}
        self._first: dict[str, int] = {}
        self._damaged: set[str] = set()
        self.path = self._directory / STUDY
        lock = self.path.with_name(f"{STUDY}.lock")
        is_link = lock.is_symlink()  # Optuna's locks are links, and it waits for one that a killed dashboard left
        if fact := owned.foreign(self.path, owned.STUDY) or (not is_link and owned.foreign(lock, owned.LOCK)):
            raise RunDirectoryError(f"{fact}, and a study replaces only one that mltune wrote; move it.")
        with _written(self.path), tempfile.TemporaryDirectory(dir=directory, prefix=f".{STUDY}.") as folder:
            draft = Path(folder) / STUDY
            journal = _MemoryJournal()
            self._copy(JournalStorage(journal))
            draft.touch()
            if journal.logs:  # Optuna would write an empty line, which it cannot read, for none
                JournalFileBackend(str(draft)).append_logs(journal.logs)
            draft.replace(self.path)
            if is_link:
                lock.unlink(missing_ok=True)
        self.storage = JournalStorage(JournalFileBackend(str(self.path)))

    def update(self) -> int:
        """Add the trials that have ended since the last update; return their number."""
        with _written(self.path):
            return self._copy(self.storage)

    def keep_up_to_date(self, ended: threading.Event) -> None:
        """Update until an end; failures to read a store or to write the file are tried again."""
        while not ended.wait(UPDATE_EVERY_S):
            with contextlib.suppress(MltuneError):
                self.update()

    def _copy(self, storage: BaseStorage) -> int:
        """Add new trials of all runs to their studies."""
        whole = is_plan(self._directory)
        runs = {folder.name if whole else folder.resolve().name: folder for folder in runs_in(self._directory)}
        new = 0
        for name, folder in runs.items():
            try:
                new += self._copy_run(storage, name, folder)
            except DamagedRunError as error:
                if not whole:
                    raise
                if name not in self._damaged:
                    warnings.warn(f"{name} is not in the dashboard: {error}", MltuneWarning, stacklevel=2)
                self._damaged.add(name)
        return new

    def _copy_run(self, storage: BaseStorage, name: str, folder: Path) -> int:
        reader = self._readers.get(name) or RunReader(folder, name)
        mirror = reader.read().study_mirror
        try:
            if name in self._readers:
                study = optuna.load_study(storage=storage, study_name=name)
            else:
                study = mirror.new_study(storage, name)
        except KeyError:  # it was deleted in the dashboard
            return 0
        with readable(folder):
            if name not in self._readers:
                self._readers[name] = reader
                self._first[name] = max(0, len(reader.ended) - MOST_TRIALS)
            records = reader.ended[self._first[name] + len(study.get_trials(deepcopy=False)) :]
            study.add_trials([mirror.trial(record) for record in records])
        return len(records)


class _MemoryJournal(BaseJournalBackend):  # type: ignore[misc]
    """A journal in memory: one in a file would synchronise with the disk at every trial."""

    def __init__(self) -> None:
        self.logs: list[dict[str, Any]] = []

    def read_logs(self, log_number_from: int) -> list[dict[str, Any]]:
        return self.logs[log_number_from:]

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        self.logs += logs


def _written(path: Path) -> contextlib.AbstractContextManager[None]:
    return raising(RunDirectoryError, f"the study {path} cannot be written")


HOST = "127.0.0.1"
"""The host of the dashboard, which has no user accounts: only this machine may connect."""


@contextlib.contextmanager
def served(studies: Studies, port: int) -> Iterator[str]:
    """Serve the dashboard to this machine within a context, and yield its address; port 0 takes a free one.

    Trials that end meanwhile are added.
    """
    user = f"the dashboard of the study {studies.path}, which is written,"
    wsgi = import_package("optuna_dashboard", user, "mltune-gpu[dashboard]").wsgi
    try:
        server = make_server(HOST, port, only_local(wsgi(studies.storage)), _ThreadingServer, _QuietHandler)
    except OSError as error:
        raise UsageError(f"port {port} cannot be used: {reason(error)}; choose another port.") from error
    ended = threading.Event()
    with server, ThreadPoolExecutor(2) as pool:
        pool.submit(server.serve_forever)
        pool.submit(studies.keep_up_to_date, ended)
        try:
            yield f"http://{HOST}:{server.server_port}/"
        finally:
            ended.set()
            server.shutdown()


def only_local(application: WSGIApplication) -> WSGIApplication:
    """Return an application that answers only requests for a name of this machine, which stops DNS rebinding."""

    def answer(environment: WSGIEnvironment, start: StartResponse) -> Iterable[bytes]:
        host = str(environment.get("HTTP_HOST", "")).rpartition(":")[0] or environment.get("HTTP_HOST", "")
        if host in (HOST, "localhost"):
            return application(environment, start)
        start("403 Forbidden", [("Content-Type", "text/plain")])
        return [b"Only under the names of this machine.\n"]

    return answer


class _ThreadingServer(ThreadingMixIn, WSGIServer):
    daemon_threads = True


class _QuietHandler(WSGIRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        pass
