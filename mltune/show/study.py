"""A run as an Optuna study, in a file that Optuna and optuna-dashboard read; and the dashboard on it.

The study is a copy for looking at: nothing is ever read back from it. It is kept as a journal, because a database costs
some 25 times as much a trial.
"""

from __future__ import annotations

import contextlib
import math
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from mltune.errors import MltuneError, RunDirectoryError, UsageError
from mltune.records.directory import is_plan, runs_in
from mltune.records.events import LONGEST_TEXT
from mltune.records.store import Store
from mltune.records.trial import TrialRecord, TrialState

if TYPE_CHECKING:
    from optuna.storages import BaseStorage
    from optuna.trial import FrozenTrial

    from mltune.records.header import RunHeader

FILE = "optuna.journal"

HOST = "127.0.0.1"
"""The dashboard knows no users: nobody but this machine may reach it."""

UPDATE_EVERY_S = 5.0
"""Seconds between two looks for new trials while the dashboard is served."""

_Wsgi = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


class Studies:
    """The runs of a directory as Optuna studies, in its file :data:`FILE`, which is written anew.

    Trials that succeeded are complete, with their TFLOPS as value; skipped ones are pruned, with the TFLOPS that were
    predicted; all others failed. What else is known of a trial are its user attributes; ``trial`` is its number in the
    run, as Optuna numbers trials in the order in which they ended.

    Parameters
    ----------
    directory : pathlib.Path
        Of a run or of a plan.

    Attributes
    ----------
    path : pathlib.Path
    storage : optuna.storages.JournalStorage

    Raises
    ------
    RunDirectoryError
        There is no run, or its directory cannot be written.
    """

    def __init__(self, directory: Path) -> None:
        import optuna
        from optuna.storages import JournalStorage
        from optuna.storages.journal import JournalFileBackend

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._directory = Path(directory)
        self._begun: set[str] = set()
        self.path = self._directory / FILE
        with _must_be_writable(self.path), tempfile.TemporaryDirectory(dir=directory, prefix=f".{FILE}.") as folder:
            draft = Path(folder) / FILE
            journal = _gathered()
            self._copy(JournalStorage(journal))
            JournalFileBackend(str(draft)).append_logs(journal.logs)
            draft.replace(self.path)
        self.storage = JournalStorage(JournalFileBackend(str(self.path)))

    def update(self) -> int:
        """Add the trials that have ended since; return how many.

        Raises
        ------
        RunDirectoryError
            The file can no longer be written.
        """
        with _must_be_writable(self.path):
            return self._copy(self.storage)

    def keep_up_to_date(self) -> NoReturn:
        """Update again and again; what cannot be read or written at one time may be at the next."""
        while True:
            time.sleep(UPDATE_EVERY_S)
            with contextlib.suppress(MltuneError):
                self.update()

    def _copy(self, storage: BaseStorage) -> int:
        """Add what is new of all runs to their studies."""
        whole = is_plan(self._directory)
        runs = {folder.name if whole else folder.resolve().name: folder for folder in runs_in(self._directory)}
        return sum(self._copy_run(storage, name, folder) for name, folder in runs.items())

    def _copy_run(self, storage: BaseStorage, name: str, folder: Path) -> int:
        import optuna

        try:
            if name in self._begun:
                study = optuna.load_study(storage=storage, study_name=name)
            else:
                study = optuna.create_study(storage=storage, study_name=name, direction="maximize")
        except KeyError:  # it was deleted in the dashboard
            return 0
        with Store.read_only(folder) as store:
            records = store.records(after=len(study.get_trials(deepcopy=False)))
            header, reference_s = store.header, store.fact("reference_median_s")
        try:
            translation = _Translation(header, reference_s)
            if name not in self._begun:
                self._begun.add(name)
                _describe(study, translation.attributes)
            study.add_trials([translation.trial(record) for record in records])
        except (ValueError, TypeError, KeyError) as error:
            raise RunDirectoryError(
                f"a store holds the records of a run, but that in {folder} does not: {error!r}."
            ) from error
        return len(records)


@contextlib.contextmanager
def served(studies: Studies, port: int) -> Iterator[str]:
    """Serve the dashboard to this machine while the context lasts.

    Parameters
    ----------
    studies : Studies
    port : int
        0 chooses a free one.

    Yields
    ------
    str
        The address.

    Raises
    ------
    UsageError
        The extra ``dashboard`` is not installed, or the port is in use.
    """
    from wsgiref.simple_server import make_server

    try:
        from optuna_dashboard import wsgi
    except ImportError as error:
        raise UsageError(
            "the dashboard needs the extra `dashboard`, but optuna-dashboard is not installed; "
            f"pip install 'mltune[dashboard]'. The study is written all the same: {studies.path}."
        ) from error
    threaded, quiet = _server_classes()
    try:
        server = make_server(HOST, port, only_local(wsgi(studies.storage)), threaded, quiet)
    except OSError as error:
        raise UsageError(f"a dashboard needs a free port, but {port}: {error}; choose another --port.") from error
    with server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://{HOST}:{server.server_port}/"
        finally:
            server.shutdown()
            thread.join()


def only_local(application: _Wsgi) -> _Wsgi:
    """Return an application that answers under the names of this machine alone.

    A page from elsewhere whose name is made to resolve to this machine (DNS rebinding) then reaches nothing.
    """

    def answer(environment: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        host = str(environment.get("HTTP_HOST", "")).rpartition(":")[0] or environment.get("HTTP_HOST", "")
        if host in (HOST, "localhost"):
            return application(environment, start)
        start("403 Forbidden", [("Content-Type", "text/plain")])
        return [b"Only under the names of this machine.\n"]

    return answer


def _server_classes() -> tuple[Any, Any]:
    """Return a server that answers several requests at a time, and a handler that logs none."""
    from socketserver import ThreadingMixIn
    from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

    class Server(ThreadingMixIn, WSGIServer):
        daemon_threads = True

    class Handler(WSGIRequestHandler):
        def log_message(self, format: str, *args: Any) -> None:
            pass

    return Server, Handler


class _Translation:
    """What the trials of one run are to Optuna."""

    def __init__(self, header: RunHeader, reference_s: Any) -> None:
        from optuna.distributions import CategoricalDistribution

        from mltune.device.facts import Device
        from mltune.device.peaks import peak_flops
        from mltune.problem.kinds import problem_from_json

        problem, device = problem_from_json(dict(header.problem)), Device.from_json(dict(header.device))
        self._began_at = header.created_at
        self._flops = problem.flops
        self._peak = peak_flops(device, problem.arithmetic)
        self._distributions = {name: CategoricalDistribution(values) for name, values in header.parameters.items()}
        self.attributes = {
            "kernel": header.kernel,
            "problem": problem.label,
            "device": device.name,
            "peak_tflops": self._peak / 1e12,
            "reference_tflops": self._flops / reference_s / 1e12 if reference_s else None,
        }

    def trial(self, record: TrialRecord) -> FrozenTrial:
        from optuna.trial import TrialState as Ending
        from optuna.trial import create_trial

        from mltune.records.trial import GATES

        skip, measured = record.skip, record.measurement
        ok = record.state is TrialState.OK and record.median_s is not None
        pruned = record.state is TrialState.SKIPPED
        trial = create_trial(
            state=Ending.COMPLETE if ok else Ending.PRUNED if pruned else Ending.FAIL,
            value=self._flops / record.median_s / 1e12 if ok and record.median_s else None,
            params=dict(record.configuration),
            distributions=self._distributions,
            user_attrs=self._attributes(record),
            intermediate_values={GATES.index(skip.gate): self._tflops(skip.predicted)} if skip and pruned else None,
        )
        # By the run's own clock: that of the host may have been set in between.
        ended = self._began_at + record.elapsed_s
        took = (record.build.compile_s if record.build else 0.0) + (
            measured.verify_s + measured.time_s if measured else 0.0
        )
        zone = trial.datetime_start.tzinfo if trial.datetime_start else None
        trial.datetime_start = datetime.fromtimestamp(ended - took, zone)
        trial.datetime_complete = datetime.fromtimestamp(ended, zone)
        return trial

    def _tflops(self, log_share: float) -> float:
        return math.exp(log_share) * self._peak / 1e12

    def _attributes(self, record: TrialRecord) -> dict[str, Any]:
        build, measured, skip = record.build, record.measurement, record.skip
        known: dict[str, Any] = {
            "trial": record.number,
            "state": str(record.state),
            "detail": record.detail[:LONGEST_TEXT] or None,
            "proposed_by": record.proposed_by or None,
            "predicted_tflops": None if record.predicted is None else self._tflops(record.predicted),
        }
        if skip is not None:
            known |= {"gate": skip.gate, "gate_tflops": self._tflops(skip.predicted), "audited": record.audited}
        if build is not None:
            known |= {"registers": build.registers, "spill_bytes": build.spill_bytes, "compile_s": build.compile_s}
        if measured is not None and measured.median_s is not None:
            known |= {
                "median_ms": 1e3 * measured.median_s,
                "share_of_peak": self._flops / measured.median_s / self._peak,
                "noise": measured.noise,
                "sm_clock_mhz": None if measured.sm_clock_hz is None else measured.sm_clock_hz / 1e6,
                "temperature_c": measured.temperature_c,
                "power_w": measured.power_w,
            }
        return {name: value for name, value in known.items() if _sayable(value)}


def _sayable(value: Any) -> bool:
    return value is not None and not (isinstance(value, float) and not math.isfinite(value))


def _describe(study: Any, attributes: Mapping[str, Any]) -> None:
    from optuna.exceptions import ExperimentalWarning

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ExperimentalWarning)
        study.set_metric_names(["TFLOPS"])
    for name, value in attributes.items():
        if _sayable(value):
            study.set_user_attr(name, value)


def _gathered() -> Any:
    """Return a journal in memory: a file costs a synchronisation with the disk for each trial."""
    from optuna.storages.journal import BaseJournalBackend

    class Gathered(BaseJournalBackend):  # type: ignore[misc]
        def __init__(self) -> None:
            self.logs: list[dict[str, Any]] = []

        def read_logs(self, log_number_from: int) -> list[dict[str, Any]]:
            return self.logs[log_number_from:]

        def append_logs(self, logs: list[dict[str, Any]]) -> None:
            self.logs += logs

    return Gathered()


@contextlib.contextmanager
def _must_be_writable(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise RunDirectoryError(f"a study is written to the directory of its run, but {path}: {error}.") from error
