"""A device worker on another host: its time slices are tasks of a cluster, and its records come back while they run."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from mltune.campaign.cluster.gpu_workers import Cluster, RemoteTask
from mltune.campaign.cluster.remote_slice import (
    RunFiles,
    SlicePackage,
    SliceReport,
    files_in,
    put_files,
    run_remote_slice,
)
from mltune.campaign.device_worker import DeviceWorker, Outcome, SliceRequest, SliceResult, outcome_of, repair
from mltune.device.facts import Device
from mltune.errors import MltuneError, WorkerError
from mltune.known.wisdom import Wisdom
from mltune.known.wisdom_file import file_of_run
from mltune.records.directory import is_begun
from mltune.records.events import EventLog
from mltune.records.replication import Changes
from mltune.records.store import Store
from mltune.resolve.plan import Plan
from mltune.results.progress import Progress


class RemoteChild:
    """A worker of a cluster in place of a :class:`mltune.process.child.Child` of this host.

    Parameters
    ----------
    cluster : Cluster
    name : str
        The name of the worker.
    target : str
        What its device worker serves.
    sharing : int
        GPU workers on its host.
    """

    def __init__(self, cluster: Cluster, name: str, target: str, sharing: int = 1) -> None:
        self._target = target
        self._sharing = sharing
        self._task = RemoteTask(cluster, name)

    def start(self) -> None:
        """Do nothing: the worker runs already."""

    def call(self, request: SliceRequest, timeout_s: float, on_message: Callable[[Any], None]) -> SliceResult:
        """Run a time slice; its records are in the store of this host when this returns.

        Raises
        ------
        ChildDiedError, ChildTimeoutError
            The worker is lost. What it had sent is on record.
        """
        directory = request.request.run
        assert directory is not None  # noqa: S101 - a task has a run directory
        wisdom = file_of_run(request.request.wisdom, replayed=request.request.target.dataset is not None)
        try:
            if request.repair:
                repair(directory)
                return SliceResult(Outcome.DONE)
            with _Receiver(request, directory, wisdom, on_message) as receiver:
                package = receiver.package(self._target, self._sharing)
                self._task.run(run_remote_slice, package, timeout_s, receiver.receive)
                return receiver.result
        except WorkerError as error:
            return SliceResult(Outcome.GPU_LOST, str(error))
        except MltuneError as error:
            return SliceResult(outcome_of(error), str(error))
        except ValueError as error:
            return SliceResult(Outcome.DIED, str(error))

    def interrupt(self, number: signal.Signals = signal.SIGKILL) -> None:
        """Send a signal to the process of the device."""
        self._task.signal(number)

    def kill(self) -> None:
        """Give the task up: it ends by itself."""
        self._task.cancel()


class _Receiver:
    """Writes what a time slice sends into the directory of its run, which it holds meanwhile."""

    def __init__(
        self, request: SliceRequest, directory: Path, wisdom: Path | None, on_message: Callable[[Any], None]
    ) -> None:
        self._request = request
        self._directory = directory
        self._wisdom = wisdom
        self._on_message = on_message
        self._log = EventLog(request.log)
        self._store: Store | None = None
        self.result = SliceResult(Outcome.DIED, "it has sent no result")

    def __enter__(self) -> _Receiver:
        if is_begun(self._directory):
            self._store = Store.open(self._directory)
        return self

    def __exit__(self, *error: object) -> None:
        if self._store is not None:
            self._store.close()

    def package(self, target: str, sharing: int) -> SlicePackage:
        """Return what the worker needs."""
        return SlicePackage(
            replace(self._request, request=replace(self._request.request, run=None, store="")),
            target,
            None if self._store is None else Changes.of(self._store),
            dict(files_in(self._directory)),
            None if self._wisdom is None else Wisdom.load(self._wisdom) if self._wisdom.is_file() else Wisdom(),
            sharing,
        )

    def receive(self, message: Any) -> bool:
        """Write what a message says; return whether it was the last."""
        if isinstance(message, Changes):
            if self._store is None:
                self._store = Store.open(self._directory, message.header, self._request.request.store)
            message.write(self._store)
        elif isinstance(message, Progress):
            self._on_message(message)
        elif isinstance(message, RunFiles):
            put_files(self._directory, message.files)
        elif isinstance(message, SliceReport):
            if message.wisdom is not None and self._wisdom is not None and len(message.wisdom):
                message.wisdom.add_to(self._wisdom)
            self.result = message.result
            return True
        elif isinstance(message, dict):
            facts = {name: value for name, value in message.items() if name not in ("at", "event", "dropped")}
            self._log.write(message["event"], **facts)
        return False


def remote_workers(
    cluster: Cluster, plan: Plan, target: str, heartbeat_timeout_s: float
) -> tuple[list[DeviceWorker], dict[str, Device]]:
    """Return the device workers of a plan on a cluster, and the facts of their GPUs by the names of the workers."""
    found = cluster.known
    hosts = Counter(found[name].host for name in plan.devices)
    workers = [
        DeviceWorker(name, RemoteChild(cluster, name, target, hosts[found[name].host]), heartbeat_timeout_s)
        for name in plan.devices
    ]
    return workers, {name: gpu for name in plan.devices if (gpu := found[name].device) is not None}
