"""Reading and checking of kernel bundles."""

from __future__ import annotations

import contextlib
import hashlib
import json
import keyword
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

from pydantic import ValidationError

from mltune.errors import BundleError, ExpressionError
from mltune.files import assets
from mltune.files.documents import parse_toml
from mltune.files.opening import check_folder
from mltune.files.reading import read_text, reason
from mltune.files.text import did_you_mean, printable
from mltune.files.validation import problems_of
from mltune.kernel.arrays import ArgumentDefinition, ArraysDefinition, ReferenceEntry
from mltune.kernel.bundle import DEVICE_VARIABLES, Access, Kernel, Restriction
from mltune.kernel.evaluation import FUNCTIONS
from mltune.kernel.expressions import MAX_DEPTH, Expression, Extent, parse
from mltune.kernel.includes import Headers, IncludeFolders
from mltune.kernel.names import check_macro_name
from mltune.kernel.schema import (
    HEADER_PATH,
    MAX_PARAMETERS,
    AccessTable,
    ArgumentTable,
    Document,
    ParameterValue,
    PresetTable,
)
from mltune.problem.array_values import INITIAL
from mltune.problem.arrays import ArraysProblem, default_tolerance
from mltune.problem.kinds import KINDS

MAX_DOCUMENT_BYTES = 2**20
"""Largest size of a kernel.toml."""

MAX_SOURCE_BYTES = 2**24
"""Largest size of a kernel source and its headers together."""

MAX_PARTS = 10_000
"""Most operations, names and numbers of all expressions of a bundle."""

MAX_WRITTEN_OUT = 2_000
"""Most operations, names and numbers of one expression with its derived names written out."""


def load_kernel(name_or_path: str | Path) -> Kernel:
    """Load a kernel bundle.

    Parameters
    ----------
    name_or_path : str or pathlib.Path
        The name of a built-in kernel, or the path of a folder; followed by ``:NAME``, one of its presets, a part of its
        space.

    Raises
    ------
    BundleError
        There is no such bundle or preset, or it is malformed. The message names the file and the key.

    Examples
    --------
    >>> load_kernel("gemm_simt").launch_parameters
    {'RASTER_GROUP': (1, 2, 4, 8, 16)}
    """
    bundle, preset = _with_preset(name_or_path)
    path = _find_bundle(bundle) / "kernel.toml"
    return _Reader(path, _validated(path, _read(path, MAX_DOCUMENT_BYTES))).kernel(preset)


def is_bundle(name_or_path: str | Path) -> bool:
    """Return whether there is a built-in kernel of a name, or a bundle in a folder."""
    return _located(_with_preset(name_or_path)[0]) is not None


def _with_preset(name_or_path: str | Path) -> tuple[str | Path, str]:
    """Split a name into that of a bundle and that of a preset, which is empty where none is named."""
    bundle, colon, preset = str(name_or_path).rpartition(":")
    if colon and _located(name_or_path) is None and _located(bundle) is not None:
        return bundle, preset
    return name_or_path, ""


def built_in() -> list[str]:
    """Return the names of the built-in kernels."""
    return sorted(path.parent.name for path in assets.folder("kernels").glob("*/kernel.toml"))


def _located(name_or_path: str | Path) -> Path | None:
    if isinstance(name_or_path, str) and name_or_path in built_in():
        return assets.folder("kernels") / name_or_path
    folder = Path(name_or_path)
    return folder.resolve() if name_or_path != "" and os.path.lexists(folder / "kernel.toml") else None


def _find_bundle(name_or_path: str | Path) -> Path:
    found, names = _located(name_or_path), built_in()
    if found is not None:
        return found
    raise BundleError(
        f"a kernel is a built-in one ({', '.join(names) or 'none are installed'}) or a folder that holds a "
        f"kernel.toml, got {printable(name_or_path, 300)!r}{did_you_mean(str(name_or_path), names) or '.'}"
    )


def _refused(path: Path, message: object) -> BundleError:
    text = printable(message, 600)
    end = "" if text.endswith("?") else "."
    return BundleError(f"{printable(path, 300)}: {text}{end} See docs/reference/kernel-toml.md.")


def _read(path: Path, limit: int) -> str:
    """Read a file of a bundle, whose links lead to nothing outside the bundle."""
    if not Path(os.path.realpath(path)).is_relative_to(os.path.realpath(path.parent)):
        raise _refused(path, "a file of a bundle must be in its folder, but this is a link that leads out of it")
    try:
        text = read_text(path, limit)
    except OSError as error:
        raise _refused(path, f"a file of a bundle must be readable text: {reason(error)}") from error
    if "\0" in text:
        raise _refused(path, "a file of a bundle must be text, but this one has a zero byte")
    return text.removeprefix("\ufeff")


def _validated(path: Path, text: str) -> Document:
    try:
        document = parse_toml(text)
        return Document.model_validate(document)
    except ValidationError as error:
        raise _refused(path, problems_of(error, document, model=Document)) from error
    except ValueError as error:
        raise _refused(path, f"a kernel.toml must be valid TOML: {error}") from error


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
        self.is_arrays = self.problem == ArraysProblem.kind
        self.check_kernel_table()
        self.problem_variables = self.kind.variables | set(document.kernel.variables) | set(document.sizes)
        self.variables = {*self.problem_variables, *DEVICE_VARIABLES}
        self.parts = 0
        self.extents: dict[str, Extent] = {}

    def error(self, key: str, message: object) -> BundleError:
        return _refused(self.path, f"{printable(key, 80)}: {message}")

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
        if kernel.variables and self.is_arrays:
            raise self.error("kernel.variables", "the variables of problem 'arrays' are its sizes; leave the key out")
        for key, names in (("kernel.variables", kernel.variables), ("sizes", self.document.sizes)):
            for name in names:
                if name in FUNCTIONS or name in DEVICE_VARIABLES or keyword.iskeyword(name):
                    raise self.error(key, f"{name!r} is a keyword, or the name of a function or a device's variable")
        given = self.document.model_fields_set & {"sizes", "arguments", "macros", "work", "reference", "verify"}
        if given and not self.is_arrays:
            raise self.error(
                min(given), f"only a kernel of problem 'arrays' has this table, not one of {self.problem!r}"
            )
        if self.is_arrays and kernel.source is None:
            raise self.error("kernel.source", "a kernel of problem 'arrays' has a source")
        if kernel.source is not None and not self.kind.can_be_built:
            raise self.error("kernel.source", f"a kernel of problem {self.problem!r} is only replayed: no `source`")

    def kernel(self, preset: str = "") -> Kernel:
        """Return the kernel, or a preset of it; all presets are checked."""
        whole = self.whole()
        presets = {name: self.preset(whole, name, table) for name, table in self.document.presets.items()}
        if preset and preset not in presets:
            names = ", ".join(presets) or "there is none"
            hint = did_you_mean(preset, presets) or "."
            raise BundleError(
                f"a preset of {whole.name} is one of its own ({names}), got {printable(preset, 60)!r}{hint}"
            )
        return presets[preset] if preset else whole

    def preset(self, whole: Kernel, name: str, table: PresetTable) -> Kernel:
        """Return a part of the space of a kernel."""
        known = {*whole.all_parameters, *whole.derived, *self.variables}
        restrictions = tuple(
            Restriction(self.expression(f"presets.{name}.restrictions.`{text}`", text, known), printable(reason))
            for text, reason in table.restrictions.items()
        )
        try:
            part = whole.with_values(
                {name: _codes(values, whole.labels.get(name)) for name, values in table.values.items()}
            )
        except (BundleError, ValueError) as error:
            raise self.error(f"presets.{name}.values", error) from error
        return replace(
            part,
            preset=name,
            restrictions=(*whole.restrictions, *restrictions),
            space_hash=_hash(whole.space_hash, list(part.all_parameters.items()), [one.text for one in restrictions]),
        )

    def whole(self) -> Kernel:
        document, launch = self.document, self.document.launch
        parameters, launch_parameters = self.parameters()
        derived = self.derived({*parameters, *launch_parameters})
        known = {*parameters, *launch_parameters, *derived, *self.variables}
        restrictions = tuple(
            Restriction(self.expression(f"restrictions.`{text}`", text, known), printable(reason))
            for text, reason in document.restrictions.items()
        )
        resources = {key: self.expression(f"resources.{key}", text, known) for key, text in document.resources.items()}
        shared_bytes = resources.get("shared_bytes", parse("0"))
        workspace = None if launch.workspace is None else self.expression("launch.workspace", launch.workspace, known)
        source = self.source()
        headers = self.headers(source)
        return Kernel(
            name=document.kernel.name,
            folder=self.path.parent,
            source=source,
            headers=headers.texts,
            header_paths=headers.paths,
            include=tuple(document.kernel.include),
            source_hash=self.source_hash(source, headers.texts, shared_bytes),
            space_hash=_hash(
                list(parameters.items()),
                list(launch_parameters.items()),
                *([list(self.labels().items())] if self.labels() else []),
                {name: expression.text for name, expression in derived.items()},
                [restriction.text for restriction in restrictions],
            ),
            entry=document.kernel.entry,
            problem=self.problem,
            precisions=tuple(document.kernel.precisions),
            architecture=document.kernel.architecture or "",
            unit=document.kernel.unit or "",
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
            workspace=workspace,
            options=tuple(document.kernel.options),
            accuracy=document.kernel.accuracy,
            candidate=document.kernel.candidate,
            batched=document.kernel.batched,
            same_as=frozenset(document.kernel.same_as),
            labels=self.labels(),
            default=self.default({**parameters, **launch_parameters}),
            arrays=self.arrays(known) if self.is_arrays else None,
        )

    def arrays(self, known: Iterable[str]) -> ArraysDefinition:
        """Return the arguments and sizes of a kernel of any kind."""
        document, sizes = self.document, self.document.sizes

        def over_sizes(key: str, text: str | None) -> Expression | None:
            return None if text is None else self.expression(key, text, sizes)

        doubles = any(one.dtype in ("float64", "complex128") for one in document.arguments.values())
        for name in document.macros:
            if name in {*document.parameters, *document.launch.parameters}:
                raise self.error(f"macros.{name}", "a macro must not have the name of a parameter")
            self.check_macro(f"macros.{name}", name)
        arguments = tuple(self.argument(name, table) for name, table in document.arguments.items())
        written = {one.name for one in arguments if one.role in ("out", "inout")}
        if not written:
            raise self.error("arguments", 'at least one argument must be an array of role "out" or "inout"')
        for position, check in enumerate(document.verify):
            for name in check.keys() - sizes.keys():
                raise self.error(f"verify.{position}", f"{name!r} is no size{did_you_mean(name, sizes)}")
        return ArraysDefinition(
            name=document.kernel.name,
            sizes=sizes,
            arguments=arguments,
            definitions={
                name: self.expression(f"macros.{name}", text, sizes) for name, text in document.macros.items()
            },
            flops=over_sizes("work.flops", document.work.flops),
            bytes=over_sizes("work.bytes", document.work.bytes),
            arithmetic=document.work.arithmetic or ("fp64" if doubles else "fp32"),
            checks=tuple(document.verify),
            reference=self.reference(known),
            answer=self.answer(written),
        )

    def argument(self, name: str, table: ArgumentTable) -> ArgumentDefinition:
        key, sizes = f"arguments.{name}", self.document.sizes
        if (table.shape is None) == (table.value is None):
            raise self.error(key, "an array has a shape and a scalar a value; give one of them")
        if table.shape is None and table.role != "in":
            raise self.error(key, f"a scalar is read and has no role, got {table.role!r}")
        initial = table.initial
        if isinstance(initial, str) and initial.endswith(".npy"):
            initial = str(self.array_file(f"{key}.initial", initial))
        elif isinstance(initial, str) and initial not in INITIAL:
            hint = did_you_mean(initial, INITIAL)
            raise self.error(
                f"{key}.initial",
                f"initial values are a number, one of {', '.join(INITIAL)}, or an .npy file, got {initial!r}{hint}",
            )
        return ArgumentDefinition(
            name,
            table.dtype,
            None if table.shape is None else tuple(self.expression(f"{key}.shape", one, sizes) for one in table.shape),
            table.role,
            initial,
            None if table.value is None else self.expression(f"{key}.value", table.value, sizes),
            default_tolerance(table.dtype) if table.tolerance is None else table.tolerance,
        )

    def reference(self, known: Iterable[str]) -> ReferenceEntry | None:
        table = self.document.reference
        if table.entry is None:
            return None
        if table.answer:
            raise self.error("reference", "the right answer comes from an entry or from files, not from both")
        block, grid = (
            [self.expression(f"reference.{key}", text, known) for text in [*texts, "1", "1"][:3]]
            for key, texts in (("block", table.block), ("grid", table.grid))
        )
        return ReferenceEntry(table.entry, (block[0], block[1], block[2]), (grid[0], grid[1], grid[2]))

    def answer(self, written: Iterable[str]) -> dict[str, str]:
        answer = self.document.reference.answer
        for name in answer.keys() - set(written):
            raise self.error(
                f"reference.answer.{name}", f"an answer is given for an output{did_you_mean(name, written)}"
            )
        return {name: str(self.array_file(f"reference.answer.{name}", file)) for name, file in answer.items()}

    def array_file(self, key: str, name: str) -> Path:
        """Return the path of a file in the bundle's folder."""
        folder = self.path.parent
        with contextlib.suppress(OSError, ValueError):  # a name that is too long, or has a zero byte
            path = Path(os.path.realpath(folder / name))
            if path.is_relative_to(os.path.realpath(folder)) and path.is_file():
                return path
        raise self.error(key, f"there must be a file {printable(name, 120)!r} in the folder of the bundle")

    def labels(self) -> dict[str, tuple[float | str, ...]]:
        """Return the values of the parameters that are not integers, by parameter."""
        return {
            name: tuple(str(value) if _has_text(values) else float(value) for value in values)
            for name, values in self.document.parameters.items()
            if not _are_integers(values)
        }

    def default(self, parameters: Mapping[str, Sequence[int]]) -> dict[str, int]:
        """Return the default configuration; a parameter with labels is given by its position."""
        given = self.document.default
        if not given:
            return {}
        if given.keys() != parameters.keys():
            lacking, unknown = sorted(parameters.keys() - given.keys()), sorted(given.keys() - parameters.keys())
            fact = f"lacks {', '.join(lacking)}" if lacking else f"has {', '.join(unknown)}"
            raise self.error("default", f"a default configuration has a value of every parameter, but this one {fact}")
        listed = {**self.document.parameters, **self.document.launch.parameters}
        for name, value in given.items():
            if value not in listed[name]:
                raise self.error(f"default.{name}", f"a default is one of the values {listed[name]}, got {value!r}")
        return {name: int(parameters[name][listed[name].index(given[name])]) for name in parameters}

    def check_macro(self, key: str, name: str) -> None:
        try:
            check_macro_name(name)
        except BundleError as error:
            raise self.error(key, error) from error

    def parameters(self) -> tuple[dict[str, tuple[int, ...]], dict[str, tuple[int, ...]]]:
        compiled, launched = self.document.parameters, self.document.launch.parameters
        arguments = self.document.launch.arguments
        for key, table in (("parameters", compiled), ("launch.parameters", launched)):
            for name, values in table.items():
                if _has_text(values) and not all(isinstance(value, str) for value in values):
                    raise self.error(
                        f"{key}.{name}", f"the values of a parameter are all numbers or all texts, got {values}"
                    )
                if len(set(values)) != len(values):
                    raise self.error(f"{key}.{name}", f"the values of a parameter must be distinct, got {values}")
                if name in self.kind.macros:
                    raise self.error(
                        f"{key}.{name}", f"a parameter must not have the name of a macro of {self.problem!r}"
                    )
        for name in compiled if self.document.kernel.source is not None else ():
            self.check_macro(f"parameters.{name}", name)
        for name, values in launched.items():
            if not _are_integers(values):
                raise self.error(
                    f"launch.parameters.{name}", f"a parameter passed at launch is an integer, got {values}"
                )
        if len(compiled) + len(launched) > MAX_PARAMETERS:
            raise self.error(
                "launch.parameters",
                f"a kernel has at most {MAX_PARAMETERS} parameters, got {len(compiled) + len(launched)}",
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
            order = list(TopologicalSorter(uses).static_order())
        except CycleError as error:
            circle = ", ".join(f"{name} = `{printable(texts[name], 80)}`" for name in error.args[1][1:])
            raise self.error(
                "derived", f"derived names must not depend on each other in a circle, but these do: {circle}"
            ) from error
        for name in order:
            self.extents[name] = self.extent(f"derived.{name}", expressions[name])
        return {name: expressions[name] for name in order}

    def extent(self, key: str, expression: Expression) -> Extent:
        """Return the extent of an expression with its derived names written out, after checking it."""
        extent = expression.extent(self.extents)
        if extent.parts > MAX_WRITTEN_OUT or extent.depth > MAX_DEPTH:
            raise self.error(
                key,
                f"an expression with its derived names written out has at most {MAX_WRITTEN_OUT} parts and is nested "
                f"at most {MAX_DEPTH} deep, but this one has {extent.parts:.4g} and is {extent.depth} deep",
            )
        return extent

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
                f"`{printable(text, 120)}` uses {printable(', '.join(unknown), 120)}{hint}",
            )
        self.extent(key, expression)
        self.parts += expression.parts
        if self.parts > MAX_PARTS:
            raise self.error(key, f"all expressions of a bundle together have at most {MAX_PARTS} parts")
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
        return _read(self.path.parent / name, MAX_SOURCE_BYTES)

    def headers(self, source: str | None) -> Headers:
        """Return the headers, those listed and those that are included from a folder, which are of limited size."""
        table = self.document.kernel
        for key in ("headers", "include"):
            names = getattr(table, key)
            if names and source is None:
                raise self.error(f"kernel.{key}", f"{key} belong to a source, but there is none")
            if len(set(names)) != len(names):
                raise self.error(f"kernel.{key}", f"{key} must be distinct, got {names}")
        texts, left = {}, MAX_SOURCE_BYTES
        for name in table.headers:
            texts[name] = _read(self.path.parent / name, left)
            left -= len(texts[name].encode())
        folders = self.include_folders()
        finder = IncludeFolders(table.source or "", folders, self.path.parent, HEADER_PATH, MAX_SOURCE_BYTES)
        try:
            return finder.headers(source or "", texts)
        except ValueError as error:
            raise self.error("kernel.include", error) from error

    def include_folders(self) -> dict[str, Path]:
        """Return the folders of headers by name; each is one inside the bundle, and lies behind no link."""
        root = self.path.parent
        for name in self.document.kernel.include:
            try:
                check_folder(root / name, inside=root)
            except OSError as error:
                raise self.error(
                    "kernel.include",
                    f"a folder of headers must lie in the folder of the bundle, but {name}: {reason(error)}",
                ) from error
        return {name: root / name for name in self.document.kernel.include}

    def source_hash(self, source: str | None, headers: Mapping[str, str], shared_bytes: Expression) -> str:
        if source is None:
            return ""
        launch = self.document.launch.model_dump(exclude_none=True)  # what a bundle leaves out changes no hash
        kernel = self.document.kernel
        further = [part for part in (headers, kernel.options, kernel.architecture) if part]
        return _hash(source, self.document.kernel.entry, launch, shared_bytes.text, *further)


def _tuples(parameters: Mapping[str, Sequence[ParameterValue]]) -> dict[str, tuple[int, ...]]:
    """Return integer values by parameter: for those with labels the positions of these."""
    return {
        name: tuple(map(int, values)) if _are_integers(values) else tuple(range(len(values)))
        for name, values in parameters.items()
    }


def _codes(values: Sequence[ParameterValue], labels: Sequence[float | str] | None) -> list[int]:
    """Return values of a parameter as integers: of one with labels their positions.

    Raises
    ------
    ValueError
        A value is no integer, or no label.
    """
    legal = [value for value in values if (isinstance(value, int) if labels is None else value in labels)]
    if len(legal) < len(values):
        among = "integers" if labels is None else f"among {printable(list(labels), 300)}"
        raise ValueError(f"the values of this parameter are {among}, got {printable(list(values), 300)}")
    return [int(value) if labels is None else labels.index(value) for value in values]


def _are_integers(values: Sequence[ParameterValue]) -> bool:
    return all(isinstance(value, int) for value in values)


def _has_text(values: Sequence[ParameterValue]) -> bool:
    return any(isinstance(value, str) for value in values)


def _hash(*parts: object) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()
