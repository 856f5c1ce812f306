"""Messages of a task that runs on a worker, for the host that gave the task.

Messages wait on the worker until they are asked for, so the scheduler keeps nothing, and a message that is lost on its
way is sent again. A question waits until there is one, so that a host hears of it at once.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

HOLD_S = 0.5
"""Seconds that a question waits for a message."""

_LOOK_S = 0.02

_open: dict[str, Mailbox] = {}


class Mailbox:
    """The messages of one task, in order. A context manager, used by the task.

    Parameters
    ----------
    key : str
        The key of the task.
    on_signal : callable
        Called, from another thread, with the number of a signal that the host sends to the task.
    """

    def __init__(self, key: str, on_signal: Callable[[int], None]) -> None:
        self._key = key
        self._on_signal = on_signal
        self._lock = threading.Lock()
        self._messages: deque[Any] = deque()
        self._taken = 0

    def __enter__(self) -> Mailbox:
        _open[self._key] = self
        return self

    def __exit__(self, *error: object) -> None:
        _open.pop(self._key, None)

    def put(self, message: Any) -> None:
        """Append a message."""
        with self._lock:
            self._messages.append(message)

    def take(self, received: int) -> list[Any]:
        """Return the messages after the first ``received``, and forget those."""
        with self._lock:
            while self._taken < received and self._messages:
                self._messages.popleft()
                self._taken += 1
            return list(self._messages)

    @property
    def is_empty(self) -> bool:
        """Whether all messages were received."""
        return not self._messages

    @property
    def is_wanted(self) -> bool:
        """Whether the scheduler still wants the task: the host that gave it is there, and has not cancelled it."""
        from distributed import get_worker

        task = get_worker().state.tasks.get(self._key)
        return task is not None and task.state == "executing"

    def signal(self, number: int) -> None:
        """Pass on a signal."""
        self._on_signal(number)


async def take(key: str, received: int) -> list[Any] | None:
    """Return the messages of a task after the first ``received``; None where the task does not run here."""
    deadline = time.monotonic() + HOLD_S
    while (box := _open.get(key)) is not None:
        messages = box.take(received)
        if messages or time.monotonic() > deadline:
            return messages
        await asyncio.sleep(_LOOK_S)
    return None


def send_signal(key: str, number: int) -> None:
    """Send a signal to a task that runs here."""
    box = _open.get(key)
    if box is not None:
        box.signal(number)
