"""Features of configurations for the cost models; docs/explanation/features.md has their formulas and sources."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property, partial

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mltune.cost.bound import Access, Bound, LaneLayout, Traffic, bound, hardware_limits, least_wavefronts, traffic
from mltune.cost.physics import SMALLEST_SHARE, physics
from mltune.device.known import with_mixes
from mltune.device.peaks import fma_per_clock, peak_flops
from mltune.errors import ExpressionError
from mltune.files.text import printable
from mltune.kernel.coding import Columns, Floats, length
from mltune.kernel.parts import ACCESS_BYTES
from mltune.kernel.placed import PlacedKernel

BUILD_COLUMNS = ("registers", "spill_bytes", "stack_bytes", "shared_bytes", "code_bytes")
"""Results of a build that are features: fields of :class:`mltune.records.trial.Build`."""

NEEDED = ("threads", "registers", "tiles", "fma")
"""Resources that a bundle must define for the physical prior."""

LINEAR = frozenset({"occupancy", "limiter", "register_pressure", "tail_efficiency", "useful_share"})
"""Derived columns that, like the bounds, are shares or codes. All others are sizes, whose logarithms are features."""

BY_REGISTERS = (
    *("blocks_per_sm", "warps_per_sm", "occupancy", "blocks_by_registers", "limiter", "waves", "tail_efficiency"),
    *("latency_bound", "memory_bound", "bytes_in_flight_per_sm", "wave_bytes"),
)
"""Derived columns that depend on the number of registers, which is exact after compiling."""


Builds = Mapping[str, ArrayLike] | None
"""Facts of builds by name of :data:`BUILD_COLUMNS`, None before compiling."""


class Features:
    """The feature table of one kernel for one problem on one device; all columns are finite.

    The first columns are the parameters, as log2(1 + value). The ``[resources]`` of the bundle follow, and the columns
    derived from them: occupancy, waves, bounds and others; after compiling, the results of the build. ``names_after``
    starts with ``names_before``. ``has_prior`` is true if the bundle defines the resources of :meth:`prior`.
    """

    def __init__(self, placed: PlacedKernel) -> None:
        self.placed = placed
        kernel, problem, device = placed.kernel, placed.problem, placed.device
        self.has_prior = set(NEEDED) <= set(kernel.resources.estimates)
        self._unit = kernel.resources.unit or problem.arithmetic
        self._physics = partial(physics, device, self._unit)
        self._expressions = {f"resource {name}": expression for name, expression in kernel.resources.estimates.items()}
        for name, access in kernel.resources.accesses.items():
            self._expressions |= {f"access {name} count": access.count, f"access {name} bytes": access.bytes}
            for position, digit in enumerate(access.lanes):
                self._expressions |= {f"access {name} {position} {part}": digit[part] for part in (0, 1)}

    @cached_property
    def names_before(self) -> tuple[str, ...]:
        """Names of the columns of :meth:`before`."""
        nothing = self._nothing
        return tuple(self._before_columns(nothing, *self._estimates(nothing)))

    @cached_property
    def names_after(self) -> tuple[str, ...]:
        """Names of the columns of :meth:`after`."""
        nothing = self._nothing
        return self.names_before + tuple(self._after_columns(nothing, {}, *self._estimates(nothing)))

    @property
    def _nothing(self) -> Columns:
        return {name: np.empty(0, dtype=np.int64) for name in self.placed.kernel.all_parameters}

    def before(self, columns: Columns) -> Floats:
        """Return the features known before compiling: ndarray of shape (n_configs, len(names_before))."""
        return _stack(self._before_columns(columns, *self._estimates(columns)))

    def after(self, columns: Columns, builds: Mapping[str, ArrayLike]) -> Floats:
        """Return the features after compiling: (n_configs, len(names_after)); an estimate or 0 replaces NaN."""
        estimates = self._estimates(columns)
        return _stack(self._before_columns(columns, *estimates) | self._after_columns(columns, builds, *estimates))

    def prior(self, columns: Columns) -> Floats:
        """Return the share of the device's peak that :mod:`mltune.cost.physics` expects; 1 without ``has_prior``.

        The peak is that of the problem's arithmetic outside the tensor cores, which a kernel on them may exceed.
        """
        if not self.has_prior:
            return np.ones(length(columns))
        resources, accesses = self._estimates(columns)
        share = self._physics(resources, accesses).share
        device, arithmetic = self.placed.device, self.placed.problem.arithmetic
        if self._unit == arithmetic:
            return share
        return share * fma_per_clock(device, self._unit) / fma_per_clock(device, arithmetic)

    def physical_s(self, columns: Columns) -> Floats:
        """Return the seconds of the problem's operations at the share of :meth:`prior`."""
        share = np.maximum(self.prior(columns), SMALLEST_SHARE)
        return self.placed.problem.flops / (peak_flops(self.placed.device, self.placed.problem.arithmetic) * share)

    def bound(self, columns: Columns, builds: Builds = None) -> Bound:
        """Return the least times of :mod:`mltune.cost.bound` from builds or estimates, or only the hardware's."""
        resources, accesses = self._evaluated(columns) if self.has_prior else ({}, [])
        return self._bound(resources, accesses, length(columns), builds)

    def derived_and_bound(self, columns: Columns, builds: Builds = None) -> tuple[dict[str, Floats], Bound]:
        """Return resources and derived columns by name, in their own units, and :meth:`bound`, evaluated together."""
        (resources, accesses), size = self._evaluated(columns), length(columns)
        limits, spilled = self._bound(resources, accesses, size, builds), None
        if not self.has_prior:
            return resources, limits
        if builds is not None:
            resources, spilled = _corrected(resources, _known(builds, size))
        return resources | self._physics(resources, self._traffic(accesses, size), spilled).columns, limits

    def _bound(self, resources: dict[str, Floats], accesses: Sequence[Access], size: int, builds: Builds) -> Bound:
        device, problem = self.placed.device, self.placed.problem
        if not self.has_prior:
            least = hardware_limits(device, problem, self._unit)
            return Bound({name: np.full(size, time_s) for name, time_s in least.items()})
        if builds is not None:
            resources, _ = _corrected(resources, _known(builds, size))
        wavefronts = least_wavefronts(accesses, device.warp_size, size) if accesses else None
        moved = self._traffic(accesses, size)
        return bound(with_mixes(device), problem, resources, moved, wavefronts, self._unit)

    def _estimates(self, columns: Columns) -> tuple[dict[str, Floats], Traffic | None]:
        """Return the bundle's resources by name, and the traffic of its accesses."""
        resources, accesses = self._evaluated(columns)
        return resources, self._traffic(accesses, length(columns))

    def _traffic(self, accesses: Sequence[Access], size: int) -> Traffic | None:
        return traffic(accesses, self.placed.device.warp_size, size) if accesses else None

    def _evaluated(self, columns: Columns) -> tuple[dict[str, Floats], list[Access]]:
        """Return the bundle's resources by name, and the layouts of its accesses."""
        kernel = self.placed.kernel
        values = kernel.space.evaluate(columns, self.placed.variables, self._expressions)
        estimates = kernel.resources.estimates
        resources = {name: np.asarray(values[f"resource {name}"], dtype=np.float64) for name in estimates}
        accesses = []
        for name, access in kernel.resources.accesses.items():
            digits = [
                (_integers(values[f"access {name} {position} 0"]), _integers(values[f"access {name} {position} 1"]))
                for position in range(len(access.lanes))
            ]
            count = np.asarray(values[f"access {name} count"], dtype=np.float64)
            width = values[f"access {name} bytes"]
            if not (possible := np.isin(width, ACCESS_BYTES)).all():
                got = f"is {width[np.argmin(possible)].item()!r:.30} in `{printable(access.bytes, 120)}`"
                raise ExpressionError(f"access.{name}.bytes {got}; a lane accesses one of {ACCESS_BYTES} bytes")
            accesses.append((access.memory, count, LaneLayout(_integers(width), digits)))
        return resources, accesses

    def _before_columns(
        self, columns: Columns, resources: Mapping[str, Floats], accesses: Traffic | None
    ) -> dict[str, Floats]:
        table = {name: signed_log2(columns[name]) for name in self.placed.kernel.all_parameters}
        table |= {f"resource_{name}": signed_log2(values) for name, values in resources.items()}
        if self.has_prior:
            features = self._physics(resources, accesses)
            table |= {name: _feature(name, values) for name, values in features.columns.items()}
            table["prior"] = _log_share(features.share)
        return table

    def _after_columns(
        self,
        columns: Columns,
        builds: Mapping[str, ArrayLike],
        resources: Mapping[str, Floats],
        accesses: Traffic | None,
    ) -> dict[str, Floats]:
        facts = _known(builds, length(columns))
        table = {f"build_{name}": signed_log2(np.nan_to_num(values)) for name, values in facts.items()}
        if self.has_prior:
            estimated = resources["registers"]
            built, spilled = _corrected(resources, facts)
            features = self._physics(built, accesses, spilled)
            changed = [name for name in BY_REGISTERS if name in features.columns]
            table |= {f"built_{name}": _feature(name, features.columns[name]) for name in changed}
            table["built_registers_over_estimate"] = built["registers"] / np.maximum(estimated, 1.0)
            table["built_spill_bytes_per_fma"] = np.nan_to_num(facts["spill_bytes"]) / np.maximum(resources["fma"], 1.0)
            table["built_prior"] = _log_share(features.share)
        return table


def _corrected(resources: Mapping[str, Floats], measured: Mapping[str, Floats]) -> tuple[dict[str, Floats], Floats]:
    """Return the resources with results of compiling in place of estimates, and the registers that spill."""
    registers = np.where(np.isnan(measured["registers"]), resources["registers"], measured["registers"])
    shared_bytes = resources.get("shared_bytes", 0.0) + np.nan_to_num(measured["shared_bytes"])
    built = {**resources, "registers": registers, "shared_bytes": shared_bytes}
    return built, np.nan_to_num(measured["spill_bytes"]) / 4.0


def _known(builds: Mapping[str, ArrayLike], size: int) -> dict[str, Floats]:
    return {name: np.asarray(builds.get(name, np.full(size, np.nan)), dtype=np.float64) for name in BUILD_COLUMNS}


def build_columns(builds: Sequence[object]) -> dict[str, Floats]:
    """Return the compiler's reports as columns of shape (n_builds,); NaN where a value is not known."""
    return {
        name: np.array([getattr(build, name, None) for build in builds], dtype=np.float64)  # None is NaN
        for name in BUILD_COLUMNS
    }


def _feature(name: str, values: Floats) -> Floats:
    return values if name in LINEAR or name.endswith("_bound") else signed_log2(values)


def _log_share(share: Floats) -> Floats:
    return np.log(np.maximum(share, SMALLEST_SHARE))


def _stack(table: Mapping[str, Floats]) -> Floats:
    return np.column_stack(list(table.values()))


def _integers(values: ArrayLike) -> NDArray[np.int64]:
    return np.asarray(values).astype(np.int64)


def signed_log2(values: ArrayLike) -> Floats:
    """Return log2(1 + value), with the sign of the value."""
    values = np.asarray(values, dtype=np.float64)
    scaled: Floats = np.sign(values) * np.log2(1.0 + np.abs(values))
    return scaled
