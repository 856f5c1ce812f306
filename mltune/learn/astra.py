"""The pruning that a learned one replaces: the hand-set thresholds of ASTRA, always at hand for comparison."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import optuna
from numpy.typing import ArrayLike, NDArray

from mltune.device.occupancy import occupancy
from mltune.errors import BundleError
from mltune.kernel.bundle import device_variables
from mltune.kernel.columns import Columns, length

if TYPE_CHECKING:
    from optuna.study import Study
    from optuna.trial import FrozenTrial

    from mltune.device.facts import Device
    from mltune.kernel.bundle import Kernel
    from mltune.problem.problem import Problem

KEPLER_THREADS_PER_SM = 2048
"""Threads that a multiprocessor of the GTX 680 holds: "1024 (half of the hardware maximum)"."""

NEEDED = ("threads", "registers", "register_reuse")
"""Resources that a bundle must name for the thresholds to be computed."""


@dataclass(frozen=True, slots=True)
class Thresholds:
    """What a configuration must reach.

    Attributes
    ----------
    threads_per_sm : float
        Resident threads of a multiprocessor: what the paper calls occupancy.
    register_reuse : float
        Fused multiply-adds per scalar loaded into registers, in the innermost loop.
    blocks_per_sm : float
        Resident blocks of a multiprocessor.
    """

    threads_per_sm: float
    register_reuse: float
    blocks_per_sm: float = 1


LAWN_267: dict[str, Thresholds] = {
    "s": Thresholds(1024, 2.0),
    "c": Thresholds(1024, 2.0),
    "d": Thresholds(1024, 1.0),
    "z": Thresholds(768, 2.0),
}
"""The paper's thresholds by precision, for a GTX 680; blocks per multiprocessor "did not play a role"."""

_PRECISIONS = {("fp32", False): "s", ("fp32", True): "c", ("fp64", False): "d", ("fp64", True): "z"}


class AstraThresholds(optuna.pruners.BasePruner):  # type: ignore[misc]
    """Discards configurations by three hand-set thresholds: occupancy, register reuse, blocks per multiprocessor.

    Kurzak, Luszczek, Tomov and Dongarra (2012), "Preliminary results of autotuning GEMM kernels for the NVIDIA Kepler
    architecture", LAPACK Working Note 267, section 5. Their other tests (hardware limits, divisibility, whole warps)
    are restrictions of the bundle here.

    What the paper leaves open is read so:

    - Occupancy is given in threads for a multiprocessor of 2,048. On a device of another size the defaults keep their
      share of its maximum: 1024 become 768 on one of 1,536. It is computed by the rules of the device at hand.
    - A load is one of a scalar, a complex number is two, and a complex multiply-add is four FMAs. (Counted in complex
      numbers a reuse of 2 needs a tile of 4 x 4 a thread, whose accumulators in Z exceed the 63 registers that a thread
      of the GTX 680 has.) The bundle's ``register_reuse`` counts elements.
    - Before compiling, registers are the bundle's estimate, within the cap that the launch bounds set; after, the
      compiler's. A configuration that cannot be launched is never kept.

    The thresholds may keep nothing at all of a space: the caller decides what then.

    Parameters
    ----------
    kernel : Kernel
        Its ``[resources]`` name at least ``threads``, ``registers`` and ``register_reuse``.
    problem : Problem
    device : Device
    min_threads_per_sm, min_register_reuse, min_blocks_per_sm : float, optional
        Other thresholds than the paper's for the problem's precision (:data:`LAWN_267`).

    Attributes
    ----------
    thresholds : Thresholds

    Raises
    ------
    BundleError
        The bundle does not name the resources: there is nothing to compare with a threshold.
    """

    def __init__(
        self,
        kernel: Kernel,
        problem: Problem,
        device: Device,
        *,
        min_threads_per_sm: float | None = None,
        min_register_reuse: float | None = None,
        min_blocks_per_sm: float | None = None,
    ) -> None:
        missing = [name for name in NEEDED if name not in kernel.resources]
        if missing:
            raise BundleError(
                f"ASTRA's thresholds are computed from the [resources] {', '.join(NEEDED)}, but {kernel.name} does not "
                f"name {', '.join(missing)}; add them to {kernel.folder / 'kernel.toml'}, or search without thresholds."
            )
        variables = problem.variables()
        is_complex = bool(variables.get("is_complex", 0))
        paper = LAWN_267[_PRECISIONS[problem.arithmetic, is_complex]]
        share = device.max_threads_per_sm / KEPLER_THREADS_PER_SM
        self.thresholds = Thresholds(
            paper.threads_per_sm * share if min_threads_per_sm is None else min_threads_per_sm,
            paper.register_reuse if min_register_reuse is None else min_register_reuse,
            paper.blocks_per_sm if min_blocks_per_sm is None else min_blocks_per_sm,
        )
        self._kernel = kernel
        self._device = device
        self._variables = variables | device_variables(device)
        self._scalar_reuse = 2.0 if is_complex else 1.0

    def keeps(self, columns: Columns, builds: Mapping[str, ArrayLike] | None = None) -> NDArray[np.bool_]:
        """Return which configurations are worth a measurement.

        Parameters
        ----------
        columns : Columns
            Configurations.
        builds : mapping of str to array_like of shape (n_configs,), optional
            After compiling: ``registers`` per thread and static ``shared_bytes`` per block; where they are missing or
            NaN, the estimates hold.

        Returns
        -------
        ndarray of shape (n_configs,), bool
        """
        size, device = length(columns), self._device
        wanted = {
            name: expression
            for name, expression in self._kernel.resources.items()
            if name in (*NEEDED, "register_cap", "shared_bytes")
        }
        resources = self._kernel.evaluate(columns, self._variables, wanted)
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

    def prune(self, study: Study, trial: FrozenTrial) -> bool:
        """Return whether the trial's configuration is discarded; nothing need have been reported for it.

        Raises
        ------
        ValueError
            A parameter of the kernel has not been suggested yet.
        """
        missing = [name for name in self._kernel.all_parameters if name not in trial.params]
        if missing:
            raise ValueError(
                f"ASTRA's thresholds judge whole configurations, but trial {trial.number} has no {', '.join(missing)}; "
                "suggest every parameter before asking whether to prune."
            )
        columns = {name: np.array([trial.params[name]], dtype=np.int64) for name in self._kernel.all_parameters}
        return not bool(self.keeps(columns)[0])
