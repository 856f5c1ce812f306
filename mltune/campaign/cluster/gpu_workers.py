"""The GPU workers of a cluster: who they are, and tasks on one of them that can be heard and signalled."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
import uuid
from collections.abc import Callable
from concurrent.futures import Future as LocalFuture
from concurrent.futures import TimeoutError as LocalTimeoutError
from concurrent.futures import wait
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mltune.campaign.cluster.mailbox import send_signal, take
from mltune.device.facts import Device
from mltune.errors import MltuneError, UsageError, WorkerError
from mltune.files.text import printable
from mltune.measure.cluster_connection import GPU, connect, versions, workers_with
from mltune.process.child import Child, ChildDiedError, ChildTimeoutError

if TYPE_CHECKING:
    from distributed import Client, Future

POLL_S = 0.5
"""Seconds between two looks at whether something has begun or was given up."""

WAIT_S = 60.0
"""Seconds that a campaign waits for the first GPU worker."""

GONE_S = 15.0
"""Seconds after which a worker that the scheduler does not know is lost: its nanny may be starting it again."""

_ANSWER_S = 30.0
_BEGIN_S = 0.05  # between two questions to a task that has not begun


@dataclass(frozen=True, slots=True)
class GpuWorker:
    """A worker with a GPU.

    Attributes
    ----------
    name : str
        Its name, which it keeps when its nanny starts it again.
    device : Device or None
        The facts of its GPU; None where it has none, for replays.
    reason : str
        Why it has none.
    host : str
        The address of its host.
    """

    name: str
    device: Device | None
    reason: str = ""
    host: str = ""


class Cluster:
    """A connection to a cluster with GPU workers; it is made again when it was lost.

    Parameters
    ----------
    where : str
        See :func:`mltune.measure.cluster_connection.connect`.

    Attributes
    ----------
    known : dict of str to GpuWorker
        The GPU workers that were found last, by name.
    """

    def __init__(self, where: str) -> None:
        self.known: dict[str, GpuWorker] = {}
        self._where = where
        self._client: Client | None = None
        self._lock = threading.Lock()

    def client(self) -> Client:
        """Return the connection.

        Raises
        ------
        WorkerError
            The scheduler does not answer.
        """
        with self._lock:
            if self._client is not None and self._client.status not in ("running", "connecting"):
                self._client = None
            if self._client is None:
                self._client = connect(self._where)
            return self._client

    def workers(self, wait_s: float = 0.0) -> list[GpuWorker]:
        """Return the GPU workers, by name.

        Parameters
        ----------
        wait_s : float
            Seconds to wait for the first one: a batch system may be starting it.

        Raises
        ------
        UsageError
            There is none, or one has another version of mltune.
        """
        client, deadline = self.client(), time.monotonic() + wait_s
        while not (workers := self._answering(client)):
            if time.monotonic() >= deadline:
                raise UsageError(
                    f"a campaign on a cluster needs workers with the resource {GPU}, but {self._where} has none: "
                    f"CUDA_VISIBLE_DEVICES=0 dask worker {self._where} --nthreads 1 --resources GPU=1."
                )
            time.sleep(POLL_S)
        self.known = {worker.name: worker for worker in sorted(workers, key=lambda worker: worker.name)}
        return list(self.known.values())

    def _answering(self, client: Client) -> list[GpuWorker]:
        """Return the GPU workers that answer now; one that is being killed does not."""
        found, ours, workers = workers_with(client, GPU), versions(), []
        answers = client.run(worker_facts, workers=list(found), on_error="return") if found else {}
        for address, answer in answers.items():
            if isinstance(answer, ImportError | AttributeError):
                raise UsageError(f"every GPU worker must have mltune, but {address} says: {printable(answer)}.")
            if not isinstance(answer, tuple):
                continue
            theirs, devices, reason = answer
            if theirs["mltune"] != ours["mltune"]:
                raise UsageError(
                    f"all hosts must have the same version of mltune, but this one has {ours['mltune']} and "
                    f"{address} has {theirs['mltune']}."
                )
            device, facts = devices[0] if devices else None, found[address]
            workers.append(GpuWorker(str(facts["name"]), device, reason, facts["host"]))
        return workers

    def address_of(self, name: str) -> str:
        """Return the address of a worker.

        Raises
        ------
        WorkerError
            It is not in the cluster.
        """
        known = workers_with(self.client(), GPU)
        for address, facts in known.items():
            if str(facts["name"]) == name:
                return address
        raise WorkerError(f"the worker {name} has left the cluster {self._where}")

    def close(self) -> None:
        """Leave the cluster."""
        if self._client is not None:
            with contextlib.suppress(Exception):
                self._client.close(timeout=2.0)


class RemoteTask:
    """A task on one worker, whose messages are heard while it runs.

    Parameters
    ----------
    cluster : Cluster
    name : str
        The name of the worker.
    """

    def __init__(self, cluster: Cluster, name: str) -> None:
        self._cluster = cluster
        self._name = name
        self._key = ""
        self._address = ""
        self._future: Future[None] | None = None
        self._given_up = threading.Event()

    def run(
        self, function: Callable[[Any, str], None], argument: Any, timeout_s: float, on_message: Callable[[Any], bool]
    ) -> None:
        """Run a function on the worker until its last message.

        Parameters
        ----------
        function : callable
            Called on the worker with the argument and the key of its task, under which its mailbox is.
        argument : Any
            Picklable.
        timeout_s : float
            Seconds without an answer of the worker after which its nanny is asked to start it again.
        on_message : callable
            Receives each message once, in order; returns whether it was the last.

        Raises
        ------
        ChildDiedError
            The task was given up (:meth:`signal`).
        ChildTimeoutError
            The worker does not answer.
        WorkerError
            The scheduler does not answer, or the worker is not there any more.
        """
        self._given_up.clear()
        try:
            client = self._cluster.client()
            self._address = self._cluster.address_of(self._name)
            self._key = f"mltune-slice-{uuid.uuid4().hex}"
            self._future = client.submit(
                function, argument, self._key,
                key=self._key, workers=[self._address], resources={GPU: 1}, retries=0, pure=False,
            )  # fmt: skip
            self._hear(client, timeout_s, on_message)
        finally:
            self.cancel()

    def signal(self, number: int) -> None:
        """Send a signal to the task, without waiting; after SIGKILL nothing more is heard of it."""
        if number == signal.SIGKILL:
            self._given_up.set()
        if self._key:
            with contextlib.suppress(Exception):
                client = self._cluster.client()
                _in_thread(client.run, send_signal, self._key, number, workers=[self._address])

    def cancel(self) -> None:
        """Tell the scheduler that the task is not wanted: it ends by itself."""
        future, self._future, self._key = self._future, None, ""
        if future is not None:
            with contextlib.suppress(Exception):
                future.cancel()

    def _hear(self, client: Client, timeout_s: float, on_message: Callable[[Any], bool]) -> None:
        """Ask the task for its messages until the last one."""
        received, heard, begun = 0, time.monotonic(), False
        while True:
            is_there = self._is_there(client)
            messages = self._ask(client, received, timeout_s) if is_there else None
            for message in messages or ():
                received += 1
                if on_message(message):
                    return
            if messages is not None:  # the question has waited on the worker for something new
                begun, heard = True, time.monotonic()
            elif begun or self._future_has_ended() or (not is_there and time.monotonic() - heard > GONE_S):
                raise self._loss(is_there)
            else:
                time.sleep(_BEGIN_S)
            self._check(client)

    def _is_there(self, client: Client) -> bool:
        """Return whether the scheduler knows the worker: to ask one that is gone takes half a minute."""
        try:
            return self._address in client.nthreads(workers=[self._address])
        except Exception as error:
            raise WorkerError(f"the scheduler is lost: {printable(error)}") from error

    def _ask(self, client: Client, received: int, timeout_s: float) -> list[Any] | None:
        """Return what is new, or None where the task does not run."""
        asked = _in_thread(client.run, take, self._key, received, workers=[self._address], on_error="return")
        deadline = time.monotonic() + timeout_s
        while not asked.done() and time.monotonic() < deadline:
            wait([asked], timeout=POLL_S)
            if self._given_up.is_set():
                raise ChildDiedError("it was given up")
        try:
            answer = asked.result(timeout=0.0).get(self._address)
        except LocalTimeoutError:
            with contextlib.suppress(Exception):
                client.restart_workers([self._address], timeout=_ANSWER_S, raise_for_error=False)
            raise ChildTimeoutError(f"{self._name} did not answer within {timeout_s:g} s") from None
        except Exception as error:
            raise WorkerError(f"the scheduler is lost: {printable(error)}") from error
        return answer if isinstance(answer, list) else None

    def _check(self, client: Client) -> None:
        """Check that the task is wanted, and can be heard of."""
        if self._given_up.is_set():
            raise ChildDiedError("it was given up")
        if self._future is None or client.status != "running":
            raise WorkerError("the scheduler is lost")

    def _future_has_ended(self) -> bool:
        return self._future is not None and self._future.status in ("error", "cancelled", "lost")

    def _loss(self, is_there: bool) -> WorkerError:
        """Return why nothing more is heard of the task."""
        if self._future is not None and self._future.status == "error":
            error = self._future.exception(timeout=_ANSWER_S)
            return WorkerError(f"the worker {self._name} has lost its task: {printable(error)}")
        return WorkerError(f"the worker {self._name} has {'lost its task' if is_there else 'left the cluster'}")


def _in_thread(function: Callable[..., Any], *arguments: Any, **options: Any) -> LocalFuture[Any]:
    """Call a function in a thread of its own, which does not keep the program from ending."""
    future: LocalFuture[Any] = LocalFuture()

    def call() -> None:
        try:
            future.set_result(function(*arguments, **options))
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=call, name="mltune-cluster", daemon=True).start()
    return future


def worker_facts() -> tuple[dict[str, str], tuple[Device, ...], str]:
    """Return the versions of a worker, its GPUs, and why it has none; the driver is asked in another process."""
    child = Child("mltune.campaign.cluster.gpu_workers:make_query")
    try:
        answer = child.call(None, _ANSWER_S)
    finally:
        child.kill()
    return answer  # type: ignore[no-any-return]


def make_query() -> Callable[[None], tuple[dict[str, str], tuple[Device, ...], str]]:
    """Return the function that a process for :func:`worker_facts` serves."""
    from mltune.device.query import available_devices

    def query(_: None) -> tuple[dict[str, str], tuple[Device, ...], str]:
        try:
            found = available_devices()
        except MltuneError as error:
            return versions(), (), str(error).removesuffix(".")
        return versions(), found, "" if found else "the NVIDIA driver shows none"

    return query
