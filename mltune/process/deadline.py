"""A deadline for work that can be left undone."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

_POLL_EVERY_S = 0.1


def done_before(deadline: Callable[[], float], work: Callable[[], None]) -> bool:
    """Do work in a thread, and return whether it was done in time. An exception of the work is raised here.

    Work that is late is left behind in its thread, which ends with the process. So it must do no harm half done: files
    are replaced as a whole (:mod:`mltune.files.atomic`). ``deadline`` returns the time on the clock of
    :func:`time.monotonic`, and may change while the work goes on.

    Examples
    --------
    >>> import math
    >>> done_before(lambda: math.inf, lambda: None), done_before(lambda: 0.0, lambda: time.sleep(0.5))
    (True, False)
    """
    raised: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    while thread.is_alive() and time.monotonic() < deadline():
        thread.join(_POLL_EVERY_S)
    if raised:
        raise raised[0]
    return not thread.is_alive()
