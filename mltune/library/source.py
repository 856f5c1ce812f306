"""The C source of a library: the templates that its content fills."""

from __future__ import annotations

import ctypes
import json
import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from mltune.errors import UsageError
from mltune.kernel.coding import KEYWORDS
from mltune.library.c_expressions import CValue, to_c
from mltune.library.content import Configuration, Content, Parameter
from mltune.library.dispatcher import MOST_ALIGNED
from mltune.library.document import ABI, C_TYPES
from mltune.records.versions import __version__
from mltune.results.winner import one_line
from mltune.results.winner_texts import text_templates

TEMPLATES = Path(__file__).parent / "templates"

COUNTERS = 1 << 18
"""Bytes at the beginning of a workspace that are zero between calls: the counters of kernels that set them back."""

_WORDS = (
    "errno linux restrict typeof unix count arguments context grows is_other launch library memory s status stream "
    "undefined words workspace workspace_bytes bounded checked choose chosen expected fits integer leaf_of load "
    "compared exact exact_of place refused shifted_left shifted_right squared whole bad main whole_waves inputs_of "
    "is_power is_pow2 describe maps alloca assert offsetof signbit isfinite isnormal isgreater isgreaterequal isless "
    "islessequal islessgreater isunordered fpclassify isnan isinf fd_set uint ulong ushort std typeof_unqual i386"
)
_FUNCTIONS = "add sub neg mul div floor_div mod ceil_div min max abs log2 sqrt pow"
_TAKEN = KEYWORDS | {*_WORDS.split()} | {f"{function}_{kind}" for function in _FUNCTIONS.split() for kind in "if"}
"""Words of C and C++, and names that the templates use where a library's function is known."""

_EXPORTED = ("", "_create", "_destroy", "_choice", "_configuration", "_error", "_packed")
"""What follows the name of a library in the names that its shared object exports."""


def c_files(content: Content) -> dict[str, bytes]:
    """Return header, source, and the files for CMake and pkg-config; an ExpressionError for what C lacks."""
    values, name = _values(content), content.name
    files = {f"{name}.h": "library.h", f"{name}.c": "library.c", "CMakeLists.txt": "CMakeLists.txt"}
    files |= {f"{name}.pc": "library.pc"}
    templates = text_templates(TEMPLATES)
    return {file: templates.get_template(f"{source}.txt").render(values).encode() for file, source in files.items()}


def _values(content: Content) -> dict[str, Any]:
    signature = content.signature()
    names = {parameter.name: f"{parameter.name}_" for parameter in signature}  # which is no word of C
    in_arrays = {size: f"s[{place}]" for place, size in enumerate(content.sizes)}
    cubins, launches = content.cubins(), [configuration.document.launch for configuration in content.configurations]
    dispatcher, (major, minor) = content.dispatcher, content.device["compute_capability"]
    computed = [parameter for parameter in content.parameters if parameter.role == "computed"]
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
        "extent_places": ", ".join(str(content.sizes.index(extent)) for extent in content.extents),
        "size_parameters": ", ".join(f"int64_t {names[size]}" for size in content.sizes),
        "size_values": ", ".join(names[size] for size in content.sizes),
        "parameters": ", ".join(_declaration(parameter, names[parameter.name]) for parameter in signature),
        "untyped": ", ".join(
            f"{names[parameter.name]} {parameter.dtype}" for parameter in signature if parameter.dtype not in C_TYPES
        ),
        "packed": list(_packed(signature, names)),
        "packed_values": ", ".join(names[parameter.name] for parameter in signature),
        "alignment": content.alignment,
        "addresses": " | ".join(f"(uintptr_t){array}" for array in arrays),
        "computed": [
            {
                "c_type": C_TYPES[parameter.dtype],
                "value": to_c(parameter.value, in_arrays).value,
                "is_whole": "int" in parameter.dtype,
            }
            for parameter in computed
        ],
        "argument_values": list(_arguments(content.parameters, names)),
        "most_launched": max(1, *(len(launch.launched) for launch in launches)),
        "most_maps": max(len(launch.tensor_maps) for launch in launches),
        "cubins": [_words(cubin) for cubin in cubins],
        "cubin_names": ", ".join(f"cubin_{number}" for number in range(len(cubins))),
        "configurations": [
            _configuration(configuration, cubins, in_arrays) for configuration in content.configurations
        ],
        "nodes": [f"{{{node.place}, {node.threshold!r}, {node.below}, {node.above}}}" for node in dispatcher.nodes],
        "roots": dispatcher.roots,
        "waves": [_braced(terms) for terms in dispatcher.waves],
        "longer": [_braced(terms) for terms in dispatcher.longer],
        "processors": dispatcher.processors,
        "exact": [f"{{{', '.join(map(str, row))}}}" for row in dispatcher.exact],
        "most_aligned": MOST_ALIGNED,
        "counters": COUNTERS,
    }


def _configuration(configuration: Configuration, cubins: Sequence[bytes], names: Mapping[str, str]) -> dict[str, Any]:
    document, launch = configuration.document, configuration.document.launch
    grid = [to_c(formula, names) for formula in launch.grid]
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
        "entry": _c_text(document.entry),
        "text": _c_text(json.dumps({"kernel": document.kernel, **document.configuration})),
        "grid": [axis.size for axis in grid],
        "block": [to_c(formula, names).size for formula in launch.block],
        "shared_bytes": to_c(launch.shared_bytes, names).size,
        "workspace_bytes": after_grid(launch.workspace_bytes).size,
        "zeros": after_grid(launch.zeros or launch.workspace_bytes).size,
        "tiles": after_grid(launch.tiles).value,
        "of_tile": after_grid(launch.of_tile).value,
        "takes_workspace": int(launch.workspace_bytes is not None),
        "conditions": [to_c(condition, names).value for condition in document.sizes_must_satisfy],
        "launched": launch.launched,
        "map_places": [place for place, *_ in launch.tensor_maps],
        "maps": [[to_c(formula, names).size for formula in formulas] for _, *formulas in launch.tensor_maps],
        "most_shared_bytes": document.most_shared_bytes,
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
            f"{clash} is taken in C, where the functions of a library have its name; name it otherwise by `name` in "
            "[library]."
        )


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
