"""A tuning run simulated on a recording: a strategy evaluates configurations, which have recorded times.

Strategies of other tools have a loop of their own. :meth:`Simulation.evaluate` therefore raises an exception when the
budget is spent, which ends that loop.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from mltune.cost.features import BUILD_COLUMNS
from mltune.dataset.dataset import Dataset, list_datasets, load_dataset, shipped_datasets
from mltune.dataset.manifest import Manifest
from mltune.dataset.replay import bare_kernel, recorded_kernel
from mltune.device.facts import Device
from mltune.errors import DatasetError
from mltune.kernel.bundle import Kernel
from mltune.kernel.coding import Floats
from mltune.kernel.space import TableSpace
from mltune.problem.problem import Problem
from mltune.records.trial import TrialState

UNKNOWN_COMPILE_S = 1.0
"""Assumed seconds of a compilation, for a table without compile times."""

PRUNED = "a pruned sweep leaves out what is slow: every strategy looks better than it is on the whole space"
"""Notice for a recording that is not a whole space or a fair sample of it."""

UNKNOWN_RUNS = 7
"""Assumed number of runs of a timing, for a table without costs: the default of Kernel Tuner."""


@dataclass(frozen=True, eq=False)
class Recording:
    """The recorded outcomes of every configuration of a simulated search; the index of a configuration is its row.

    Arrays have the shape (n_configs,): the median time in seconds, NaN for failures; ``compile_s``; ``run_s``, the
    seconds of verifying and timing; and the known columns of ``builds``, NaN where not known. ``account`` says what was
    read of a table and assumed of its compile seconds. ``origin`` has the kind, source and licence of the data, and
    what of it was in view when the constants of mltune were set (``in_view``): the ``"space"``, or the ``"kernel"`` on
    another GPU.
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
    origin: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not np.isfinite(self.median_s).any():
            raise DatasetError(f"no configuration of {self.name} succeeded, and a recording needs one.")

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
    def evaluation_s(self) -> float:
        """The mean seconds of compiling and running a configuration, as in sequential random search."""
        return float(np.mean(self.compile_s + self.run_s))

    @cached_property
    def pessimal_s(self) -> Floats:
        """Times with failures as the slowest that ran: ndarray of shape (n_configs,)."""
        return np.where(np.isfinite(self.median_s), self.median_s, np.nanmax(self.median_s))


def record(dataset: Dataset, kernel: Kernel) -> Recording:
    """Return the recording of a dataset and its kernel.

    An unknown compile time is assumed to be the median of the known ones (:data:`UNKNOWN_COMPILE_S` if there is none),
    an unknown cost of timing that of :data:`UNKNOWN_RUNS` runs. A configuration that did not run has no cost of timing.
    """
    timed = np.isin(dataset.states, [TrialState.OK.value, TrialState.UNSTABLE.value])
    median_s = np.where(timed, dataset.numbers("median_s"), np.nan)
    compile_s, run_s = dataset.numbers("compile_s"), dataset.numbers("verify_s") + dataset.numbers("time_s")
    known_s = compile_s[_known(compile_s)]
    assumed_s = float(np.median(known_s)) if len(known_s) else UNKNOWN_COMPILE_S
    unknown = len(compile_s) - len(known_s)
    which = f"{unknown:,} of {len(compile_s):,} configurations"
    builds = {name: dataset.numbers(name) for name in BUILD_COLUMNS}
    manifest = dataset.manifest
    origin = {name: getattr(manifest, name) for name in ("kind", "source", "licence")}
    return Recording(
        name=manifest.name,
        kernel=kernel,
        problem=manifest.problem,
        device=manifest.device,
        space=TableSpace(dataset.columns),
        median_s=median_s,
        compile_s=np.where(_known(compile_s), compile_s, assumed_s),
        run_s=np.where(_known(run_s), run_s, UNKNOWN_RUNS * np.nan_to_num(median_s)),
        origin={**origin, "in_view": _in_view(manifest)},
        account=f"{which} have no compile seconds: {assumed_s:.2g} s each is assumed" if unknown else "",
        builds={name: column for name, column in builds.items() if np.isfinite(column).any()},
    )


def _in_view(manifest: Manifest) -> str:
    """Return mltune's own data of the parameters: ``"space"`` on the same GPU, ``"kernel"`` on others, or ``""``."""
    alike = [dataset.device.name for dataset in list_datasets() if {*dataset.parameters} <= {*manifest.parameters}]
    return "space" if manifest.device.name in alike else "kernel" if alike else ""


def _known(seconds: Floats) -> NDArray[np.bool_]:
    return np.isfinite(seconds) & (seconds > 0)


@dataclass(frozen=True, slots=True)
class RecordingSource:
    """The source of a recording: a dataset by name or path, or a table of another tuner with its parameters."""

    name: str
    table: Path | None = None
    parameters: tuple[str, ...] = ()
    time: str | None = None
    aggregate: bool = False

    def load(self) -> Recording:
        """Load and check the recording."""
        if self.table is not None:
            from mltune.dataset.importing import read_table

            bare = read_table(self.table, self.parameters or None, self.time, aggregate=self.aggregate)
            recorded = record(bare.dataset, bare_kernel(bare.dataset.manifest))
            account = "; ".join(filter(None, (bare.account, recorded.account)))
            origin = {**recorded.origin, "source": self.table.name}
            return replace(recorded, name=self.name, account=account, notices=bare.notices, origin=origin)

        dataset = load_dataset(self.name)
        kernel, notice = recorded_kernel(dataset.manifest)
        warning = dataset.manifest.check_kernel(kernel)
        pruned = PRUNED if dataset.manifest.kind == "pruned" else ""
        recorded = record(dataset, kernel)
        is_ours = self.name in shipped_datasets() and not dataset.manifest.source
        origin = {**recorded.origin, **({"source": "mltune", "licence": "Apache-2.0"} if is_ours else {})}
        return replace(recorded, notices=tuple(filter(None, (notice, warning, pruned))), origin=origin)


IDLE_MOVES = 50
"""Moves per evaluation after which a strategy that only repeats, skips or fails is stopped."""

_DIGITS = 9
"""Digits of seconds that are kept: noise follows."""

SKIP_MOVES = 5
"""Moves that one skip counts for."""


class _BudgetSpent(BaseException):
    """Signal that the budget is spent: no :class:`Exception`, so that strategies which catch errors do not catch it."""


COUNTS = ("repeats", "invalid", "skipped_before", "skipped_after")
"""Counts of a run besides its builds."""

BUILD = np.dtype([("index", "i4"), ("measured", "?"), ("known", "i4"), ("own_s", "f8"), ("recorded_s", "f8")])
"""A configuration that a strategy had compiled, and whether it was measured; otherwise it was skipped after compiling.

It was proposed from the results of the first ``known`` builds that were told, after ``own_s`` CPU seconds of the
strategy since the previous build. Compiling it, and running it if it was measured, took ``recorded_s``.
"""


@dataclass(frozen=True, eq=False)
class Trace:
    """The moves of one strategy in one simulated run, up to its last evaluation.

    ``builds`` are in order, of the type :data:`BUILD`: no configuration is measured twice. ``told`` are the places of
    those whose results the strategy used, in this order; by default all in their order. The numbers count repeated
    evaluations, proposals outside the space, and skips before and after compiling.
    """

    builds: NDArray[Any]
    repeats: int = 0
    invalid: int = 0
    skipped_before: int = 0
    skipped_after: int = 0
    told: NDArray[np.int32] | None = None

    @property
    def is_possible(self) -> bool:
        """Whether every build uses results of earlier ones alone."""
        places, results = np.arange(len(self.builds)), self.builds["known"]
        order = places if self.told is None else self.told
        if len(order) < results.max(initial=0) or len(np.unique(order)) < len(order):
            return False
        latest = np.append(np.maximum.accumulate(order), -1)  # of no result
        return bool((latest[results - 1] < places).all())

    @cached_property
    def indices(self) -> NDArray[np.int32]:
        """The configurations evaluated, in order: ndarray of shape (n_evaluations,)."""
        measured: NDArray[np.int32] = self.builds["index"][self.builds["measured"]]
        return measured

    @cached_property
    def own_s(self) -> Floats:
        """CPU seconds of the strategy since the previous evaluation: ndarray of shape (n_evaluations,)."""
        return self._by_evaluation("own_s")

    @cached_property
    def recorded_s(self) -> Floats:
        """Recorded seconds of each evaluation and of the skips before it: ndarray of shape (n_evaluations,)."""
        return self._by_evaluation("recorded_s")

    def _by_evaluation(self, name: str) -> Floats:
        place = np.cumsum(self.builds["measured"]) - self.builds["measured"]
        return np.bincount(place, self.builds[name], len(self.indices)).astype(np.float64)


class Simulation:
    """One run of one strategy on one recording, with a budget of evaluations of distinct configurations.

    The strategy's own time is measured in CPU seconds of the process between two calls, and is attributed to the
    following evaluation: it does not depend on the load of the machine. Time before :meth:`begin` (imports, building
    the search space) is not counted.

    Parameters
    ----------
    evaluations : int
        The budget, at most the number of recorded configurations.

    Attributes
    ----------
    known : int or None
        Number of builds, the first ones, whose results the strategy uses for what it proposes next. By default all so
        far: it proposes one by one. One that proposes several at a time sets it to :attr:`built` as it was after the
        last of those that it has learned.
    told : list of int
        Places of builds, from 0, in the order in which the strategy learns their results, where that is another order:
        then ``known`` counts these.
    """

    def __init__(self, recording: Recording, evaluations: int) -> None:
        self.recording = recording
        self.space = recording.space
        self.budget = min(evaluations, recording.space.count)
        self._median_s: list[float] = recording.median_s.tolist()
        self._compile_s: list[float] = recording.compile_s.tolist()
        self._run_s: list[float] = recording.run_s.tolist()
        self.known: int | None = None
        self.told: list[int] = []
        self._seen: set[int] = set()
        self._builds: list[tuple[int, bool, int, float, float]] = []
        self._counts: Counter[str] = Counter()
        self._idle = IDLE_MOVES * self.budget
        self._thinking_since = time.process_time()

    @property
    def left(self) -> int:
        """Number of evaluations left."""
        return self.budget - len(self._seen)

    @property
    def built(self) -> int:
        """Number of configurations compiled so far: those evaluated, and those skipped after compiling."""
        return len(self._builds)

    def seen(self, index: int) -> bool:
        """Return whether a configuration has been evaluated."""
        return index in self._seen

    def begin(self) -> None:
        """Start the clock of the strategy: everything before was preparation."""
        self._thinking_since = time.process_time()

    def evaluate(self, index: int) -> float | None:
        """Return the recorded time of a configuration.

        A configuration that was evaluated before costs nothing and counts as a repeat. A negative index stands for a
        proposal outside the space, which counts as invalid and as failed.

        Returns
        -------
        float or None
            Median time in seconds; None for a configuration that failed.
        """
        if index < 0 or index in self._seen:
            self._counts["invalid" if index < 0 else "repeats"] += 1
            self._idle_move()
        else:
            self._count(index)
        return None if index < 0 or math.isnan(self._median_s[index]) else self._median_s[index]

    def skip(self, index: int, *, after_compile: bool) -> None:
        """Record that the strategy skips a configuration. After compiling, its compile time has been spent."""
        self._counts["skipped_after" if after_compile else "skipped_before"] += 1
        if after_compile:
            self._build(index, measured=False)
        self._idle_move(SKIP_MOVES)

    def trace(self) -> Trace:
        """Return the trace so far."""
        builds = np.array(self._builds, BUILD)
        builds = builds[: np.flatnonzero(builds["measured"]).max(initial=-1) + 1]
        told = np.array(self.told[: builds["known"].max(initial=0)], np.int32)
        return Trace(builds, **self._counts, told=None if np.array_equal(told, np.arange(len(told))) else told)

    def _count(self, index: int) -> None:
        if not self.left:
            raise _BudgetSpent
        self._build(index, measured=True)
        self._seen.add(index)
        if not self.left:
            raise _BudgetSpent

    def _build(self, index: int, *, measured: bool) -> None:
        own_s = time.process_time() - self._thinking_since
        built = self.built if self.known is None else min(self.known, self.built)
        recorded_s = self._compile_s[index] + (self._run_s[index] if measured else 0.0)
        self._builds.append((index, measured, built, round(own_s, _DIGITS), round(recorded_s, _DIGITS)))
        self._thinking_since = time.process_time()

    def _idle_move(self, moves: int = 1) -> None:
        self._idle -= moves
        if self._idle < 0:
            raise _BudgetSpent


@runtime_checkable
class Strategy(Protocol):
    """A search strategy: what ``mltune compare`` measures.

    The same recording and seed give the same evaluations. Each run gets a copy of the strategy of its own, in a process
    that imports its class.

    Examples
    --------
    >>> class FirstToLast:
    ...     name = "first_to_last"
    ...
    ...     def search(self, simulation, seed):
    ...         simulation.begin()
    ...         for index in range(simulation.space.count):
    ...             simulation.evaluate(index)
    >>> isinstance(FirstToLast(), Strategy)
    True
    """

    @property
    def name(self) -> str:
        """Its name in tables and figures."""

    def search(self, simulation: Simulation, seed: int) -> None:
        """Search until :meth:`Simulation.evaluate` ends the run. Returning earlier forfeits the rest of the budget."""


def simulate(strategy: Strategy, recording: Recording, evaluations: int, seed: int) -> Trace:
    """Run a strategy on a recording, with a budget of evaluations."""
    simulation = Simulation(recording, evaluations)
    with contextlib.suppress(_BudgetSpent):
        strategy.search(simulation, seed)
    return simulation.trace()
