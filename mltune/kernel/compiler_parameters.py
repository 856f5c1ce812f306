"""Compiler parameters: controls of the compiler and the assembler that a search chooses, as it chooses the macros.

The first value is the default. A value of ``entry_name`` is a text in the name of the kernel (an entry whose name
contains ``cutlass`` is compiled by other rules), one of ``register_usage_level`` is that option of the assembler, one
of ``apply_controls`` the name of a file of NVIDIA's CompileIQ that controls the assembler, and one of any other name a
text of options of NVRTC.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mltune.files.text import printable
from mltune.kernel.coding import CodedValues, code_values
from mltune.kernel.launch import APPLY

COMPILER_OPTION = re.compile(
    r"--?use_fast_math|--?maxrregcount=[0-9]{1,3}|--(fmad|ftz|prec-div|prec-sqrt)=(true|false)|-lineinfo"
    r"|--extra-device-vectorization|--ptxas-options=-O[0-3]"
)
COMPILER_OPTION_LAW = (
    "be --use_fast_math, --maxrregcount=N, --fmad=, --ftz=, --prec-div= or --prec-sqrt= with true or false, -lineinfo, "
    "--extra-device-vectorization or --ptxas-options=-O with 0 to 3"
)

NAME, LEVEL, CONTROLS = "entry_name", "register_usage_level", "apply_controls"
USUAL_LEVEL = 5
"""The assembler's own level of register usage."""

BUILT_IN: Mapping[str, tuple[int | str, ...]] = {NAME: ("", "cutlass"), LEVEL: (USUAL_LEVEL, 8)}
"""The compiler parameters of every kernel that is compiled, unless it has its own values of them."""

MOST_CONTROLS_BYTES = 1 << 20
"""Largest size of a file of controls."""

_CONTROLS = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,100}\.acf")
_PART_OF_A_NAME = re.compile(r"[A-Za-z0-9_]{0,40}")
_MOST_CHARACTERS = 200


@dataclass(frozen=True, slots=True)
class Variant:
    """What a configuration asks of the compiler: a text in the name of the kernel, and options of NVRTC."""

    name: str = ""
    options: tuple[str, ...] = ()

    def entry(self, entry: str) -> str:
        """Return the name of a kernel, without template arguments."""
        return f"{entry}_{self.name}" if self.name else entry


def code_compiler_parameters(
    values_of: Mapping[str, Sequence[Any]], taken: Sequence[str], texts: Sequence[str], entry: str
) -> dict[str, CodedValues]:
    """Code the compiler parameters of a kernel: the given ones, and the built-in ones that they do not replace.

    A built-in parameter that clashes with names `taken` by others, or whose name of the `entry` occurs in the `texts`
    of source and headers, is left out; a given one is a ``ValueError``.
    """
    coded, text, lowered = {}, "\n".join(texts), {name.lower() for name in taken}
    for name, values in {**BUILT_IN, **values_of}.items():
        try:
            coded_values = code_values(list(values))
            for value in values:
                variant = variant_of({name: value})
                entry_match = variant.name and re.search(rf"\b{variant.entry(entry)}\b", text)
                _require(not entry_match, "is in the source, but would name the kernel", variant.entry(entry))
            law = "cannot name a compiler parameter: another parameter has the name"
            _require(name.lower() not in lowered, law, name)
        except ValueError as error:
            if name in values_of:
                raise ValueError(f"{name}: {error}") from error
            continue
        coded[name] = coded_values
    return coded


def controls_in(values_of: Mapping[str, Sequence[Any]]) -> list[str]:
    """Return the names of the files of controls among the values of compiler parameters."""
    return [value for value in values_of.get(CONTROLS, ()) if isinstance(value, str) and _CONTROLS.fullmatch(value)]


def variant_of(values: Mapping[str, Any]) -> Variant:
    """Return what compiler parameters of given values ask for; a ``ValueError`` tells of a value that is none."""
    name, options = "", list[str]()
    for key, value in values.items():
        if key == NAME:
            law = "cannot be a text in a name: it has at most 40 letters, digits and _"
            _require(isinstance(value, str) and _PART_OF_A_NAME.fullmatch(value), law, value)
            name = value
        elif key == LEVEL:
            law = "is no level of register usage: an integer from 0 to 10"
            _require(type(value) is int and 0 <= value <= 10, law, value)
            options += [] if value == USUAL_LEVEL else [f"--ptxas-options=--register-usage-level={value}"]
        elif key == CONTROLS:
            law = "is no file of controls: its name has at most 105 letters, digits, _, - and dots and ends with .acf"
            _require(value == "" or controls_in({key: [value]}), law, value)
            options += [f"{APPLY}{value}"] if value else []
        else:
            law = f"cannot be options of the compiler: they are a text of at most {_MOST_CHARACTERS} characters"
            _require(isinstance(value, str) and len(value) <= _MOST_CHARACTERS, law, value)
            words = value.split(" ") if value else []
            for option in words:
                law = f"cannot be an option of the compiler, which must {COMPILER_OPTION_LAW}"
                _require(COMPILER_OPTION.fullmatch(option), law, option)
            options += words
    return Variant(name, tuple(options))


def _require(holds: object, law: str, got: object) -> None:
    if not holds:
        raise ValueError(f"{printable(repr(got), 80)} {law}")
