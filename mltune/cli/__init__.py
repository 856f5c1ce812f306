"""The command ``mltune``: read the options, call the Python interface, print. No other room prints."""

from __future__ import annotations

import signal
import sys
import warnings

import typer

from mltune.cli import comparison, inventory, plans, runs, tuning
from mltune.cli.application import app
from mltune.errors import MltuneError, MltuneWarning, UsageError

__all__ = ["comparison", "inventory", "main", "plans", "runs", "tuning"]


def main() -> None:
    """Run the command; an error of the user is one line on stderr and exit code 2, a failed run exit code 1."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    warnings.formatwarning = _warning
    try:
        app(prog_name="mltune")
    except MltuneError as error:
        typer.echo(f"mltune: {error}", err=True)
        sys.exit(2 if isinstance(error, UsageError) else 1)


def _warning(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None
) -> str:
    """Write a warning of mltune in one line, and any other with its place in the code."""
    place = "" if issubclass(category, MltuneWarning) else f"{filename}:{lineno}: {category.__name__}: "
    return f"{place}{message}\n"
