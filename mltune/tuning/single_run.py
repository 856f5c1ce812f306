"""One run of a kernel that is given in Python."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mltune.errors import RunError
from mltune.kernel.python_kernel import PythonKernel
from mltune.records.trial import Build, TrialState

if TYPE_CHECKING:
    from mltune.measure.messages import Outputs


def run_once(kernel: PythonKernel, index: int) -> dict[str, Any]:
    """Compile the first configuration of a kernel and run it once on a GPU.

    Parameters
    ----------
    index : int
        The GPU, among those that the driver shows.

    Returns
    -------
    dict of str to ndarray
        Its arrays by name, as they are after the run.

    Raises
    ------
    RunError
        The kernel cannot be compiled or launched, or fails.
    """
    from mltune.device.query import driver_version, query_device
    from mltune.measure.build import NvrtcBuilder, default_cache
    from mltune.measure.compiler import check_fits_driver
    from mltune.measure.runner import GpuRunner

    assert kernel.arrays is not None  # noqa: S101 - it has arguments
    device = query_device(index)
    check_fits_driver(driver_version())
    problem = kernel.arrays.problem()
    configuration = {name: values[0] for name, values in kernel.parameters.items()}
    with NvrtcBuilder(kernel, problem, device.architecture, cache=default_cache(), workers=1) as builder:
        build: Build = builder.submit(configuration).result()
    _must_succeed(kernel, build)
    with GpuRunner(kernel, problem, index, device=device) as runner:
        found = runner.run_once(configuration, build)
    _must_succeed(kernel, found)
    return dict(found.arrays)


def _must_succeed(kernel: PythonKernel, outcome: Build | Outputs) -> None:
    if outcome.state is not TrialState.OK:
        raise RunError(f"a kernel must run to its end, but {kernel.name} ends with {outcome.state}: {outcome.detail}.")
