"""The shapes of a Triton kernel, tuned one after the other in a process that may fail; winners stay in a file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from mltune.errors import UsageError
from mltune.known.serving import Export
from mltune.known.shape_winners import Row, add_winner, read_winners
from mltune.process.child import Child, ChildDiedError, ChildTimeoutError

SHAPE_S = 900.0
"""Seconds that a shape may take: a kernel that never ends costs that shape alone."""


def tune_in_order(
    file: Path,
    kernel: str,
    shapes: Sequence[tuple[dict[str, int], float]],
    folder: Path,
    options: Row,
    export: Export,
    progress: Callable[[Row], None],
) -> dict[str, Any]:
    """Tune a kernel at shapes with their counts, those that the folder has no winner of; see :func:`tune_shapes`.

    ``options`` are those of mltune's ``autotune``.
    """
    names = tuple(shapes[0][0])
    child = Child("mltune.integrations.triton.shape_tuner:make_tuner", (str(file), kernel, names, options))
    try:
        facts = _asked(child, None)
        if "error" in facts:
            raise UsageError(f"{file}:{kernel} cannot be tuned at sizes {', '.join(names)}: {facts['error']}")
        default = facts.pop("default")
        winners = read_winners(folder, facts)
        export.check([shape for shape, _ in shapes], facts)
        rows, written = list[Row](), list[str]()
        for shape, count in shapes:
            winner = winners.get(tuple(sorted(shape.items())))
            if winner is None and "error" not in (winner := _asked(child, shape)):
                add_winner(folder, facts, shape, winner)
            rows.append({"shape": shape, "count": count, **(winner or {})})
            progress(rows[-1])
            written = export.write(rows, facts, default)
    finally:
        child.kill()
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
