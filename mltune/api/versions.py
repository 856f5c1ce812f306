"""Versions of a kernel by their names: winners, libraries, bundles, sources, and bundles in git."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, cast

import numpy as np

from mltune.api.revisions import load_revision
from mltune.errors import UsageError
from mltune.files.text import printable
from mltune.kernel.bundle import Kernel, variables_of
from mltune.kernel.coding import row
from mltune.kernel.expressions import launch_of, parse
from mltune.kernel.launch import Launch
from mltune.kernel.reader import is_bundle, load_kernel
from mltune.kernel.space import default_configuration
from mltune.library.choice import choice
from mltune.library.folder import machine_code, read_document
from mltune.problem.kinds import kind_of_name, problem_from_json, problem_from_name
from mltune.problem.problem import Problem, RunnableProblem
from mltune.records.trial import Build, TrialState
from mltune.resolve.problems import Shape, given_options, shaped_problem
from mltune.results.tuned_kernel import read_winner
from mltune.tuning.gate import Version
from mltune.tuning.session import make_space

if TYPE_CHECKING:
    from mltune.device.facts import Device

Making = Callable[["Device", Mapping[str, int]], Version]
"""What makes a version for a GPU, with some values of parameters."""


@contextlib.contextmanager
def two_versions(
    old: str, new: str, kernel: str | Path | None, problem: str | None, shape: Shape
) -> Iterator[list[Making]]:
    """Find two versions and the problem on which they are compared, and the bundle of two winners of one.

    :func:`mltune.gate` says what the names mean. What is found is made within the context.
    """
    with tempfile.TemporaryDirectory() as scratch:
        names = [old, new]
        subjects = [_found(name, kernel, Path(scratch) / str(place)) for place, name in enumerate(names)]
        if kernel is not None and not any(isinstance(subject, Kernel) for subject in subjects):
            names, subjects = [*names, str(kernel)], [*subjects, load_kernel(kernel)]
        bundle = next((subject for subject in subjects if isinstance(subject, Kernel)), None)
        recorded = next((subject.problem for subject in subjects if not isinstance(subject, Kernel)), None)
        compared = _problem(problem, shape, bundle, recorded)
        makers = [
            partial(_configured if isinstance(subject, Kernel) else _recorded, problem=compared) for subject in subjects
        ]
        yield [partial(maker, name, what) for maker, name, what in zip(makers, names, subjects, strict=True)]


def _found(name: str, kernel: str | Path | None, scratch: Path) -> Kernel | MachineCode:
    """Return the kernel that a name means, or the machine code of a winner or a library."""
    path = Path(name)
    if ":" in name and not is_bundle(name) and not path.exists():
        return load_revision(name, scratch)
    if path.suffix == ".cu":
        return load_kernel(kernel or path.parent, source=path)
    if (path / "winner.json").is_file():
        return _of_winner(path)
    if (path / "library.json").is_file():
        return _of_library(path)
    return load_kernel(name)


def _problem(name: str | None, shape: Shape, bundle: Kernel | None, recorded: Problem | None) -> RunnableProblem:
    """Return the problem on which both are compared."""
    options, by_name = given_options(shape), recorded is not None and kind_of_name(recorded.name) is not None
    if recorded is not None and by_name and not options and name in (None, recorded.name):
        return cast("RunnableProblem", recorded)
    if recorded is not None and by_name:
        return problem_from_name(name or recorded.name, default=recorded, **options)
    if recorded is not None and bundle is None:
        raise UsageError(
            f"the arguments of {recorded.label} are those of its bundle, but none is named; give it: --kernel FOLDER."
        )
    if recorded is not None and not options:
        options = {"size": recorded.variables()}
    return cast("RunnableProblem", shaped_problem(name, bundle, options))


def _configured(
    name: str, kernel: Kernel, device: Device, config: Mapping[str, int], *, problem: RunnableProblem
) -> Version:
    """Return the version that is a configuration of a bundle: the default one, but for what is given."""
    if kernel.arrays is not None:
        own_problem = kernel.arrays.problem(problem.variables())
        if own_problem.formula.partition("(")[2] != problem.formula.partition("(")[2]:
            raise UsageError(f"versions have the same arguments, but {printable(name, 300)} is {own_problem.formula}.")
        problem = own_problem
    kernel.check_problem(problem)
    part = kernel.with_values({parameter: (value,) for parameter, value in config.items()})
    space = make_space(part, variables_of(problem, device))
    only = row(space.rows(np.array([0])), 0) if space.count == 1 else {}
    configuration = default_configuration(part, space) or only
    if not configuration:
        raise UsageError(
            f"a bundle is compared in one configuration, but {kernel.label} has no [default]; give the value of every "
            "parameter, --config NAME=V."
        )
    return Version(name, problem, partial(part.launch, configuration), kernel=part, configuration=configuration)


def _recorded(
    name: str, code: MachineCode, device: Device, config: Mapping[str, int], *, problem: RunnableProblem
) -> Version:
    """Return the version that is the machine code of a winner, or of a library where it serves the problem."""
    recorded, sizes, launched = code.problem, problem.variables(), None
    if isinstance(recorded, type(problem)) and recorded.macros() == problem.macros() and recorded.case == problem.case:
        launched = code.at(sizes)
    if launched is None:
        raise UsageError(
            f"machine code is compared on a problem that it is for, but {printable(name, 300)} is for {recorded.label} "
            f"and what its conditions on sizes allow, and that is {problem.label}."
        )
    return Version(name, problem, *launched)


class MachineCode(NamedTuple):
    """Machine code of a winner or a library that was read: its problem, and what is launched at some sizes.

    ``at`` returns the launch for variables and the build, or None where nothing is for these sizes.
    """

    problem: Problem
    at: Callable[[Mapping[str, int]], tuple[Callable[[Mapping[str, int]], Launch], Build] | None]


def _of_winner(folder: Path) -> MachineCode:
    document, cubin = read_winner(folder)
    problem, launch = problem_from_json(document.problem), document.launch
    formulas = (launch.at_other_sizes or launch).model_dump()
    build = Build(TrialState.OK, cubin=cubin, entry=document.kernel.function, **document.build.model_dump())

    def at(sizes: Mapping[str, int]) -> tuple[Callable[[Mapping[str, int]], Launch], Build] | None:
        if launch.at_other_sizes is None and problem.variables() != sizes:
            return None
        if not all(parse(text).holds(sizes) for text in launch.sizes_must_satisfy):
            return None
        return partial(launch_of, formulas, launch.launched), build

    return MachineCode(problem, at)


def _of_library(folder: Path) -> MachineCode:
    """Read a library's document and source; its shared object is not even opened."""
    document = read_document(folder)

    def at(sizes: Mapping[str, int]) -> tuple[Callable[[Mapping[str, int]], Launch], Build] | None:
        number = choice(document, sizes) if {*document.sizes} <= sizes.keys() else None
        if number is None:
            return None
        configuration = document.configurations[number]
        build = Build(TrialState.OK, cubin=machine_code(folder, document, number), entry=configuration.entry)
        return partial(launch_of, configuration.launch.model_dump(), configuration.launch.launched), build

    return MachineCode(problem_from_json(document.problem), at)
