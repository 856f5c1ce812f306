"""Features of configurations: what a cost model sees before and after compiling, and what physics alone says.

docs/features.md gives the formula and the source of each.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mltune.device.facts import Device
from mltune.device.occupancy import occupancy
from mltune.device.peaks import peak_flops
from mltune.kernel.bundle import Kernel, device_variables
from mltune.kernel.problem import GemmProblem
from mltune.kernel.table import Columns, length

Floats = NDArray[np.float64]

BUILD_COLUMNS = ("registers", "spill_bytes", "stack_bytes", "shared_bytes", "code_bytes")
"""What a build says that is used as a feature: fields of :class:`mltune.records.trial.Build`."""

ISSUE_SLOTS_PER_CLOCK = 128
"""FMA results an SM of four schedulers can issue in a clock: one warp instruction each."""

COPY_COST = 10.0
STEP_COST = 40.0
"""Issue slots of a copy with its addressing, and of a step of the k loop: fitted to machine code (docs/features.md)."""

SPILL_FACTOR = 0.7
RESIDENT_WARPS = 4.0
SMALLEST_SCORE = 1e-3


@dataclass(frozen=True, slots=True)
class _Physics:
    """Derived columns by name, and their product as a score."""

    columns: dict[str, Floats]
    score: Floats


class Features:
    """The feature table of one kernel for one problem on one device.

    Parameters come first, as log2(1 + value). A bundle's ``[resources]`` follow, and what can be computed from those of
    them that it names: occupancy, waves, issue share and so on. Without ``[resources]`` there are only parameters, and
    after compiling what the build says. All columns are finite.

    Parameters
    ----------
    kernel : Kernel
    problem : GemmProblem
    device : Device

    Attributes
    ----------
    names_before, names_after : tuple of str
        Names of the columns of :meth:`before` and :meth:`after`; the former begin the latter.
    has_prior : bool
        Whether the bundle's resources suffice for :meth:`prior`.
    """

    def __init__(self, kernel: Kernel, problem: GemmProblem, device: Device) -> None:
        self.kernel = kernel
        self.problem = problem
        self.device = device
        self._variables = problem.variables() | device_variables(device)
        peak = peak_flops(device, problem.arithmetic)
        self._clocks_per_fma = max(1.0, 2 * ISSUE_SLOTS_PER_CLOCK * device.sm_count * device.clock_hz / peak)
        self.has_prior = {"threads", "registers", "tiles", "fma"} <= set(kernel.resources)
        nothing = {name: np.empty(0, dtype=np.int64) for name in kernel.all_parameters}
        self.names_before = tuple(self._before_columns(nothing))
        self.names_after = self.names_before + tuple(self._after_columns(nothing, {}))

    def before(self, columns: Columns) -> Floats:
        """Return the features known before compiling.

        Parameters
        ----------
        columns : Columns
            Configurations.

        Returns
        -------
        ndarray of shape (n_configs, len(names_before))
        """
        return _stack(self._before_columns(columns))

    def after(self, columns: Columns, builds: Mapping[str, ArrayLike]) -> Floats:
        """Return the features known after compiling.

        Parameters
        ----------
        columns : Columns
            Configurations.
        builds : mapping of str to array_like of shape (n_configs,)
            Those of :data:`BUILD_COLUMNS` that are known; a missing column or a NaN counts as its estimate, or as 0.

        Returns
        -------
        ndarray of shape (n_configs, len(names_after))
        """
        return _stack(self._before_columns(columns) | self._after_columns(columns, builds))

    def prior(self, columns: Columns) -> Floats:
        """Return the share of peak that physics alone expects, nothing fitted to timings.

        The product of issue share, tail efficiency, residency, spill factor and useful share of the tiles. Its first
        choice is worth many random measurements, but its order is flat near the top: a start, for measuring to correct.

        Returns
        -------
        ndarray of shape (n_configs,)
            All ones when ``has_prior`` is false.
        """
        if not self.has_prior:
            return np.ones(length(columns))
        return self._physics(self._resources(columns)).score

    def _resources(self, columns: Columns) -> dict[str, Floats]:
        values = self.kernel.evaluate(columns, self._variables, self.kernel.resources)
        return {name: np.asarray(column, dtype=np.float64) for name, column in values.items()}

    def _before_columns(self, columns: Columns) -> dict[str, Floats]:
        table = {name: _log2(columns[name]) for name in self.kernel.all_parameters}
        resources = self._resources(columns)
        table |= {f"resource_{name}": _log2(values) for name, values in resources.items()}
        if self.has_prior:
            physics = self._physics(resources)
            table |= physics.columns | {"prior": np.log(np.maximum(physics.score, SMALLEST_SCORE))}
        return table

    def _after_columns(self, columns: Columns, builds: Mapping[str, ArrayLike]) -> dict[str, Floats]:
        size = length(columns)
        known = {name: _known(builds, name, size) for name in BUILD_COLUMNS}
        table = {f"build_{name}": _log2(np.nan_to_num(values)) for name, values in known.items()}
        if self.has_prior:
            resources = self._resources(columns)
            estimated = resources["registers"]
            registers = np.where(np.isnan(known["registers"]), estimated, known["registers"])
            built = resources | {
                "registers": registers,
                "shared_bytes": resources.get("shared_bytes", np.zeros(size)) + np.nan_to_num(known["shared_bytes"]),
            }
            physics = self._physics(built, spills=np.nan_to_num(known["spill_bytes"]) > 0)
            table |= {f"built_{name}": values for name, values in physics.columns.items() if name in _BY_REGISTERS}
            table["built_registers_over_estimate"] = registers / np.maximum(estimated, 1.0)
            table["built_spill_bytes_per_fma"] = np.nan_to_num(known["spill_bytes"]) / np.maximum(resources["fma"], 1.0)
            table["built_prior"] = np.log(np.maximum(physics.score, SMALLEST_SCORE))
        return table

    def _physics(self, resources: Mapping[str, Floats], spills: NDArray[np.bool_] | None = None) -> _Physics:
        device = self.device
        zero = np.zeros_like(resources["threads"])
        cap = zero + device.max_registers_per_thread
        cap = np.minimum(resources.get("register_cap", cap), cap)
        pressure = resources["registers"] / np.maximum(cap, 1.0)
        spills = pressure > 1.0 if spills is None else spills
        resident = occupancy(
            device,
            resources["threads"],
            np.minimum(resources["registers"], cap),
            resources.get("shared_bytes", zero),
        )
        blocks = np.maximum(resident.blocks_per_sm, 0).astype(np.float64)
        warps = resident.warps_per_sm.astype(np.float64)
        waves = resources["tiles"] / np.maximum(device.sm_count * blocks, 1.0)
        tail = waves / np.maximum(np.ceil(waves), 1.0)
        issue = self._issue_share(resources)
        residency = -np.expm1(-warps / RESIDENT_WARPS)
        useful = 1.0 / np.maximum(resources.get("covered", zero + 1.0), 1.0)
        score = issue * tail * residency * np.where(spills, SPILL_FACTOR, 1.0) * useful
        columns = {
            "blocks_per_sm": blocks,
            "warps_per_sm": warps,
            "blocks_by_registers": np.minimum(resident.blocks_by_registers, device.max_blocks_per_sm).astype(
                np.float64
            ),
            "blocks_by_shared": np.minimum(resident.blocks_by_shared, device.max_blocks_per_sm).astype(np.float64),
            "register_pressure": pressure,
            "waves": _log2(waves),
            "tail_efficiency": tail,
            "issue_share": issue,
            "residency": residency,
            "useful_share": useful,
            "fma_resident": _log2(resources["fma"] * warps),
        }
        if "bytes_in_flight" in resources:
            columns["bytes_in_flight_per_sm"] = _log2(resources["bytes_in_flight"] * blocks)
        if "shared_loads" in resources:
            columns["fma_per_shared_load"] = _log2(resources["fma"] / np.maximum(resources["shared_loads"], 1.0))
        return _Physics(columns, score)

    def _issue_share(self, resources: Mapping[str, Floats]) -> Floats:
        zero = np.zeros_like(resources["fma"])
        loads, copies = (resources.get(name, zero) for name in ("shared_loads", "copies"))
        slots = resources["fma"] + loads + COPY_COST * copies + STEP_COST
        clocks = self._clocks_per_fma * resources["fma"]
        return clocks / np.maximum(np.maximum(clocks, slots), 1.0)


_BY_REGISTERS = frozenset(
    (
        "blocks_per_sm",
        "warps_per_sm",
        "blocks_by_registers",
        "waves",
        "tail_efficiency",
        "residency",
        "bytes_in_flight_per_sm",
    )
)
"""Derived columns that change once the compiler has said how many registers it took."""


def _stack(table: Mapping[str, Floats]) -> Floats:
    return np.column_stack(list(table.values()))


def _log2(values: ArrayLike) -> Floats:
    values = np.asarray(values, dtype=np.float64)
    scaled: Floats = np.sign(values) * np.log2(1.0 + np.abs(values))
    return scaled


def _known(builds: Mapping[str, ArrayLike], name: str, size: int) -> Floats:
    if name not in builds:
        return np.full(size, np.nan)
    return np.asarray(builds[name], dtype=np.float64)
