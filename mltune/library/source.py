"""The C source of a library: its content, and the templates that it fills."""

from __future__ import annotations

import ctypes
import json
import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mltune.errors import UsageError
from mltune.library.c_expressions import CValue, to_c
from mltune.library.dispatcher import MOST_ALIGNED, Dispatcher
from mltune.records.versions import __version__
from mltune.results.winner import one_line
from mltune.results.winner_texts import text_templates

TEMPLATES = Path(__file__).parent / "templates"

ABI = 1
"""Version of the interface in C, and of the document."""

COUNTERS = 1 << 18
"""Bytes at the beginning of a workspace that are zero between calls: the counters of kernels that set them back."""

C_TYPES = {
    **{f"{sign}int{bits}": f"{sign}int{bits}_t" for sign in ("", "u") for bits in (8, 16, 32, 64)},
    "float32": "float",
    "float64": "double",
    "bool": "uint8_t",
}
"""Types of C by those of scalars; one that is missing is passed by its address."""

_WORDS = (
    "alignas alignof and and_eq asm auto bitand bitor bool break case catch char class compl concept const consteval "
    "constexpr constinit const_cast continue co_await co_return co_yield decltype default delete do double "
    "dynamic_cast else enum errno explicit export extern false float for friend goto if inline int linux long mutable "
    "namespace new noexcept not not_eq nullptr operator or or_eq private protected public register reinterpret_cast "
    "requires restrict return short signed sizeof static static_assert static_cast struct switch template this "
    "thread_local throw true try typedef typeid typename typeof union unix unsigned using virtual void volatile while "
    "xor xor_eq count arguments context grows is_other launch library memory s status stream undefined words "
    "workspace workspace_bytes bounded checked choose chosen expected fits integer leaf_of load place refused squared "
    "whole bad main whole_waves inputs_of is_power is_pow2 alloca assert offsetof signbit isfinite isnormal isgreater "
    "isgreaterequal isless islessequal islessgreater isunordered fpclassify isnan isinf fd_set uint ulong ushort std "
    "typeof_unqual i386"
)
_FUNCTIONS = ("add", "sub", "neg", "mul", "div", "floor_div", "mod", "ceil_div", "min", "max", "abs", "log2", "pow")
_TAKEN = frozenset(_WORDS.split()) | {f"{function}_{kind}" for function in _FUNCTIONS for kind in "if"}
"""Words of C and C++, and names that the templates use where a library's function is known."""

_EXPORTED = ("", "_create", "_destroy", "_choice", "_configuration", "_error", "_packed")
"""What follows the name of a library in the names that its shared object exports."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """An argument of the kernel, and how a call of the library gives it.

    Attributes
    ----------
    name : str
    dtype : str
        One of :data:`~mltune.problem.array_values.DTYPES`; of an array that of its elements.
    role : {"size", "in", "out", "inout", "scalar", "computed"}
        A size of the call; an array; a scalar that the caller chooses; one that follows from the sizes.
    value : str
        The formula of one that is computed.
    """

    name: str
    dtype: str
    role: str
    value: str = ""


@dataclass(frozen=True, slots=True)
class Configuration:
    """A configuration of a kernel in a library: machine code, its launch as formulas of the sizes, and conditions.

    ``launched`` are passed after the arguments; ``most_shared_bytes`` is the most dynamic shared memory of a block.
    ``workspace_bytes`` is None for a kernel that takes no workspace; ``zeros`` are the bytes at its beginning that are
    zero before and after a launch, None for all of it. ``tiles`` are the pieces of work that the dispatcher counts, and
    ``of_tile`` is the work of each, 0 where it is not known.
    """

    kernel: str
    values: Mapping[str, Any]
    entry: str
    cubin: bytes
    grid: tuple[str, ...]
    block: tuple[str, ...]
    shared_bytes: str
    workspace_bytes: str | None
    zeros: str | None
    tiles: str
    of_tile: str
    conditions: Mapping[str, str]
    launched: tuple[int, ...]
    most_shared_bytes: int

    @property
    def is_fallback(self) -> bool:
        """Whether it is valid at every size."""
        return not self.conditions

    def to_json(self) -> dict[str, Any]:
        """Return kernel, parameters, launch and conditions as plain JSON values."""
        return {
            "kernel": self.kernel,
            "configuration": dict(self.values),
            "entry": self.entry,
            "launch": {
                "grid": list(self.grid),
                "block": list(self.block),
                "shared_bytes": self.shared_bytes,
                "workspace_bytes": self.workspace_bytes,
                "zeros": self.zeros,
                "tiles": self.tiles,
                "of_tile": self.of_tile,
                "launched": list(self.launched),
            },
            "sizes_must_satisfy": dict(self.conditions),
            "most_shared_bytes": self.most_shared_bytes,
        }


@dataclass(frozen=True, slots=True)
class Content:
    """What a library consists of.

    Attributes
    ----------
    name : str
        A name in C.
    problem : mapping
        The problem at one of its sizes, as plain JSON values.
    formula : str
        The computation in one line.
    sizes, extents : tuple of str
        The sizes that expressions may use, and those of them that the dispatcher reads.
    parameters : tuple of Parameter
        The arguments of the kernels, in order.
    alignment : int
        What the addresses of arrays must be multiples of.
    device : mapping
        Facts of the GPU: ``name``, ``compute_capability`` and ``sm_count`` among them.
    """

    name: str
    problem: Mapping[str, Any]
    formula: str
    sizes: tuple[str, ...]
    extents: tuple[str, ...]
    parameters: tuple[Parameter, ...]
    alignment: int
    device: Mapping[str, Any]
    configurations: tuple[Configuration, ...]
    dispatcher: Dispatcher
    versions: Mapping[str, str]
    report: Mapping[str, Any]

    def to_json(self) -> dict[str, Any]:
        """Return all but the machine code as plain JSON values."""
        cubins = self.cubins()
        return {
            "name": self.name,
            "formula": self.formula,
            "problem": dict(self.problem),
            "device": dict(self.device),
            "sizes": list(self.sizes),
            "extents": list(self.extents),
            "parameters": [
                {"name": parameter.name, "dtype": parameter.dtype, "role": parameter.role}
                for parameter in self.signature()
            ],
            "alignment": self.alignment,
            "configurations": [
                configuration.to_json() | {"cubin": cubins.index(configuration.cubin)}
                for configuration in self.configurations
            ],
            "dispatcher": self.dispatcher.to_json(),
            "report": dict(self.report),
            "versions": dict(self.versions),
        }

    def cubins(self) -> list[bytes]:
        """Return the machine code, each once, in the order of the source."""
        return list(dict.fromkeys(one.cubin for one in self.configurations))

    def signature(self) -> list[Parameter]:
        """Return the parameters of a call: sizes that no argument is, then the arguments that are not computed."""
        passed = [parameter for parameter in self.parameters if parameter.role != "computed"]
        lacking = {*self.sizes} - {parameter.name for parameter in passed}
        return [*(Parameter(name, "int64", "size") for name in self.sizes if name in lacking), *passed]


def c_files(content: Content) -> dict[str, bytes]:
    """Return header, source, and the files for CMake and pkg-config, by name.

    Raises
    ------
    ExpressionError
        A launch or a condition has no counterpart in C.
    """
    values, name = _values(content), content.name
    files = {f"{name}.h": "library.h", f"{name}.c": "library.c", "CMakeLists.txt": "CMakeLists.txt"}
    files |= {f"{name}.pc": "library.pc"}
    templates = text_templates(TEMPLATES)
    return {file: templates.get_template(f"{source}.txt").render(values).encode() for file, source in files.items()}


def _values(content: Content) -> dict[str, Any]:
    signature = content.signature()
    names = {parameter.name: _c_name(parameter.name) for parameter in signature}
    in_arrays = {size: f"s[{place}]" for place, size in enumerate(content.sizes)}
    cubins = content.cubins()
    dispatcher, (major, minor) = content.dispatcher, content.device["compute_capability"]
    computed = [configuration for configuration in content.parameters if configuration.role == "computed"]
    arrays = [names[parameter.name] for parameter in signature if parameter.role in ("in", "out", "inout")]
    return {
        "name": content.name,
        "NAME": content.name.upper(),
        "CMAKE": "$",
        "abi": ABI,
        "version": __version__,
        "formula": _comment(content.formula),
        "device": _comment(str(content.device["name"])).replace('"', "'"),
        "major": major,
        "minor": minor,
        "sm_count": content.device["sm_count"],
        "sizes": content.sizes,
        "extents": content.extents,
        "extent_places": ", ".join(str(content.sizes.index(parameter)) for parameter in content.extents),
        "size_parameters": ", ".join(f"int64_t {names[size]}" for size in content.sizes),
        "size_values": ", ".join(names[size] for size in content.sizes),
        "parameters": ", ".join(_declaration(extent, names[extent.name]) for extent in signature),
        "untyped": ", ".join(
            f"{names[parameter.name]} {parameter.dtype}" for parameter in signature if parameter.dtype not in C_TYPES
        ),
        "packed": list(_packed(signature, names)),
        "packed_values": ", ".join(names[parameter.name] for parameter in signature),
        "alignment": content.alignment,
        "addresses": " | ".join(f"(uintptr_t){parameter}" for parameter in arrays),
        "computed": [
            {
                "c_type": C_TYPES[array.dtype],
                "value": to_c(array.value, in_arrays).value,
                "is_whole": "int" in array.dtype,
            }
            for array in computed
        ],
        "argument_values": list(_arguments(content.parameters, names)),
        "most_launched": max(1, *(len(parameter.launched) for parameter in content.configurations)),
        "cubins": [_words(configuration) for configuration in cubins],
        "cubin_names": ", ".join(f"cubin_{number}" for number in range(len(cubins))),
        "configurations": [_configuration(cubin, cubins, in_arrays) for cubin in content.configurations],
        "nodes": [
            f"{{{configuration.place}, {configuration.threshold!r}, {configuration.left}, {configuration.right}}}"
            for configuration in dispatcher.nodes
        ],
        "roots": dispatcher.roots,
        "waves": [_braced(node) for node in dispatcher.waves],
        "longer": [_braced(terms) for terms in dispatcher.longer],
        "processors": dispatcher.processors,
        "most_aligned": MOST_ALIGNED,
        "counters": COUNTERS,
    }


def _configuration(configuration: Configuration, cubins: Sequence[bytes], names: Mapping[str, str]) -> dict[str, Any]:
    grid = [to_c(formula, names) for formula in configuration.grid]
    replaced = {axis.text: f"to->grid[{number}]" for number, axis in enumerate(grid) if axis.text.endswith(")")}

    def after_grid(formula: str | None) -> CValue:
        """Return a formula that is evaluated after the grid, and repeats none of its formulas: each has divisions."""
        value = to_c(formula or "0", names)
        text = value.text
        for long in sorted(replaced, key=len)[::-1]:
            text = text.replace(long, replaced[long])
        return replace(value, text=text)

    return {
        "cubin": cubins.index(configuration.cubin),
        "entry": _c_text(configuration.entry),
        "text": _c_text(json.dumps({"kernel": configuration.kernel, **configuration.values})),
        "grid": [axis.size for axis in grid],
        "block": [to_c(formula, names).size for formula in configuration.block],
        "shared_bytes": to_c(configuration.shared_bytes, names).size,
        "workspace_bytes": after_grid(configuration.workspace_bytes).size,
        "zeros": after_grid(configuration.zeros or configuration.workspace_bytes).size,
        "tiles": after_grid(configuration.tiles).value,
        "of_tile": after_grid(configuration.of_tile).value,
        "takes_workspace": int(configuration.workspace_bytes is not None),
        "conditions": [to_c(condition, names).value for condition in configuration.conditions],
        "launched": configuration.launched,
        "most_shared_bytes": configuration.most_shared_bytes,
    }


def _declaration(parameter: Parameter, name: str) -> str:
    c_type = C_TYPES.get(parameter.dtype, "void")
    match parameter.role:
        case "size":
            return f"int64_t {name}"
        case "scalar":
            return f"const void *{name}" if c_type == "void" else f"{c_type} {name}"
    return f"{'const ' if parameter.role == 'in' else ''}{c_type} *{name}"


def _packed(signature: Sequence[Parameter], names: Mapping[str, str]) -> Iterator[Sequence[str]]:
    """Yield declaration and name of what is packed into words, in order."""
    declared = [
        (parameter.role, _declaration(parameter, names[parameter.name]), names[parameter.name])
        for parameter in signature
    ]
    yield from (declaration for role, *declaration in declared if role in ("in", "out", "inout"))
    yield from (("void *workspace", "workspace"), ("size_t workspace_bytes", "workspace_bytes"))
    yield from (("void *stream", "stream"), ("int64_t grows", "grows"))
    yield from (declaration for role, *declaration in declared if role not in ("in", "out", "inout"))


def _arguments(parameters: Sequence[Parameter], names: Mapping[str, str]) -> Iterator[str]:
    """Yield the addresses of the values of a kernel's arguments; a scalar of a type that C lacks comes by its own."""
    computed = 0
    for parameter in parameters:
        if parameter.role == "computed":
            yield f"&value_{computed}"
            computed += 1
        elif parameter.role == "scalar" and parameter.dtype not in C_TYPES:
            yield f"(void *){names[parameter.name]}"
        else:
            yield f"&{names[parameter.name]}"


def check_name(name: str) -> None:
    """Refuse the name of a library that its source cannot have, or that exports a name of the C library."""
    process = ctypes.CDLL(None)  # with the C library and that of mathematics, which Python is linked with
    clash = next((f"{name}{end}" for end in _EXPORTED if hasattr(process, f"{name}{end}")), None)
    if name in _TAKEN or re.fullmatch(r".*(_|_t)|(valid|launch|cubin|value)_\d+", name):
        clash = name
    if clash is not None:
        raise UsageError(
            f"the functions of a library have its name in C, but {clash} is taken there; name it otherwise by `name` "
            "in [library]."
        )


def _c_name(name: str) -> str:
    """Return the name of an argument in C: no word, macro or function of C, C++ or the templates ends with _."""
    return f"{name}_"


def _c_text(text: str) -> str:
    """Return a string literal."""
    plain = (chr(byte) if 32 <= byte < 127 and byte not in b'"\\?' else f"\\{byte:03o}" for byte in text.encode())
    return f'"{"".join(plain)}"'


def _comment(text: str) -> str:
    return one_line(text).replace("*/", "* /").replace("/*", "/ *")


def _braced(values: Sequence[float]) -> str:
    return f"{{{', '.join(map(repr, values))}}}"


def _words(cubin: bytes) -> str:
    """Return machine code as 64-bit words, of which a compiler reads a megabyte in a second."""
    padded = cubin + bytes(-len(cubin) % 8)
    return ", ".join(f"{word:#x}" for (word,) in struct.iter_unpack("<Q", padded))


def parameters_of(
    documents: Sequence[Mapping[str, Any]],
    roles: Mapping[str, str],
    sizes: Sequence[str],
    formulas: Mapping[str, str],
) -> tuple[Parameter, ...]:
    """Return the parameters of a kernel from the documents of its arguments.

    Parameters
    ----------
    documents : sequence of mapping
        ``name`` and ``type`` of each (:meth:`mltune.problem.problem.RunnableProblem.argument_documents`).
    roles : mapping of str to str
        What the kernel does with each array.
    sizes : sequence of str
    formulas : mapping of str to str
        Those of scalars that follow from the sizes.

    Raises
    ------
    UsageError
        An array is in constant memory, which belongs to one call at a time; or C has no type for what is computed.
    """
    parameters = []
    for document in documents:
        name, dtype = str(document["name"]), str(document["type"])
        if document.get("role") == "constant":
            raise UsageError(f"arguments of a library are passed to its kernel, but {name} lies in constant memory.")
        if dtype.startswith("pointer to "):
            parameters.append(Parameter(name, dtype.removeprefix("pointer to "), roles[name]))
        elif name in formulas:
            if dtype not in C_TYPES:
                raise UsageError(f"what follows from sizes is an integer or a number, but {name} is {dtype}.")
            parameters.append(Parameter(name, dtype, "computed", formulas[name]))
        else:
            parameters.append(Parameter(name, dtype, "size" if name in sizes and dtype == "int64" else "scalar"))
    return tuple(parameters)
