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
            "parameters": [{"name": one.name, "dtype": one.dtype, "role": one.role} for one in self.signature()],
            "alignment": self.alignment,
            "configurations": [one.to_json() | {"cubin": cubins.index(one.cubin)} for one in self.configurations],
            "dispatcher": self.dispatcher.to_json(),
            "report": dict(self.report),
            "versions": dict(self.versions),
        }

    def cubins(self) -> list[bytes]:
        """Return the machine code, each once, in the order of the source."""
        return list(dict.fromkeys(one.cubin for one in self.configurations))

    def signature(self) -> list[Parameter]:
        """Return the parameters of a call: sizes that no argument is, then the arguments that are not computed."""
        given = [one for one in self.parameters if one.role != "computed"]
        lacking = {*self.sizes} - {one.name for one in given}
        return [*(Parameter(name, "int64", "size") for name in self.sizes if name in lacking), *given]


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
    names = {one.name: _c_name(one.name) for one in signature}
    in_arrays = {size: f"s[{place}]" for place, size in enumerate(content.sizes)}
    cubins = content.cubins()
    dispatcher, (major, minor) = content.dispatcher, content.device["compute_capability"]
    computed = [one for one in content.parameters if one.role == "computed"]
    arrays = [names[one.name] for one in signature if one.role in ("in", "out", "inout")]
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
        "extent_places": ", ".join(str(content.sizes.index(one)) for one in content.extents),
        "size_parameters": ", ".join(f"int64_t {names[size]}" for size in content.sizes),
        "size_values": ", ".join(names[size] for size in content.sizes),
        "parameters": ", ".join(_declaration(one, names[one.name]) for one in signature),
        "untyped": ", ".join(f"{names[one.name]} {one.dtype}" for one in signature if one.dtype not in C_TYPES),
        "packed": list(_packed(signature, names)),
        "packed_values": ", ".join(names[one.name] for one in signature),
        "alignment": content.alignment,
        "addresses": " | ".join(f"(uintptr_t){one}" for one in arrays),
        "computed": [
            {
                "c_type": C_TYPES[one.dtype],
                "value": to_c(one.value, in_arrays).value,
                "is_whole": "int" in one.dtype,
            }
            for one in computed
        ],
        "argument_values": list(_arguments(content.parameters, names)),
        "most_launched": max(1, *(len(one.launched) for one in content.configurations)),
        "cubins": [_words(one) for one in cubins],
        "cubin_names": ", ".join(f"cubin_{number}" for number in range(len(cubins))),
        "configurations": [_configuration(one, cubins, in_arrays) for one in content.configurations],
        "nodes": [f"{{{one.place}, {one.threshold!r}, {one.left}, {one.right}}}" for one in dispatcher.nodes],
        "roots": dispatcher.roots,
        "waves": [_braced(one) for one in dispatcher.waves],
        "longer": [_braced(one) for one in dispatcher.longer],
        "processors": dispatcher.processors,
        "most_aligned": MOST_ALIGNED,
        "counters": COUNTERS,
    }


def _configuration(one: Configuration, cubins: Sequence[bytes], names: Mapping[str, str]) -> dict[str, Any]:
    grid = [to_c(formula, names) for formula in one.grid]
    replaced = {axis.text: f"to->grid[{number}]" for number, axis in enumerate(grid) if axis.text.endswith(")")}

    def after_grid(formula: str | None) -> CValue:
        """Return a formula that is evaluated after the grid, and repeats none of its formulas: each has divisions."""
        value = to_c(formula or "0", names)
        text = value.text
        for long in sorted(replaced, key=len)[::-1]:
            text = text.replace(long, replaced[long])
        return replace(value, text=text)

    return {
        "cubin": cubins.index(one.cubin),
        "entry": _c_text(one.entry),
        "text": _c_text(json.dumps({"kernel": one.kernel, **one.values})),
        "grid": [axis.size for axis in grid],
        "block": [to_c(formula, names).size for formula in one.block],
        "shared_bytes": to_c(one.shared_bytes, names).size,
        "workspace_bytes": after_grid(one.workspace_bytes).size,
        "zeros": after_grid(one.zeros or one.workspace_bytes).size,
        "tiles": after_grid(one.tiles).value,
        "of_tile": after_grid(one.of_tile).value,
        "takes_workspace": int(one.workspace_bytes is not None),
        "conditions": [to_c(condition, names).value for condition in one.conditions],
        "launched": one.launched,
        "most_shared_bytes": one.most_shared_bytes,
    }


def _declaration(one: Parameter, name: str) -> str:
    c_type = C_TYPES.get(one.dtype, "void")
    match one.role:
        case "size":
            return f"int64_t {name}"
        case "scalar":
            return f"const void *{name}" if c_type == "void" else f"{c_type} {name}"
    return f"{'const ' if one.role == 'in' else ''}{c_type} *{name}"


def _packed(signature: Sequence[Parameter], names: Mapping[str, str]) -> Iterator[Sequence[str]]:
    """Yield declaration and name of what is packed into words, in order."""
    declared = [(one.role, _declaration(one, names[one.name]), names[one.name]) for one in signature]
    yield from (one for role, *one in declared if role in ("in", "out", "inout"))
    yield from (("void *workspace", "workspace"), ("size_t workspace_bytes", "workspace_bytes"))
    yield from (("void *stream", "stream"), ("int64_t grows", "grows"))
    yield from (one for role, *one in declared if role not in ("in", "out", "inout"))


def _arguments(parameters: Sequence[Parameter], names: Mapping[str, str]) -> Iterator[str]:
    """Yield the addresses of the values of a kernel's arguments; a scalar of a type that C lacks comes by its own."""
    computed = 0
    for one in parameters:
        if one.role == "computed":
            yield f"&value_{computed}"
            computed += 1
        elif one.role == "scalar" and one.dtype not in C_TYPES:
            yield f"(void *){names[one.name]}"
        else:
            yield f"&{names[one.name]}"


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
    found = []
    for one in documents:
        name, dtype = str(one["name"]), str(one["type"])
        if one.get("role") == "constant":
            raise UsageError(f"arguments of a library are passed to its kernel, but {name} lies in constant memory.")
        if dtype.startswith("pointer to "):
            found.append(Parameter(name, dtype.removeprefix("pointer to "), roles[name]))
        elif name in formulas:
            if dtype not in C_TYPES:
                raise UsageError(f"what follows from sizes is an integer or a number, but {name} is {dtype}.")
            found.append(Parameter(name, dtype, "computed", formulas[name]))
        else:
            found.append(Parameter(name, dtype, "size" if name in sizes and dtype == "int64" else "scalar"))
    return tuple(found)
