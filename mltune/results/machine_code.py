"""Machine code that was written earlier, with its launch at some sizes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import NamedTuple

from mltune.kernel.expressions import launch_of, parse
from mltune.kernel.launch import Launch
from mltune.problem.kinds import problem_from_json
from mltune.problem.problem import Problem
from mltune.records.trial import Build, TrialState
from mltune.results.tuned_kernel import read_winner

Launched = tuple[Callable[[Mapping[str, int]], Launch], Build]
"""The launch for variables of a problem, and the build."""


class MachineCode(NamedTuple):
    """Machine code with its problem; ``at`` returns what is launched at some sizes, or None where nothing is."""

    problem: Problem
    at: Callable[[Mapping[str, int]], Launched | None]


def code_of_winner(folder: Path) -> MachineCode:
    """Read the machine code of a winner's folder."""
    document, cubin = read_winner(folder)
    problem, launch = problem_from_json(document.problem), document.launch
    formulas = (launch.at_other_sizes or launch).model_dump()
    build = Build(TrialState.OK, cubin=cubin, entry=document.kernel.function, **document.build.model_dump())

    def at(sizes: Mapping[str, int]) -> Launched | None:
        if launch.at_other_sizes is None and problem.variables != sizes:
            return None
        if not all(parse(text).holds(sizes) for text in launch.sizes_must_satisfy):
            return None
        return partial(launch_of, formulas, launch.launched), build

    return MachineCode(problem, at)
