"""Search over compiled kernels: the reports of the compiler and the launch order what is measured."""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from mltune.cost.features import signed_log2
from mltune.cost.physics import SMALLEST_SHARE
from mltune.cost.regressors import Ensemble
from mltune.device.facts import Device
from mltune.device.occupancy import occupancy
from mltune.device.query import driver_version, query_device
from mltune.errors import DeviceError
from mltune.kernel.coding import Columns, Floats

BUILD = ("registers", "stack_bytes", "shared_bytes", "code_bytes", "compile_s")
"""Values that the compiler reports of a configuration."""

FEWEST = 6
"""Fewest measurements that the model is fitted to; before them the prior decides."""

REPELLED = 2.0
"""Log speed that the prior takes from a configuration with all parameters as in measured ones: it may be wrong."""

OPTIMISM = 1.0
"""Standard deviations above its mean by which a prediction is ranked."""

TREES = 24
"""Trees of the model: a fit takes most of its time for them, and on recorded sweeps 24 do as well as 64."""

REFIT = 1.2
"""Growth of the number of measurements after which the model is fitted again."""

SURE, CAUTION, MARGIN = 18, (1.0, 1.5), 0.05
"""Fewest measurements for skips; optimism in standard deviations before and after compiling; margin of a skip."""

GAIN = 0.003
"""Expected gain of log speed from which a configuration is worth its compilation."""

HIDING_WARPS, REUSED = 4.0, 32.0
"""Resident warps, and elements of reuse, with which a kernel is expected to reach half of its speed."""

SPILLED_BYTES = 64.0
"""Bytes of stack of a thread that are expected to halve the speed."""

EXPECTED_REGISTERS = 40.0
"""Registers of a thread besides its accumulators, before it is compiled."""


Rows: TypeAlias = NDArray[np.int64]

Prediction: TypeAlias = tuple[Floats, Floats]
"""Means and standard deviations of log speeds."""


def predict(seed: int, X: Floats, y: Floats, candidates: Floats) -> Prediction:
    """Predict the log speeds of candidates by a model fitted to the measured ones."""
    return _fitted(seed, X.tobytes(), y.tobytes()).predict(candidates)


@functools.lru_cache(maxsize=4)
def _fitted(seed: int, X: bytes, y: bytes) -> Ensemble:
    targets = np.frombuffer(y)
    return Ensemble(random_state=seed, trees=TREES).fit(np.frombuffer(X).reshape(len(targets), -1), targets)


def expected_gain(mean: Floats, spread: Floats, best: float) -> Floats:
    """Return by how much predictions are expected to exceed the best (Jones, Schonlau and Welch, 1998, equation 15).

    :func:`mltune.search.beliefs.log_expected_improvement` needs SciPy, whose import delays a tune of seconds.
    """
    z = (mean - best) / np.maximum(spread, 1e-9)
    below = 0.5 + 0.5 * np.array([*map(math.erf, z / math.sqrt(2.0))])
    return spread * (np.exp(-z * z / 2.0) / math.sqrt(2.0 * math.pi) + z * below)


def gpu_and_driver(index: int) -> tuple[Device | None, str]:
    """Return the facts of a GPU and the newest CUDA version of its driver; None and ``""`` where they are unknown."""
    with contextlib.suppress(DeviceError):
        return query_device(index), driver_version()
    return None, ""


@dataclass(eq=False)
class LaunchSearch:
    """Order configurations by the speed that is expected of them, from few measurements.

    The first is that of the caller. The next follow a prior without measurements: how full the last wave of blocks is,
    the warps that hide latencies, the reuse of operands in a tile, and the spills; those unlike the measured ones come
    first. From :data:`FEWEST` measurements on, a model of the parameters and of all facts of the launch decides.

    Arrays have the shape (n_configs,). ``parameters`` are codes, and ``tiles`` the names of those that the grid depends
    on; ``blocks`` of the grid and ``threads`` of a block are NaN where unknown; ``start`` are log speeds expected from
    elsewhere (:mod:`mltune.search.launch_model`), up to a constant. The caller fills in ``build``, the compiler's
    reports, and ``times_s``: infinite for a failure, NaN for what is not compiled or measured.
    """

    parameters: Columns
    tiles: Sequence[str]
    blocks: Floats
    threads: Floats
    device: Device | None
    seed: int
    start: Floats | None = None
    predict: Callable[[int, Floats, Floats, Floats], Prediction | None] = predict

    def __post_init__(self) -> None:
        count, tile = len(self.blocks), [self.parameters[name] for name in self.tiles]
        self._blocks, self._threads = np.nan_to_num(self.blocks, nan=1.0), np.nan_to_num(self.threads, nan=128.0)
        self._tile = np.array(tile, dtype=np.float64).reshape(len(tile), count)
        self._models: dict[bool, tuple[Floats, Floats, Prediction | None]] = {}
        self.build = {name: np.full(count, math.nan) for name in BUILD}
        self.times_s = np.full(count, math.nan)
        self._start = None if self.start is None else self._prior(compiled=False) + self.start

    @property
    def is_started(self) -> bool:
        """Whether expected log speeds order the configurations before any measurement."""
        return self._start is not None

    @property
    def can_launch(self) -> NDArray[np.bool_]:
        """Whether each configuration fits on a multiprocessor; true for those not compiled."""
        can: NDArray[np.bool_] = np.isnan(self.build["shared_bytes"]) | (self._resident(True) > 0)
        return can

    def best_first(self, candidates: Rows, *, compiled: bool = True) -> Rows:
        """Return candidates, the most promising first; before compiling by a model without compiler reports."""
        prediction = self._predicted(candidates, compiled) if len(candidates) > 1 else None
        if prediction is not None:
            return candidates[np.argsort(-(prediction[0] + OPTIMISM * prediction[1]), kind="stable")]
        is_measured = np.isfinite(self.times_s)
        if self._start is not None:
            if not is_measured.any():
                return candidates[np.argsort(-self._start[candidates], kind="stable")]
            is_measured[np.argmax(self._start)] = False  # the others follow as if it were not known
        values = np.column_stack([*self.parameters.values()])
        measured = values[is_measured]
        alike = (values[candidates, None] == measured).mean(axis=(1, 2)) if len(measured) else 0.0
        return candidates[np.argsort(REPELLED * alike - self._prior(compiled)[candidates], kind="stable")]

    def worth(self, candidates: Rows, *, compiled: bool = True) -> Rows:
        """Return the candidates that may be among the fastest, the best first; see :meth:`best_first`."""
        ordered = self.best_first(candidates, compiled=compiled)
        prediction = self._predicted(ordered, compiled) if np.isfinite(self.times_s).sum() >= SURE else None
        if prediction is None:
            return ordered
        mean, spread = prediction
        best = -math.log(self.times_s[np.isfinite(self.times_s)].min())
        may_be = mean + CAUTION[compiled] * spread > best + math.log1p(-MARGIN)
        return ordered[may_be & (compiled | (expected_gain(mean, spread, best) > GAIN))]

    def _predicted(self, candidates: Rows, compiled: bool) -> Prediction | None:
        """Return means and standard deviations of log speeds; None before the model is fitted."""
        measured = np.flatnonzero(np.isfinite(self.times_s))
        if len(measured) < FEWEST or not len(candidates):
            return None
        fitted = self._models.get(compiled)
        if fitted is None or len(measured) >= REFIT * len(fitted[1]):
            X = self._features(compiled)
            observations = X[measured], -np.log(self.times_s[measured])
            predictions = None if compiled else self.predict(self.seed, *observations, X)
            fitted = self._models[compiled] = *observations, predictions
        if fitted[2] is None:  # facts of the compiler arrive between fits
            return self.predict(self.seed, *fitted[:2], self._features(compiled)[candidates])
        return fitted[2][0][candidates], fitted[2][1][candidates]

    def _known(self, name: str, compiled: bool, expected: Floats | float) -> Floats:
        """Return the compiler's values of a report, or the expected ones where they are missing or not to be used."""
        said = self.build[name]
        return np.where(np.isnan(said) | (not compiled), expected, said)

    def _registers(self, compiled: bool) -> Floats:
        """Return the registers of a thread; before compiling those of a tile of accumulators."""
        tile = self._tile.prod(axis=0) / self._threads if len(self._tile) > 1 else 0.0
        return self._known("registers", compiled, EXPECTED_REGISTERS + tile)

    def _resident(self, compiled: bool) -> Floats:
        """Return the resident blocks of a multiprocessor; 1 where the GPU is unknown."""
        if self.device is None:
            return np.ones(len(self._blocks))
        registers = np.minimum(self._registers(compiled), self.device.max_registers_per_thread)
        shared = self._known("shared_bytes", compiled, 0.0)
        return occupancy(self.device, self._threads, registers, shared).blocks_per_sm.astype(np.float64)

    def _launch(self, compiled: bool) -> dict[str, Floats]:
        """Return the facts of the launches, from the reports and the expected values."""
        resident, multiprocessors = self._resident(compiled), self.device.sm_count if self.device else 1
        blocks = self._blocks
        waves = blocks / (multiprocessors * np.maximum(resident, 1.0))
        warps = np.minimum(resident, blocks / multiprocessors) * self._threads / 32.0
        registers = self._registers(compiled)
        stack = self._known("stack_bytes", compiled, 4.0 * np.maximum(registers - 255.0, 0.0))
        several = len(self._tile) > 1
        reuse = self._tile.prod(axis=0) / self._tile.sum(axis=0) if several else np.full(len(blocks), REUSED)
        return {
            "resident": resident,
            "registers": registers,
            "warps": warps,
            "waves": waves,
            "tail": waves / np.maximum(np.ceil(waves), 1.0),
            "stack": stack,
            "reuse": reuse,
        }

    def _prior(self, compiled: bool = True) -> Floats:
        """Return the log speed that physics expects without measurements, up to a constant."""
        of = self._launch(compiled)
        saturated = of["warps"] / (of["warps"] + HIDING_WARPS) * of["reuse"] / (of["reuse"] + REUSED)
        share = of["tail"] * saturated / (1.0 + of["stack"] / SPILLED_BYTES)
        return np.log(np.maximum(np.where(of["resident"] > 0, share, 0.0), SMALLEST_SHARE))

    def _features(self, compiled: bool) -> Floats:
        """Return the features of all configurations: ndarray of shape (n_configs, n_features)."""
        columns = {**self.parameters, "blocks": self._blocks, "threads": self._threads, **self._launch(compiled)}
        if compiled:
            columns |= {name: np.nan_to_num(self.build[name]) for name in ("shared_bytes", "code_bytes")}
            columns["compile_ms"] = 1e3 * np.nan_to_num(self.build["compile_s"])
        return np.column_stack([*map(signed_log2, columns.values()), self._prior(compiled)])
