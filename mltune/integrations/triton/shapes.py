"""The shapes of a Triton kernel, tuned one after the other in a process that may fail; winners stay in a file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypedDict, Unpack

from mltune.errors import UsageError
from mltune.known.serving import Export, Row, add_winner, check_winners, read_shapes, read_winners
from mltune.process.child import Child, ChildDiedError, ChildTimeoutError

SHAPE_S = 900.0
"""Seconds that a shape may take: a kernel that never ends costs that shape alone."""


class ShapeSearch(TypedDict, total=False):
    """Options of the search at each shape; :func:`mltune.tune_shapes` describes them."""

    trials: int
    seed: int
    wisdom: str | Path


def tune_in_order(
    kernel: str,
    shapes: str | Path,
    folder: Path,
    export: Export,
    progress: Callable[[Row], None],
    **search: Unpack[ShapeSearch],
) -> dict[str, Any]:
    """Tune a kernel at the shapes that the folder has no winner of, the most used ones first.

    The other arguments are those of :func:`mltune.tune_shapes`.
    """
    if unknown := search.keys() - ShapeSearch.__annotations__.keys():
        raise TypeError(f"tune_shapes() got an unexpected keyword argument {min(unknown)!r}")
    options = {"trials": 25, "seed": 0, **search, "wisdom": str(search.get("wisdom", "auto"))}
    path, _, name = kernel.rpartition(":")
    file = Path(path).resolve()
    if file.suffix != ".py" or not file.is_file():
        raise UsageError(f"{kernel!r:.200} is no Triton kernel, which is FILE.py:KERNEL, of a file that is there.")
    counts = read_shapes(shapes)
    check_winners(folder)
    names = tuple(counts[0][0])
    with Child("mltune.integrations.triton.shape_tuner:make_tuner", (str(file), name, names, options)) as child:
        facts = _asked(child, None)
        if "error" in facts:
            raise UsageError(f"{file}:{name} cannot be tuned at sizes {', '.join(names)}: {facts['error']}")
        default = facts.pop("default")
        winners = read_winners(folder, facts)
        export.check([shape for shape, _ in counts], facts)
        rows, written = list[Row](), list[str]()
        for shape, count in counts:
            winner = winners.get(tuple(sorted(shape.items())))
            if winner is None and "error" not in (winner := _asked(child, shape)):
                add_winner(folder, facts, shape, winner)
            rows.append({"shape": shape, "count": count, **(winner or {})})
            progress(rows[-1])
            written = export.write(rows, facts, default)
    notices = export.notices(rows, facts)
    return {**facts, "run": str(folder), "shapes": rows, "written": written, "notices": notices}


def _asked(child: Child, shape: Row | None, again: int = 3) -> Row:
    """Ask the process for its facts, or to tune; one that failed is replaced: the GPU may have failed with it.

    A configuration with which the GPU was lost is known from then on, and the others are tried again.
    """
    try:
        row: Row = child.call(shape, SHAPE_S)
    except (ChildDiedError, ChildTimeoutError) as error:
        row = {"error": str(error)}
    if "error" in row:
        child.kill()
    is_known = row.pop("is_known", False)
    return _asked(child, shape, again - 1) if is_known and again else row
