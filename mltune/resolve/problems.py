"""The problem that a command names, and the kernels that solve it."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from mltune.dataset.dataset import list_datasets
from mltune.device.facts import Device
from mltune.device.peaks import peak_flops
from mltune.errors import BundleError, DatasetError, ProblemError, UsageError
from mltune.files.text import many, printable
from mltune.kernel.bundle import Kernel
from mltune.kernel.reader import advice_on_source, built_in, is_bundle, load_kernel
from mltune.problem.kinds import KINDS, kind_of_name, problem_from_name, timed_problem
from mltune.problem.problem import ACCURACIES, STRICTEST, Problem, accepts, check_accuracy
from mltune.resolve.device import fits
from mltune.resolve.options import DEFAULT_KERNEL

_FAR_AHEAD = 1.5
"""Ratio of the throughputs of tensor cores and the other units from which on the others are not tried."""


def candidates(problem: Problem, accuracy: str | None = None, among: Iterable[Kernel] | None = None) -> list[Kernel]:
    """Return the built-in kernels among which a problem's is chosen, the default one first, or raise a UsageError.

    They have a source, solve the problem, are of an accepted accuracy class (the strictest by default), and are not
    kept out of the choice (``candidate = false`` in their kernel.toml). `among` are all of them, if they are loaded
    already.
    """
    accuracy = check_accuracy(accuracy or STRICTEST)
    loaded = map(load_kernel, built_in()) if among is None else among
    solving = [kernel for kernel in loaded if kernel.candidate and _solves(kernel, problem)]
    accurate = [kernel for kernel in solving if accepts(accuracy, kernel.accuracy)]
    if not accurate:
        listed = ", ".join(f"{kernel.name} ({kernel.accuracy})" for kernel in solving)
        advice = (
            f"; those of other classes are {listed}. Name a kernel, or another class." if listed else "; name a kernel."
        )
        raise UsageError(f"no built-in kernel of accuracy {accuracy} solves {problem.label}{advice}")
    return sorted(accurate, key=lambda kernel: (kernel.name != DEFAULT_KERNEL, kernel.name))


def check_accuracies(kernels: Iterable[Kernel], accuracy: str | None) -> None:
    """Check that kernels are of an accepted class; None accepts every class."""
    for kernel in kernels if accuracy is not None else ():
        if not accepts(check_accuracy(str(accuracy)), kernel.accuracy):
            raise UsageError(
                f"{kernel.label} is of accuracy {kernel.accuracy}, but {accuracy} or a stricter one was asked for; see "
                f"{kernel.described_in}."
            )


def kernels_for(
    problem: Problem, named: Sequence[str | Path] | None = None, accuracy: str | None = None
) -> list[Kernel]:
    """Return the kernels that compete for a problem: those that are named, each once, else :func:`candidates`."""
    if not named:
        return candidates(problem, accuracy)
    kernels = [load_kernel(name) for name in dict.fromkeys(map(str, named))]
    check_accuracies(kernels, accuracy)
    return kernels


def contenders(kernels: Sequence[Kernel], problem: Problem, gpus: Sequence[Device]) -> list[Kernel]:
    """Return the kernels without those that use no tensor cores where another of their accuracy does, on every GPU.

    The tensor cores must be far ahead (:data:`_FAR_AHEAD`). Then products that do not fill the GPU are faster with
    them, too: dgemm at 58 of 60 sizes, in the median 1.6 times as fast. (Batches of small products were not compared:
    all kernels are tried.)
    """

    def is_tried(kernel: Kernel, gpu: Device) -> bool:
        equals = [rival for rival in kernels if rival.resources.unit and rival.accuracy == kernel.accuracy]
        rivals = [rival for rival in equals if fits(rival, gpu)]
        if kernel.resources.unit or not rivals:
            return fits(kernel, gpu)
        largest = max(peak_flops(gpu, rival.resources.unit) for rival in rivals)
        return largest < _FAR_AHEAD * peak_flops(gpu, problem.arithmetic)

    single = dict(problem.variables).get("batch", 1) == 1
    return [kernel for kernel in kernels if single and any(is_tried(kernel, gpu) for gpu in gpus)] or list(kernels)


def _solves(kernel: Kernel, problem: Problem) -> bool:
    if kernel.source.text is None:
        return False
    try:
        kernel.check_problem(problem)
    except UsageError:
        return False
    return True


Shape = Mapping[str, Any]
"""The options of a problem's shape, None where one is not given; ``size`` is a number, or maps names to sizes."""


def named_problem(
    problem: str | Path | Problem | None, shape: Shape, kernel: str | Path | None = None, device: str = "auto"
) -> tuple[Problem, Kernel]:
    """Return the problem to measure and its kernel: the first candidate where none is named.

    The problem is the name of a GEMM, the name or folder of a kernel of kind arrays, or None for that of `kernel`. One
    that is none, or has no such shape, raises a UsageError; `device` is for its message.
    """
    subject, bundle = named_kernel(problem, kernel, None)
    resolved = shaped_problem(subject, bundle, shape, device)
    return resolved, candidates(resolved)[0] if bundle is None else bundle


def named_kernels(
    problem: str | Path | Problem | None, shape: Shape, kernel: str | Path | None, accuracy: str | None
) -> tuple[Problem, list[Kernel]]:
    """Return the problem, and the kernels among which one is chosen: those that are named, or all candidates.

    Errors are those of :func:`named_problem`; a kernel of another accuracy class is one, too.
    """
    subject, bundle = named_kernel(problem, kernel, accuracy)
    resolved = shaped_problem(subject, bundle, shape)
    if kernel is None and bundle is not None:
        return resolved, [bundle]
    return resolved, kernels_for(resolved, [] if kernel is None else [kernel], accuracy)


def named_kernel(
    problem: str | Path | Problem | None, kernel: str | Path | None, accuracy: str | None
) -> tuple[str | Problem | None, Kernel | None]:
    """Return the problem and the kernel that a command names.

    Where the problem is the name or the folder of a kernel of kind arrays, that is the kernel, and the problem is None.
    """
    problem = str(problem) if isinstance(problem, Path) else problem
    if not isinstance(problem, str | None) and not hasattr(problem, "kind"):
        got = printable(repr(problem), 100)
        raise UsageError(
            f"{got} is no problem: a problem is one name, such as 'sgemm', or the folder of a kernel; call it for each."
        )
    bundle = None if kernel is None else load_kernel(kernel)
    if bundle is None and isinstance(problem, str) and kind_of_name(problem) is None:
        is_certain = is_folder(problem) or advice_on_source(problem)
        with contextlib.nullcontext() if is_certain else contextlib.suppress(BundleError):
            recorded = load_kernel(problem)
            if recorded.has_own_problem():
                bundle, problem = recorded, None
            elif recorded.source.text is None:
                raise UsageError(
                    f"{recorded.name} is only replayed, not run; name recorded timings with --device replay:NAME (see "
                    "`mltune datasets`)."
                )
    check_accuracies([] if bundle is None else [bundle], accuracy)
    return problem, bundle


def shaped_problem(problem: str | Problem | None, kernel: Kernel | None, shape: Shape, device: str = "auto") -> Problem:
    """Return the problem of a name or a kernel (:func:`named_kernel`) at a shape."""
    shape = given_options(shape)
    if kernel is not None and kernel.has_own_problem(problem):
        return _own_problem(kernel, shape)
    if isinstance(problem, str):
        try:
            return problem_from_name(problem, **shape)
        except ProblemError as error:
            if kind_of_name(problem):
                raise
            of = ((dataset.name, (dataset.name, dataset.kernel, dataset.problem.name)) for dataset in list_datasets())
            if recordings := [dataset for dataset, names in of if problem in names]:
                raise ProblemError(
                    f"{problem} can only be replayed, from {many(len(recordings), 'dataset')}; write --device "
                    f"replay:{recordings[0]}, without a problem."
                ) from None
            raise ProblemError(
                f"{error} It may also be a kernel with sizes of its own, or its folder. A kernel of Triton is tuned by "
                "`mltune tune FILE.py:KERNEL --shapes CSV`."
            ) from error
    if problem is None:
        raise UsageError(
            f"no problem is named, but one is needed on device {device}; name one, such as sgemm. Only a replay has a "
            "problem of its own (device replay:DATASET)."
        )
    if shape:
        raise UsageError(f"{', '.join(shape)} cannot be given beside {problem.label}: a problem has its own shape.")
    return problem


def recorded_problem(problem: str | Path | Problem | None, shape: Shape, recorded: Problem, device: str) -> Problem:
    """Return the problem of a dataset; a DatasetError if it is not the one that a command names."""
    problem, shape = str(problem) if isinstance(problem, Path) else problem, given_options(shape)
    if isinstance(problem, str | None) and KINDS[recorded.kind].names:
        problem, shape = problem_from_name(problem or recorded.name, default=recorded, **shape), {}
    if isinstance(problem, str) and is_folder(problem):
        problem = load_kernel(problem).name
    sizes = shape.get("size")
    if isinstance(sizes, Mapping) and sizes.items() <= recorded.variables.items():
        shape = {name: value for name, value in shape.items() if name != "size"}
    if problem in (None, recorded.name, recorded) and not shape:
        return recorded
    if not isinstance(problem, str | None):
        text = named_problem(problem, shape, device=device)[0].label
    else:
        text = f"another size of {recorded.name}" if problem in (None, recorded.name) else str(problem)
    raise DatasetError(
        f"{text} was requested, but {device} holds {recorded.label}; leave the problem out, or see `mltune datasets`."
    )


def space_problem(kernel: Kernel, precision: str | None, shape: Shape) -> Problem:
    """Return the problem for which ``mltune space`` describes the search space of a kernel.

    A shape, and a kernel that can only be replayed and has no timings here, raise a UsageError.
    """
    kind, shape = KINDS[kernel.problem], given_options(shape)
    if kind.names:
        of_precision = precision or (kernel.precisions or ("",))[0]
        names = [name for name, of_name in kind.names.items() if of_name == of_precision]
        if not names:
            precisions = ", ".join(kind.precisions) or "none"
            raise UsageError(f"--precision cannot be {printable(repr(of_precision), 60)}: it is one of {precisions}.")
        return problem_from_name(names[0], **shape)
    if precision is None and kernel.has_own_problem():
        return _own_problem(kernel, shape)
    recorded = [manifest.problem for manifest in list_datasets() if manifest.kernel == kernel.name]
    if not recorded or any(value is not None for value in (precision, *shape.values())):
        raise UsageError(
            f"{kernel.name} is only replayed, and {'another problem was requested than' if recorded else 'nothing is'} "
            "recorded; see `mltune datasets`."
        )
    return recorded[0]


def imported_problem(
    kernel: Kernel | str, name: str | None, shape: dict[str, Any], flops: int | None = None, arithmetic: str = "fp32"
) -> Problem:
    """Return the problem of timings that are imported: one of the kernel's kind, or one with any name."""
    from mltune.dataset.importing import slug

    if not isinstance(kernel, str) and kernel.has_own_problem(name):
        return named_problem(None, shape, kernel.folder)[0]
    if not isinstance(kernel, str) and name in (None, kernel.name) and not shape and flops is None:
        with contextlib.suppress(UsageError):
            return space_problem(kernel, None, {})
    if name is None:
        name = re.sub("^[^a-z]+", "", slug(kernel if isinstance(kernel, str) else kernel.name)) or "kernel"
    if kind_of_name(name):
        return problem_from_name(name, **shape)
    if set(shape) - {"size"}:
        raise UsageError(f"{name} has no --trans, --m, --n and --k, which only a GEMM has; write --size NAME=N.")
    size = shape.get("size", {})
    if not isinstance(size, dict):
        raise UsageError(
            f"--size {size} has no name: only a GEMM has one size, but the problem is {name}; write --size NAME=N."
        )
    text = ", ".join(f"{key}={value}" for key, value in size.items())
    return timed_problem(name, text, flops or 1, arithmetic, size)


def check_is_kernel(name: str | Path) -> None:
    """Raise a UsageError for the name of a problem where a kernel is named; it tells the kernels that solve it."""
    if kind_of_name(str(name)) is not None and not is_bundle(name):
        names = [kernel.name for kernel in candidates(problem_from_name(str(name)), ACCURACIES[-1])]
        raise UsageError(
            f"{name} is a problem, not a kernel; the kernels that solve it are {', '.join(names)}. Name one of them, "
            "or the folder of a bundle."
        )


def is_folder(name: str) -> bool:
    """Return whether a name is the folder of a bundle."""
    return (Path(name) / "kernel.toml").is_file()


def given_options(options: Shape) -> dict[str, Any]:
    """Return the options that are given."""
    return {name: value for name, value in options.items() if value is not None}


def _own_problem(kernel: Kernel, shape: Shape) -> Problem:
    """Return the problem of a kernel's own arguments at the sizes of a shape."""
    sizes = shape.get("size", {})
    unknown = shape.keys() - {"size"}
    if unknown or not isinstance(sizes, Mapping):
        names = kernel.own_problem().variables
        raise UsageError(
            f"{', '.join(sorted(unknown)) or sizes} is no size of {kernel.name}, whose sizes are "
            f"{', '.join(names) or 'none'}; give them by name, such as --size {next(iter(names), 'n')}=1024."
        )
    return kernel.own_problem(sizes)
