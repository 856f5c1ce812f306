"""Strategies of other packages in their own code: Kernel Tuner's, Optuna's Gaussian process, and pymoo's."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import math
import os
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np

from mltune.comparison.baselines import Projection
from mltune.comparison.simulation import Simulation
from mltune.errors import UsageError
from mltune.files.text import no_such
from mltune.records.versions import import_package


@dataclass(frozen=True, slots=True)
class KernelTuner:
    """A strategy of Kernel Tuner (van Werkhoven, 2019, 10.1016/j.future.2018.08.004) with its default options.

    Its ``tune`` function runs with its own search space of exactly the recorded configurations, and a runner that
    answers from the simulation: times in milliseconds, failures as its own error type. Proposals that Kernel Tuner
    discards as invalid do not reach the simulation and are not counted.
    """

    name: str
    strategy: str

    def __post_init__(self) -> None:
        self._module()

    def search(self, simulation: Simulation, seed: int) -> None:
        """Search as in Kernel Tuner's simulation mode; see :class:`mltune.comparison.simulation.Strategy`."""
        with _quiet():
            module = self._module()
            space = _kernel_tuner_space(simulation)
            runner = _runner(simulation)
            options = _tuning_options(simulation, self.strategy, space, seed)
        with _quiet(), _seeded(seed):
            simulation.begin()
            module.tune(space, runner, options)

    def _module(self) -> Any:
        with _quiet():
            user = f"strategy {self.name}"
            strategy_map = import_package("kernel_tuner.interface", user, "mltune-gpu[peers]").strategy_map
        if self.strategy not in strategy_map:
            law = f"They are {', '.join(strategy_map)}"
            raise UsageError(no_such("strategy of Kernel Tuner", self.strategy, strategy_map, law))
        return strategy_map[self.strategy]


def _recorded(simulation: Simulation) -> list[tuple[int, ...]]:
    """Return the values of every recorded configuration, in the order of the space."""
    columns = simulation.space.rows(np.arange(simulation.space.count)).values()
    return list(zip(*(column.tolist() for column in columns), strict=True))


def _kernel_tuner_space(simulation: Simulation) -> Any:
    """Return Kernel Tuner's search space of exactly the recorded configurations."""
    from kernel_tuner.searchspace import Searchspace

    space = simulation.space
    rows = enumerate(_recorded(simulation))
    configurations = {str(row): dict(zip(space.names, values, strict=True)) for row, values in rows}
    parameters = {name: list(space.values[name]) for name in space.names}
    return Searchspace(None, None, None, from_cache={"tune_params": parameters, "cache": configurations})


def _tuning_options(simulation: Simulation, strategy: str, space: Any, seed: int) -> Any:
    """Return the options that Kernel Tuner's strategies read, as its ``tune_kernel`` makes them."""
    from kernel_tuner.interface import Options
    from kernel_tuner.util import TuningBudget

    limit = simulation.budget
    return Options(
        {
            "tune_params": space.tune_params,
            "restrictions": None,
            "restrictions_unmodified": None,
            "strategy": strategy,
            "strategy_options": Options({"max_fevals": limit}),
            "max_fevals": limit,
            "budget": TuningBudget(None, limit),
            "objective": ["time"],
            "objective_higher_is_better": [False],
            "metrics": None,
            "cache": {},
            "cachefile": None,
            "simulation_mode": True,
            "simulated_time": 0,
            "verbose": False,
            "seed": seed,
        }
    )


def _runner(simulation: Simulation) -> Any:
    """Return a runner of Kernel Tuner that answers from a simulation."""
    from kernel_tuner.runners.runner import Runner
    from kernel_tuner.util import RuntimeFailedConfig

    index_of = {values: index for index, values in enumerate(_recorded(simulation))}

    class SimulationRunner(Runner):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.dev = SimpleNamespace(max_threads=1_000_000_000, name="recorded", quiet=True)
            self.quiet = True
            self.simulation_mode = True
            self.units: dict[str, str] = {}

        def get_device_info(self) -> Any:
            return self.dev

        def get_environment(self, tuning_options: Any) -> dict[str, Any]:
            return {"device_name": self.dev.name}

        def run(self, parameter_space: Iterable[Sequence[int]], tuning_options: Any) -> list[dict[str, Any]]:
            return [self._answer(tuple(values), tuning_options) for values in parameter_space]

        def _answer(self, values: tuple[int, ...], tuning_options: Any) -> dict[str, Any]:
            index = index_of.get(values, -1)
            if index >= 0 and not simulation.seen(index):
                tuning_options.budget.add_evaluations(1)
            median_s = simulation.evaluate(index)
            answer: dict[str, Any] = dict(zip(simulation.space.names, values, strict=True))
            if median_s is None:
                return answer | {"__error__": RuntimeFailedConfig()}
            return answer | {"time": 1e3 * median_s, "times": [1e3 * median_s]}

    return SimulationRunner()


@dataclass(frozen=True, slots=True)
class OptunaGp:
    """Optuna's GPSampler; each proposal is projected to the nearest untried configuration of the space.

    A value is its position in the sorted list. The projected configuration is reported as if it had been proposed; a
    failure counts as the slowest so far.
    """

    name: str = "gp"

    def __post_init__(self) -> None:
        _check_installed("torch", "gp", "gp")

    def search(self, simulation: Simulation, seed: int) -> None:
        """Search one proposal at a time; see :class:`mltune.comparison.simulation.Strategy`."""
        import optuna
        import torch
        from optuna.distributions import IntDistribution

        from mltune.search.tpe import new_study

        torch.set_num_threads(1)
        space = simulation.space
        projection = Projection(space)
        distributions = {name: IntDistribution(0, len(space.values[name]) - 1) for name in space.names}
        study = new_study(optuna.samplers.GPSampler(seed=seed))
        worst = np.inf
        simulation.begin()
        while not projection.exhausted:
            trial = study.ask(distributions)
            index = projection.take([trial.params[name] for name in space.names])
            median_s = simulation.evaluate(index)
            score = worst if median_s is None else -math.log(median_s)
            worst = min(worst, score)
            study.tell(trial, state=optuna.trial.TrialState.FAIL)  # the sampler ignores it: the projection counts
            if math.isfinite(score):
                params = dict(zip(space.names, projection.codes[index].tolist(), strict=True))
                study.add_trial(optuna.trial.create_trial(params=params, distributions=distributions, value=score))


@dataclass(frozen=True, slots=True)
class Pymoo:
    """An algorithm of pymoo (Blank and Deb, 2020, 10.1109/ACCESS.2020.2990567) with its default options.

    Values, proposals and failures are those of :class:`OptunaGp`.
    """

    name: str
    algorithm: str

    def __post_init__(self) -> None:
        if self.algorithm not in ALGORITHMS:
            law = f"They are {', '.join(ALGORITHMS)}"
            raise UsageError(no_such("strategy of pymoo", self.algorithm, ALGORITHMS, law))
        _check_installed("pymoo", self.name)

    def search(self, simulation: Simulation, seed: int) -> None:
        """Search a generation at a time; see :class:`mltune.comparison.simulation.Strategy`."""
        with _quiet():
            from pymoo.core.evaluator import Evaluator
            from pymoo.core.problem import Problem
            from pymoo.core.termination import NoTermination
            from pymoo.problems.static import StaticProblem

            module, kind = ALGORITHMS[self.algorithm]
            algorithm = getattr(importlib.import_module(module), kind)()
        space = simulation.space
        projection = Projection(space)
        last = np.array([len(space.values[name]) - 1.0 for name in space.names])
        problem = Problem(n_var=len(last), n_obj=1, xl=np.zeros(len(last)), xu=last)
        algorithm.setup(problem, termination=NoTermination(), seed=seed, verbose=False)
        slowest = 0.0
        simulation.begin()
        while not projection.exhausted:
            proposed = algorithm.ask()
            taken, times_s = [], []
            for position in proposed.get("X"):
                if projection.exhausted:
                    return
                taken.append(projection.take(np.rint(position).astype(int)))
                median_s = simulation.evaluate(taken[-1])
                slowest = max(slowest, median_s or 0.0)
                times_s.append(median_s)
            proposed.set("X", projection.codes[taken].astype(float))
            values = np.array([[slowest if time_s is None else time_s] for time_s in times_s])
            Evaluator().eval(StaticProblem(problem, F=np.log(np.maximum(values, 1e-12))), proposed)
            algorithm.tell(infills=proposed)


ALGORITHMS = {
    "ga": ("pymoo.algorithms.soo.nonconvex.ga", "GA"),
    "de": ("pymoo.algorithms.soo.nonconvex.de", "DE"),
    "pso": ("pymoo.algorithms.soo.nonconvex.pso", "PSO"),
}
"""The modules and classes of pymoo's algorithms for one objective."""


def _check_installed(package: str, name: str, extra: str = "peers") -> None:
    if importlib.util.find_spec(package) is None:
        installed = f"pip install 'mltune-gpu[{extra}]'"
        raise UsageError(f"strategy {name} needs {package}, which is not installed: {installed}.")


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Suppress the output and the warnings of third-party code."""
    import warnings

    with (
        open(os.devnull, "w", encoding="utf-8") as nowhere,
        contextlib.redirect_stdout(nowhere),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        yield


@contextlib.contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Seed the global generators that Kernel Tuner uses, and restore them afterwards."""
    state, numpy_state = random.getstate(), np.random.get_state()
    random.seed(seed)
    np.random.seed(seed)
    try:
        yield
    finally:
        random.setstate(state)
        np.random.set_state(numpy_state)
