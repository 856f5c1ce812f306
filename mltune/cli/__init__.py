"""The command ``mltune``: reads what is asked, drives what does it, and prints. Nothing else in the package prints."""

from __future__ import annotations

import signal
import sys

import typer

from mltune.cli import measuring, showing, strategies
from mltune.cli.application import app
from mltune.errors import MltuneError, UsageError

__all__ = ["main", "measuring", "showing", "strategies"]


def main() -> None:
    """Run the command; an error of the user is one line on stderr and exit code 2, a failed run exit code 1."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        app(prog_name="mltune")
    except MltuneError as error:
        typer.echo(f"mltune: {error}", err=True)
        sys.exit(2 if isinstance(error, UsageError) else 1)
