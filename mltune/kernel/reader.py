"""Reads kernel.toml: gives it meaning, and refuses what has none."""

from __future__ import annotations

import hashlib
import json
import keyword
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from pydantic import ValidationError

from mltune import assets
from mltune.errors import BundleError, ExpressionError
from mltune.kernel.bundle import DEVICE_VARIABLES, Access, Kernel, Restriction
from mltune.kernel.expressions import FUNCTIONS, Expression, parse
from mltune.kernel.schema import AccessTable, Document
from mltune.problem.kinds import KINDS

MAX_DOCUMENT_BYTES = 2**20
"""Largest kernel.toml."""

MAX_SOURCE_BYTES = 2**24
"""Largest kernel source."""


def load_kernel(name_or_path: str | Path) -> Kernel:
    """Load a kernel bundle.

    Parameters
    ----------
    name_or_path : str or pathlib.Path
        The name of a built-in kernel, or else the path of a folder.

    Returns
    -------
    Kernel

    Raises
    ------
    BundleError
        There is no such bundle, or it is malformed.
    """
    return read_bundle(find_bundle(name_or_path))


def find_bundle(name_or_path: str | Path) -> Path:
    """Return the folder of a bundle.

    Raises
    ------
    BundleError
        There is none.
    """
    built_in = assets.folder("kernels")
    names = sorted(path.parent.name for path in built_in.glob("*/kernel.toml"))
    if isinstance(name_or_path, str) and name_or_path in names:
        return built_in / name_or_path
    folder = Path(name_or_path)
    if (folder / "kernel.toml").is_file():
        return folder.resolve()
    raise BundleError(
        f"a kernel is a built-in one ({', '.join(names) or 'none are installed'}) or a folder that holds a "
        f"kernel.toml, got {str(name_or_path)!r}."
    )


def read_bundle(folder: Path) -> Kernel:
    """Read and check a bundle.

    Raises
    ------
    BundleError
        It is malformed. The message names the file and the key.
    """
    path = folder / "kernel.toml"
    return _Reader(path, _validated(path, _read(path, MAX_DOCUMENT_BYTES))).kernel()


def _read(path: Path, most: int) -> str:
    try:
        if path.stat().st_size > most:
            raise BundleError(f"{path}: a file of a bundle has at most {most} bytes, got {path.stat().st_size}")
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BundleError(f"{path}: a file of a bundle must be readable UTF-8 text: {error}") from error


def _validated(path: Path, text: str) -> Document:
    try:
        return Document.model_validate(tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise BundleError(f"{path}: a kernel.toml must be valid TOML: {error}") from error
    except ValidationError as error:
        problems = "; ".join(
            f"{'.'.join(str(part) for part in problem['loc'])}: {problem['msg']}, got {problem['input']!r:.80}"
            for problem in error.errors()[:5]
        )
        raise BundleError(f"{path}: {problems}. See docs/reference/kernel-toml.md.") from error


class _Reader:
    """Gives a document its meaning, and checks what a schema cannot."""

    def __init__(self, path: Path, document: Document) -> None:
        self.path = path
        self.document = document
        self.problem = document.kernel.problem
        if self.problem not in KINDS:
            raise self.error("kernel.problem", f"a problem is one of {[*KINDS]}, got {self.problem!r}")
        self.of_problem = KINDS[self.problem].variables | self.recorded_variables()
        self.variables = {*self.of_problem, *DEVICE_VARIABLES}

    def error(self, key: str, message: object) -> BundleError:
        return BundleError(f"{self.path}: {key}: {message}. See docs/reference/kernel-toml.md.")

    def recorded_variables(self) -> frozenset[str]:
        """Return what a bundle says that a recorded problem gives; check that each kind has its own keys."""
        kernel = self.document.kernel
        if self.problem == "gemm":
            if not kernel.precisions:
                raise self.error("kernel.precisions", "a kernel of problem 'gemm' has at least one of s, d, c, z")
            if kernel.variables:
                raise self.error("kernel.variables", "the variables of problem 'gemm' are known; leave the key out")
        elif kernel.precisions or kernel.source is not None:
            raise self.error("kernel", "a kernel of problem 'recorded' is only replayed: no `precisions`, no `source`")
        for name in kernel.variables:
            if name in FUNCTIONS or name in DEVICE_VARIABLES:
                raise self.error("kernel.variables", f"{name!r} is the name of a function or of a device's variable")
        return frozenset(kernel.variables)

    def kernel(self) -> Kernel:
        document, launch = self.document, self.document.launch
        parameters, launch_parameters = self.parameters()
        derived = self.derived({*parameters, *launch_parameters})
        known = {*parameters, *launch_parameters, *derived, *self.variables}
        restrictions = tuple(
            Restriction(self.expression(f"restrictions.`{text}`", text, known), reason)
            for text, reason in document.restrictions.items()
        )
        resources = {key: self.expression(f"resources.{key}", text, known) for key, text in document.resources.items()}
        shared_bytes = resources.get("shared_bytes", parse("0"))
        source = self.source()
        if len(set(document.kernel.precisions)) != len(document.kernel.precisions):
            raise self.error("kernel.precisions", f"precisions must be distinct, got {document.kernel.precisions}")
        return Kernel(
            name=document.kernel.name,
            folder=self.path.parent,
            source=source,
            source_hash=(
                "" if source is None else _hash(source, document.kernel.entry, launch.model_dump(), shared_bytes.text)
            ),
            space_hash=_hash(
                list(parameters.items()),
                list(launch_parameters.items()),
                {name: expression.text for name, expression in derived.items()},
                [restriction.text for restriction in restrictions],
            ),
            entry=document.kernel.entry,
            problem=self.problem,
            precisions=tuple(document.kernel.precisions),
            variables=self.of_problem,
            parameters=parameters,
            launch_parameters=launch_parameters,
            arguments=tuple(launch.arguments),
            derived=derived,
            restrictions=restrictions,
            resources=resources,
            accesses={name: self.access(name, table, known) for name, table in document.access.items()},
            block=self.shape("block", launch.block, known),
            grid=self.shape("grid", launch.grid, known),
            shared_bytes=shared_bytes,
        )

    def parameters(self) -> tuple[dict[str, tuple[int, ...]], dict[str, tuple[int, ...]]]:
        compiled, launched = self.document.parameters, self.document.launch.parameters
        arguments = self.document.launch.arguments
        for key, table in (("parameters", compiled), ("launch.parameters", launched)):
            for name, values in table.items():
                if len(set(values)) != len(values):
                    raise self.error(f"{key}.{name}", f"the values of a parameter must be distinct, got {values}")
                if name in KINDS[self.problem].macros:
                    raise self.error(f"{key}.{name}", f"no parameter has the name of a macro of {self.problem!r}")
        for name in (*compiled, *launched):
            if name in self.variables or name in FUNCTIONS or keyword.iskeyword(name):
                raise self.error(
                    f"parameters.{name}", "a parameter must not have the name of a variable, a function or a keyword"
                )
        lowered = [name.lower() for name in (*compiled, *launched)]
        if len(set(lowered)) != len({*compiled, *launched}):
            raise self.error("parameters", "the names of parameters must differ in more than upper and lower case")
        for name in compiled.keys() & launched.keys():
            raise self.error(f"launch.parameters.{name}", "a parameter is compiled in or passed at launch, not both")
        if len(set(arguments)) != len(arguments) or not set(arguments) <= launched.keys():
            raise self.error("launch.arguments", f"arguments are distinct ones of {[*launched]}, got {arguments}")
        return _tuples(compiled), _tuples(launched)

    def derived(self, parameters: set[str]) -> dict[str, Expression]:
        """Return the derived names, each after those that it uses."""
        texts = self.document.derived
        for name in texts:
            if name in parameters | self.variables | FUNCTIONS.keys():
                raise self.error(f"derived.{name}", "a derived name must not be a parameter, a variable or a function")
        known = parameters | self.variables | texts.keys()
        waiting = {name: self.expression(f"derived.{name}", text, known) for name, text in texts.items()}
        ordered: dict[str, Expression] = {}
        while waiting:
            ready = {name: e for name, e in waiting.items() if not e.names & waiting.keys()}
            if not ready:
                circle = ", ".join(f"{name} = `{e}`" for name, e in waiting.items())
                raise self.error("derived", f"derived names must not go in a circle, but these do: {circle}")
            ordered |= ready
            waiting = {name: e for name, e in waiting.items() if name not in ready}
        return ordered

    def access(self, name: str, table: AccessTable, known: Iterable[str]) -> Access:
        key = f"access.{name}"
        return Access(
            table.memory,
            self.expression(f"{key}.count", table.count, known),
            self.expression(f"{key}.bytes", table.bytes, known),
            tuple(
                (self.expression(f"{key}.lanes", radix, known), self.expression(f"{key}.lanes", stride, known))
                for radix, stride in table.lanes
            ),
        )

    def expression(self, key: str, text: str, known: Iterable[str]) -> Expression:
        try:
            expression = parse(text)
        except ExpressionError as error:
            raise self.error(key, error) from error
        unknown = sorted(expression.names - set(known))
        if unknown:
            raise self.error(
                key,
                f"an expression names parameters, derived names, and variables of the problem and the device "
                f"({', '.join(sorted(self.variables))}); `{text}` names {', '.join(unknown)}",
            )
        return expression

    def shape(self, key: str, texts: list[str], known: Iterable[str]) -> tuple[Expression, Expression, Expression]:
        if self.document.kernel.source is not None and key not in self.document.launch.model_fields_set:
            raise self.error(
                f"launch.{key}", f"a kernel with a source must say how it is launched, but {key} is missing"
            )
        x, y, z = (self.expression(f"launch.{key}", text, known) for text in [*texts, "1", "1"][:3])
        return x, y, z

    def source(self) -> str | None:
        name, entry = self.document.kernel.source, self.document.kernel.entry
        if (name is None) != (entry is None):
            raise self.error("kernel", "source and entry must be given both or neither")
        if name is None:
            return None
        path = self.path.parent / name
        if not path.resolve().is_relative_to(self.path.parent.resolve()):
            raise self.error("kernel.source", f"the source must lie in the bundle, but {name!r} leads out of it")
        return _read(path, MAX_SOURCE_BYTES)


def _tuples(parameters: Mapping[str, Sequence[int]]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(values) for name, values in parameters.items()}


def _hash(*parts: object) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()
