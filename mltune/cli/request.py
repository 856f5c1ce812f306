"""From what a person asks for to a request that the tuner can carry out: the problem, the target, the budget."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from mltune.errors import DatasetError, UsageError
from mltune.tune.request import DEFAULT_KERNEL, parse_duration
from mltune.tune.target import Target, choose, find_gpus, parse_device

if TYPE_CHECKING:
    from mltune.kernel.bundle import Kernel
    from mltune.problem.gemm import GemmProblem
    from mltune.problem.problem import Problem
    from mltune.tune.request import TuneRequest

REPLAY_TRIALS = 300
GPU_TIME_S = 60.0


def parse_values(options: Iterable[str]) -> dict[str, tuple[int, ...]]:
    """Read chosen values of parameters, such as ``BLK_M=64,128``.

    Raises
    ------
    UsageError
        One is not a name with integers.
    """
    chosen: dict[str, tuple[int, ...]] = {}
    for option in options:
        if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*=\d{1,9}(,\d{1,9})*", option):
            raise UsageError(f"chosen values are given as NAME=V,V, got {option!r}; write BLK_M=64,128.")
        name, _, values = option.partition("=")
        chosen[name] = tuple(map(int, values.split(",")))
    return chosen


@dataclass(frozen=True, slots=True)
class Shape:
    """The part of a problem that options give.

    Attributes
    ----------
    trans : str or None
        op(A) and op(B), such as ``"NT"``.
    size : int or None
        m = n = k.
    m, n, k : int or None
        Extents, in place of ``size``.
    """

    trans: str | None = None
    size: int | None = None
    m: int | None = None
    n: int | None = None
    k: int | None = None

    def problem(self, name: str, recorded: GemmProblem | None = None) -> GemmProblem:
        """Make the problem; what was not given is taken from a recorded problem, or else is the default.

        Raises
        ------
        ProblemError
            There is no such problem, or its size is impossible.
        """
        from mltune.problem.gemm import parse_problem

        return parse_problem(name, **asdict(self), default=recorded)


def tune_request(
    name: str | None,
    shape: Shape,
    *,
    kernel: str | None,
    device: str,
    trials: int | None,
    time: str | None,
    seed: int,
    run: Path | None,
) -> tuple[TuneRequest, str]:
    """Turn the options of ``mltune tune`` into a request.

    In replay the kernel and the problem are those recorded; where they are given too, they must be the same.

    Returns
    -------
    TuneRequest
        With the device chosen and the budget set.
    str
        What the user must be told about the device chosen in their place; empty when nothing.

    Raises
    ------
    UsageError
        What is asked for cannot be met.
    """
    from mltune.dataset.dataset import load_manifest
    from mltune.kernel.reader import load_kernel
    from mltune.tune.request import TuneRequest

    time_s = None if time is None else parse_duration(time)
    target, notice = parse_device(device), ""
    if target is None:
        kernel = kernel or DEFAULT_KERNEL
        problem: Problem = shape.problem(_named(name, device))
        target = choose(load_kernel(kernel).name, problem, any_shape=shape == Shape())
        notice = target.notice
        if target.dataset is not None and shape == Shape():
            problem = load_manifest(target.dataset).problem
    elif target.dataset is not None:
        recorded = load_manifest(target.dataset)
        kernel = kernel or recorded.kernel
        problem = _replayed(name, shape, recorded.problem, device)
    else:
        kernel = kernel or DEFAULT_KERNEL
        problem = shape.problem(_named(name, device))
    if trials is None and time_s is None:
        if target.dataset is not None:
            trials = REPLAY_TRIALS
        else:
            time_s = GPU_TIME_S
    request = TuneRequest(
        kernel=kernel, problem=problem, device=str(target), trials=trials, time_s=time_s, seed=seed, run=run
    )
    return request, notice


def space_problem(kernel: Kernel, precision: str, shape: Shape) -> Problem:
    """Return the problem to describe a kernel's search space for.

    Raises
    ------
    UsageError
        The kernel is only replayed, and no timings of it are recorded here, or a shape is asked for.
    """
    if kernel.problem == "gemm":
        return shape.problem(f"{precision}gemm")
    from mltune.dataset.dataset import list_datasets

    recorded = [manifest.problem for manifest in list_datasets() if manifest.kernel == kernel.name]
    if not recorded or shape != Shape():
        raise UsageError(
            f"the space of a kernel that is only replayed is that of its recorded problem, but for {kernel.name} "
            f"{'there is none' if not recorded else 'another size was asked for'}; see `mltune datasets`."
        )
    return recorded[0]


def sweep_request(name: str, shape: Shape, *, kernel: str, device: str, seed: int, run: Path | None) -> TuneRequest:
    """Turn the options of ``mltune sweep`` into a request.

    Raises
    ------
    UsageError
        What is asked for cannot be met: a sweep needs a GPU.
    """
    from mltune.tune.request import TuneRequest

    target = parse_device(device)
    if target is not None and target.dataset is not None:
        raise UsageError(
            f"a sweep times kernels on a GPU and cannot replay, got --device {device}; give cuda:N or auto."
        )
    problem = shape.problem(name)
    gpus, reason = find_gpus()
    if not gpus:
        raise UsageError(f"a sweep times kernels on a GPU, but none was found: {reason}.")
    target = target or Target(cuda=0)
    return TuneRequest(kernel=kernel, problem=problem, device=str(target), trials=None, time_s=None, seed=seed, run=run)


def _named(name: str | None, device: str) -> str:
    """Return the name of the problem to measure."""
    if name is None:
        raise UsageError(
            f"a problem must be named to be measured, but --device is {device}: write `mltune tune sgemm`. "
            "Only a replay knows its own: --device replay:DATASET."
        )
    return name


def _replayed(name: str | None, shape: Shape, recorded: Problem, device: str) -> Problem:
    """Return the recorded problem, if it is the one asked for."""
    from mltune.problem.gemm import GemmProblem

    if isinstance(recorded, GemmProblem):
        problem = shape.problem(name or recorded.name, recorded)
        if problem == recorded:
            return recorded
        asked = problem.label
    elif name in (None, recorded.name):
        if shape == Shape():
            return recorded
        asked = f"another size of {recorded.name}"
    else:
        asked = str(name)
    raise DatasetError(
        f"a replay answers for the problem that was recorded, but {device} holds {recorded.label}, and "
        f"{asked} was asked for; `mltune datasets` lists what is recorded."
    )
