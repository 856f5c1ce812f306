"""The user's command at the end of a run: ``--on-end``."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass

import typer

from mltune.errors import UsageError
from mltune.files.reading import reason
from mltune.files.text import printable
from mltune.show import table

LONGEST_S = 60.0
"""Longest time of the command, seconds."""

_LONGEST_SUMMARY = 1_000


@dataclass
class Ending:
    """The end of a run for the command: its directory, empty if unknown, and one line."""

    run: str = ""
    summary: str = ""
    interrupted: bool = False


def runnable(text: str) -> str:
    """Check a command, which is split as a shell does, and whose program exists."""
    try:
        program = shutil.which(next(iter(shlex.split(text)), ""))
        fault = "there is no such program"
    except ValueError as error:
        program, fault = None, str(error)
    if program is None:
        raise UsageError(
            f"--on-end cannot be {printable(repr(text), 200)}: {fault}; give a program with its arguments."
        )
    return text


@contextlib.contextmanager
def on_end(command: str | None, run: object) -> Iterator[Ending]:
    """Run a command when the block, which fills in the :class:`Ending`, ends, but not after an immediate signal.

    An error of the block is raised after the command, whose own failures are only messages.
    """
    ending, failure = Ending("" if run is None else str(run)), None
    try:
        yield ending
    except Exception as error:
        failure = error
        if not isinstance(error, typer.Exit):
            ending.summary = str(error)
    if command is not None:
        outcome = "interrupted" if ending.interrupted else "ended" if failure is None else "failed"
        fault = _fault(command, outcome, ending)
        if fault:
            table.write(f"the command of --on-end {fault}: {command}", stderr=True)
    if failure is not None:
        raise failure


def _fault(command: str, outcome: str, ending: Ending) -> str:
    """Run the command, with its output on stderr; return its error, or nothing."""
    from mltune.records.database import PASSWORDS

    told = {
        "MLTUNE_OUTCOME": outcome,
        "MLTUNE_RUN": ending.run and os.path.abspath(ending.run),
        "MLTUNE_SUMMARY": printable(ending.summary, _LONGEST_SUMMARY),
    }
    environment = {name: value for name, value in os.environ.items() if name != PASSWORDS} | told
    try:
        done = subprocess.run(  # noqa: S603 - the user's own
            shlex.split(command), env=environment, stdin=subprocess.DEVNULL, stdout=2, timeout=LONGEST_S, check=False
        )
    except subprocess.TimeoutExpired:
        return f"took more than {LONGEST_S:g} s and was stopped"
    except OSError as error:
        return f"cannot be run ({reason(error)})"
    return f"failed (exit status {done.returncode})" if done.returncode else ""
