"""Signal handling: the first SIGINT or SIGTERM requests a clean stop, a second one kills."""

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

    A context manager of the main thread. A second signal ends the process at once, and so does a timer ``patience_s``
    after the first, with a message. This loses no data: every trial is on disk, and worker processes die with their
    parent. In a child process, to which both its parent and the terminal may send a signal, ``twice`` is false.
    ``signal`` is the name of the first one, and ``deadline`` the timer's end on the clock of :func:`time.monotonic`.
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
            raise UsageError("this is not the main thread, which alone can handle signals; run without an Interrupt.")
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
        """End the process immediately."""
        text = (
            f"mltune: it did not end within {self._patience_s:g} s of {self.signal} and was stopped, so that its last "
            "output is missing; every trial is on record: `mltune show` and `mltune report` read them, and the same "
            "command goes on.\n"
        )
        with contextlib.suppress(OSError):
            os.write(2, text.encode())
        os._exit(status)
