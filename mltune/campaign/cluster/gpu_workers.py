"""The GPU workers of a cluster, the connection to it, and a cluster on this machine."""

from __future__ import annotations

import contextlib
import logging
import os
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mltune.device.facts import Device
from mltune.errors import MltuneWarning, UsageError, WorkerError
from mltune.files.text import printable
from mltune.measure.compile_farm import CLUSTER, GPU, connect, import_distributed, versions, workers_with
from mltune.process.child import SAFE_PATH, Child
from mltune.records.versions import import_package
from mltune.resolve.device import find_gpus

if TYPE_CHECKING:
    from distributed import Client


POLL_S = 0.5
"""Seconds between two checks for the first worker."""

WAIT_S = 60.0
"""Seconds that a campaign waits for the first GPU worker."""

_ANSWER_S = 30.0


@dataclass(frozen=True, slots=True)
class GpuWorker:
    """A worker of a cluster with a GPU, or with the reason why it has none; it can replay all the same."""

    name: str
    device: Device | None
    reason: str = ""
    host: str = ""


class Cluster:
    """A connection to a cluster, which is renewed when it is lost; ``known`` are its last GPU workers, by name."""

    def __init__(self, where: str, security: Any = None) -> None:
        self.known: dict[str, GpuWorker] = {}
        self._where, self._security = where, security
        self._client: Client | None = None
        self._lock = threading.Lock()

    def client(self) -> Client:
        """Return the connection; raise WorkerError if the scheduler does not answer."""
        with self._lock:
            if self._client is None or self._client.status not in ("running", "connecting"):
                self._client = connect(self._where, security=self._security)
            return self._client

    def workers(self, wait_s: float = 0.0) -> list[GpuWorker]:
        """Return the GPU workers by name; wait for the first one, and refuse another version of mltune."""
        client, deadline, said = self.client(), time.monotonic() + wait_s, False
        start = f"CUDA_VISIBLE_DEVICES=0 dask worker {self._where} --nthreads 1 --resources GPU=1"
        while not (workers := self._answering(client, lost_until=deadline)):
            if time.monotonic() >= deadline:
                raise UsageError(
                    f"{self._where} has no worker with the resource {GPU}, which a campaign on a cluster needs: "
                    f"{start}."
                )
            if not said:
                notice = f"waiting up to {wait_s:.0f} s for the first worker with the resource {GPU}: {start}."
                warnings.warn(notice, MltuneWarning, stacklevel=2)
                said = True
            time.sleep(POLL_S)
        self.known = {worker.name: worker for worker in sorted(workers, key=lambda worker: worker.name)}
        return list(self.known.values())

    def _answering(self, client: Client, lost_until: float) -> list[GpuWorker]:
        """Return the GPU workers that answer now: none that is being killed, and none of a lost scheduler."""
        versions_here, workers = versions(), []
        try:
            candidates = workers_with(client, GPU)
            answers = client.run(worker_facts, workers=list(candidates), on_error="return") if candidates else {}
        except (WorkerError, OSError) as error:
            if time.monotonic() >= lost_until:
                raise WorkerError(f"the scheduler of the cluster {self._where} does not answer: {error}.") from error
            return []
        for address, answer in answers.items():
            if isinstance(answer, ImportError | AttributeError):
                raise UsageError(f"{address} says: {printable(answer)}; every GPU worker must have mltune.")
            if not isinstance(answer, tuple):
                continue
            versions_there, devices, reason = answer
            if versions_there["mltune"] != versions_here["mltune"]:
                raise UsageError(
                    f"this host has mltune {versions_here['mltune']} and {address} has {versions_there['mltune']}; all "
                    "hosts must have the same version."
                )
            device, facts = devices[0] if devices else None, candidates[address]
            workers.append(GpuWorker(str(facts["name"]), device, reason, facts["host"]))
        return workers

    def address_of(self, name: str) -> str:
        """Return the address of a worker; raise WorkerError if it is not in the cluster."""
        for address, facts in workers_with(self.client(), GPU).items():
            if str(facts["name"]) == name:
                return address
        raise WorkerError(f"the worker {name} has left the cluster {self._where}")

    def close(self) -> None:
        """Leave the cluster."""
        if self._client is not None:
            with contextlib.suppress(Exception):
                self._client.close(timeout=2.0)


def worker_facts() -> tuple[dict[str, str], tuple[Device, ...], str]:
    """Return the versions of a worker, its GPUs by the driver in another process, and why it has none."""
    with Child("mltune.campaign.cluster.gpu_workers:make_query") as child:
        return child.call(None, _ANSWER_S)  # type: ignore[no-any-return]


def make_query() -> Callable[[None], tuple[dict[str, str], tuple[Device, ...], str]]:
    """Return the function that the process of :func:`worker_facts` serves."""
    return lambda _: (versions(), *find_gpus())


# Dask opens a port for pages even where it shows none: it is on this host alone, and serves nothing.
_NO_PAGES = {"dashboard": False, "dashboard_address": "127.0.0.1:0"}
_NO_ROUTES: dict[str, Any] = {f"distributed.{role}.http.routes": [] for role in ("scheduler", "worker", "nanny")}

LOCAL = "local"
"""The name of the cluster on this machine."""


@contextlib.contextmanager
def named_cluster(where: str, gpus: int) -> Iterator[Cluster]:
    """Yield the connection to a cluster; ``"local"`` is started here, without a GPU with one worker for replays."""
    if where != LOCAL:
        with contextlib.closing(Cluster(where)) as connected:
            yield connected
        return
    distributed = import_distributed()
    from dask import config

    logging.getLogger("distributed").setLevel(logging.CRITICAL)
    import_package("cryptography", "the cluster local", CLUSTER)
    security = distributed.Security.temporary()  # a certificate and its key, in memory: other users cannot connect
    options = {"host": "tls://127.0.0.1", "port": 0, "security": security, **_NO_PAGES}
    names = {f"gpu-{index}": index if gpus else None for index in range(gpus or 1)}
    workers = {name: _worker(distributed, name, gpu, security) for name, gpu in names.items()}
    scheduler = {"cls": distributed.Scheduler, "options": options}
    with (
        _safe_path(),
        tempfile.TemporaryDirectory(prefix="mltune-") as folder,
        config.set({**_NO_ROUTES, "temporary-directory": folder}),  # Dask's own has a name that others can take first
        distributed.SpecCluster(workers=workers, scheduler=scheduler, security=security) as cluster,
        contextlib.closing(Cluster(cluster.scheduler_address, security)) as connected,
    ):
        yield connected


@contextlib.contextmanager
def _safe_path() -> Iterator[None]:
    """Keep the working directory off the import path of processes that start meanwhile."""
    before = os.environ.get(SAFE_PATH)
    os.environ[SAFE_PATH] = "1"
    try:
        yield
    finally:
        os.environ.pop(SAFE_PATH)
        if before is not None:
            os.environ[SAFE_PATH] = before


def _worker(distributed: Any, name: str, gpu: int | None, security: Any) -> dict[str, Any]:
    visible = {} if gpu is None else {"CUDA_VISIBLE_DEVICES": str(gpu)}
    options = {
        "host": "tls://127.0.0.1",
        "security": security,
        "name": name,
        "nthreads": 1,
        "resources": {GPU: 1},
        "memory_limit": 0,
        "env": visible,
        **_NO_PAGES,
        "silence_logs": logging.CRITICAL,
    }
    return {"cls": distributed.Nanny, "options": options}
