"""The choice of a configuration for some sizes, from the document of a library alone, as its C source makes it."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from mltune.errors import ExpressionError
from mltune.kernel.coding import LARGEST_INTEGER
from mltune.kernel.expressions import parse
from mltune.library.dispatcher import Dispatcher, Node
from mltune.library.document import ConfigurationOfLibrary, Document

_MOST_BLOCKS = (2**31 - 1, 65535, 65535)
_MOST_THREADS = 1024
_NONE = float("nan")


def choice(document: Document, sizes: Mapping[str, int]) -> int | None:
    """Return the number of the configuration that runs for some sizes with a workspace that is large enough.

    Nothing of the library runs. It is None where no configuration is valid for the sizes.

    Raises
    ------
    ExpressionError
        A formula of the library is no expression.
    """
    values = {name: sizes[name] for name in document.sizes}
    if not all(0 <= size < 2**31 for size in values.values()):
        return None
    tiles = [_tiles(one, values) for one in document.configurations]
    if all(pair is None for pair in tiles):
        return None
    trees = document.dispatcher
    dispatcher = Dispatcher(
        tuple(map(tuple, trees.waves)),
        trees.processors,
        tuple(Node(*node) for node in trees.nodes),
        tuple(trees.roots),
        tuple(map(tuple, trees.longer)),
    )
    with np.errstate(all="ignore"):  # coefficients may be of any size
        order = dispatcher.order([values[name] for name in document.extents], [pair or (_NONE,) * 2 for pair in tiles])
    return next(number for number in order if tiles[number] is not None)


def _tiles(configuration: ConfigurationOfLibrary, sizes: Mapping[str, int]) -> tuple[float, float] | None:
    """Return the tiles and the work of each that the dispatcher reads; None for a configuration that is not valid."""
    formulas = configuration.launch
    conditions = [parse(text) for text in configuration.sizes_must_satisfy]
    expressions = [parse(text) for text in (*formulas.grid, *formulas.block, formulas.shared_bytes)]
    expressions += [parse(text) for text in (formulas.workspace_bytes, formulas.zeros) if text is not None]
    try:
        if not all(bool(condition.holds(sizes)) for condition in conditions):
            return None
        extents = [expression.size(sizes) for expression in expressions]
    except ExpressionError:  # no value, or no size: the C code leaves the configuration out, too
        return None
    fits = all(blocks <= most for blocks, most in zip(extents[:3], _MOST_BLOCKS, strict=True))
    fits = fits and all(1 <= threads <= _MOST_THREADS for threads in extents[3:6])
    if not fits or extents[6] > configuration.most_shared_bytes:
        return None
    return _number(formulas.tiles, sizes), _number(formulas.of_tile, sizes)


def _number(formula: str, sizes: Mapping[str, int]) -> float:
    """Return the value of a formula, 0 where it has none."""
    expression = parse(formula)
    try:
        value = float(expression.evaluate(sizes))
    except (ExpressionError, ValueError):
        return 0.0
    return value if abs(value) < LARGEST_INTEGER else 0.0
