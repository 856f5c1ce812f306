"""A device worker on another host: its time slices are tasks of a cluster, and its records return while they run."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
import uuid
import warnings
from collections import Counter
from collections.abc import Callable
from concurrent.futures import TimeoutError as LocalTimeoutError
from concurrent.futures import wait
from dataclasses import asdict, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from mltune.campaign.cluster.gpu_workers import Cluster
from mltune.campaign.cluster.remote_slice import (
    SlicePackage,
    Update,
    files_in,
    put_files,
    run_remote_slice,
    send_signal,
    take,
)
from mltune.campaign.device_worker import DeviceWorker, Outcome, SliceRequest, SliceResult, repair
from mltune.device.facts import Device
from mltune.errors import DeviceLostError, MltuneError, MltuneWarning, WisdomError, WorkerError
from mltune.files.reading import raising
from mltune.files.text import printable
from mltune.files.validation import adapter
from mltune.known.wisdom import Wisdom
from mltune.known.wisdom_file import file_of_run
from mltune.measure.compile_farm import GPU
from mltune.process.bounded import in_thread
from mltune.process.child import ChildDiedError, ChildTimeoutError
from mltune.records.directory import is_begun
from mltune.records.events import EventLog
from mltune.records.header import RunHeader
from mltune.records.replication import Changes
from mltune.records.store import Store
from mltune.resolve.plan import Plan
from mltune.results.progress import Progress

if TYPE_CHECKING:
    from distributed import Client, Future

Checked = TypeVar("Checked")

POLL_S = 0.5
"""Seconds between two checks whether a task was given up."""

GONE_S = 15.0
"""Seconds after which a worker that the scheduler does not know is lost: its nanny may be starting it again."""

_RESTART_S = 30.0
_END_S = 2.0
_BEGIN_S = 0.05  # between two questions to a task that has not begun


def remote_workers(
    cluster: Cluster, plan: Plan, target: str, heartbeat_timeout_s: float
) -> tuple[list[DeviceWorker], dict[str, Device]]:
    """Return the device workers of a plan on a cluster, and the facts of their GPUs by the names of the workers."""
    gpu_workers = cluster.known
    hosts = Counter(gpu_workers[name].host for name in plan.devices)
    workers = [
        DeviceWorker(name, RemoteProcess(cluster, name, target, hosts[gpu_workers[name].host]), heartbeat_timeout_s)
        for name in plan.devices
    ]
    return workers, {name: gpu for name in plan.devices if (gpu := gpu_workers[name].device) is not None}


class RemoteProcess:
    """A worker of a cluster, as a :class:`mltune.campaign.device_worker.Process`; ``sharing`` workers share a host."""

    def __init__(self, cluster: Cluster, name: str, target: str, sharing: int = 1) -> None:
        self._cluster = cluster
        self._name = name
        self._target = target
        self._sharing = sharing
        self._key = ""
        self._address = ""
        self._future: Future[None] | None = None
        self._given_up = threading.Event()

    def start(self) -> None:
        """Do nothing: the worker is already running."""

    def call(self, request: SliceRequest, timeout_s: float, on_message: Callable[[Any], None]) -> SliceResult:
        """Run a time slice; its records are in the store of this host when this returns.

        It raises DeviceLostError if worker or scheduler is lost, ChildDiedError if the task was given up
        (:meth:`interrupt`) or sent what does not fit the store, and ChildTimeoutError if the worker does not answer.
        """
        self._given_up.clear()
        try:
            if request.repair:
                repair(request.request.run)
                return SliceResult(Outcome.DONE)
            with contextlib.closing(_Receiver(request, on_message)) as receiver:
                client = self._cluster.client()
                self._begin(client, receiver.package(self._target, self._sharing))
                self._hear(client, timeout_s, receiver)
                return receiver.result
        except WorkerError as error:
            raise DeviceLostError(str(error)) from error
        except (MltuneError, ChildDiedError, ChildTimeoutError):
            raise
        except Exception as error:  # of any kind: the messages come from another host
            raise ChildDiedError(f"what {self._name} has sent cannot be used: {printable(repr(error), 300)}") from error
        finally:
            self.kill()

    def interrupt(self, number: signal.Signals = signal.SIGKILL) -> None:
        """Send a signal to the process of the device, without waiting; SIGKILL also gives the task up."""
        if number == signal.SIGKILL:
            self._given_up.set()
        if self._key:
            with contextlib.suppress(Exception):
                client = self._cluster.client()
                sending = partial(client.run, send_signal, self._key, number, workers=[self._address])
                in_thread("mltune-cluster", sending)

    def kill(self) -> None:
        """Tell the scheduler to cancel the task, which then ends by itself."""
        future, self._future, self._key = self._future, None, ""
        if future is not None:
            with contextlib.suppress(Exception):
                future.cancel()

    def _begin(self, client: Client, package: SlicePackage) -> None:
        """Give the worker a time slice, as a task that is never run again."""
        self._address = self._cluster.address_of(self._name)
        self._key = f"mltune-slice-{uuid.uuid4().hex}"
        options: dict[str, Any] = {"workers": [self._address], "resources": {GPU: 1}, "retries": 0, "pure": False}
        self._future = client.submit(run_remote_slice, package, self._key, key=self._key, **options)

    def _hear(self, client: Client, timeout_s: float, receiver: _Receiver) -> None:
        """Ask the task for its messages until the last one."""
        received, heard, begun = 0, time.monotonic(), False
        while True:
            is_there = self._is_there(client)
            messages = self._ask(client, received, timeout_s) if is_there else None
            for message in messages or ():
                received += 1
                if receiver.receive(message):
                    return
            if messages is not None:  # the question has waited on the worker for something new
                begun, heard = True, time.monotonic()
            elif begun or self._has_ended() or (not is_there and time.monotonic() - heard > GONE_S):
                raise self._loss(is_there)
            else:
                time.sleep(_BEGIN_S)
            if self._given_up.is_set():
                raise ChildDiedError("it was given up")
            if self._future is None or client.status != "running":
                raise WorkerError("the scheduler is lost")

    def _is_there(self, client: Client) -> bool:
        """Return whether the scheduler knows the worker: a question to one that is gone takes half a minute."""
        with raising(WorkerError, "the scheduler is lost", Exception):
            return self._address in client.nthreads(workers=[self._address])

    def _ask(self, client: Client, received: int, timeout_s: float) -> list[Update] | None:
        """Return the messages after the first ``received``; None where the task does not run."""
        asking = partial(client.run, take, self._key, received, workers=[self._address], on_error="return")
        answers = in_thread("mltune-cluster", asking)
        deadline = time.monotonic() + timeout_s
        while not answers.done() and time.monotonic() < deadline:
            wait([answers], timeout=POLL_S)
            if self._given_up.is_set():
                raise ChildDiedError("it was given up")
        try:
            answer = answers.result(timeout=0.0).get(self._address)
        except LocalTimeoutError:
            with contextlib.suppress(Exception):
                client.restart_workers([self._address], timeout=_RESTART_S, raise_for_error=False)
            raise ChildTimeoutError(f"{self._name} did not answer within {timeout_s:g} s") from None
        except Exception as error:
            raise WorkerError(f"the scheduler is lost: {printable(error)}") from error
        return answer if isinstance(answer, list) else None

    def _has_ended(self) -> bool:
        return self._future is not None and self._future.status in ("error", "cancelled", "lost")

    def _loss(self, is_there: bool) -> Exception:
        """Return why no further message comes: the worker is lost, or has failed, possibly while sending."""
        deadline = time.monotonic() + _END_S  # of the task, of which the scheduler tells after its last message
        while is_there and not self._has_ended() and time.monotonic() < deadline:
            time.sleep(_BEGIN_S)
        if self._future is not None and self._future.status == "error":
            from distributed import KilledWorker

            error = self._future.exception(timeout=_RESTART_S)
            if isinstance(error, MltuneError) and not isinstance(error, WorkerError):
                return error
            if not isinstance(error, KilledWorker):
                return ChildDiedError(f"the worker {self._name} has failed: {printable(repr(error), 300)}")
            return WorkerError(f"the worker {self._name} has lost its task: {printable(error)}")
        return WorkerError(f"the worker {self._name} has {'lost its task' if is_there else 'left the cluster'}")


class _Receiver:
    """Write the messages of a time slice into the directory of its run, with the store kept open."""

    def __init__(self, request: SliceRequest, on_message: Callable[[Any], None]) -> None:
        assert request.request.run is not None  # noqa: S101 - a task has a run directory
        self._request = request
        self._directory = request.request.run
        self._wisdom = file_of_run(request.request.wisdom, replayed=request.request.target.dataset is not None)
        self._on_message = on_message
        self._log = EventLog(request.log)
        self._store = Store.open(self._directory) if is_begun(self._directory) else None
        self.result = SliceResult(Outcome.DIED, "it has sent no result")

    def close(self) -> None:
        if self._store is not None:
            self._store.close()

    def package(self, target: str, sharing: int) -> SlicePackage:
        """Return the time slice with all that the worker needs for it."""
        return SlicePackage(
            replace(self._request, request=replace(self._request.request, run=None, store="")),
            target,
            None if self._store is None else Changes.of(self._store),
            dict(files_in(self._directory)),
            None if self._wisdom is None else Wisdom.load(self._wisdom),
            sharing,
        )

    def receive(self, update: Update) -> bool:
        """Write a message; return whether it was the last."""
        for event in update.events:
            facts = {name: value for name, value in event.items() if name not in ("at", "event", "dropped")}
            self._log.write(event["event"], **facts)
        if update.files:  # before the declaration of their winner
            put_files(self._directory, update.files)
        if update.changes is not None:
            if self._store is None:
                self._check_asked(update.changes.header)
                self._store = Store.open(self._directory, update.changes.header, self._request.request.store)
            update.changes.write(self._store)
        if update.progress is not None:
            self._on_message(_checked(Progress, update.progress))
        if update.wisdom is not None and self._wisdom is not None and len(update.wisdom):
            try:
                update.wisdom.add_to(self._wisdom)
            except WisdomError as error:
                warnings.warn(f"the winner was not added to the wisdom: {error}", MltuneWarning, stacklevel=2)
        if update.result is not None:
            self.result = _checked(SliceResult, update.result)
        return update.result is not None

    def _check_asked(self, header: RunHeader) -> None:
        """Check that a run has the kernel and the problem of the time slice."""
        request = self._request.request
        expected = replace(header, kernel=request.kernel.name, problem=request.problem.to_json())
        if difference := header.difference(expected):
            raise ValueError(f"the worker sent the records of another run than it was given: {difference}")


def _checked(kind: type[Checked], message: Any) -> Checked:
    """Return a message if its fields have the types of its kind; else raise an exception."""
    return adapter(kind).validate_python(asdict(message))  # type: ignore[arg-type, no-any-return]
