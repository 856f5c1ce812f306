"""The identity of a campaign: the problems and the seed that its directory belongs to."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from mltune.errors import RunDirectoryError
from mltune.files.atomic import write_file_atomically
from mltune.files.documents import parse_json
from mltune.files.reading import read_file
from mltune.files.text import printable
from mltune.records.directory import IDENTITY_FILE, PLAN_FILE, is_begun, not_writable
from mltune.resolve.plan import Plan
from mltune.resolve.plan_file import load_plan

MAX_BYTES = 2**22
"""Largest file that is read: a thousand problems take a tenth of it."""

_NAMED = 3


def claim_directory(plan: Plan, directory: Path) -> None:
    """Write a plan to the directory of its campaign, which belongs to the problems and the seed of the first plan.

    Parameters
    ----------
    plan : Plan
    directory : pathlib.Path
        Locked.

    Raises
    ------
    RunDirectoryError
        The directory is that of a single run, has other problems or another seed, or cannot be written.
    PlanError
        It is of an earlier version, which kept no identity, and its plan cannot be read.
    """
    ours, identity, text = _identity(plan), directory / IDENTITY_FILE, directory / PLAN_FILE
    if identity.exists():
        _check_same(ours, _stored(identity), directory)
    elif text.is_file():
        _check_same(ours, _identity(load_plan(text)), directory)
    elif is_begun(directory):
        raise RunDirectoryError(f"a directory belongs to one plan, but {directory} is that of a single run.")
    try:
        write_file_atomically(identity, (json.dumps(ours, indent=1) + "\n").encode())
        write_file_atomically(text, plan.text.encode())
    except OSError as error:
        raise not_writable(directory, error) from error


def _identity(plan: Plan) -> dict[str, Any]:
    """Return the identity of a plan as plain JSON values."""
    problems = {task.slug: {"kernel": task.kernel.label, "problem": task.problem.to_json()} for task in plan.tasks}
    document: dict[str, Any] = json.loads(json.dumps({"seed": plan.seed, "problems": problems}))
    return document


def _stored(path: Path) -> dict[str, Any]:
    """Read an identity."""
    try:
        document = parse_json(read_file(path, MAX_BYTES, inside=path.parent))
        return {"seed": document["seed"], "problems": dict(document["problems"])}
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise RunDirectoryError(
            f"{path} holds the problems and the seed of a campaign, but it cannot be read: {error}; if "
            f"{PLAN_FILE} beside it is the plan that began the campaign, delete {path}."
        ) from error


def _check_same(ours: dict[str, Any], theirs: dict[str, Any], directory: Path) -> None:
    """Refuse a plan that is not the one to which the directory belongs."""
    mine, begun = ours["problems"], theirs["problems"]
    found = [] if ours["seed"] == theirs["seed"] else [f"the seed is {ours['seed']}, not {theirs['seed']}"]
    found += [f"{slug} is missing" for slug in begun if slug not in mine]
    found += [f"{slug} is new" for slug in mine if slug not in begun]
    found += [f"{slug} has another kernel or problem" for slug in mine if begun.get(slug, mine[slug]) != mine[slug]]
    if found:
        some = "; ".join(found[:_NAMED]) + (f"; and {len(found) - _NAMED} more differences" if found[_NAMED:] else "")
        raise RunDirectoryError(
            f"a directory belongs to one plan, but {directory} is that of another: in this plan {printable(some)}. "
            "Undo the change, or carry the plan out in another directory (--run)."
        )
