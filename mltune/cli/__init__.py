"""The command ``mltune``: read the options, call the Python interface, print. No other room prints."""

from __future__ import annotations

import errno
import functools
import os
import resource
import signal
import sys
import threading
import warnings
from collections.abc import Callable
from typing import Any, cast

import typer
from typer.main import get_command

from mltune.cli import inventory, libraries, runs, streams, tuning, wisdom
from mltune.cli.application import INTERRUPTED, app
from mltune.cli.completion import COMPLETING
from mltune.errors import MltuneError, MltuneWarning, RunError, UsageError
from mltune.files.reading import reason
from mltune.files.text import printable, printable_lines
from mltune.show import table

__all__ = ["inventory", "libraries", "main", "runs", "tuning", "wisdom"]

_Misuse = cast("type[Exception]", typer.BadParameter.__mro__[1])
"""Typer's class of errors in the options, which has no public name."""

_OF_LIBRARIES = ("failed to map segment", "llocate memory", "cannot map zero-fill pages", "can't start new thread")
"""Parts of the errors of the dynamic linker, and of Python, without room for a library or a thread."""

_LITTLE_BYTES = 1 << 32
"""Address space that the reservations of libraries would use up."""


def main(arguments: list[str] | None = None) -> None:
    """Run a command line; exit code 2 with one line on stderr for an error of the user, 1 for a failed run."""
    try:
        _run(arguments)
    except SystemExit as ended:
        if any(thread.name == "mltune-late" for thread in threading.enumerate()):  # Python may crash as it ends it
            streams.flush()
            os._exit(ended.code if isinstance(ended.code, int) else 0)
        raise


def _run(arguments: list[str] | None) -> None:
    _interrupted.clear()
    for number in (signal.SIGINT, signal.SIGTERM):
        if number is signal.SIGTERM or signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _interrupt)
    warnings.formatwarning = _warning
    streams.prepare()
    _spare_memory()
    try:
        sys.exit(_command()(arguments, prog_name="mltune", standalone_mode=False))
    except MltuneError as error:
        is_interrupted = isinstance(error, RunError) and error.interrupted
        _fail(error, 2 if isinstance(error, UsageError) else INTERRUPTED if is_interrupted else 1)
    except _Misuse as error:
        _fail(_misuse(error), 2)
    except (typer.Abort, KeyboardInterrupt):
        _fail("interrupted", INTERRUPTED)
    except Exception as error:
        if _interrupted:
            _fail("interrupted", INTERRUPTED)
        if text := _shortage(error) or _unusable(error):
            _fail(text, 1)
        if COMPLETING not in os.environ:  # a shell that completes a word shows nothing instead
            raise


_interrupted: list[int] = []


def _interrupt(number: int, _: object) -> None:
    """Raise a KeyboardInterrupt, and note it: a module whose import it ends may raise another error in its place.

    A second signal ends the process at once.
    """
    if _interrupted:
        os._exit(128 + number)
    _interrupted.append(number)
    raise KeyboardInterrupt


@functools.cache
def _command() -> Callable[..., Any]:
    return get_command(app)


def _fail(message: object, code: int) -> None:
    table.write(f"mltune: {message}", stderr=True)
    sys.exit(code)


def _spare_memory() -> None:
    """Keep libraries from reserving scarce address space; called before their import."""
    if 0 <= _limit() < _LITTLE_BYTES:
        os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")  # the others of Arrow reserve a gigabyte
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # where a thread has no room, OpenBLAS ends or hangs


def _limit() -> int:
    return resource.getrlimit(resource.RLIMIT_AS)[0]


def _shortage(error: BaseException) -> str:
    """Return the message for an error from too little memory; empty for any other error."""
    is_short = isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM)
    of_library = [line for line in str(error).splitlines() if any(part in line for part in _OF_LIBRARIES)]
    if not is_short and not of_library:
        return ""
    fact = "end other programs"
    if (limit := _limit()) != resource.RLIM_INFINITY:
        fact = f"the limit of its address space is {limit / 1e6:,.0f} MB; raise it with `ulimit -v`"
    cause = printable(": ".join(filter(None, [type(error).__name__, *(of_library or [str(error)])[-1:]])), 200)
    return f"there is not enough memory for the command: {fact}, then repeat the command ({cause})."


def _unusable(error: Exception) -> str:
    """Write the error of a file that cannot be used; empty for any other error."""
    if isinstance(error, RuntimeError) and "home directory" in str(error):  # of the completion
        return "a file of the user lies in the home directory, but there is none; set HOME."
    if not isinstance(error, OSError):
        return ""
    is_output = error.errno in (errno.ENOSPC, errno.EBADF)  # the files that are written are named
    unnamed = "standard output" if is_output else "a file"
    return f"{error.filename or unnamed} cannot be used: {reason(error)}."


def _misuse(error: Any) -> str:
    """Write an error in the options in one line, with the meaning of an argument that is missing."""
    text = error.format_message().rstrip(".")
    meaning = (getattr(getattr(error, "param", None), "help", None) or "").rstrip(".")
    text = f"{text[0].lower()}{text[1:]}{meaning and f' ({meaning})'}"
    command = error.ctx.command_path if error.ctx else " ".join(["mltune", *sys.argv[1:2]])
    return f"{text}{'' if text.endswith('?') else ';'} see `{command} --help`."


def _warning(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None
) -> str:
    """Write a warning of mltune in one line, and any other with its position in the code."""
    place = "" if issubclass(category, MltuneWarning) else f"{filename}:{lineno}: {category.__name__}: "
    return f"{printable_lines(f'{place}{message}')}\n"
