"""Result of a pruned sweep: its promise, its audit, and the seconds that it saved."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from mltune.records.trials import Trials
from mltune.search.pruning import PruningAudit


@dataclass(frozen=True, slots=True)
class Pruned:
    """The result of a pruned sweep.

    Compilers and the GPU work side by side, so the time of a sweep is that of the busier of the two. What a complete
    sweep takes is estimated from the random sample: the mean seconds of a configuration, times the size of the space.

    Attributes
    ----------
    audit : PruningAudit
    compilers : int
        Compile processes; in replay 1.
    compile_s, gpu_s : float
        Seconds of compiling, of all compilers together, and of verifying and timing.
    planning_s : float
        Seconds of fits and predictions, most of them while compilers work.
    total_s : float
        Seconds of the sweep: elapsed; in replay the planning and the busier of compilers and GPU.
    complete_s : float
        Estimated seconds of a complete sweep.
    dataset : pathlib.Path or None
        The Parquet file.
    """

    audit: PruningAudit
    compilers: int
    compile_s: float
    gpu_s: float
    planning_s: float
    total_s: float
    complete_s: float
    dataset: Path | None = None

    @property
    def saved_s(self) -> float:
        """Net seconds saved: those of a complete sweep less those of this one, planning included."""
        return self.complete_s - self.total_s

    def to_json(self) -> dict[str, int | float]:
        """Return the figures as plain JSON values, without the path."""
        figures = {name: value for name, value in asdict(self).items() if name not in ("audit", "dataset")}
        return self.audit.to_json() | figures | {"saved_s": self.saved_s}


def judge(
    audit: PruningAudit, trials: Trials, seconds: Mapping[str, float], compilers: int, *, replayed: bool
) -> Pruned:
    """Return the result of a pruned sweep.

    Parameters
    ----------
    audit : PruningAudit
    trials : Trials
        All trials of the run.
    seconds : mapping of str to float
        Seconds by phase; see :mod:`mltune.records.seconds`.
    compilers : int
    replayed : bool
        Whether the seconds of measuring were recorded earlier.
    """
    compile_s = np.nan_to_num(trials.column("compile_s"))
    gpu_s = np.nan_to_num(trials.column("verify_s")) + np.nan_to_num(trials.column("time_s"))
    sample = np.isin(trials.column("proposed_by"), ("random", "audit"))
    planning_s = seconds.get("search", 0.0)
    busier = max(float(compile_s.sum()) / compilers, float(gpu_s.sum()))
    return Pruned(
        audit,
        compilers,
        float(compile_s.sum()),
        float(gpu_s.sum()),
        planning_s,
        planning_s + busier if replayed else seconds.get("total", busier),
        audit.valid * max(float(compile_s[sample].mean()) / compilers, float(gpu_s[sample].mean())),
    )
