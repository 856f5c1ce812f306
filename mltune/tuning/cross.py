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
from mltune.kernel.coding import Columns, Floats, columns_of, length
from mltune.kernel.placed import PlacedKernel
from mltune.kernel.space import TableSpace, find
from mltune.problem.problem import Problem, RunnableProblem
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

    One may be given several times. Those left at `until`, on the clock of :func:`time.perf_counter`, are missing at the
    end. `tell_reference` is called with the seconds of the reference implementation, where they are known and there is
    time.
    """
    if not configurations:
        return []
    distinct = {(*configuration.items(),): configuration for configuration in configurations}
    space = TableSpace(columns_of(*distinct.values()))
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


_ROUNDS, _CHANGED, _IMPROVED = 3, 8, 4  # changes of one parameter, of so many at a time; configurations that remain


Timed = tuple[RunnableProblem, Columns, Floats]
"""A problem, a table of configurations that were timed on it, and their seconds."""


class TimeModel:
    """What configurations of a kernel are expected to take at any size, by their seconds at some.

    The model learns how much faster or slower than by physics a configuration is, so it knows sizes that were not
    timed. It knows no compiler parameters.
    """

    def __init__(self, kernel: Kernel, device: Device, timed: Sequence[Timed]) -> None:
        self._kernel, self._device = kernel.recorded_with(()), device
        inputs = [self._inputs(self._placed(problem), columns) for problem, columns, _ in timed]
        rows, physical_s = zip(*inputs, strict=True)
        speeds = np.log(np.concatenate(physical_s) / np.concatenate([times_s for *_, times_s in timed]))
        self._model = ExtraTreesModel(random_state=0, slope=1.0).fit(np.concatenate(rows), speeds)

    def times_s(self, problems: Sequence[RunnableProblem], columns: Columns) -> Floats:
        """Return seconds, of shape (n_problems, n_configurations), infinite where a configuration does not run."""
        times_s = np.full((len(problems), length(columns)), np.inf)
        for problem, of_problem_s in zip(problems, times_s, strict=True):
            placed = self._placed(problem)
            runs = placed.runs(columns)
            inputs, physical_s = self._inputs(placed, {name: column[runs] for name, column in columns.items()})
            of_problem_s[runs] = physical_s / np.exp(self._model.predict(inputs)[0])
        return times_s

    def improved(self, problems: Sequence[RunnableProblem], columns: Columns) -> Columns:
        """Return configurations that are expected to be the fastest at each of the problems, found from given ones.

        Of those expected to be the fastest at a problem one parameter after the other is changed: tiles that just fill
        the device are rare in a space, and other ones for each problem.
        """
        found = []
        begun: Columns = {name: columns[name] for name in self._kernel.all_parameters}
        for problem in problems:
            tried = begun
            for _ in range(_ROUNDS):
                tried = self._changed(self._fastest(problem, tried, _CHANGED))
            found.append(self._fastest(problem, tried, _IMPROVED))
        return _joined(found)

    def _fastest(self, problem: RunnableProblem, columns: Columns, count: int) -> Columns:
        """Return those configurations that are expected to be the fastest, in ascending order; of each code one."""
        order = np.argsort(self.times_s([problem], columns)[0])
        compiled = [name for name in columns if name not in self._kernel.space.launch_parameters]
        codes = np.column_stack([columns[name] for name in compiled])[order]
        fastest = order[np.sort(np.unique(codes, axis=0, return_index=True)[1])[:count]]
        return {name: column[fastest] for name, column in columns.items()}

    def _changed(self, columns: Columns) -> Columns:
        """Return configurations, and what differs from them in one parameter, also what does not run."""
        changes = [
            {**columns, name: np.full_like(columns[name], value)}
            for name, values in self._kernel.all_parameters.items()
            for value in values
        ]
        return _joined(changes)

    def _inputs(self, placed: PlacedKernel, columns: Columns) -> tuple[Floats, Floats]:
        """Return the features before compiling with the logarithm of the seconds by physics, and these seconds."""
        inputs = Features(placed).before({name: columns[name] for name in self._kernel.all_parameters})
        share = np.exp(inputs[:, -1])  # of the peak: the last feature is its logarithm
        physical_s = placed.problem.flops / (peak_flops(self._device, placed.problem.arithmetic) * share)
        return np.column_stack([inputs, np.log(physical_s)]), physical_s

    def _placed(self, problem: RunnableProblem) -> PlacedKernel:
        return PlacedKernel(self._kernel, problem, self._device)


def _joined(tables: Sequence[Columns]) -> Columns:
    """Return the distinct configurations of several tables."""
    names = list(tables[0])
    rows = np.unique(np.concatenate([np.column_stack([columns[name] for name in names]) for columns in tables]), axis=0)
    return dict(zip(names, rows.T, strict=True))


def model_of_times(kernel: Kernel, device: Device, timed: Sequence[Timed]) -> TimeModel | None:
    """Return a model of seconds; None without any, and of a kernel without the resources that physics needs."""
    if not timed or not Features(PlacedKernel(kernel.recorded_with(()), timed[0][0], device)).has_prior:
        return None
    return TimeModel(kernel, device, timed)
