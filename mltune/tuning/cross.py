"""Times of configurations that are known already at further sizes: what the choice of a few of them is made from."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import wait
from threading import TIMEOUT_MAX
from typing import TYPE_CHECKING

import numpy as np

from mltune.kernel.space import TableSpace, find
from mltune.records.trial import TrialState
from mltune.tuning.session import open_session

if TYPE_CHECKING:
    from mltune.kernel.bundle import Kernel
    from mltune.problem.problem import Problem
    from mltune.process.child import ChildPool
    from mltune.resolve.device import Target


def time_configurations(
    kernel: Kernel,
    problem: Problem,
    target: Target,
    configurations: Sequence[Mapping[str, int]],
    *,
    pool: ChildPool | None = None,
    compilers: int | None = None,
    until: float = math.inf,
) -> list[float | None]:
    """Verify and time configurations on a problem; None where one fails, or is not among the recorded ones.

    Parameters
    ----------
    configurations : sequence of mapping of str to int
        With the parameters of the kernel, and valid for the problem.
    until : float
        When the timing ends, on the clock of :func:`time.perf_counter`: those left then are missing at the end.
    """
    if not configurations:
        return []
    space = TableSpace(
        {name: np.array([configuration[name] for configuration in configurations]) for name in configurations[0]}
    )
    with open_session(kernel, problem, target, space=space, compilers=compilers, pool=pool) as session:
        valid = [find(session.space, configuration) >= 0 for configuration in configurations]
        builds = [
            session.builder.submit(configuration) if here else None
            for configuration, here in zip(configurations, valid, strict=True)
        ]
        times: list[float | None] = []
        for configuration, building in zip(configurations, builds, strict=True):
            left_s = until - time.perf_counter()
            if left_s <= 0 or (building is not None and not wait([building], min(left_s, TIMEOUT_MAX)).done):
                break
            build = None if building is None else building.result()
            if build is None or build.state is not TrialState.OK:
                times.append(None)
                continue
            measured = session.runner.submit(configuration, build).result()
            was_timed = measured.state in (TrialState.OK, TrialState.UNSTABLE)  # its noise is no fault of it
            times.append(measured.median_s if was_timed else None)
    return times
