"""The file of the calls that programs tuned, beside a wisdom; what it holds only saves time."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mltune.files.atomic import write_file_atomically
from mltune.files.reading import parse_json, read_file

MOST_CALLS, MOST_PROGRAMS, MAX_BYTES = 64, 8, 1 << 20
"""Calls of a program and programs that are kept, the first calls and the last programs, and the size of a file."""

Program = list[list[Any]]
"""Calls in their order: the kernel's module and name, and what describes its arguments, by their names."""


def described(arguments: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the arguments of a call for JSON; None where one is neither a tensor nor a plain value."""
    call = {
        name: {"dtype": str(value.dtype)} if hasattr(value, "data_ptr") else value
        for name, value in arguments.items()
        if name not in ("grid", "warmup")
    }
    with contextlib.suppress(TypeError, ValueError):
        return call if parse_json(json.dumps(call)) == call else None
    return None


def read_programs(wisdom: Path) -> list[Program]:
    """Return the programs of the file beside a wisdom, the last one last; none where it cannot be read."""
    with contextlib.suppress(OSError, ValueError, TypeError, LookupError):
        programs = parse_json(read_file(_beside(wisdom), MAX_BYTES))["programs"]
        return [[[str(kernel), dict(call)] for kernel, call in program] for program in programs]
    return []


def write_program(wisdom: Path, program: Program) -> None:
    """Put a program in the place of those that called no other kernel, if the file can be written."""
    kernels = dict(program).keys()
    kept = [earlier for earlier in read_programs(wisdom) if not dict(earlier).keys() <= kernels]
    document = {"format": 1, "programs": [*kept[1 - MOST_PROGRAMS :], program]}
    with contextlib.suppress(OSError):
        write_file_atomically(_beside(wisdom), json.dumps(document).encode(), durable=False)


def _beside(wisdom: Path) -> Path:
    return wisdom.with_name(f"{wisdom.name}.calls")
