"""The hand-set thresholds of ASTRA: the pruning that the learned gates are compared with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mltune.cost.features import Features
from mltune.device.occupancy import occupancy
from mltune.errors import BundleError, UsageError
from mltune.kernel.coding import Columns, length

KEPLER_THREADS_PER_SM = 2048
"""Most threads on a multiprocessor of the GTX 680. The paper: "1024 (half of the hardware maximum)"."""

NEEDED = ("threads", "registers", "register_reuse")
"""Resources of the bundle from which the thresholds are computed."""


@dataclass(frozen=True, slots=True)
class Thresholds:
    """Lower limits of a configuration: resident threads and blocks of a multiprocessor, and FMAs per scalar loaded."""

    threads_per_sm: float
    register_reuse: float
    blocks_per_sm: float = 1


LAWN_267: dict[str, Thresholds] = {
    "s": Thresholds(1024, 2.0),
    "c": Thresholds(1024, 2.0),
    "d": Thresholds(1024, 1.0),
    "z": Thresholds(768, 2.0),
}
"""Thresholds of the paper by precision, for a GTX 680. Blocks per multiprocessor "did not play a role"."""

_PRECISIONS = {("fp32", False): "s", ("fp32", True): "c", ("fp64", False): "d", ("fp64", True): "z"}


class AstraThresholds:
    """Prune by hand-set thresholds of occupancy, register reuse and blocks per multiprocessor.

    Kurzak, Luszczek, Tomov and Dongarra (2012), "Preliminary results of autotuning GEMM kernels for the NVIDIA Kepler
    architecture", LAPACK Working Note 267, section 5. Their other tests (hardware limits, divisibility, whole warps)
    are restrictions of the bundle here.

    Assumptions where the paper is not explicit:

    - The paper gives occupancy in threads on a multiprocessor of 2,048 threads. On another device the thresholds are
      scaled to the same share of its maximum: 1024 of 2,048 becomes 768 of 1,536.
    - Loads are counted in scalars: a complex number is two loads, a complex multiply-add is four FMAs. (Counted in
      complex numbers, a reuse of 2 needs a tile of 4 x 4 per thread, and its accumulators in Z exceed the 63 registers
      of a thread of the GTX 680.) The bundle's ``register_reuse`` counts elements.
    - Before compiling, registers are the bundle's estimate, limited by the launch bounds; after compiling, the
      compiler's number. A configuration that cannot be launched is never kept.
    """

    def __init__(self, features: Features, thresholds: Thresholds | None = None) -> None:
        placed = features.placed
        kernel, problem, device = placed.kernel, placed.problem, placed.device
        missing = [name for name in NEEDED if name not in kernel.resources.estimates]
        if missing:
            raise BundleError(
                f"{kernel.name} does not name the [resources] {', '.join(missing)}, and ASTRA's thresholds are "
                f"computed from {', '.join(NEEDED)}; add them to {kernel.described_in}, or search without "
                "thresholds."
            )
        variables = problem.variables
        is_complex = bool(variables.get("is_complex", 0))
        precision = _PRECISIONS.get((problem.arithmetic, is_complex))
        if precision is None:
            raise UsageError(
                f"{problem.label} is bounded by {problem.arithmetic}, and ASTRA's thresholds are those of FP32 and "
                "FP64; search without thresholds."
            )
        paper = LAWN_267[precision]
        share = device.max_threads_per_sm / KEPLER_THREADS_PER_SM
        self.thresholds = thresholds or replace(paper, threads_per_sm=paper.threads_per_sm * share)
        self._placed = placed
        self._scalar_reuse = 2.0 if is_complex else 1.0

    def keeps(self, columns: Columns, builds: Mapping[str, ArrayLike] | None = None) -> NDArray[np.bool_]:
        """Return which configurations meet the thresholds; estimates replace missing or NaN values of ``builds``."""
        size, device = length(columns), self._placed.device
        conditions = {
            name: expression
            for name, expression in self._placed.kernel.resources.estimates.items()
            if name in (*NEEDED, "register_cap", "shared_bytes")
        }
        resources = self._placed.kernel.space.evaluate(columns, self._placed.variables, conditions)
        cap = np.minimum(resources.get("register_cap", np.inf), device.max_registers_per_thread)
        registers = np.minimum(resources["registers"], cap)
        shared = np.asarray(resources.get("shared_bytes", np.zeros(size)), dtype=np.float64)
        if builds is not None:
            compiled = np.asarray(builds.get("registers", np.full(size, np.nan)), dtype=np.float64)
            static = np.asarray(builds.get("shared_bytes", np.zeros(size)), dtype=np.float64)
            registers = np.where(np.isnan(compiled), registers, compiled)
            shared = shared + np.nan_to_num(static)
        resident = occupancy(device, resources["threads"], registers, shared)
        least = self.thresholds
        kept: NDArray[np.bool_] = (
            (resident.blocks_per_sm >= max(1, least.blocks_per_sm))
            & (resident.blocks_per_sm * resources["threads"] >= least.threads_per_sm)
            & (self._scalar_reuse * resources["register_reuse"] >= least.register_reuse)
        )
        return kept
