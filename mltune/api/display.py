"""The display of a run's progress, and the interruption of a run, as functions of the Python interface have them."""

from __future__ import annotations

import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar

from mltune.errors import MltuneWarning, RunError
from mltune.files.text import html_rows, many


class _HasFacts(Protocol):
    @property
    def facts(self) -> Mapping[str, object]: ...


_Entry = TypeVar("_Entry", bound=_HasFacts)


_MOST_LINES = 40


class Listing(list[_Entry]):
    """A list of entries with ``facts``: a session shows a line of each, at most 40, and a notebook shows a table."""

    def __repr__(self) -> str:
        hidden = len(self) - _MOST_LINES + 1
        lines = [*map(repr, self)] if hidden <= 1 else [*map(repr, self[: _MOST_LINES - 1]), f"... and {hidden} more"]
        return f"[{(',' + chr(10) + ' ').join(lines)}]"

    def _repr_html_(self) -> str:
        return html_rows([entry.facts for entry in self])


class Forecast(dict[str, Any]):
    """The forecast of a plan, plain JSON values: a notebook shows a table of its problems."""

    def __repr__(self) -> str:
        return f"Forecast({self['title']}: {many(len(self['problems']), 'problem')}, {self['budget']:g} {self['unit']})"

    def _repr_html_(self) -> str:
        columns = ("slug", "kernel", "priority", "minimum", "share", "trials", "recorded")
        return html_rows([{name: problem[name] for name in columns} for problem in self["problems"]])


@contextmanager
def shown(progress: Any, display: str) -> Iterator[Any]:
    """Return the callable that receives the progress: for ``"auto"`` a display on a terminal or in a notebook."""
    from mltune.show import live

    if progress != "auto":
        yield progress
    elif sys.stderr.isatty() or live.in_notebook():
        with getattr(live, display)() as report:
            yield report
    else:
        yield None


@contextmanager
def attended(display: str = "RunDisplay", **patience: Any) -> Iterator[dict[str, Any]]:
    """Show the progress of a command until it ends; yield the progress and the interrupt, which heeds signals."""
    from mltune.process.signals import Interrupt
    from mltune.show import live

    with getattr(live, display)() as progress, Interrupt(**patience) as interrupt, _noting(interrupt):
        yield {"progress": progress, "interrupt": interrupt}


@contextmanager
def _noting(interrupted: Callable[[], bool]) -> Iterator[None]:
    """Note in the error of a run that it had been asked to stop."""
    try:
        yield
    except RunError as error:
        error.interrupted = interrupted()
        raise


@contextmanager
def interruptible(interrupt: Callable[[], bool] | None) -> Iterator[Callable[[], bool]]:
    """Return the callable that ends a run: by default true after a first Ctrl-C; a second one acts as usual."""
    pressed = threading.Event()
    if interrupt is not None or threading.current_thread() is not threading.main_thread():
        yield interrupt or pressed.is_set
        return

    def note(number: int, frame: object) -> None:
        signal.signal(signal.SIGINT, usual)
        pressed.set()

    usual = signal.getsignal(signal.SIGINT) or signal.default_int_handler
    signal.signal(signal.SIGINT, note)
    try:
        with _noting(pressed.is_set):
            yield pressed.is_set
    finally:
        signal.signal(signal.SIGINT, usual)


def warn(notices: Iterable[str]) -> None:
    """Warn of what the caller of a function of the Python interface should know."""
    for notice in notices:
        warnings.warn(notice, MltuneWarning, stacklevel=3)
