"""A recording: what a search in replay may propose, what each configuration took, and what finding that out cost."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from mltune.errors import DatasetError
from mltune.kernel.columns import Floats
from mltune.kernel.space import TableSpace
from mltune.learn.features import BUILD_COLUMNS
from mltune.records.trial import TrialState

if TYPE_CHECKING:
    from mltune.dataset.dataset import Dataset
    from mltune.device.facts import Device
    from mltune.kernel.bundle import Kernel
    from mltune.problem.problem import Problem

UNKNOWN_COMPILE_S = 1.0
"""Seconds that compiling is taken to cost where a table has no compile times at all."""

UNKNOWN_RUNS = 7
"""Runs that timing is taken to cost where a table does not say: what Kernel Tuner times by default."""


@dataclass(frozen=True, eq=False)
class Recording:
    """The recorded outcomes of every configuration that a search in replay may propose.

    Attributes
    ----------
    name : str
    kernel : Kernel
    problem : Problem
    device : Device
    space : TableSpace
        The index of a configuration is its row.
    median_s : ndarray of shape (n_configs,)
        Median time, seconds; NaN for a configuration that failed.
    compile_s, run_s : ndarray of shape (n_configs,)
        Seconds that compiling it, and verifying and timing it, took when it was recorded.
    builds : mapping of str to ndarray of shape (n_configs,)
        What the compiler said, NaN where it is not known; empty when nothing is known of any configuration.

    Raises
    ------
    DatasetError
        No configuration succeeded.
    """

    name: str
    kernel: Kernel
    problem: Problem
    device: Device
    space: TableSpace
    median_s: Floats
    compile_s: Floats
    run_s: Floats
    builds: Mapping[str, Floats] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not np.isfinite(self.median_s).any():
            raise DatasetError(f"strategies are compared by the best they find, but nothing in {self.name} succeeded.")

    @cached_property
    def fingerprint(self) -> str:
        """A hash of the configurations and their times: runs on another recording are not runs on this."""
        digest = hashlib.sha256()
        for name, column in self.space.rows(np.arange(self.space.count)).items():
            digest.update(name.encode() + column.tobytes())
        digest.update(self.median_s.tobytes() + self.compile_s.tobytes() + self.run_s.tobytes())
        return digest.hexdigest()[:16]

    @cached_property
    def optimum_s(self) -> float:
        """The best time in it, seconds."""
        return float(np.nanmin(self.median_s))

    @cached_property
    def pessimal_s(self) -> Floats:
        """Times where a failure counts as the slowest of those that ran: ndarray of shape (n_configs,)."""
        return np.where(np.isfinite(self.median_s), self.median_s, np.nanmax(self.median_s))


def record(dataset: Dataset, kernel: Kernel) -> Recording:
    """Make a recording of a dataset.

    Where the table does not know what a configuration cost, it is taken to have compiled in the median compile time of
    the others (:data:`UNKNOWN_COMPILE_S` if there is none), and to have run :data:`UNKNOWN_RUNS` times. What did not
    compile was not run.

    Parameters
    ----------
    dataset : Dataset
        Or what has its ``manifest``, ``columns``, ``states`` and ``numbers``.
    kernel : Kernel
        The kernel it is of.

    Raises
    ------
    DatasetError
        No configuration succeeded.
    """
    timed = np.isin(dataset.states, [TrialState.OK.value, TrialState.UNSTABLE.value])
    median_s = np.where(timed, dataset.numbers("median_s"), np.nan)
    builds = {name: dataset.numbers(name) for name in BUILD_COLUMNS}
    return Recording(
        name=dataset.manifest.name,
        kernel=kernel,
        problem=dataset.manifest.problem,
        device=dataset.manifest.device,
        space=TableSpace(dataset.columns),
        median_s=median_s,
        compile_s=_compile_seconds(dataset.numbers("compile_s")),
        run_s=_run_seconds(dataset.numbers("verify_s") + dataset.numbers("time_s"), median_s),
        builds={name: column for name, column in builds.items() if np.isfinite(column).any()},
    )


def _compile_seconds(recorded: Floats) -> Floats:
    """Fill in what compiling cost where it is not known."""
    known = recorded[np.isfinite(recorded) & (recorded > 0)]
    usual = float(np.median(known)) if len(known) else UNKNOWN_COMPILE_S
    return np.where(np.isfinite(recorded) & (recorded > 0), recorded, usual)


def _run_seconds(recorded: Floats, median_s: Floats) -> Floats:
    """Fill in what running cost where it is not known."""
    estimated = UNKNOWN_RUNS * np.nan_to_num(median_s)
    return np.where(np.isfinite(recorded) & (recorded > 0), recorded, estimated)
