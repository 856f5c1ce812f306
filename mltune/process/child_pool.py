"""Child processes that serve several users one after the other, so that the next one need not start them."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from mltune.process.child import Child


@dataclass(slots=True, eq=False)
class ThreadedChild:
    """A child and the only thread that may call it: a child dies with the thread that started it."""

    target: str
    arguments: tuple[Any, ...]
    child: Child = field(init=False)
    thread: ThreadPoolExecutor = field(init=False)

    def __post_init__(self) -> None:
        self.child = Child(self.target, self.arguments)
        self.thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="mltune-child")


class ChildPool:
    """Children that wait for their next user. Those of one target all have the same arguments.

    Examples
    --------
    >>> pool = ChildPool()
    >>> first = pool.take("builtins:callable", ())
    >>> pool.give_back(first)
    >>> pool.take("builtins:callable", ()) is first
    True
    >>> pool.close()
    """

    def __init__(self) -> None:
        self._idle: list[ThreadedChild] = []

    def take(self, target: str, arguments: tuple[Any, ...]) -> ThreadedChild:
        """Return a child that waits, or a new one; children of the target with other arguments are ended."""
        others = [one for one in self._idle if one.target == target and one.arguments != arguments]
        self._idle = [one for one in self._idle if one not in others]
        _end(others)
        fits = next((one for one in self._idle if one.target == target), None)
        if fits is None:
            return ThreadedChild(target, arguments)
        self._idle.remove(fits)
        return fits

    def give_back(self, child: ThreadedChild) -> None:
        """Let a child wait for its next user; its thread must be idle."""
        self._idle.append(child)

    def close(self) -> None:
        """End the children that wait."""
        _end(self._idle)
        self._idle = []


def _end(children: list[ThreadedChild]) -> None:
    for one in children:
        one.child.interrupt()
    for one in children:
        one.thread.submit(one.child.kill)
        one.thread.shutdown(wait=True)
