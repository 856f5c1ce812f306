"""Calls that programs tuned: the kernels of a later program are compiled together, at its first call."""

from __future__ import annotations

import functools
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mltune.integrations.triton.keys import own_autotuner
from mltune.known.triton_calls import MOST_CALLS, Program, described, read_programs, write_program


class Calls:
    """The calls that this process tuned, and those of earlier programs in the file beside a wisdom."""

    def __init__(self, wisdom: Path) -> None:
        self._wisdom = wisdom
        self._own: Program = []
        self._now = dict[tuple[str, str], Any]()  # what arguments are here, by their names and what they were

    def after(self, tuner: Any, named: Mapping[str, Any]) -> list[tuple[Any, dict[str, Any]]]:
        """Add a call, and return the tuners and the arguments of a program that made it, as they would be here.

        It is the longest of those that share most kernels with this one, or this one when it begins again. What was
        another number or type for this kernel is so for the others; tensors have their types alone.
        """
        kernel, call = f"{tuner.base_fn.__module__}:{tuner.base_fn.__qualname__}", described(named)
        if call is None or _tuner_at(kernel) is not tuner:
            return []
        like = [program for program in read_programs(self._wisdom) if kernel in dict(program)]
        like = [program for program in like if program != self._own or program[0][0] == kernel]
        if len(self._own) < MOST_CALLS and (kernel, call) not in self._own:
            self._own = [*self._own, (kernel, call)]
            write_program(self._wisdom, self._own)
        own = dict(self._own).keys()
        program = max(like, key=lambda program: (len(own & dict(program).keys()), len(program)), default=[])
        alike = [{name: (was, call.get(name)) for name, was in old.items()} for name, old in program if name == kernel]
        pairs = max(alike, key=lambda pairs: sum(was == now for was, now in pairs.values()), default={})
        self._now |= {(name, repr(was)): now for name, (was, now) in pairs.items()}
        calls = [(_tuner_at(name), old) for name, old in program]
        return [(tuner, {name: self._here(name, was) for name, was in old.items()}) for tuner, old in calls if tuner]

    def _here(self, name: str, was: Any) -> Any:
        """Return what an argument is here: H of 8 heads that is now 16 makes HQ of 8, if that is unknown, 16, too."""
        names = [part for part, value in self._now if value == repr(was) and name.startswith(part)]
        return self._now[max(names, key=len), repr(was)] if names else was


calls_beside = functools.lru_cache(maxsize=16)(Calls)
"""Returns those of the file beside a wisdom."""


def arguments_of(call: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments for which Triton compiles as for those of a call: tensors have their types alone."""
    from triton.runtime.jit import MockTensor

    types = {name: value["dtype"] for name, value in call.items() if isinstance(value, dict)}
    torch = sys.modules.get("torch")
    tensors = {name: getattr(torch, text.removeprefix("torch."), text) for name, text in types.items()}
    return {**call, **{name: MockTensor(dtype) for name, dtype in tensors.items()}}


def _tuner_at(kernel: str) -> Any:
    """Return the tuner of a kernel in a module that is imported; None where there is none under its name."""
    from triton.runtime.jit import KernelInterface

    module, _, name = kernel.partition(":")
    tuner = getattr(sys.modules.get(module), "__dict__", {}).get(name)
    while isinstance(tuner, KernelInterface) and not isinstance(tuner, own_autotuner()):
        tuner = getattr(tuner, "fn", None)
    return tuner if isinstance(tuner, own_autotuner()) else None
