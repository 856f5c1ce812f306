"""The kernels that compete in a run of ``mltune tune``: those that can be measured, or whose timings are recorded."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from mltune.kernel.reader import load_kernel
from mltune.problem.kinds import KINDS
from mltune.records.directory import is_begun
from mltune.records.header import REPLAY
from mltune.records.store import Store
from mltune.resolve.device import find_gpus, parse_device
from mltune.resolve.kernels import fits, kernels_for
from mltune.resolve.request import Shape, named_problem

if TYPE_CHECKING:
    from mltune.problem.problem import Problem

RECORDED = REPLAY.removesuffix(":")
"""The device of a replay of the recorded timings of each kernel."""


def competing_kernels(
    problem: str | Problem | None,
    shape: Shape,
    *,
    kernels: Sequence[str | Path] = (),
    accuracy: str | None = None,
    device: str = "auto",
    run: Path | None = None,
) -> list[str]:
    """Return the kernels that compete for a problem.

    Several kernels that are named do. Where none is named, the candidates do that fit the GPU, or in a replay have
    recorded timings of the problem. The run of a single kernel goes on with that one.

    Parameters
    ----------
    problem, shape, device
        See :func:`mltune.resolve.request.tune_request`.
    kernels : sequence of str or pathlib.Path
        Those that are named.
    accuracy : str, optional
        The accuracy class of the kernels.
    run : pathlib.Path, optional
        Directory of the run.

    Returns
    -------
    list of str
        One or none where nothing is to be chosen: the request names the kernel, or the default is right.

    Raises
    ------
    UsageError
        There is no such problem or kernel, or a kernel is not of an accepted class.
    """
    if kernels:
        named = named_problem(problem, shape, kernels[0], device, accuracy)[0] if len(kernels) > 1 else None
        return list(map(str, kernels)) if named is None else kernels_for(named, kernels, accuracy)
    if problem is None or device.startswith(REPLAY):
        return []
    found, first = named_problem(problem, shape, accuracy=accuracy)
    names = [] if KINDS[found.kind].parse is None else kernels_for(found, accuracy=accuracy)
    if len(names) > 1 and run is not None and is_begun(run):
        with Store.read_only(run) as store:
            names = [name for name in names if name == store.header.kernel]
    return names if len(names) < 2 else _measurable(names, found, device) or [first]


def _measurable(names: Sequence[str], problem: Problem, device: str) -> list[str]:
    """Return the kernels that fit a GPU, or without one have recorded timings."""
    from mltune.dataset.dataset import find_datasets

    gpus = () if device == RECORDED else find_gpus()[0]
    if not gpus:
        return [name for name in names if find_datasets(name, problem)]
    target = parse_device(device) if device != "all" else None
    index = 0 if target is None or target.cuda is None else target.cuda
    return [name for name in names if index >= len(gpus) or fits(load_kernel(name), gpus[index])]
