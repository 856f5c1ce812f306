"""Recordings: the configurations of a simulated search, with their recorded times and costs, and their sources."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from mltune.cost.features import BUILD_COLUMNS
from mltune.errors import DatasetError
from mltune.kernel.columns import Floats
from mltune.kernel.space import TableSpace
from mltune.records.trial import TrialState

if TYPE_CHECKING:
    from mltune.dataset.dataset import Dataset
    from mltune.device.facts import Device
    from mltune.kernel.bundle import Kernel
    from mltune.problem.problem import Problem

UNKNOWN_COMPILE_S = 1.0
"""Assumed seconds of a compilation, for a table without compile times."""

PRUNED = "a pruned sweep leaves out what is slow: every strategy looks better than it is on the whole space"
"""What is said of a recording that is not a whole space or a fair sample of it."""

UNKNOWN_RUNS = 7
"""Assumed number of runs of a timing, for a table without costs: the default of Kernel Tuner."""


@dataclass(frozen=True, eq=False)
class Recording:
    """The recorded outcomes of every configuration of a simulated search.

    Attributes
    ----------
    space : TableSpace
        The index of a configuration is its row.
    median_s : ndarray of shape (n_configs,)
        Median time, seconds; NaN for a configuration that failed.
    compile_s, run_s : ndarray of shape (n_configs,)
        Recorded seconds of compiling a configuration, and of verifying and timing it.
    builds : mapping of str to ndarray of shape (n_configs,)
        Recorded results of compiling, NaN where not known; columns without any known value are left out.
    account : str
        What was read of a table; empty for a dataset.
    notices : tuple of str
        What the user should know about the recording.
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
    account: str = ""
    notices: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not np.isfinite(self.median_s).any():
            raise DatasetError(f"a recording must have a configuration that succeeded, but {self.name} has none.")

    @cached_property
    def fingerprint(self) -> str:
        """A hash of the configurations and their times, which identifies the recording."""
        digest = hashlib.sha256()
        for name, column in self.space.rows(np.arange(self.space.count)).items():
            digest.update(name.encode() + column.tobytes())
        digest.update(self.median_s.tobytes() + self.compile_s.tobytes() + self.run_s.tobytes())
        return digest.hexdigest()[:16]

    @cached_property
    def optimum_s(self) -> float:
        """The shortest time, seconds."""
        return float(np.nanmin(self.median_s))

    @cached_property
    def pessimal_s(self) -> Floats:
        """Times with failures as the slowest that ran: ndarray of shape (n_configs,)."""
        return np.where(np.isfinite(self.median_s), self.median_s, np.nanmax(self.median_s))


def record(dataset: Dataset, kernel: Kernel) -> Recording:
    """Make a recording of a dataset and its kernel.

    An unknown compile time is assumed to be the median of the known ones (:data:`UNKNOWN_COMPILE_S` if there is none),
    an unknown cost of timing that of :data:`UNKNOWN_RUNS` runs. A configuration that did not run has no cost of timing.
    """
    timed = np.isin(dataset.states, [TrialState.OK.value, TrialState.UNSTABLE.value])
    median_s = np.where(timed, dataset.numbers("median_s"), np.nan)
    compile_s, run_s = dataset.numbers("compile_s"), dataset.numbers("verify_s") + dataset.numbers("time_s")
    known_s = compile_s[_known(compile_s)]
    assumed_s = float(np.median(known_s)) if len(known_s) else UNKNOWN_COMPILE_S
    builds = {name: dataset.numbers(name) for name in BUILD_COLUMNS}
    return Recording(
        name=dataset.manifest.name,
        kernel=kernel,
        problem=dataset.manifest.problem,
        device=dataset.manifest.device,
        space=TableSpace(dataset.columns),
        median_s=median_s,
        compile_s=np.where(_known(compile_s), compile_s, assumed_s),
        run_s=np.where(_known(run_s), run_s, UNKNOWN_RUNS * np.nan_to_num(median_s)),
        builds={name: column for name, column in builds.items() if np.isfinite(column).any()},
    )


def _known(seconds: Floats) -> NDArray[np.bool_]:
    return np.isfinite(seconds) & (seconds > 0)


@dataclass(frozen=True, slots=True)
class Source:
    """The source of a recording: a dataset by name or path, or a bare table with a name to show.

    The other attributes are of the table (:func:`mltune.dataset.importing.read_table`); its ``parameters`` are empty
    where the format defines them.
    """

    name: str
    table: Path | None = None
    parameters: tuple[str, ...] = ()
    time: str | None = None
    aggregate: bool = False

    def load(self) -> Recording:
        """Load and check the recording."""
        if self.table is not None:
            from mltune.dataset.importing import read_table
            from mltune.dataset.recorded_kernel import bare_kernel

            bare = read_table(self.table, self.parameters or None, self.time, aggregate=self.aggregate)
            found = record(bare.dataset, bare_kernel(bare.dataset.manifest))
            return replace(found, name=self.name, account=bare.account, notices=bare.notices)
        from mltune.dataset.dataset import load_dataset
        from mltune.dataset.recorded_kernel import recorded_kernel

        dataset = load_dataset(self.name)
        kernel, notice = recorded_kernel(dataset.manifest)
        warning = dataset.manifest.check_kernel(kernel)
        pruned = PRUNED if dataset.manifest.kind == "pruned" else ""
        return replace(record(dataset, kernel), notices=tuple(filter(None, (notice, warning, pruned))))
