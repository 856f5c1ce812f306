"""Calls that programs tuned, in a file: the kernels of a later program are compiled together, at its first call."""

from __future__ import annotations

import contextlib
import functools
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mltune.files.atomic import write_file_atomically
from mltune.files.reading import parse_json, read_file
from mltune.integrations.triton.keys import own_autotuner

MOST_CALLS, MOST_PROGRAMS, MAX_BYTES = 64, 8, 1 << 20
"""Calls of a program and programs that are kept, the first calls and the last programs, and the size of a file."""

Program = list[list[Any]]
"""Calls in their order: the kernel's module and name, and what describes its arguments, by their names."""


class Calls:
    """The calls that this process tuned, and the programs of a file, the last one last."""

    def __init__(self, wisdom: Path) -> None:
        self._path = wisdom.with_name(f"{wisdom.name}.calls")
        self._own: Program = []
        self._changed = dict[tuple[str, str], Any]()  # what arguments are here, by their names and what they were

    def after(self, tuner: Any, named: Mapping[str, Any]) -> list[tuple[Any, dict[str, Any]]]:
        """Add a call, and return the tuners and the arguments of a program that made it, as they would be here.

        It is the longest of those that share most kernels with this one, or this one when it begins again. What was
        another number or type for this kernel is so for the others; tensors have their types alone.
        """
        kernel, call = f"{tuner.base_fn.__module__}:{tuner.base_fn.__qualname__}", _described(named)
        if call is None or _tuner_at(kernel) is not tuner:
            return []
        programs = self._read()
        like = [program for program in programs if kernel in dict(program)]
        like = [program for program in like if program != self._own or program[0][0] == kernel]
        if len(self._own) < MOST_CALLS and [kernel, call] not in self._own:
            self._own = [*self._own, [kernel, call]]
            self._write(programs)
        own = dict(self._own).keys()
        program = max(like, key=lambda program: (len(own & dict(program).keys()), len(program)), default=[])
        alike = [{name: (was, call.get(name)) for name, was in old.items()} for name, old in program if name == kernel]
        pairs = max(alike, key=lambda pairs: sum(was == now for was, now in pairs.values()), default={})
        self._changed |= {(name, repr(was)): now for name, (was, now) in pairs.items() if was != now}
        return [
            (other, {part: self._changed.get((part, repr(was)), was) for part, was in old.items()})
            for name, old in program
            if (other := _tuner_at(name)) is not None
        ]

    def _read(self) -> list[Program]:
        with contextlib.suppress(OSError, ValueError, TypeError):
            programs = parse_json(read_file(self._path, MAX_BYTES))["programs"]
            return [[[str(kernel), dict(call)] for kernel, call in program] for program in programs]
        return []

    def _write(self, programs: list[Program]) -> None:
        """Put this program in the place of those that called no other kernel."""
        kernels = {kernel for kernel, _ in self._own}
        others = [program for program in programs if not {kernel for kernel, _ in program} <= kernels]
        document = {"format": 1, "programs": [*others[1 - MOST_PROGRAMS :], self._own]}
        with contextlib.suppress(OSError):  # the folder may be read-only
            write_file_atomically(self._path, json.dumps(document).encode(), durable=False)


calls_beside = functools.lru_cache(maxsize=16)(Calls)
"""Returns those of the file beside a wisdom."""


def _described(named: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the arguments of a call for JSON; None where one is neither a tensor nor a plain value."""
    call = {name: {"dtype": str(value.dtype)} if hasattr(value, "data_ptr") else value for name, value in named.items()}
    call = {name: value for name, value in call.items() if name not in ("grid", "warmup")}
    with contextlib.suppress(TypeError, ValueError):
        return call if parse_json(json.dumps(call)) == call else None
    return None


def arguments_of(call: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments for which Triton compiles as for those of a call: tensors have their types alone."""
    from triton.runtime.jit import MockTensor

    types = {name: value["dtype"] for name, value in call.items() if isinstance(value, dict)}
    torch = sys.modules.get("torch")
    tensors = {name: getattr(torch, text.removeprefix("torch."), text) for name, text in types.items()}
    return {**call, **{name: MockTensor(dtype) for name, dtype in tensors.items()}}


def _tuner_at(kernel: str) -> Any:
    """Return the tuner of a kernel in a module that is imported; None where there is none under its name."""
    module, _, name = kernel.partition(":")
    tuner = getattr(sys.modules.get(module), "__dict__", {}).get(name)
    while tuner is not None and not isinstance(tuner, own_autotuner()):
        tuner = getattr(tuner, "fn", None)
    return tuner
