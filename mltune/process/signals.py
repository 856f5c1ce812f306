"""Being told to end: the first signal asks, and a run that does not end in time, or is told twice, is ended."""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType, TracebackType
from typing import Self

from mltune.errors import UsageError

SIGNALS = (signal.SIGINT, signal.SIGTERM)

PATIENCE_S = 9.0
"""Seconds after which a process that was told to end is ended: job schedulers allow few more."""


class Interrupt:
    """Turns SIGINT and SIGTERM into a question that a loop asks now and then: ``if interrupt(): ...``.

    The first signal is remembered. The second ends the process at once, and so does the first when the loop has not
    ended after some seconds. Nothing is lost by it: every trial is on file, and worker processes die with their parent.
    A context manager of the main thread; the handlers that were there before come back.

    Parameters
    ----------
    patience_s : float
        Seconds that the loop has to end.
    twice : bool
        Whether a second signal ends the process at once: not where one may come from the parent and one from others.

    Attributes
    ----------
    signal : str
        Name of the signal that came; empty before.
    """

    def __init__(self, patience_s: float = PATIENCE_S, *, twice: bool = True) -> None:
        self.signal = ""
        self._twice = twice
        self._patience_s = patience_s
        self._before: dict[signal.Signals, object] = {}
        self._timer: threading.Timer | None = None

    def __call__(self) -> bool:
        """Return whether a signal has come."""
        return bool(self.signal)

    def __enter__(self) -> Self:
        if threading.current_thread() is not threading.main_thread():
            raise UsageError("signals are handled in the main thread, but this is another; run without an Interrupt.")
        self._before = {number: signal.signal(number, self._handle) for number in SIGNALS}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
        if self._timer is not None:
            self._timer.cancel()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.signal:
            if self._twice:
                os._exit(128 + number)
            return
        self.signal = signal.Signals(number).name
        self._timer = threading.Timer(self._patience_s, os._exit, (128 + number,))
        self._timer.daemon = True
        self._timer.start()
