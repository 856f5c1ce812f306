"""Connections to a Dask cluster: by address or scheduler file, encrypted unless the scheduler is on this machine."""

from __future__ import annotations

import ipaddress
import logging
import os
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from mltune.errors import UsageError, WorkerError
from mltune.files.documents import parse_json
from mltune.files.reading import reason
from mltune.records.versions import __version__

if TYPE_CHECKING:
    from distributed import Client

GPU, COMPILE = "GPU", "COMPILE"
"""The resources of workers: 1 of a worker with a GPU, the number of compile processes of one that compiles."""

TIMEOUT_S = 20.0
"""Seconds allowed for connecting."""

PLAIN = "MLTUNE_CLUSTER_PLAIN"
"""Environment variable: when set, schedulers on other hosts may be reached without encryption."""

_LONGEST_FILE = 1 << 20


def connect(where: str, *, timeout_s: float = TIMEOUT_S) -> Client:
    """Connect to a cluster by the address of its scheduler, such as ``"tls://10.0.0.1:8786"``, or its scheduler file.

    Raises
    ------
    UsageError
        Dask is not installed, the address cannot be used, or the connection would not be encrypted.
    WorkerError
        The scheduler does not answer.
    """
    distributed = import_distributed()
    address = address_of(where)
    check_encrypted(address)
    logging.getLogger("distributed").setLevel(logging.CRITICAL)  # the run itself tells of its consequences
    try:
        client: Client = distributed.Client(address, timeout=timeout_s, set_as_default=False)
        return client
    except (OSError, ValueError, TypeError) as error:
        law = "a cluster is reached through its scheduler"
        raise WorkerError(f"{law}, but {address} does not answer: {error}") from error


def import_distributed() -> Any:
    """Return the package distributed; raise a UsageError where it is not installed."""
    try:
        import distributed
    except ImportError:
        raise UsageError(
            "a cluster needs Dask's distributed, which is not installed; pip install 'mltune-gpu[cluster]'."
        ) from None
    return distributed


def address_of(where: str) -> str:
    """Return the address of a scheduler, or the one in its file; raise a UsageError for anything else.

    >>> address_of("127.0.0.1:8786")
    'tcp://127.0.0.1:8786'
    """
    law = "a cluster is named by the address of its scheduler (tls://HOST:PORT) or by its scheduler file"
    path = Path(where)
    if path.is_file():
        try:
            with path.open(encoding="utf-8") as file:
                document = parse_json(file.read(_LONGEST_FILE))
            where = document["address"]
        except (OSError, ValueError, LookupError, TypeError) as error:
            raise UsageError(f"{law}, but {path} is none: {reason(error)}.") from error
    if not isinstance(where, str) or not where.rpartition(":")[2].isdigit():
        raise UsageError(f"{law}, got {where!r:.200}.")
    return where if "://" in where else f"tcp://{where}"


def check_encrypted(address: str) -> None:
    """Raise a UsageError for an address that is neither encrypted nor on this machine.

    Everybody who reaches a scheduler can run programs on its hosts, and everybody between two hosts can change what
    they send.
    """
    parts = urlsplit(address)
    if parts.scheme not in ("tcp", "ws") or os.environ.get(PLAIN):
        return
    host = parts.hostname or ""
    try:
        local = ipaddress.ip_address(host).is_loopback
    except ValueError:
        local = host == "localhost"
    if not local:
        raise UsageError(
            f"the connection to a scheduler on another host must be encrypted, but {address} is not: start scheduler "
            f"and workers with --protocol tls (docs/how-to/use-a-cluster.md), or set {PLAIN}=1 in a network "
            "that you trust."
        )


def versions() -> dict[str, str]:
    """Return the versions that must be the same on all hosts; empty where a package is missing."""
    from mltune.errors import DeviceError
    from mltune.measure.compiler import nvrtc_version

    try:
        nvrtc = nvrtc_version()
    except DeviceError:
        nvrtc = ""
    return {"mltune": __version__, "nvrtc": nvrtc, "distributed": version("distributed")}


def workers_with(client: Client, resource: str) -> dict[str, dict[str, Any]]:
    """Return the scheduler's facts of the workers that have a resource, by address."""
    known = client.scheduler_info(n_workers=-1)["workers"]
    return {address: facts for address, facts in known.items() if facts["resources"].get(resource, 0) >= 1}


def worker_folder() -> str:
    """Return the folder of the worker in which a task runs."""
    from distributed import get_worker

    return str(get_worker().local_directory)
