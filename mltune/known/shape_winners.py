"""The shapes of a Triton kernel, and its winners there: a file in the directory of a run, with a line for each."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mltune.errors import UsageError
from mltune.files.atomic import append_line
from mltune.files.owned import FOUND, foreign
from mltune.files.reading import check_folder, parse_json, read_text, reason
from mltune.files.sizes import MAX_BYTES, distinct, sizes_of_csv

WINNERS = "winners.jsonl"
"""The name of the file."""

Row = dict[str, Any]


def read_shapes(path: str | Path) -> list[tuple[dict[str, int], float]]:
    """Return the shapes of a CSV file with how often each is used, the most used ones first."""
    try:
        counts = distinct(sizes_of_csv(read_text(path, MAX_BYTES), least=0))
    except (OSError, ValueError) as error:
        raise UsageError(f"{path!s:.300} has no shapes: {reason(error):.400}. They are sizes in a CSV file.") from error
    return [(dict(shape), count) for shape, count in sorted(counts.items(), key=lambda item: -item[1])]


def check_winners(folder: Path) -> None:
    """Check that winners may be added in a folder."""
    if fact := foreign(folder / WINNERS, FOUND):
        raise UsageError(
            f"{fact}, and winners of shapes are added to a file of mltune alone; name another directory (--run)."
        )


def read_winners(folder: Path, facts: Row) -> dict[tuple[tuple[str, int], ...], Row]:
    """Return the winners in a folder, which is made if missing, with the same facts, by shape; of several the last."""
    check_folder(folder, inside=folder, create=True)
    winners, path = {}, folder / WINNERS
    for line in read_text(path, MAX_BYTES, inside=folder).splitlines() if path.exists() else ():
        try:
            row = parse_json(line)
            winner = {**row["found"], "configuration": {**row["found"]["configuration"]}}
            numbers = [winner["measured"], winner["seconds"], winner["first_s"] or 0.0]
            if row["facts"] == facts and 0 < winner["median_s"] <= winner["median_s"] + sum(numbers) < 1e9:
                winners[tuple(sorted(row["shape"].items()))] = winner
        except (ValueError, TypeError, LookupError, AttributeError):
            continue  # a line that a kill cut off, or another program wrote
    return winners


def add_winner(folder: Path, facts: Row, shape: Mapping[str, int], winner: Row) -> None:
    """Add the winner of a shape to the file."""
    append_line(folder / WINNERS, json.dumps({"facts": facts, "shape": shape, "found": winner}).encode())
