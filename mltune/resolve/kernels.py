"""The choice among kernels: the built-in ones that solve a problem on a device at the accuracy that is asked for."""

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


def candidates(problem: Problem, accuracy: str | None = None) -> list[str]:
    """Return the names of the kernels among which a problem's is chosen, the default one first.

    Those are the built-in kernels with a source that solve the problem, are of an accepted accuracy class, and are not
    kept out of the choice (``candidate = false`` in their kernel.toml).

    Parameters
    ----------
    problem : Problem
    accuracy : str, optional
        One of :data:`mltune.problem.accuracy.ACCURACIES`; the strictest by default.

    Raises
    ------
    UsageError
        There is none, or no such class.

    Examples
    --------
    >>> from mltune.problem.kinds import problem_from_name
    >>> candidates(problem_from_name("sgemm"))[0]
    'gemm_simt'
    """
    from mltune.kernel.reader import built_in, load_kernel

    accuracy = check_accuracy(accuracy or STRICTEST)
    solving = [kernel for kernel in map(load_kernel, built_in()) if kernel.candidate and _solves(kernel, problem)]
    found = [kernel.name for kernel in solving if accepts(accuracy, kernel.accuracy)]
    if not found:
        others = ", ".join(f"{kernel.name} ({kernel.accuracy})" for kernel in solving)
        facts = f"only {others} solve{'' if others.count('(') > 1 else 's'} it" if others else "none solves it"
        raise UsageError(
            f"a kernel is chosen among the built-in ones of accuracy {accuracy} for the problem, but of "
            f"{problem.label} {facts}; name a kernel{', or another class' if others else ''}."
        )
    return sorted(found, key=lambda name: (name != DEFAULT_KERNEL, name))


def check_accuracies(kernels: Iterable[Kernel], accuracy: str | None) -> None:
    """Check that kernels that were named are of an accepted class; None accepts every class.

    Raises
    ------
    UsageError
        One is not, or there is no such class.
    """
    for kernel in kernels if accuracy is not None else ():
        if not accepts(check_accuracy(str(accuracy)), kernel.accuracy):
            raise UsageError(
                f"a named kernel is of the accuracy that is asked for, or of a stricter one, but {kernel.label} is of "
                f"class {kernel.accuracy} and {accuracy} was asked for; see {kernel.folder / 'kernel.toml'}."
            )


def kernels_for(
    problem: Problem, kernels: Sequence[str | Path] | None = None, accuracy: str | None = None
) -> list[str]:
    """Return the kernels that compete for a problem: those that are named, else :func:`candidates`.

    Raises
    ------
    UsageError
        A named kernel is not of an accepted class, or there is no kernel.
    """
    from mltune.kernel.reader import load_kernel

    if not kernels:
        return candidates(problem, accuracy)
    named = list(dict.fromkeys(map(str, kernels)))
    check_accuracies(map(load_kernel, named), accuracy)
    return named


def fits(kernel: Kernel, device: Device) -> bool:
    """Return whether a kernel can be built for a device: one that names an architecture or a unit needs it there."""
    return has_unit(device, kernel.unit) and kernel.architecture.rstrip("af") in ("", device.architecture)


def _solves(kernel: Kernel, problem: Problem) -> bool:
    if kernel.source is None:
        return False
    try:
        kernel.check_problem(problem)
    except UsageError:
        return False
    return True
