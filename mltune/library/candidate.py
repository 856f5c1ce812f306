"""A configuration of a kernel that may be in a library."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from mltune.kernel.bundle import Kernel

_MOST_LAUNCHES = 16


@dataclass(frozen=True, eq=False)
class LibraryCandidate:
    """A configuration of a kernel that may be in a library, and the places of the sizes whose tuning found it."""

    kernel: Kernel
    configuration: Mapping[str, int]
    found_at: set[int] = field(default_factory=set)

    @cached_property
    def key(self) -> str:
        """Its name in the file of times: the kernel with its source, and its parameters."""
        values = json.dumps(self.kernel.space.labelled(self.configuration), sort_keys=True)
        return f"{self.kernel.label} {self.kernel.source.sha256} {values}"

    @property
    def source(self) -> tuple[Path, str, tuple[str, ...]]:
        """Bundle, preset and varied compiler options: where these differ, configurations cannot be timed together."""
        return self.kernel.folder, self.kernel.space.preset, self.kernel.compiler.varied

    @property
    def compiled(self) -> tuple[object, ...]:
        """What its machine code depends on."""
        launched = self.kernel.space.launch_parameters
        return self.source, *((name, value) for name, value in self.configuration.items() if name not in launched)

    def launches(self) -> list[LibraryCandidate]:
        """Return the candidate with all values of the launch parameters, which have the same machine code."""
        names, values = self.kernel.space.launch_parameters.keys(), self.kernel.space.launch_parameters.values()
        combinations = itertools.islice(itertools.product(*values), _MOST_LAUNCHES)
        return [
            LibraryCandidate(self.kernel, {**self.configuration, **dict(zip(names, combination, strict=True))})
            for combination in combinations
        ]


def with_own_code(candidates: Sequence[LibraryCandidate]) -> list[LibraryCandidate]:
    """Return the first candidate of each machine code."""
    first: dict[tuple[object, ...], LibraryCandidate] = {}
    for candidate in candidates:
        first.setdefault(candidate.compiled, candidate)
    return [*first.values()]
