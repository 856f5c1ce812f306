"""The record of the calls that programs tuned, a file beside a wisdom; what it holds only saves time."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeAlias

from pydantic import Field

from mltune.errors import WisdomError
from mltune.files.atomic import write_file_atomically
from mltune.files.reading import parse_json, raising
from mltune.files.text import printable
from mltune.known.wisdom_file import FORMAT, Document, locked, read_document, refusing

MOST_ARGUMENTS, MOST_CALLS, MOST_PROGRAMS, MAX_BYTES = 256, 64, 8, 1 << 20
"""Arguments of a call, calls of a program and programs that are kept, the first calls and the last programs, and the
size of a record."""

Call: TypeAlias = tuple[str, Annotated[dict[str, Any], Field(max_length=MOST_ARGUMENTS)]]
"""The kernel's module and name, and what describes its arguments, by their names."""

Program: TypeAlias = Annotated[list[Call], Field(min_length=1, max_length=MOST_CALLS)]
"""Calls in their order."""


class _Record(Document):
    programs: Annotated[list[Program], Field(max_length=MOST_PROGRAMS)]


def described(arguments: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the arguments of a call for JSON; None where one is neither a tensor nor a plain value."""
    call = {
        name: {"dtype": str(value.dtype)} if hasattr(value, "data_ptr") else value
        for name, value in arguments.items()
        if name not in ("grid", "warmup")
    }
    with contextlib.suppress(TypeError, ValueError):
        return call if len(call) <= MOST_ARGUMENTS and parse_json(json.dumps(call)) == call else None
    return None


def record_of(wisdom: Path) -> Path:
    """Return the file beside a wisdom."""
    return wisdom.with_name(f"{wisdom.name}.calls")


def read_record(record: Path, *, inside: Path | None = None) -> list[Program]:
    """Return the programs of a record, behind no link below ``inside``, the last one last; none where it is missing."""
    with refusing(record, "record of calls of Triton's kernels"):
        document = read_document(record, _Record, MAX_BYTES, inside=inside)
        return [] if document is None else document.programs


def read_programs(wisdom: Path) -> list[Program]:
    """Return the programs of the record beside a wisdom; none where it cannot be read."""
    with contextlib.suppress(WisdomError):
        return read_record(record_of(wisdom))
    return []


def is_known(program: Program, programs: Sequence[Program]) -> bool:
    """Whether one of the programs calls all kernels that a program calls."""
    return any(dict(program).keys() <= dict(other).keys() for other in programs)


def write_record(record: Path, older: Sequence[Program], newer: Sequence[Program]) -> list[Program]:
    """Write the newer programs after the older ones that have other kernels; return the last ones, which have room."""
    programs = [*(program for program in older if not is_known(program, newer)), *newer][-MOST_PROGRAMS:]
    while len(data := f"{json.dumps({'format': FORMAT, 'programs': programs})}\n".encode()) > MAX_BYTES:
        del programs[0]
    if programs:
        with raising(WisdomError, f"{printable(record, 300)} cannot be written"):
            write_file_atomically(record, data, durable=False)
    return programs


def write_program(wisdom: Path, program: Program) -> None:
    """Put a program in the place of those that called no other kernel, if the file can be written."""
    with contextlib.suppress(WisdomError), locked(wisdom, 1.0):  # a program does not wait for it for long
        write_record(record_of(wisdom), read_programs(wisdom), [program])
