"""Where things lie in the directory of a run, and in that of a plan, which holds one run a problem."""

from __future__ import annotations

from pathlib import Path

from mltune.errors import RunDirectoryError
from mltune.records.store import FILE

PLAN_FILE = "plan.toml"
"""In the directory of a plan: the plan as it was read."""

PROBLEMS = "problems"
"""In the directory of a plan: the runs of its problems, one folder each."""

WINNER = "winner"
"""In the directory of a run: the winner, to be taken away."""

WINNERS = "winners"
"""In the directory of a plan: the winners of all its problems, one folder each."""


def is_plan(directory: Path) -> bool:
    """Return whether a directory is that of a plan."""
    return (directory / PLAN_FILE).is_file()


def runs_in(directory: Path) -> list[Path]:
    """Return the directories of the runs that a directory holds: those of a plan's problems, by name, or itself.

    Raises
    ------
    RunDirectoryError
        It is neither the directory of a run nor that of a plan.
    """
    directory = Path(directory)
    if is_plan(directory):
        return sorted(path.parent for path in directory.glob(f"{PROBLEMS}/*/{FILE}"))
    if (directory / FILE).is_file():
        return [directory]
    raise RunDirectoryError(
        f"the directory of a run holds {FILE}, that of a plan {PLAN_FILE}, but there is neither in {directory}."
    )
