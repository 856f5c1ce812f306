"""Compilers on the hosts of a Dask cluster, which take a part of a builder's work, and the connection to them."""

from __future__ import annotations

import contextlib
import ipaddress
import logging
import os
import threading
import time
import warnings
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from mltune.errors import DeviceError, MltuneWarning, UsageError, WorkerError
from mltune.files.folders import page
from mltune.files.reading import parse_json, raising
from mltune.files.text import printable
from mltune.measure.assembler import nvjitlink_version
from mltune.measure.compile_pool import CompilePool, Job
from mltune.measure.compiler import CudaSource, nvrtc_version
from mltune.measure.cubin_cache import default_cache, source_digest
from mltune.records.trial import Build
from mltune.records.versions import __version__, import_package

if TYPE_CHECKING:
    from distributed import Client, Future, Worker
    from distributed.diagnostics.plugin import WorkerPlugin


GPU, COMPILE = "GPU", "COMPILE"
"""The resources of workers: 1 of a worker with a GPU, the number of compile processes of one that compiles."""

CLUSTER = "mltune-gpu[cluster]"
"""What a cluster needs besides mltune."""

TIMEOUT_S = 20.0
"""Seconds allowed for connecting."""

PLAIN = "MLTUNE_CLUSTER_PLAIN"
"""Environment variable: when set, schedulers on other hosts may be reached without encryption."""

_LONGEST_FILE = 1 << 20
_warned: set[str] = set()


def connect(where: str, *, timeout_s: float = TIMEOUT_S, security: Any = None) -> Client:
    """Connect to the scheduler at an address, such as ``"tls://10.0.0.1:8786"``, or of a scheduler file.

    `security` is the certificate of a cluster that has one of its own. An address that cannot be used, or without
    encryption, raises a UsageError; no answer a WorkerError.
    """
    distributed = import_distributed()
    address = address_of(where)
    check_encrypted(address)
    logging.getLogger("distributed").setLevel(logging.CRITICAL)  # the run itself tells of its consequences
    try:
        return distributed.Client(address, timeout=timeout_s, set_as_default=False, security=security)
    except (OSError, ValueError, TypeError) as error:
        raise WorkerError(f"the scheduler of the cluster, {address}, does not answer: {error}") from error


def import_distributed() -> Any:
    """Return the package distributed; raise a UsageError where it is not installed."""
    return import_package("distributed", "a cluster", CLUSTER)


def address_of(where: str) -> str:
    """Return the address of a scheduler, or the one in its file; raise a UsageError for anything else."""
    law = "a cluster is named by the address of its scheduler (tls://HOST:PORT) or by its scheduler file"
    path = Path(where)
    if path.is_file():
        with raising(UsageError, f"{path} cannot be used: {law}", OSError, ValueError, LookupError, TypeError):
            with path.open(encoding="utf-8") as file:
                document = parse_json(file.read(_LONGEST_FILE))
            where = document["address"]
    if not isinstance(where, str) or not where.rpartition(":")[2].isdigit():
        raise UsageError(f"{where!r:.200} cannot be used: {law}.")
    return where if "://" in where else f"tcp://{where}"


def check_encrypted(address: str) -> None:
    """Raise a UsageError for an unencrypted address of another machine; warn once of one that is here.

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
            f"the connection to {address}, a scheduler on another host, is not encrypted: start scheduler and workers "
            f"with --protocol tls ({page('how-to/use-a-cluster.md')}), or set {PLAIN}=1 in a network that you trust."
        )
    if address not in _warned:
        _warned.add(address)
        warnings.warn(
            f"the scheduler {address} is not encrypted: it takes programs from everybody on its host, and runs them as "
            "you, so it is safe only where you alone can log in. Start it with --protocol tls "
            f"({page('how-to/use-a-cluster.md')}), name the cluster `local`, or set {PLAIN}=1.",
            MltuneWarning,
            stacklevel=3,
        )


def versions(controls: bool = False) -> dict[str, str]:
    """Return the versions that all hosts must share (nvJitLink's for files of controls); empty without a package."""
    try:
        nvrtc = nvrtc_version()
    except DeviceError:
        nvrtc = ""
    linker = {"nvjitlink": nvjitlink_version()} if controls else {}
    return {"mltune": __version__, "nvrtc": nvrtc, "distributed": version("distributed"), **linker}


def workers_with(client: Client, resource: str) -> dict[str, dict[str, Any]]:
    """Return the scheduler's facts of the workers with a resource, by address; a WorkerError where it is lost."""
    workers = client.scheduler_info(n_workers=-1).get("workers")
    if workers is None:
        raise WorkerError("the scheduler is lost")
    return {address: facts for address, facts in workers.items() if facts["resources"].get(resource, 0) >= 1}


def worker_folder() -> str:
    """Return the folder of the worker in which a task runs."""
    from distributed import get_worker

    return str(get_worker().local_directory)


AHEAD = 0.25
"""Builds that a core is given ahead, as a share of those that it makes: it does not wait for the network."""

REFRESH_S = 5.0
"""Seconds between two looks at who is in the cluster."""

_ANSWER_S = 10.0
_log = logging.getLogger(__name__)

SOURCES = 4
"""Sources for which compile processes are kept: each has its own."""

_pools: OrderedDict[str, CompilePool] = OrderedDict()
_lock = threading.Lock()


class CompileFarm:
    """Compile workers of a cluster, as :class:`mltune.measure.compile_pool.Farm`.

    A build is a task of Dask, whose key is its key in the cache of cubins: users who ask for the same build share it,
    and another worker repeats the builds of a lost one. Without a worker of these versions it raises a WorkerError.
    """

    def __init__(self, where: str, controls: bool = False) -> None:
        self._controls = controls
        self._client = connect(where, timeout_s=_ANSWER_S)
        self._fits: dict[str, int] = {}
        self._refused: dict[str, Mapping[str, Any]] = {}
        self._next_look = 0.0
        self._sources: dict[str, Future[CudaSource]] = {}
        try:
            self._client.register_plugin(ending_with_worker())
            self._look()
            if not self._fits:
                raise WorkerError(_nobody(where, versions(controls), self._refused))
        except BaseException:
            self._client.close()
            raise
        for address, versions_there in self._refused.items():
            warnings.warn(
                f"{address} is left out: it has {_words(versions_there)}, and hosts that compile must have the "
                f"versions of this one ({_words(versions(controls))}).",
                MltuneWarning,
                stacklevel=3,
            )

    @property
    def cores(self) -> int:
        """Builds made at the same time."""
        return sum(self._fits.values())

    @property
    def capacity(self) -> int:
        """Builds that can be under way."""
        if time.monotonic() >= self._next_look:
            self._look()
        return int((1.0 + AHEAD) * self.cores) + 1 if self._fits else 0

    def compile(self, source: CudaSource, jobs: Sequence[Job]) -> list[Future[Build]]:
        """Begin builds; see :class:`mltune.measure.compile_pool.Farm`."""
        name = source_digest(source)
        options: dict[str, Any] = {"workers": list(self._fits), "retries": 0}
        try:
            if name not in self._sources:  # a task, not data: if its holder dies, the scheduler knows how to make it
                self._sources[name] = self._client.submit(_same, source, key=f"mltune-source-{name}", **options)
            begun: list[Future[Build]] = self._client.map(
                compile_here,
                [self._sources[name]] * len(jobs),
                [name] * len(jobs),
                [job.macros for job in jobs],
                [job.options for job in jobs],
                key=[f"mltune-build-{job.key}" for job in jobs],
                resources={COMPILE: 1},
                **options,
            )
        except Exception as error:  # of any kind, from a connection that is lost
            self._leave(error)
            return []
        return begun

    def result(self, build: Future[Build]) -> Build | None:
        """Return a build that has ended; None where its task, worker or connection is lost."""
        with contextlib.suppress(Exception):
            answer = build.result(timeout=_ANSWER_S)
            return answer if isinstance(answer, Build) else None
        return None

    def close(self) -> None:
        """Leave the cluster, which cancels the builds under way."""
        with contextlib.suppress(Exception):
            self._client.close(timeout=2.0)

    def _look(self) -> None:
        """Look at who compiles in the cluster, and check the versions of those who are new."""
        self._next_look = time.monotonic() + REFRESH_S
        try:
            workers = workers_with(self._client, COMPILE)
            new = [address for address in workers if address not in self._fits and address not in self._refused]
            versions_here = versions(self._controls)
            answers = self._client.run(versions, self._controls, workers=new, on_error="return") if new else {}
        except Exception as error:
            self._leave(error)
            return
        differing = {address: answer for address, answer in answers.items() if answer != versions_here}
        self._refused |= {address: _facts(answer) for address, answer in differing.items()}
        fitting = [address for address in workers if address in self._fits or answers.get(address) == versions_here]
        self._fits = {address: int(workers[address]["resources"][COMPILE]) for address in fitting}

    def _leave(self, error: BaseException) -> None:
        """Go on without the cluster until it answers again."""
        if self._fits:
            _log.warning("the compile workers are lost, and this host goes on alone: %s", printable(error))
        self._fits = {}


def _same(source: CudaSource) -> CudaSource:
    return source


def _facts(answer: object) -> Mapping[str, Any]:
    return answer if isinstance(answer, dict) else {"error": str(answer)}


def _words(facts: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value or 'missing'}" for name, value in facts.items())


def _nobody(where: str, versions_here: Mapping[str, str], refused: Mapping[str, Mapping[str, Any]]) -> str:
    if not refused:
        return f"{where} has no worker with the resource {COMPILE}: dask worker {where} --resources COMPILE=8."
    facts = "; ".join(f"{address} has {_words(facts)}" for address, facts in refused.items())
    return f"{facts}; a compile worker has the versions of this host ({_words(versions_here)})."


def farm_of(where: str, controls: bool = False) -> CompileFarm | None:
    """Return the compile workers of a cluster; None where it has none now: a run does not fail for that."""
    try:
        return CompileFarm(where, controls)
    except WorkerError as error:
        warnings.warn(f"this host compiles alone: {error}", MltuneWarning, stacklevel=2)
        return None


def compile_here(source: CudaSource, name: str, macros: str, options: tuple[str, ...]) -> Build:
    """Compile a source, named by its hash, in a task of a Dask worker that has the resource ``COMPILE``."""
    return _pool(source, name).build(macros, options).result()


def _pool(source: CudaSource, name: str) -> CompilePool:
    """Return the compile processes of a source, and end those of the least recently used source."""
    from distributed import get_worker

    with _lock:
        pool = _pools.pop(name, None)
        if pool is None:
            cores = int(get_worker().state.total_resources["COMPILE"])
            pool = CompilePool(source, cache=default_cache(), workers=cores).__enter__()
        _pools[name] = pool
        if len(_pools) > SOURCES:
            _pools.popitem(last=False)[1].__exit__()
        return pool


def end_compile_processes() -> None:
    """End the compile processes of a worker that ends."""
    with _lock:
        while _pools:
            _pools.popitem()[1].__exit__()


def ending_with_worker() -> WorkerPlugin:
    """Return the plugin of a worker that ends its compile processes."""
    from distributed.diagnostics.plugin import WorkerPlugin

    class CompileProcesses(WorkerPlugin):  # type: ignore[misc]
        name = "mltune-compile-processes"

        def teardown(self, worker: Worker) -> None:
            end_compile_processes()

    return CompileProcesses()
