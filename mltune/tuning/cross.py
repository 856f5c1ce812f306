"""Times of configurations that are known already at further sizes: what the choice of a few of them is made from."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import compress
from time import perf_counter

import numpy as np

from mltune.kernel.bundle import Kernel
from mltune.kernel.space import TableSpace, find
from mltune.problem.problem import Problem
from mltune.process.child import ChildPool
from mltune.records.trial import TrialState
from mltune.resolve.device import Target
from mltune.resolve.request import TuneRequest
from mltune.tuning.session import open_session


def time_configurations(
    kernel: Kernel,
    problem: Problem,
    target: Target,
    configurations: Sequence[Mapping[str, int]],
    *,
    pool: ChildPool | None = None,
    compilers: int | None = None,
    until: float = math.inf,
    tell_reference: Callable[[float], None] | None = None,
) -> list[float | None]:
    """Verify and time configurations on a problem; None where one fails, or is not among the recorded ones.

    Those left at `until`, on the clock of :func:`time.perf_counter`, are missing at the end. `tell_reference` is called
    with the seconds of the reference implementation, where they are known and there is time.
    """
    if not configurations:
        return []
    space = TableSpace(
        {name: np.array([configuration[name] for configuration in configurations]) for name in configurations[0]}
    )
    request = TuneRequest(problem, kernel, target, compilers=compilers)
    with open_session(request, space=space, pool=pool) as session:
        valid = [find(session.placed.space, configuration) >= 0 for configuration in configurations]
        measurements = session.measure(list(compress(configurations, valid)), until=until)
        times: list[float | None] = []
        for is_valid in valid:
            measured = next(measurements, None) if is_valid else None
            if is_valid and measured is None:  # the time is up
                break
            was_timed = measured is not None and measured.state in (TrialState.OK, TrialState.UNSTABLE)
            times.append(measured.median_s if measured and was_timed else None)  # its noise is no fault of it
        if tell_reference is not None and perf_counter() < until:
            reference = session.reference()
            reference_s = session.recorded_reference_s if reference is None else reference.median_s
            if reference_s is not None:
                tell_reference(reference_s)
    return times
