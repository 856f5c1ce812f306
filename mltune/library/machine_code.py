"""The machine code of a library that was written, with its choice and its launch at some sizes.

The document of the library alone is read, and the choice is made as its C source makes it.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path

import numpy as np

from mltune.errors import ExpressionError
from mltune.kernel.coding import LARGEST_INTEGER
from mltune.kernel.expressions import launch_of, parse
from mltune.library.dispatcher import Dispatcher, Node
from mltune.library.document import ConfigurationOfLibrary, LibraryDocument
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


_NONE = float("nan")


def choice(document: LibraryDocument, sizes: Mapping[str, int]) -> int | None:
    """Return the number of the configuration that runs for some sizes with a workspace that is large enough.

    Nothing of the library runs. It is None where no configuration is valid for the sizes.
    """
    values = {name: sizes[name] for name in document.sizes}
    if not all(0 <= size < 2**31 for size in values.values()):
        return None
    tiles = [_tiles(configuration, values) for configuration in document.configurations]
    if all(pair is None for pair in tiles):
        return None
    trees = document.dispatcher
    nodes = list(map(Node._make, trees.nodes))
    dispatcher = Dispatcher(trees.waves, trees.processors, nodes, trees.roots, trees.longer, trees.exact)
    with np.errstate(all="ignore"):  # coefficients may be of any size
        order = dispatcher.order([values[name] for name in document.extents], [pair or (_NONE,) * 2 for pair in tiles])
    return next(number for number in order if tiles[number] is not None)


def _tiles(configuration: ConfigurationOfLibrary, sizes: Mapping[str, int]) -> tuple[float, float] | None:
    """Return the tiles and the work of each that the dispatcher reads; None for a configuration that is not valid."""
    formulas = configuration.launch
    for text in configuration.formulas:
        parse(text)  # what is no expression is no matter of the sizes
    try:
        if not all(parse(text).holds(sizes) for text in configuration.sizes_must_satisfy):
            return None
        launch = launch_of(formulas.model_dump(), formulas.launched, sizes)
        parse(formulas.zeros or "0").size(sizes)
    except ExpressionError:  # no value, or no launch: the C code leaves the configuration out, too
        return None
    if launch.shared_bytes > configuration.most_shared_bytes:
        return None
    return _number(formulas.tiles, sizes), _number(formulas.of_tile, sizes)


def _number(formula: str, sizes: Mapping[str, int]) -> float:
    """Return the value of a formula, 0 where it has none."""
    try:
        value = float(parse(formula).evaluate(sizes))
    except (ExpressionError, ValueError):
        return 0.0
    return value if abs(value) < LARGEST_INTEGER else 0.0
