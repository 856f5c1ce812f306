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
from mltune.device.peaks import peak_flops
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


_DRAWN, _DRAWN_AT, _KEPT = 1500, 16, 36  # configurations from the space of each of some sizes, and those kept


class TimeModel:
    """What configurations of a kernel are expected to take at any size, by the trials of some.

    The model learns how much faster or slower than by physics a configuration is, so it knows sizes that were not
    tuned. It knows no compiler parameters. A kernel without the resources that physics needs has none, and neither has
    one without a timed trial.
    """

    def __init__(self, kernel: Kernel, device: Device, runs: Sequence[tuple[RunnableProblem, Trials]]) -> None:
        self._kernel, self._device = kernel.recorded_with(()), device
        rows, speeds = list[Floats](), list[Floats]()
        for problem, trials in runs:
            timed = trials.take(trials.timed)
            columns = {name: timed.parameter(name).astype(np.int64) for name in self._kernel.all_parameters}
            inputs, physical_s = _inputs(self._placed(problem), columns)
            rows.append(inputs)
            speeds.append(np.log(physical_s / timed.column("median_s")))
        self._model = ExtraTreesModel(random_state=0, slope=1.0).fit(np.concatenate(rows), np.concatenate(speeds))

    def times_s(self, problems: Sequence[RunnableProblem], columns: Columns) -> Floats:
        """Return seconds, of shape (n_problems, n_configurations), infinite where a configuration does not run."""
        times_s = np.full((len(problems), length(columns)), np.inf)
        for problem, of_problem_s in zip(problems, times_s, strict=True):
            placed = self._placed(problem)
            runs = placed.runs(columns)
            inputs, physical_s = _inputs(placed, {name: columns[name][runs] for name in self._kernel.all_parameters})
            of_problem_s[runs] = physical_s / np.exp(self._model.predict(inputs)[0])
        return times_s

    def proposals(self, problems: Sequence[RunnableProblem]) -> Columns:
        """Return random configurations that are expected to be among the fastest at some of the problems."""
        kept = []
        for number, problem in enumerate(problems[:: max(len(problems) // _DRAWN_AT, 1)]):
            space = self._placed(problem).space
            drawn = space.rows(space.sample(_DRAWN, np.random.default_rng(number)))
            fastest = np.argsort(self.times_s([problem], drawn)[0])[:_KEPT]
            kept.append({name: column[fastest] for name, column in drawn.items()})
        return {name: np.concatenate([columns[name] for columns in kept]) for name in self._kernel.all_parameters}

    def _placed(self, problem: RunnableProblem) -> PlacedKernel:
        return PlacedKernel(self._kernel, problem, self._device)


def model_of_tunes(kernel: Kernel, device: Device, runs: Sequence[tuple[RunnableProblem, Trials]]) -> TimeModel | None:
    """Return the model of a kernel's tunes; None where physics knows too little of it, and without a timed trial."""
    has_prior = Features(PlacedKernel(kernel.recorded_with(()), runs[0][0], device)).has_prior
    return TimeModel(kernel, device, runs) if has_prior and any(trials.timed.any() for _, trials in runs) else None


def _inputs(placed: PlacedKernel, columns: Columns) -> tuple[Floats, Floats]:
    """Return the features before compiling with the logarithm of the seconds by physics, and these seconds."""
    inputs = Features(placed).before(columns)
    share = np.exp(inputs[:, -1])  # of the peak: the last feature is its logarithm
    physical_s = placed.problem.flops / (peak_flops(placed.device, placed.problem.arithmetic) * share)
    return np.column_stack([inputs, np.log(physical_s)]), physical_s
