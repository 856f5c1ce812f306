"""Reading and checking of kernel bundles."""

from __future__ import annotations

import hashlib
import json
import keyword
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

from pydantic import ValidationError

from mltune import assets
from mltune.errors import BundleError, ExpressionError
from mltune.files.reading import reason
from mltune.files.text import did_you_mean
from mltune.files.validation import problems_of
from mltune.kernel.bundle import DEVICE_VARIABLES, Access, Kernel, Restriction
from mltune.kernel.expressions import FUNCTIONS, Expression, parse
from mltune.kernel.schema import AccessTable, Document
from mltune.problem.kinds import KINDS

MAX_DOCUMENT_BYTES = 2**20
"""Largest size of a kernel.toml."""

MAX_SOURCE_BYTES = 2**24
"""Largest size of a kernel source."""


def load_kernel(name_or_path: str | Path) -> Kernel:
    """Load a kernel bundle.

    Parameters
    ----------
    name_or_path : str or pathlib.Path
        The name of a built-in kernel, or the path of a folder.

    Raises
    ------
    BundleError
        There is no such bundle, or it is malformed. The message names the file and the key.

    Examples
    --------
    >>> load_kernel("gemm_simt").launch_parameters
    {'RASTER_GROUP': (1, 2, 4, 8, 16)}
    """
    path = _find_bundle(name_or_path) / "kernel.toml"
    return _Reader(path, _validated(path, _read(path, MAX_DOCUMENT_BYTES))).kernel()


def _find_bundle(name_or_path: str | Path) -> Path:
    built_in = assets.folder("kernels")
    names = sorted(path.parent.name for path in built_in.glob("*/kernel.toml"))
    if isinstance(name_or_path, str) and name_or_path in names:
        return built_in / name_or_path
    folder = Path(name_or_path)
    if name_or_path != "" and (folder / "kernel.toml").is_file():
        return folder.resolve()
    raise BundleError(
        f"a kernel is a built-in one ({', '.join(names) or 'none are installed'}) or a folder that holds a "
        f"kernel.toml, got {str(name_or_path)!r}{did_you_mean(str(name_or_path), names) or '.'}"
    )


def _read(path: Path, most: int) -> str:
    try:
        if path.stat().st_size > most:
            raise BundleError(f"{path}: a file of a bundle has at most {most} bytes, got {path.stat().st_size}")
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BundleError(f"{path}: a file of a bundle must be readable UTF-8 text: {reason(error)}.") from error


def _validated(path: Path, text: str) -> Document:
    try:
        document = tomllib.loads(text)
        return Document.model_validate(document)
    except tomllib.TOMLDecodeError as error:
        raise BundleError(f"{path}: a kernel.toml must be valid TOML: {error}") from error
    except ValidationError as error:
        problems = problems_of(error, document, model=Document)
        raise BundleError(f"{path}: {problems}. See docs/reference/kernel-toml.md.") from error


class _Reader:
    """Turns a document into a kernel, and checks the rules that a schema cannot express."""

    def __init__(self, path: Path, document: Document) -> None:
        self.path = path
        self.document = document
        self.problem = document.kernel.problem
        if self.problem not in KINDS:
            hint = did_you_mean(self.problem, KINDS)
            raise self.error("kernel.problem", f"a problem is one of {', '.join(KINDS)}, got {self.problem!r}{hint}")
        self.kind = KINDS[self.problem]
        self.check_kernel_table()
        self.problem_variables = self.kind.variables | set(document.kernel.variables)
        self.variables = {*self.problem_variables, *DEVICE_VARIABLES}

    def error(self, key: str, message: object) -> BundleError:
        end = "" if str(message).endswith("?") else "."
        return BundleError(f"{self.path}: {key}: {message}{end} See docs/reference/kernel-toml.md.")

    def check_kernel_table(self) -> None:
        """Check that the table has the keys of its kind of problem."""
        kernel, legal = self.document.kernel, self.kind.precisions
        if bool(kernel.precisions) != bool(legal) or not set(kernel.precisions) <= set(legal):
            law = f"at least one of {', '.join(legal)}" if legal else "no `precisions`"
            raise self.error(
                "kernel.precisions", f"a kernel of problem {self.problem!r} has {law}, got {kernel.precisions}"
            )
        if len(set(kernel.precisions)) != len(kernel.precisions):
            raise self.error("kernel.precisions", f"precisions must be distinct, got {kernel.precisions}")
        if kernel.variables and self.kind.variables:
            raise self.error(
                "kernel.variables", f"the variables of problem {self.problem!r} are known; leave the key out"
            )
        for name in kernel.variables:
            if name in FUNCTIONS or name in DEVICE_VARIABLES:
                raise self.error("kernel.variables", f"{name!r} is the name of a function or of a device's variable")
        if kernel.source is not None and not self.kind.can_be_built:
            raise self.error("kernel.source", f"a kernel of problem {self.problem!r} is only replayed: no `source`")

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
            variables=self.problem_variables,
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
                if name in self.kind.macros:
                    raise self.error(
                        f"{key}.{name}", f"a parameter must not have the name of a macro of {self.problem!r}"
                    )
        for name in (*compiled, *launched):
            if name in self.variables or name in FUNCTIONS or keyword.iskeyword(name):
                raise self.error(
                    f"parameters.{name}", "a parameter must not have the name of a variable, a function or a keyword"
                )
        lowered = [name.lower() for name in (*compiled, *launched)]
        if len(set(lowered)) != len({*compiled, *launched}):
            raise self.error("parameters", "the names of parameters must differ without regard to case")
        for name in compiled.keys() & launched.keys():
            raise self.error(f"launch.parameters.{name}", "a parameter is compiled in or passed at launch, not both")
        if len(set(arguments)) != len(arguments) or not set(arguments) <= launched.keys():
            raise self.error("launch.arguments", f"arguments must be distinct ones of {[*launched]}, got {arguments}")
        return _tuples(compiled), _tuples(launched)

    def derived(self, parameters: set[str]) -> dict[str, Expression]:
        """Return the derived names, each after the names that it uses."""
        texts = self.document.derived
        for name in texts:
            if name in parameters | self.variables | FUNCTIONS.keys():
                raise self.error(f"derived.{name}", "a derived name must not be a parameter, a variable or a function")
        known = parameters | self.variables | texts.keys()
        expressions = {name: self.expression(f"derived.{name}", text, known) for name, text in texts.items()}
        uses = {name: expression.names & texts.keys() for name, expression in expressions.items()}
        try:
            return {name: expressions[name] for name in TopologicalSorter(uses).static_order()}
        except CycleError as error:
            circle = ", ".join(f"{name} = `{texts[name]}`" for name in error.args[1][1:])
            raise self.error(
                "derived", f"derived names must not depend on each other in a circle, but these do: {circle}"
            ) from error

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
            hint = did_you_mean(unknown[0], known)
            raise self.error(
                key,
                "an expression uses parameters, derived names, and variables of the problem and the device, but "
                f"`{text}` uses {', '.join(unknown)}{hint}",
            )
        return expression

    def shape(self, key: str, texts: list[str], known: Iterable[str]) -> tuple[Expression, Expression, Expression]:
        if self.document.kernel.source is not None and key not in self.document.launch.model_fields_set:
            raise self.error(
                f"launch.{key}", f"a kernel with a source must have the shape of its launch, but {key} is missing"
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
            raise self.error("kernel.source", f"the source must be in the folder of the bundle, but {name!r} is not")
        return _read(path, MAX_SOURCE_BYTES)


def _tuples(parameters: Mapping[str, Sequence[int]]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(values) for name, values in parameters.items()}


def _hash(*parts: object) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()
