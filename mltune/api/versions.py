"""Versions of a kernel by their names: winners, libraries, bundles, sources, and bundles in git."""

from __future__ import annotations

import contextlib
import io
import subprocess
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, cast

import numpy as np

from mltune.errors import BundleError, UsageError
from mltune.files.text import printable
from mltune.kernel.bundle import Kernel, variables_of
from mltune.kernel.coding import row
from mltune.kernel.expressions import parse
from mltune.kernel.launch import Launch
from mltune.kernel.reader import is_bundle, load_kernel
from mltune.kernel.space import default_configuration
from mltune.library.folder import machine_code, read_library
from mltune.library.loaded import load_library
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

_GIT_S = 60.0


@contextlib.contextmanager
def two_versions(
    old: str, new: str, kernel: str | Path | None, problem: str | None, shape: Shape
) -> Iterator[list[Making]]:
    """Find two versions and the problem on which they are compared, and the bundle of two winners of one.

    :func:`mltune.gate` says what the names mean. What is found is made within the context.
    """
    with tempfile.TemporaryDirectory() as scratch:
        names = [old, new]
        found = [_found(name, kernel, Path(scratch) / str(place)) for place, name in enumerate(names)]
        if kernel is not None and not any(isinstance(one, Kernel) for one in found):
            names, found = [*names, str(kernel)], [*found, load_kernel(kernel)]
        bundle = next((one for one in found if isinstance(one, Kernel)), None)
        recorded = next((one for one in found if not isinstance(one, Kernel)), None)
        wanted = _problem(problem, shape, bundle, recorded)
        made = [partial(_configured if isinstance(one, Kernel) else _recorded, problem=wanted) for one in found]
        yield [partial(one, name, what) for one, name, what in zip(made, names, found, strict=True)]


def _found(name: str, kernel: str | Path | None, scratch: Path) -> Kernel | Problem:
    """Return the kernel that a name means, or the problem of a winner or a library."""
    path = Path(name)
    if ":" in name and not is_bundle(name) and not path.exists():
        return _from_git(name, scratch)
    if path.suffix == ".cu":
        return load_kernel(kernel or path.parent, source=path)
    if (path / "winner.json").is_file():
        return problem_from_json(read_winner(path)[0].problem)
    if (path / "library.json").is_file():
        return problem_from_json(read_library(path)[0].problem)
    return load_kernel(name)


def _from_git(name: str, folder: Path) -> Kernel:
    """Load the bundle ``REVISION:PATH`` of git, from a copy in which links are texts."""

    def git(*arguments: str) -> bytes:
        command = ["git", *arguments]  # what is named stands behind --: it is no option
        return bytes(subprocess.check_output(command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, timeout=_GIT_S))  # noqa: S603

    try:
        top = git("rev-parse", "--show-toplevel").decode().rstrip("\n")
        with zipfile.ZipFile(io.BytesIO(git("-C", top, "archive", "--format=zip", "--", name))) as archive:
            archive.extractall(folder)
        return load_kernel(folder)
    except (OSError, ValueError, subprocess.SubprocessError, zipfile.BadZipFile, BundleError) as error:
        said = (getattr(error, "stderr", None) or b"").decode(errors="replace").strip() or str(error)
        raise UsageError(
            "a version is a folder, a built-in kernel, a .cu file, or a bundle in git as REVISION:PATH, but "
            f"{printable(name, 300)}: {printable(said.replace(str(folder), name).rstrip('.'), 600)}."
        ) from error


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
        mine = kernel.arrays.problem(problem.variables())
        if mine.formula.partition("(")[2] != problem.formula.partition("(")[2]:
            raise UsageError(f"versions have the same arguments, but {printable(name, 300)} is {mine.formula}.")
        problem = mine
    kernel.check_problem(problem)
    part = kernel.with_values({one: (value,) for one, value in config.items()})
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
    name: str, recorded: Problem, device: Device, config: Mapping[str, int], *, problem: RunnableProblem
) -> Version:
    """Return the version that is the machine code of a winner, or of a library where it serves the problem."""
    path, sizes, facts, conditions = Path(name), problem.variables(), {}, {}
    alike = isinstance(recorded, type(problem)) and recorded.macros() == problem.macros()
    fits = alike and recorded.case == problem.case
    if (path / "winner.json").is_file():
        document, cubin = read_winner(path)
        one, entry, facts = document.launch, document.kernel.function, document.build.model_dump()
        formulas, launched = (one.at_other_sizes or one).model_dump(), one.launched
        conditions = one.sizes_must_satisfy
        fits = fits and (one.at_other_sizes is not None or recorded.variables() == sizes)
    elif fits:
        library = read_library(path)[0].model_dump()
        known = library["configurations"]
        chosen = load_library(path).choice(**{size: sizes[size] for size in library["sizes"]})
        number = [{"kernel": one["kernel"], **one["configuration"]} for one in known].index(chosen)
        cubin = machine_code(path, library, number)
        formulas, entry = known[number]["launch"], known[number]["entry"]
        launched = formulas["launched"]
    if not fits or not all(parse(text).evaluate(sizes) for text in conditions):
        raise UsageError(
            f"machine code is compared on a problem that it is for, but {printable(name, 300)} is for {recorded.label} "
            f"and what its conditions on sizes allow, and that is {problem.label}."
        )

    def launch(variables: Mapping[str, int]) -> Launch:
        def number(text: object) -> int:
            return int(parse(str(text)).evaluate(variables))

        (gx, gy, gz), (bx, by, bz) = (map(number, formulas[shape]) for shape in ("grid", "block"))
        workspace = formulas["workspace_bytes"]
        size = None if workspace is None else number(workspace)
        return Launch((gx, gy, gz), (bx, by, bz), number(formulas["shared_bytes"]), tuple(map(int, launched)), size)

    return Version(name, problem, launch, Build(TrialState.OK, cubin=cubin, entry=entry, **facts))
