"""Bounds on processor time: a busy machine does not matter, and a slow one has about ten times what is usual."""

import contextlib
import time
from collections.abc import Callable, Iterator


def cpu_s(work: Callable[[], object]) -> float:
    """Return the processor time of this process for a piece of work, seconds."""
    begin = time.process_time()
    work()
    return time.process_time() - begin


@contextlib.contextmanager
def at_most_cpu_s(seconds: float) -> Iterator[None]:
    """Assert that what is done takes at most so much processor time: not the square of its size, nor for ever."""
    begin = time.process_time()
    yield
    assert time.process_time() - begin < seconds
