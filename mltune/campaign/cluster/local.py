"""A cluster on this machine: a worker for each GPU, for trying things out and for hosts with several GPUs."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from typing import Any

from mltune.measure.cluster_connection import GPU, import_distributed

LOCAL = "local"
"""The name of the cluster on this machine."""


@contextlib.contextmanager
def named_cluster(where: str, gpus: int) -> Iterator[str]:
    """Yield the address of a cluster; ``"local"`` is started here, and ends with the context.

    Parameters
    ----------
    where : str
        See :func:`mltune.measure.cluster_connection.connect`, or ``"local"``.
    gpus : int
        GPUs of this machine; without one the local cluster has one worker, which replays recorded timings.

    Raises
    ------
    UsageError
        Dask is not installed.
    """
    if where != LOCAL:
        yield where
        return
    distributed = import_distributed()
    logging.getLogger("distributed").setLevel(logging.CRITICAL)
    scheduler = {"cls": distributed.Scheduler, "options": {"host": "127.0.0.1", "port": 0, "dashboard": False}}
    names = {f"gpu-{index}": index if gpus else None for index in range(gpus or 1)}
    workers = {name: _worker(distributed, name, gpu) for name, gpu in names.items()}
    with distributed.SpecCluster(workers=workers, scheduler=scheduler) as cluster:
        yield cluster.scheduler_address


def _worker(distributed: Any, name: str, gpu: int | None) -> dict[str, Any]:
    visible = {} if gpu is None else {"CUDA_VISIBLE_DEVICES": str(gpu)}
    options = {
        "host": "127.0.0.1",
        "name": name,
        "nthreads": 1,
        "resources": {GPU: 1},
        "memory_limit": 0,
        "dashboard": False,
        "env": visible,
        "silence_logs": logging.CRITICAL,
    }
    return {"cls": distributed.Nanny, "options": options}
