"""The Python interface: what ``import mltune`` offers, with a function for every command.

Functions import what they need when they are called, and classes are imported when they are first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from mltune.api.campaigns import check_cluster, dashboard, load_run, plan, report, run, summarise
from mltune.api.comparing import compare, scoreboard
from mltune.api.datasets import export_dataset, import_dataset, list_datasets, merge_datasets, verify_datasets
from mltune.api.gating import gate
from mltune.api.inventory import (
    check,
    check_wisdom,
    devices,
    export_triton_winners,
    import_triton_winners,
    new_kernel,
    space,
)
from mltune.api.libraries import build_library
from mltune.api.models import bound, load_model, predict, train
from mltune.api.own_kernels import run_kernel, tune_kernel, tuned, tuned_kernel
from mltune.api.search import Search
from mltune.api.tuning import sweep, tune, tune_shapes, tune_sizes

if TYPE_CHECKING:
    from mltune.campaign.products import CampaignResult
    from mltune.comparison.results import Comparison, PartialComparison
    from mltune.dataset.dataset import Dataset, load_dataset
    from mltune.kernel.bundle import Kernel
    from mltune.kernel.reader import load_kernel
    from mltune.known.wisdom import Wisdom
    from mltune.library.loaded import load_library
    from mltune.measure.bundle_check import KernelCheck
    from mltune.problem.problem import Problem
    from mltune.resolve.plan_file import load_plan
    from mltune.results.run import TuneResult
    from mltune.tuning.bound import UpperBound
    from mltune.tuning.prediction import Predicted
    from mltune.tuning.sweep import Swept
    from mltune.tuning.wisdom_check import WisdomCheck

__all__ = [
    "CampaignResult",
    "Comparison",
    "Dataset",
    "Kernel",
    "KernelCheck",
    "PartialComparison",
    "Predicted",
    "Problem",
    "Search",
    "Swept",
    "TuneResult",
    "UpperBound",
    "Wisdom",
    "WisdomCheck",
    "bound",
    "build_library",
    "check",
    "check_cluster",
    "check_wisdom",
    "compare",
    "dashboard",
    "devices",
    "export_dataset",
    "export_triton_winners",
    "gate",
    "import_dataset",
    "import_triton_winners",
    "list_datasets",
    "load_dataset",
    "load_kernel",
    "load_library",
    "load_model",
    "load_plan",
    "load_run",
    "merge_datasets",
    "new_kernel",
    "plan",
    "predict",
    "report",
    "run",
    "run_kernel",
    "scoreboard",
    "space",
    "summarise",
    "sweep",
    "train",
    "tune",
    "tune_kernel",
    "tune_shapes",
    "tune_sizes",
    "tuned",
    "tuned_kernel",
    "verify_datasets",
]

_MODULES = {
    "CampaignResult": "mltune.campaign.products",
    "Comparison": "mltune.comparison.results",
    "Dataset": "mltune.dataset.dataset",
    "Kernel": "mltune.kernel.bundle",
    "KernelCheck": "mltune.measure.bundle_check",
    "PartialComparison": "mltune.comparison.results",
    "Predicted": "mltune.tuning.prediction",
    "Problem": "mltune.problem.problem",
    "Swept": "mltune.tuning.sweep",
    "TuneResult": "mltune.results.run",
    "UpperBound": "mltune.tuning.bound",
    "Wisdom": "mltune.known.wisdom",
    "WisdomCheck": "mltune.tuning.wisdom_check",
    "load_dataset": "mltune.dataset.dataset",
    "load_kernel": "mltune.kernel.reader",
    "load_library": "mltune.library.loaded",
    "load_plan": "mltune.resolve.plan_file",
}
"""The module of each name that is imported on first use."""


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_MODULES[name]), name)
    globals()[name] = value
    return value
