"""Find the fastest version of a parametrised GPU kernel while measuring few of its versions.

Names are imported when they are first used: ``import mltune`` itself takes a few milliseconds.

Examples
--------
>>> import mltune
>>> result = mltune.tune("sgemm", trans="NT", size=4096, trials=40, device="replay:h200-sgemm-nt-4096-random")
>>> len(result.records)
40
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from mltune import errors
from mltune.errors import MltuneError, MltuneWarning, RunError, UsageError
from mltune.records.versions import __version__

if TYPE_CHECKING:
    from mltune.api import compare, load_run, run_kernel, tune, tune_kernel
    from mltune.comparison.results import Comparison
    from mltune.dataset.dataset import Dataset, load_dataset
    from mltune.kernel.bundle import Kernel
    from mltune.kernel.reader import load_kernel
    from mltune.known.wisdom import Wisdom
    from mltune.problem.problem import Problem
    from mltune.results.run import TuneResult
    from mltune.search.search import Search

__all__ = [
    "Comparison",
    "Dataset",
    "Kernel",
    "MltuneError",
    "MltuneWarning",
    "Problem",
    "RunError",
    "Search",
    "TuneResult",
    "UsageError",
    "Wisdom",
    "__version__",
    "compare",
    "errors",
    "load_dataset",
    "load_kernel",
    "load_run",
    "run_kernel",
    "tune",
    "tune_kernel",
]

_MODULES = {
    "Comparison": "mltune.comparison.results",
    "Dataset": "mltune.dataset.dataset",
    "Kernel": "mltune.kernel.bundle",
    "Problem": "mltune.problem.problem",
    "Search": "mltune.search.search",
    "TuneResult": "mltune.results.run",
    "Wisdom": "mltune.known.wisdom",
    "compare": "mltune.api",
    "load_dataset": "mltune.dataset.dataset",
    "load_kernel": "mltune.kernel.reader",
    "load_run": "mltune.api",
    "run_kernel": "mltune.api",
    "tune": "mltune.api",
    "tune_kernel": "mltune.api",
}
"""The module of each public name that is imported on first use."""


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_MODULES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return list(__all__)
