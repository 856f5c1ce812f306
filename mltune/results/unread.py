"""Runs that cannot be read: set aside with the reason, so that the others go on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from mltune.errors import MltuneError

LONGEST_REASON = 2_000
"""Characters of a reason that are kept."""

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class Unread:
    """A run that cannot be read, by its slug, and why."""

    slug: str
    reason: str


def read_or_set_aside(slug: str, read: Callable[[], Answer]) -> Answer | Unread:
    """Return what a function reads from one run, or the reason why the run cannot be read.

    A store may hold anything: it may be damaged, or written by somebody else. So every exception is a fact about this
    one run, and no other run of the plan depends on it.

    Examples
    --------
    >>> read_or_set_aside("sgemm-nt-64", lambda: 1 / 0)
    Unread(slug='sgemm-nt-64', reason='ZeroDivisionError: division by zero')
    """
    try:
        return read()
    except Exception as error:
        reason = str(error) if isinstance(error, MltuneError) else f"{type(error).__name__}: {error}"
        return Unread(slug, reason[:LONGEST_REASON])
