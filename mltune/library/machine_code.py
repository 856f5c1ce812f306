"""The machine code of a library that was written, with its launch at some sizes."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path

from mltune.kernel.expressions import launch_of
from mltune.library.choice import choice
from mltune.library.folder import machine_code, read_document
from mltune.problem.kinds import problem_from_json
from mltune.records.trial import Build, TrialState
from mltune.results.machine_code import Launched, MachineCode, code_of_winner


def code_of_library(folder: Path) -> MachineCode:
    """Read a library's document and source; its shared object is not even opened."""
    document = read_document(folder)

    def at(sizes: Mapping[str, int]) -> Launched | None:
        number = choice(document, sizes) if {*document.sizes} <= sizes.keys() else None
        if number is None:
            return None
        configuration = document.configurations[number]
        build = Build(TrialState.OK, cubin=machine_code(folder, document, number), entry=configuration.entry)
        return partial(launch_of, configuration.launch.model_dump(), configuration.launch.launched), build

    return MachineCode(problem_from_json(document.problem), at)


READERS = {"winner.json": code_of_winner, "library.json": code_of_library}
"""What reads the machine code in a folder, by the name of a file in it."""
