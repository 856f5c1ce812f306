"""Export of runs as Optuna studies, and a server of optuna-dashboard on them.

The studies are copies for display: nothing is read back from them. They are kept as a journal file, because a database
costs about 25 times as much per trial.
"""

from __future__ import annotations

import contextlib
import math
import tempfile
import threading
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from pathlib import Path
from socketserver import ThreadingMixIn
from typing import Any, NoReturn
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

import optuna
from optuna.distributions import CategoricalDistribution
from optuna.exceptions import ExperimentalWarning
from optuna.storages import BaseStorage, JournalStorage
from optuna.storages.journal import BaseJournalBackend, JournalFileBackend
from optuna.trial import FrozenTrial, create_trial
from optuna.trial import TrialState as OptunaState

from mltune.errors import DamagedRunError, MltuneError, MltuneWarning, RunDirectoryError, UsageError
from mltune.files import owned
from mltune.files.reading import reason
from mltune.records.directory import STUDY, is_plan, runs_in
from mltune.records.events import LONGEST_TEXT
from mltune.records.trial import GATES, TrialRecord, TrialState
from mltune.results.reader import RunReader, readable
from mltune.results.run import TuneResult

MOST_TRIALS = 20_000
"""Most trials that a run has in its study when the dashboard starts, the latest: Optuna takes 11 kB for each."""

UPDATE_EVERY_S = 5.0
"""Seconds between two updates while the dashboard is served."""


class Studies:
    """The runs of a directory as Optuna studies, in a new file ``path`` there, read and written through ``storage``.

    Trials that succeeded are complete, with their TFLOPS, GB/s or milliseconds as value (see
    :func:`mltune.results.rating.rate_of`); skipped trials are pruned, with the predicted value; all others failed.
    Further facts of a trial are user attributes; ``trial`` is its number in the run, because Optuna numbers trials in
    the order in which they ended. Of a very long run, only the latest :data:`MOST_TRIALS` are shown. A run of a
    campaign that cannot be read is left out, with a warning.

    Raises
    ------
    RunDirectoryError
        There is no run, or its directory cannot be written.
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
            raise RunDirectoryError(f"a study is written in place of one that mltune wrote, but {fact}; move it.")
        with _must_be_writable(self.path), tempfile.TemporaryDirectory(dir=directory, prefix=f".{STUDY}.") as folder:
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
        """Add the trials that have ended since the last update; return how many."""
        with _must_be_writable(self.path):
            return self._copy(self.storage)

    def keep_up_to_date(self) -> NoReturn:
        """Update forever; a store that cannot be read or a file that cannot be written is tried again."""
        while True:
            time.sleep(UPDATE_EVERY_S)
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
        translation = _Translation(reader.read())
        try:
            if name in self._readers:
                study = optuna.load_study(storage=storage, study_name=name)
            else:
                study = optuna.create_study(storage=storage, study_name=name, direction=translation.direction)
        except KeyError:  # it was deleted in the dashboard
            return 0
        with readable(folder):
            if name not in self._readers:
                self._readers[name] = reader
                self._first[name] = max(0, len(reader.ended) - MOST_TRIALS)
                translation.describe(study)
            records = reader.ended[self._first[name] + len(study.get_trials(deepcopy=False)) :]
            study.add_trials([translation.trial(record) for record in records])
        return len(records)


class _Translation:
    """Translation of the trials of one run into Optuna's."""

    def __init__(self, run: TuneResult) -> None:
        self._run = run
        self._rate = run.rate
        self.direction = "maximize" if self._rate.unit.higher_is_better else "minimize"
        self._distributions = {name: CategoricalDistribution(values) for name, values in run.header.parameters.items()}

    def describe(self, study: Any) -> None:
        """Set the attributes of a study."""
        run, rate = self._run, self._rate
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ExperimentalWarning)
            study.set_metric_names([rate.unit.name])
        attributes = {
            "kernel": run.kernel,
            "problem": run.problem.label,
            "device": run.device.name,
            f"peak_{rate.unit.key}": None if rate.peak is None else rate.peak / rate.unit.size,
            f"reference_{rate.unit.key}": rate.of(run.reference_s) if run.reference_s else None,
        }
        for name, value in _known(attributes).items():
            study.set_user_attr(name, value)

    def trial(self, record: TrialRecord) -> FrozenTrial:
        """Translate one trial."""
        skip, measured = record.skip, record.measurement
        ok = record.state is TrialState.OK and record.median_s is not None
        pruned = record.state is TrialState.SKIPPED
        trial = create_trial(
            state=OptunaState.COMPLETE if ok else OptunaState.PRUNED if pruned else OptunaState.FAIL,
            value=self._rate.of(record.median_s) if ok else None,
            params=dict(record.configuration),
            distributions=self._distributions,
            user_attrs=self._attributes(record),
            intermediate_values={GATES.index(skip.gate): self._predicted(skip.predicted)} if skip and pruned else None,
        )
        # By the clock of the run: that of the host may have been set in between.
        ended = self._run.header.created_at + record.elapsed_s
        took = (record.build.compile_s if record.build else 0.0) + (
            measured.verify_s + measured.time_s if measured else 0.0
        )
        zone = trial.datetime_start.tzinfo if trial.datetime_start else None
        trial.datetime_start = datetime.fromtimestamp(ended - took, zone)
        trial.datetime_complete = datetime.fromtimestamp(ended, zone)
        return trial

    def _predicted(self, log_share: float) -> Any:
        """Return the objective that a predicted log share of the peak corresponds to."""
        return self._rate.of(self._run.predicted_s(log_share))

    def _attributes(self, record: TrialRecord) -> dict[str, Any]:
        build, measured, skip = record.build, record.measurement, record.skip
        unit = self._rate.unit.key
        attributes: dict[str, Any] = {
            "trial": record.number,
            "state": str(record.state),
            "detail": record.detail[:LONGEST_TEXT] or None,
            "proposed_by": record.proposed_by or None,
            f"predicted_{unit}": None if record.predicted is None else self._predicted(record.predicted),
        }
        if skip is not None:
            attributes |= {
                "gate": skip.gate,
                f"gate_{unit}": self._predicted(skip.predicted),
                "audited": record.audited,
            }
        if build is not None:
            attributes |= {"registers": build.registers, "spill_bytes": build.spill_bytes, "compile_s": build.compile_s}
        if measured is not None and measured.median_s is not None:
            attributes |= {
                "median_ms": 1e3 * measured.median_s,
                "share_of_peak": self._rate.share_of_peak(measured.median_s),
                "noise": measured.noise,
                "sm_clock_mhz": None if measured.sm_clock_hz is None else measured.sm_clock_hz / 1e6,
                "temperature_c": measured.temperature_c,
                "power_w": measured.power_w,
            }
        return _known(attributes)


def _known(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the attributes that are known and that JSON can hold."""
    return {
        name: value
        for name, value in attributes.items()
        if value is not None and not (isinstance(value, float) and not math.isfinite(value))
    }


class _MemoryJournal(BaseJournalBackend):  # type: ignore[misc]
    """A journal in memory: one in a file synchronises with the disk at every trial."""

    def __init__(self) -> None:
        self.logs: list[dict[str, Any]] = []

    def read_logs(self, log_number_from: int) -> list[dict[str, Any]]:
        return self.logs[log_number_from:]

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        self.logs += logs


@contextlib.contextmanager
def _must_be_writable(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise RunDirectoryError(
            f"a study is written to the directory of its run, but {path} cannot be written: {reason(error)}."
        ) from error


HOST = "127.0.0.1"
"""The dashboard has no user accounts, so only this machine may connect."""


@contextlib.contextmanager
def served(studies: Studies, port: int) -> Iterator[str]:
    """Serve the dashboard to this machine while the context lasts, and yield its address; port 0 takes a free one."""
    try:
        from optuna_dashboard import wsgi
    except ImportError as error:
        raise UsageError(
            "the dashboard needs the extra `dashboard`, but optuna-dashboard is not installed; "
            f"pip install 'mltune-gpu[dashboard]'. The study was written nevertheless: {studies.path}."
        ) from error
    try:
        server = make_server(HOST, port, only_local(wsgi(studies.storage)), _ThreadingServer, _QuietHandler)
    except OSError as error:
        raise UsageError(
            f"a dashboard needs a free port, but {port} cannot be used: {reason(error)}; choose another --port."
        ) from error
    with server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://{HOST}:{server.server_port}/"
        finally:
            server.shutdown()
            thread.join()


def only_local(application: WSGIApplication) -> WSGIApplication:
    """Return an application that answers only requests for a name of this machine.

    This stops DNS rebinding: a web page whose host name is made to resolve to this machine gets no answer.
    """

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
