"""The file of times by size and candidate, in the directory of a library's run."""

from __future__ import annotations

import math
from pathlib import Path

from pydantic import BaseModel, NonNegativeFloat, PositiveFloat

from mltune.errors import DamagedRunError
from mltune.files.reading import read_file

CROSS = "cross.json"
"""The file in the directory of the run with the times of candidates at sizes."""

_CROSS_BYTES = 1 << 26


class Times(BaseModel, extra="forbid", allow_inf_nan=False):
    """The file of times by size and candidate, None for a failure, and the seconds that they took."""

    seconds: NonNegativeFloat = 0.0
    times: dict[str, dict[str, PositiveFloat | None]] = {}


def read_times(file: Path) -> Times:
    """Return the times on record; a file of another form is refused."""
    if not file.is_file():
        return Times()
    try:
        return Times.model_validate_json(read_file(file, _CROSS_BYTES, inside=file.parent))
    except (OSError, ValueError) as error:
        raise DamagedRunError(
            f"{file}, the times by size and candidate, cannot be read; delete it, and they are measured again."
        ) from error


def coded(time_s: float | None) -> float:
    """Return the time of a candidate in a table of times: infinite where it failed."""
    return math.inf if time_s is None else time_s
