"""Times of configurations at further sizes, measured or as a model of the tunes of a kernel expects them.

The choice of a few configurations for many sizes is made from them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import compress
from time import perf_counter

import numpy as np

from mltune.cost.features import Features
from mltune.cost.regressors import ExtraTreesModel
from mltune.device.facts import Device
from mltune.kernel.bundle import Kernel
from mltune.kernel.coding import Columns, Floats, length
from mltune.kernel.placed import PlacedKernel
from mltune.kernel.space import TableSpace, find
from mltune.problem.problem import Problem, RunnableProblem
from mltune.process.child import ChildPool
from mltune.records.trial import TrialState
from mltune.records.trials import Trials
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


_DRAWN, _DRAWN_AT = 600, 8  # configurations from the space of each of some sizes


def expected_times(
    kernel: Kernel,
    device: Device,
    runs: Sequence[tuple[RunnableProblem, Trials]],
    problems: Sequence[RunnableProblem],
) -> tuple[Columns, Floats]:
    """Return a table of random configurations and their seconds at some problems, infinite where one does not run.

    The model learns from the trials of `runs` how much faster or slower than by physics a configuration is, so it
    knows sizes that were not tuned. The table has no compiler parameters, which have their defaults. Of a kernel
    without the resources that physics needs, and of one without a timed trial, there are no configurations.
    """
    plain = kernel.recorded_with(())
    cases = [PlacedKernel(plain, problem, device) for problem in problems]
    if not Features(cases[0]).has_prior or not any(trials.timed.any() for _, trials in runs):
        return {}, np.empty((len(problems), 0))
    rows, speeds = list[Floats](), list[Floats]()
    for problem, trials in runs:
        timed = trials.take(trials.timed)
        columns = {name: timed.parameter(name).astype(np.int64) for name in plain.all_parameters}
        inputs, physical_s = _inputs(PlacedKernel(plain, problem, device), columns)
        rows.append(inputs)
        speeds.append(np.log(physical_s / timed.column("median_s")))
    model = ExtraTreesModel(random_state=0, slope=1.0).fit(np.concatenate(rows), np.concatenate(speeds))
    drawn = [
        case.space.rows(case.space.sample(_DRAWN, np.random.default_rng(number)))
        for number, case in enumerate(cases[:: max(len(cases) // _DRAWN_AT, 1)])
    ]
    columns = {name: np.concatenate([of_case[name] for of_case in drawn]) for name in plain.all_parameters}
    times_s = np.full((len(cases), length(columns)), np.inf)
    for case, of_case_s in zip(cases, times_s, strict=True):
        valid = case.runs(columns)
        inputs, physical_s = _inputs(case, {name: column[valid] for name, column in columns.items()})
        of_case_s[valid] = physical_s / np.exp(model.predict(inputs)[0])
    return columns, times_s


def _inputs(placed: PlacedKernel, columns: Columns) -> tuple[Floats, Floats]:
    """Return the features before compiling with the logarithm of the seconds by physics, and these seconds."""
    features = Features(placed)
    physical_s = features.physical_s(columns)
    return np.column_stack([features.before(columns), np.log(physical_s)]), physical_s
