"""Signal handling: the first SIGINT or SIGTERM asks for a clean stop, a second one kills."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import threading
import time
from types import FrameType
from typing import Self

from mltune.errors import UsageError

SIGNALS = (signal.SIGINT, signal.SIGTERM)

PATIENCE_S = 9.0
"""Seconds after the first signal until the process is killed: job schedulers allow few more."""


class Interrupt:
    """A flag that SIGINT and SIGTERM set, for a loop to poll: ``if interrupt(): break``.

    The first signal sets the flag. A second one ends the process at once, and so does a timer if the loop has not ended
    some seconds after the first, which then says so on stderr. This loses no data: every trial is on disk, and worker
    processes die with their parent. A context manager for the main thread that restores the previous handlers at its
    end.

    Parameters
    ----------
    patience_s : float
        Seconds that the loop has to end.
    twice : bool
        Whether a second signal ends the process at once. False for a child process, to which both its parent and the
        terminal may send one.

    Attributes
    ----------
    signal : str
        Name of the first signal; empty before.
    deadline : float
        When the timer ends the process, on the clock of :func:`time.monotonic`; infinite before the first signal.
    """

    def __init__(self, patience_s: float = PATIENCE_S, *, twice: bool = True) -> None:
        self.signal = ""
        self.deadline = math.inf
        self._twice = twice
        self._patience_s = patience_s
        self._before: dict[signal.Signals, object] = {}
        self._timer: threading.Timer | None = None

    def __call__(self) -> bool:
        """Return whether a signal has arrived."""
        return bool(self.signal)

    def __enter__(self) -> Self:
        if threading.current_thread() is not threading.main_thread():
            raise UsageError("only the main thread can handle signals, but this is another; run without an Interrupt.")
        self._before = {number: signal.signal(number, self._handle) for number in SIGNALS}
        return self

    def __exit__(self, *error: object) -> None:
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
        self.deadline = time.monotonic() + self._patience_s
        self._timer = threading.Timer(self._patience_s, self._give_up, (128 + number,))
        self._timer.daemon = True
        self._timer.start()

    def _give_up(self, status: int) -> None:
        """End the process, whatever it is doing."""
        text = (
            f"mltune: it did not end within {self._patience_s:g} s of {self.signal} and was stopped, so that its last "
            "output is missing; every trial is on record: `mltune show` and `mltune report` read them, and the same "
            "command goes on.\n"
        )
        with contextlib.suppress(OSError):
            os.write(2, text.encode())
        os._exit(status)
