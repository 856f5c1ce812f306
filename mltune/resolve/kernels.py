"""The kernels that solve a problem: those that are named, or the built-in ones of an accuracy class."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from mltune.device.peaks import has_unit
from mltune.errors import UsageError
from mltune.problem.accuracy import STRICTEST, accepts, check_accuracy

if TYPE_CHECKING:
    from mltune.device.facts import Device
    from mltune.kernel.bundle import Kernel
    from mltune.problem.problem import Problem

DEFAULT_KERNEL = "gemm_simt"
"""The kernel of commands that work on a single one, where it solves the problem."""


def candidates(problem: Problem, accuracy: str | None = None) -> list[Kernel]:
    """Return the built-in kernels among which a problem's is chosen, the default one first.

    They have a source, solve the problem, are of an accepted accuracy class (the strictest by default), and are not
    kept out of the choice (``candidate = false`` in their kernel.toml).

    Raises
    ------
    UsageError
        There is none, or no such class.

    Examples
    --------
    >>> from mltune.problem.kinds import problem_from_name
    >>> candidates(problem_from_name("sgemm"))[0].name
    'gemm_simt'
    """
    from mltune.kernel.reader import built_in, load_kernel

    accuracy = check_accuracy(accuracy or STRICTEST)
    solving = [kernel for kernel in map(load_kernel, built_in()) if kernel.candidate and _solves(kernel, problem)]
    found = [kernel for kernel in solving if accepts(accuracy, kernel.accuracy)]
    if not found:
        others = ", ".join(f"{kernel.name} ({kernel.accuracy})" for kernel in solving)
        facts = f"only {others} solve{'' if len(solving) > 1 else 's'} it" if others else "none solves it"
        raise UsageError(
            f"a kernel is chosen among the built-in ones of accuracy {accuracy} for the problem, but of "
            f"{problem.label} {facts}; name a kernel{', or another class' if others else ''}."
        )
    return sorted(found, key=lambda kernel: (kernel.name != DEFAULT_KERNEL, kernel.name))


def check_accuracies(kernels: Iterable[Kernel], accuracy: str | None) -> None:
    """Check that kernels are of an accepted class; None accepts every class."""
    for kernel in kernels if accuracy is not None else ():
        if not accepts(check_accuracy(str(accuracy)), kernel.accuracy):
            raise UsageError(
                f"a named kernel is of the accuracy that is asked for, or of a stricter one, but {kernel.label} is of "
                f"class {kernel.accuracy} and {accuracy} was asked for; see {kernel.folder / 'kernel.toml'}."
            )


def kernels_for(
    problem: Problem, named: Sequence[str | Path] | None = None, accuracy: str | None = None
) -> list[Kernel]:
    """Return the kernels that compete for a problem: those that are named, each once, else :func:`candidates`."""
    from mltune.kernel.reader import load_kernel

    if not named:
        return candidates(problem, accuracy)
    kernels = [load_kernel(name) for name in dict.fromkeys(map(str, named))]
    check_accuracies(kernels, accuracy)
    return kernels


def fits(kernel: Kernel, device: Device) -> bool:
    """Return whether a device has the architecture and the unit that a kernel needs."""
    return has_unit(device, kernel.unit) and kernel.architecture.rstrip("af") in ("", device.architecture)


def _solves(kernel: Kernel, problem: Problem) -> bool:
    if kernel.source is None:
        return False
    try:
        kernel.check_problem(problem)
    except UsageError:
        return False
    return True
