"""The task of a compile worker: a build in processes of its own, which can be killed."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import TYPE_CHECKING

from mltune.measure.compile_pool import CompilePool
from mltune.measure.compiler import Source
from mltune.measure.cubin_cache import default_cache
from mltune.records.trial import Build

if TYPE_CHECKING:
    from distributed import Worker
    from distributed.diagnostics.plugin import WorkerPlugin

SOURCES = 4
"""Sources for which compile processes are kept: each has its own."""

_pools: OrderedDict[str, CompilePool] = OrderedDict()
_lock = threading.Lock()


def compile_here(source: Source, name: str, macros: str) -> Build:
    """Compile a source with macros in a task of a Dask worker that has the resource ``COMPILE``.

    Parameters
    ----------
    source : Source
    name : str
        A hash of the source.
    macros : str
        See :meth:`mltune.measure.compile_pool.CompilePool.submit`.
    """
    return _pool(source, name).submit(macros).result()


def _pool(source: Source, name: str) -> CompilePool:
    """Return the compile processes of a source, and end those of the source that was used least recently."""
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
    """End them, because their worker ends."""
    with _lock:
        while _pools:
            _pools.popitem()[1].__exit__()


def ending_with_worker() -> WorkerPlugin:
    """Return the plugin of a worker that ends its compile processes."""
    from distributed.diagnostics.plugin import WorkerPlugin

    class CompileProcesses(WorkerPlugin):
        name = "mltune-compile-processes"

        def teardown(self, worker: Worker) -> None:
            end_compile_processes()

    return CompileProcesses()
