"""Maker of kernels from checked documents: the rules of a kernel.toml that its schema cannot express."""

from __future__ import annotations

import hashlib
import json
import keyword
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

from mltune.errors import BundleError, ExpressionError
from mltune.files.text import did_you_mean, no_such, printable
from mltune.kernel.arrays import ArgumentDefinition, ArraysDefinition, ReferenceEntry, Shape3, arithmetic_of
from mltune.kernel.bundle import DEVICE_VARIABLES, Kernel
from mltune.kernel.coding import CodedValues, check_macro_name, code_default, code_values, spanned
from mltune.kernel.compiler_parameters import code_compiler_parameters
from mltune.kernel.evaluation import FUNCTIONS
from mltune.kernel.expressions import MAX_DEPTH, Expression, Extent, parse
from mltune.kernel.includes import Headers
from mltune.kernel.launch import plain_entry
from mltune.kernel.parts import (
    Access,
    CompilerSpace,
    KernelResources,
    KernelSource,
    KernelSpace,
    LaunchRule,
    Restriction,
)
from mltune.kernel.schema import MAX_PARAMETERS, AccessTable, ArgumentTable, KernelDocument, PresetTable
from mltune.problem.array_values import INITIAL
from mltune.problem.arrays import ArraysProblem, default_tolerance
from mltune.problem.kinds import KINDS

MAX_PARTS = 10_000
"""Most operations, names and numbers of all expressions of a bundle."""

MAX_WRITTEN_OUT = 2_000
"""Most operations, names and numbers of one expression with its derived names written out."""

_TABLES_OF_ARRAYS = {"sizes", "arguments", "macros", "work", "reference", "verify"}


@dataclass(frozen=True, slots=True)
class BundleFiles:
    """The files of a bundle: its source, headers, and by their names the paths of arrays and the controls."""

    folder: Path
    source: str | None
    headers: Headers
    arrays: Mapping[str, Path]
    controls: Mapping[str, bytes]


def make_kernel(document: KernelDocument, files: BundleFiles) -> Kernel:
    """Make the kernel of a document; a ``BundleError`` names the key of what it breaks."""
    return _Maker(document).kernel(files)


def make_presets(document: KernelDocument, whole: Kernel) -> dict[str, Kernel]:
    """Make the presets of a document from its whole kernel."""
    return {name: _Maker(document).preset(whole, name, table) for name, table in document.presets.items()}


class _Maker:
    def __init__(self, document: KernelDocument) -> None:
        self.document = document
        self.problem = document.kernel.problem
        fault = no_such("kind of problem", self.problem, KINDS, f"There are {', '.join(KINDS)}")
        self.require(self.problem in KINDS, "kernel.problem", fault.rstrip("."))
        self.kind = KINDS[self.problem]
        self.is_arrays = self.problem == ArraysProblem.kind
        self.problem_variables = self.kind.variables | set(document.kernel.variables) | set(document.sizes)
        self.variables = {*self.problem_variables, *DEVICE_VARIABLES}
        self.parameters = self.coded("parameters", document.parameters)
        self.launched = self.coded("launch.parameters", document.launch.parameters)
        self.every = {**self.parameters, **self.launched}
        self.parts = 0
        self.extents: dict[str, Extent] = {}

    def error(self, key: str, message: object) -> BundleError:
        return BundleError(f"{printable(key, 80)}: {message}")

    def require(self, holds: bool, key: str, fault: str) -> None:
        if not holds:
            raise self.error(key, fault)

    @contextmanager
    def at(self, key: str) -> Iterator[None]:
        """Name the key in an error."""
        try:
            yield
        except (BundleError, ExpressionError, ValueError) as error:
            raise self.error(key, error) from error

    def kernel(self, files: BundleFiles) -> Kernel:
        document, table, launch = self.document, self.document.kernel, self.document.launch
        self.check_kernel_table()
        self.check_parameters()
        derived = self.derived()
        names = {*self.every, *derived, *self.variables}
        restrictions = self.restrictions("restrictions", document.restrictions, names)
        restrictions += self.restrictions("distinct", document.distinct, names, only_in_search=True)
        estimates = {key: self.expression(f"resources.{key}", text, names) for key, text in document.resources.items()}
        shared_bytes = estimates.get("shared_bytes", parse("0"))
        return Kernel(
            **table.model_dump(
                include={"name", "problem", "precisions", "accuracy", "candidate", "batched", "epilogues"}
            ),
            folder=files.folder,
            source=KernelSource(
                text=files.source,
                headers=files.headers.texts,
                header_paths=files.headers.paths,
                sha256=self.source_hash(files, shared_bytes),
                architecture=table.architecture or "",
                **table.model_dump(include={"entry", "include", "options", "same_as"}),
            ),
            space=self.space(derived, restrictions),
            compiler=CompilerSpace(**spanned(self.compiler(files)), controls=files.controls),
            launch_rule=LaunchRule(
                block=self.launch_shape("block", launch.block, names),
                grid=self.launch_shape("grid", launch.grid, names),
                shared_bytes=shared_bytes,
                workspace=self.optional("launch.workspace", launch.workspace, names),
                zeros=self.optional("launch.zeros", launch.zeros, names),
                arguments=tuple(launch.arguments),
                tensor_maps=tuple(self.tensor_maps(names)),
            ),
            resources=KernelResources(
                estimates=estimates,
                accesses={name: self.access(name, access, names) for name, access in document.access.items()},
                unit=table.unit or "",
                guides=table.physics,
            ),
            arrays=self.arrays(files, names) if self.is_arrays else None,
        )

    def space(self, derived: Mapping[str, Expression], restrictions: Sequence[Restriction]) -> KernelSpace:
        compiled, launched = spanned(self.parameters), spanned(self.launched)["parameters"]
        labels, compiler = compiled["labels"], self.document.compiler
        return KernelSpace(
            **compiled,
            launch_parameters=launched,
            derived=derived,
            restrictions=tuple(restrictions),
            default=self.default(),
            variables=frozenset(self.problem_variables),
            sha256=_hash(
                list(compiled["parameters"].items()),
                list(launched.items()),
                *([list(labels.items())] if labels else []),
                {name: expression.text for name, expression in derived.items()},
                [restriction.text for restriction in restrictions],
                *([list(compiler.items())] if compiler else []),
            ),
        )

    def preset(self, whole: Kernel, name: str, table: PresetTable) -> Kernel:
        """Return a part of the space of a kernel."""
        names = {*self.every, *whole.space.derived, *self.variables}
        restrictions = self.restrictions(f"presets.{name}.restrictions", table.restrictions, names)
        with self.at(f"presets.{name}.values"):
            part = whole.with_values(
                {
                    name: [self.every[name].code(value, name) for value in values] if name in self.every else ()
                    for name, values in table.values.items()
                }
            )
        texts, restrictions = [chosen.text for chosen in restrictions], (*whole.space.restrictions, *restrictions)
        sha256 = _hash(whole.space.sha256, list(part.all_parameters.items()), texts)
        return replace(part, space=replace(part.space, preset=name, restrictions=restrictions, sha256=sha256))

    def check_kernel_table(self) -> None:
        """Check that the document has the keys of its kind of problem."""
        kernel, legal, kind = self.document.kernel, self.kind.precisions, repr(self.problem)
        law = f"at least one of {', '.join(legal)}" if legal else "no `precisions`"
        fits = bool(kernel.precisions) == bool(legal) and set(kernel.precisions) <= set(legal)
        self.require(
            fits, "kernel.precisions", f"{list(kernel.precisions)} cannot be: a kernel of problem {kind} has {law}"
        )
        are_free = not self.kind.variables and not self.is_arrays
        fault = f"the variables of problem {kind} are {'its sizes' if self.is_arrays else 'known'}; leave the key out"
        self.require(are_free or not kernel.variables, "kernel.variables", fault)
        for key, names in (("kernel.variables", kernel.variables), ("sizes", self.document.sizes)):
            for name in names:
                free = name not in FUNCTIONS and name not in DEVICE_VARIABLES and not keyword.iskeyword(name)
                fault = f"{name!r} is a keyword, or the name of a function or a device's variable"
                self.require(free, key, fault)
        tables = self.document.model_fields_set & _TABLES_OF_ARRAYS
        if tables and not self.is_arrays:
            raise self.error(min(tables), f"a kernel of problem {kind} has no such table; one of 'arrays' has")
        has_source = kernel.source is not None
        self.require(has_source or not self.is_arrays, "kernel.source", "it is missing, but 'arrays' needs a source")
        fault = f"`source` is set, but a kernel of problem {kind} is only replayed"
        self.require(not has_source or self.kind.can_be_built, "kernel.source", fault)
        fault = "one of source and entry is missing; give both or neither"
        self.require(has_source == (kernel.entry is not None), "kernel", fault)
        for key, names in (("headers", kernel.headers), ("include", kernel.include)):
            self.require(has_source or not names, f"kernel.{key}", f"there is no source, to which {key} belong")

    def coded(self, key: str, table: Mapping[str, Sequence[object]]) -> dict[str, CodedValues]:
        coded = {}
        for name, values in table.items():
            texts = sum(isinstance(value, str) for value in values)
            fault = f"{values} mixes numbers and texts; the values of a parameter are all numbers or all texts"
            self.require(texts in (0, len(values)), f"{key}.{name}", fault)
            with self.at(f"{key}.{name}"):
                coded[name] = code_values(values)
        return coded

    def check_parameters(self) -> None:
        names, arguments = [*self.parameters, *self.launched], self.document.launch.arguments
        for name in self.parameters if self.document.kernel.source is not None else ():
            self.check_macro(f"parameters.{name}", name)
        for name, coded in self.launched.items():
            fault = f"{list(coded.listed)} has others than integers, but a parameter passed at launch is one"
            self.require(coded.labels is None, f"launch.parameters.{name}", fault)
            fault = "the parameter is also compiled in; leave one of them out"
            self.require(name not in self.parameters, f"launch.parameters.{name}", fault)
        fault = f"{len(names)} parameters are too many; a kernel has at most {MAX_PARAMETERS}"
        self.require(len(names) <= MAX_PARAMETERS, "launch.parameters", fault)
        taken = {*self.variables, *FUNCTIONS}
        for name in names:
            fault = f"the name is that of a macro of {self.problem!r}; rename the parameter"
            self.require(name not in self.kind.macros, f"parameters.{name}", fault)
            fault = "the name is that of a variable, a function or a keyword; rename the parameter"
            self.require(name not in taken and not keyword.iskeyword(name), f"parameters.{name}", fault)
        fault = "two names differ only in case; rename a parameter"
        self.require(len({name.lower() for name in names}) == len(names), "parameters", fault)
        fault = f"{arguments} has unknown arguments; they are some of {[*self.launched]}"
        self.require(set(arguments) <= self.launched.keys(), "launch.arguments", fault)

    def compiler(self, files: BundleFiles) -> dict[str, CodedValues]:
        """Return the compiler parameters of a kernel that is compiled."""
        table = self.document.compiler
        if files.source is None:
            self.require(not table, "compiler", "there is no source, to which compiler parameters belong")
            return {}
        texts, entry = [files.source, *files.headers.texts.values()], self.document.kernel.entry or ""
        with self.at("compiler"):
            return code_compiler_parameters(table, [*self.every], texts, plain_entry(entry))

    def check_macro(self, key: str, name: str) -> None:
        with self.at(key):
            check_macro_name(name)

    def default(self) -> dict[str, int]:
        """Return the default configuration, empty where there is none."""
        with self.at("default"):
            return code_default(self.document.default, self.every) if self.document.default else {}

    def derived(self) -> dict[str, Expression]:
        """Return the derived names, each after the names that it uses."""
        texts = self.document.derived
        taken = {*self.every, *self.variables, *FUNCTIONS}
        for name in texts:
            fault = "the name is that of a parameter, a variable or a function; rename it"
            self.require(name not in taken, f"derived.{name}", fault)
        names = {*self.every, *self.variables, *texts}
        expressions = {name: self.expression(f"derived.{name}", text, names) for name, text in texts.items()}
        uses = {name: expression.names & texts.keys() for name, expression in expressions.items()}
        try:
            order = list(TopologicalSorter(uses).static_order())
        except CycleError as error:
            circle = ", ".join(f"{name} = `{printable(texts[name], 80)}`" for name in error.args[1][1:])
            raise self.error("derived", f"names depend on each other in a circle: {circle}") from error
        for name in order:
            self.extents[name] = self.extent(f"derived.{name}", expressions[name])
        return {name: expressions[name] for name in order}

    def expression(self, key: str, text: str, names: Iterable[str]) -> Expression:
        with self.at(key):
            expression = parse(text)
        unknown = sorted(expression.names - set(names))
        if unknown:
            hint = did_you_mean(unknown[0], names)
            raise self.error(
                key,
                f"`{printable(text, 120)}` uses {printable(', '.join(unknown), 120)}, but an expression uses "
                f"parameters, derived names, and variables of the problem and the device{hint}",
            )
        self.extent(key, expression)
        self.parts += expression.parts
        fault = f"all expressions together have too many parts; a bundle has at most {MAX_PARTS}"
        self.require(self.parts <= MAX_PARTS, key, fault)
        return expression

    def extent(self, key: str, expression: Expression) -> Extent:
        """Return the extent of an expression with its derived names written out, after checking it."""
        extent = expression.extent(self.extents)
        self.require(
            extent.parts <= MAX_WRITTEN_OUT and extent.depth <= MAX_DEPTH,
            key,
            f"with its derived names written out it has {extent.parts:.4g} parts and is nested {extent.depth} deep, "
            f"more than {MAX_WRITTEN_OUT} parts or {MAX_DEPTH} deep",
        )
        return extent

    def optional(self, key: str, text: str | None, names: Iterable[str]) -> Expression | None:
        return None if text is None else self.expression(key, text, names)

    def tensor_maps(self, names: Iterable[str]) -> Iterator[tuple[int, tuple[Expression, ...]]]:
        """Yield the place of the array of each tensor map among the arguments, and its fields."""
        arguments = [name for name, table in self.document.arguments.items() if table.role != "constant"]
        arguments = arguments or [*self.kind.arguments]
        for name, texts in (self.document.launch.tensor_maps or {}).items():
            key = f"launch.tensor_maps.{name}"
            self.require(name in arguments, key, f"no argument has the name; they are {', '.join(arguments)}")
            yield arguments.index(name), tuple(self.expression(key, text, names) for text in texts)

    def restrictions(
        self, key: str, texts: Mapping[str, str], names: Iterable[str], *, only_in_search: bool = False
    ) -> tuple[Restriction, ...]:
        return tuple(
            Restriction(self.expression(f"{key}.`{text}`", text, names), printable(reason), only_in_search)
            for text, reason in texts.items()
        )

    def access(self, name: str, table: AccessTable, names: Iterable[str]) -> Access:
        def of(key: str, text: str) -> Expression:
            return self.expression(f"access.{name}.{key}", text, names)

        lanes = tuple((of("lanes", radix), of("lanes", stride)) for radix, stride in table.lanes)
        return Access(table.memory, of("count", table.count), of("bytes", table.bytes), lanes)

    def launch_shape(self, key: str, texts: Sequence[str], names: Iterable[str]) -> Shape3:
        is_set = self.document.kernel.source is None or key in self.document.launch.model_fields_set
        fault = f"{key} is missing; a kernel with a source has the shape of its launch"
        self.require(is_set, f"launch.{key}", fault)
        return self.shape(f"launch.{key}", texts, names)

    def shape(self, key: str, texts: Sequence[str], names: Iterable[str]) -> Shape3:
        x, y, z = (self.expression(key, text, names) for text in [*texts, "1", "1"][:3])
        return x, y, z

    def arrays(self, files: BundleFiles, names: Iterable[str]) -> ArraysDefinition:
        """Return the arguments and sizes of a kernel of any kind."""
        document, sizes, work = self.document, self.document.sizes, self.document.work
        for name in document.macros:
            fault = "the name is that of a parameter; rename the macro"
            self.require(name not in self.every, f"macros.{name}", fault)
            self.check_macro(f"macros.{name}", name)
        arguments = tuple(self.argument(name, table, files) for name, table in document.arguments.items())
        written = {argument.name for argument in arguments if argument.role in ("out", "inout")}
        fault = 'no argument is written; at least one must be an array of role "out" or "inout"'
        self.require(bool(written), "arguments", fault)
        for position, check in enumerate(document.verify):
            for name in check.keys() - sizes.keys():
                raise self.error(f"verify.{position}", f"{name!r} is no size{did_you_mean(name, sizes)}")
        macros = {name: self.expression(f"macros.{name}", text, sizes) for name, text in document.macros.items()}
        return ArraysDefinition(
            name=document.kernel.name,
            sizes=sizes,
            arguments=arguments,
            definitions=macros,
            flops=self.optional("work.flops", work.flops, sizes),
            bytes=self.optional("work.bytes", work.bytes, sizes),
            arithmetic=work.arithmetic or arithmetic_of(arguments),
            checks=tuple(document.verify),
            reference=self.reference(names),
            answer=self.answer(written, files),
        )

    def argument(self, name: str, table: ArgumentTable, files: BundleFiles) -> ArgumentDefinition:
        key, sizes, initial = f"arguments.{name}", self.document.sizes, table.initial
        fault = "it has both a shape and a value, or neither; an array has a shape and a scalar a value"
        self.require((table.shape is None) != (table.value is None), key, fault)
        fault = f"role cannot be {table.role!r}: a scalar is read and has no role"
        self.require(table.shape is not None or table.role == "in", key, fault)
        if isinstance(initial, str) and initial.endswith(".npy"):
            initial = self.array_file(f"{key}.initial", initial, files)
        elif isinstance(initial, str):
            law = f"Initial values are a number, one of {', '.join(INITIAL)}, or an .npy file"
            wrong = no_such("kind of initial values", initial, INITIAL, law).rstrip(".")
            self.require(initial in INITIAL, f"{key}.initial", wrong)
        shape = table.shape
        return ArgumentDefinition(
            name,
            table.dtype,
            None if shape is None else tuple(self.expression(f"{key}.shape", extent, sizes) for extent in shape),
            table.role,
            initial,
            self.optional(f"{key}.value", table.value, sizes),
            default_tolerance(table.dtype) if table.tolerance is None else table.tolerance,
            self.optional(f"{key}.absolute", table.absolute, sizes),
        )

    def reference(self, names: Iterable[str]) -> ReferenceEntry | None:
        table = self.document.reference
        if table.entry is None:
            return None
        fault = "it has both an entry and files of the right answer; leave one out"
        self.require(not table.answer, "reference", fault)
        block = self.shape("reference.block", table.block, names)
        return ReferenceEntry(table.entry, block, self.shape("reference.grid", table.grid, names))

    def answer(self, written: Iterable[str], files: BundleFiles) -> dict[str, str]:
        answer = self.document.reference.answer
        for name in answer.keys() - set(written):
            fault = f"{name} is no output, of which alone an answer is given{did_you_mean(name, written)}"
            raise self.error(f"reference.answer.{name}", fault)
        return {name: self.array_file(f"reference.answer.{name}", file, files) for name, file in answer.items()}

    def array_file(self, key: str, name: str, files: BundleFiles) -> str:
        fault = f"there is no file {printable(name, 120)!r} in the folder of the bundle"
        self.require(name in files.arrays, key, fault)
        return str(files.arrays[name])

    def source_hash(self, files: BundleFiles, shared_bytes: Expression) -> str:
        if files.source is None:
            return ""
        launch = self.document.launch.model_dump(exclude_none=True, exclude={"zeros"})  # no launch depends on it
        kernel = self.document.kernel
        controls = {name: content.hex() for name, content in files.controls.items()}
        further = [part for part in (files.headers.texts, kernel.options, kernel.architecture, controls) if part]
        return _hash(files.source, kernel.entry, launch, shared_bytes.text, *further)


def _hash(*parts: object) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()
