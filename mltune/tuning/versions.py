"""Versions of a kernel by their names: winners, libraries, bundles, sources, and bundles in git."""

from __future__ import annotations

import contextlib
import shlex
import tempfile
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import cast

import numpy as np

from mltune.device.facts import Device
from mltune.errors import UsageError
from mltune.files.text import printable
from mltune.kernel.bundle import Kernel
from mltune.kernel.coding import row
from mltune.kernel.placed import PlacedKernel
from mltune.kernel.reader import advice_on_source, is_bundle, load_kernel
from mltune.problem.kinds import kind_of_name, problem_from_name
from mltune.problem.problem import Problem, RunnableProblem
from mltune.resolve.problems import Shape, check_is_kernel, given_options, shaped_problem
from mltune.results.machine_code import MachineCode
from mltune.tuning.gate import Version
from mltune.tuning.revisions import load_revision

Making = Callable[["Device", Mapping[str, int]], Version]
"""What makes a version for a GPU, with some values of parameters."""

Readers = Mapping[str, Callable[[Path], MachineCode]]
"""What reads the machine code in a folder, by the name of a file in it."""


@contextlib.contextmanager
def two_versions(
    old: str, new: str, kernel: str | Path | None, problem: str | None, shape: Shape, readers: Readers
) -> Iterator[list[Making]]:
    """Find the versions that two names of :func:`mltune.gate` mean, their problem, and the bundle of two winners."""
    with tempfile.TemporaryDirectory() as scratch:
        names = [old, new]
        folders = [Path(name).parent if name.endswith(".cu") else name for name in names]
        bundle_of_sources = kernel or next(filter(is_bundle, folders), None)
        bundles = [kernel or (folder if is_bundle(folder) else bundle_of_sources) for folder in folders]
        copies = [Path(scratch) / str(place) for place in range(len(names))]
        subjects = [*map(partial(_subject, readers=readers), names, bundles, copies)]
        if kernel is not None and not any(isinstance(subject, Kernel) for subject in subjects):
            names, subjects = [*names, str(kernel)], [*subjects, load_kernel(kernel)]
        bundle = next((subject for subject in subjects if isinstance(subject, Kernel)), None)
        recorded = next((subject.problem for subject in subjects if not isinstance(subject, Kernel)), None)
        compared = _problem(problem, shape, bundle, recorded)
        makers = [
            partial(_configured if isinstance(subject, Kernel) else _recorded, problem=compared) for subject in subjects
        ]
        yield [partial(maker, name, what) for maker, name, what in zip(makers, names, subjects, strict=True)]


def _subject(name: str, kernel: str | Path | None, scratch: Path, readers: Readers) -> Kernel | MachineCode:
    """Return the kernel that a name means, or the machine code of a winner or a library."""
    path = Path(name)
    if ":" in name and not is_bundle(name) and not path.exists():
        return load_revision(name, scratch)
    if path.suffix == ".cu":
        if kernel is None and (advice := advice_on_source(path)):
            raise UsageError(f"{advice}; then compare with --kernel {shlex.quote(str(path.with_suffix('')))}")
        return load_kernel(path.parent if kernel is None else kernel, source=path)
    read = next((reader for file, reader in readers.items() if (path / file).is_file()), None)
    if read is None:
        check_is_kernel(name)
    return load_kernel(name) if read is None else read(path)


def _problem(name: str | None, shape: Shape, bundle: Kernel | None, recorded: Problem | None) -> RunnableProblem:
    """Return the problem on which both are compared."""
    options, by_name = given_options(shape), recorded is not None and kind_of_name(recorded.name) is not None
    if recorded is not None and by_name and not options and name in (None, recorded.name):
        return cast("RunnableProblem", recorded)
    if recorded is not None and by_name:
        return problem_from_name(name or recorded.name, default=recorded, **options)
    if recorded is not None and bundle is None:
        raise UsageError(f"no bundle is named, which has the arguments of {recorded.label}; give it: --kernel FOLDER.")
    if recorded is not None and not options:
        options = {"size": recorded.variables}
    return cast("RunnableProblem", shaped_problem(name, bundle, options))


def _configured(
    name: str, kernel: Kernel, device: Device, config: Mapping[str, int], *, problem: RunnableProblem
) -> Version:
    """Return the version that is a configuration of a bundle: the default one, but for what is given."""
    restated = kernel.restated(problem)
    if restated.formula.partition("(")[2] != problem.formula.partition("(")[2]:
        raise UsageError(
            f"{printable(name, 300)} has other arguments: it is {restated.formula}; two versions have the same."
        )
    kernel.check_problem(restated)
    part = kernel.with_values({parameter: (value,) for parameter, value in config.items()})
    placed = PlacedKernel(part, restated, device)
    only = row(placed.space.rows(np.array([0])), 0) if placed.space.count == 1 else {}
    configuration = placed.default or only
    if not configuration:
        raise UsageError(
            f"{kernel.label} has no [default], and a bundle is compared in one configuration; give the value of every "
            "parameter, --config NAME=V."
        )
    return Version(name, restated, partial(part.launch, configuration), placed=placed, configuration=configuration)


def _recorded(
    name: str, code: MachineCode, device: Device, config: Mapping[str, int], *, problem: RunnableProblem
) -> Version:
    """Return the version that is the machine code of a winner, or of a library where it serves the problem."""
    recorded, sizes, launched = code.problem, problem.variables, None
    if isinstance(recorded, type(problem)) and recorded.macros() == problem.macros() and recorded.case == problem.case:
        launched = code.at(sizes)
    if launched is None:
        raise UsageError(
            f"{printable(name, 300)} is for {recorded.label} and what its conditions on sizes allow, but the problem "
            f"is {problem.label}; machine code is compared on a problem that it is for."
        )
    return Version(name, problem, *launched)
