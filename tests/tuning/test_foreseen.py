"""Times that a model of tunes expects at sizes that were not tuned."""

import functools
from collections.abc import Callable

import numpy as np

from mltune.cost.features import Features
from mltune.device.known import H200
from mltune.kernel.coding import row
from mltune.kernel.placed import PlacedKernel
from mltune.kernel.reader import load_kernel
from mltune.problem.gemm import GemmProblem, parse_problem
from mltune.records.trial import Candidate, Measurement, TrialState
from mltune.records.trials import Trials
from mltune.tuning.cross import expected_times

KERNEL = load_kernel("gemm_simt")
TUNED = [parse_problem("sgemm", trans="NT", m=size, n=size, k=512) for size in (512, 2048)]
OTHERS = [parse_problem("sgemm", trans="NT", m=size, n=128, k=512) for size in (256, 1024, 4096)]


@functools.cache
def placed_at(problem: GemmProblem) -> PlacedKernel:
    """Return the kernel at a problem; its space takes most of a second."""
    return PlacedKernel(KERNEL.recorded_with(()), problem, H200)


def trials_of(problem: GemmProblem, factor: Callable[[dict[str, int]], float | None], count: int = 100) -> Trials:
    """Return trials whose times are those of physics, times a factor: None for one that fails."""
    placed = placed_at(problem)
    columns = placed.space.rows(placed.space.sample(count, np.random.default_rng(1)))
    records = []
    for number, physical_s in enumerate(Features(placed).physical_s(columns).tolist()):
        configuration = row(columns, number)
        of_physics = factor(configuration)
        state = TrialState.LAUNCH_ERROR if of_physics is None else TrialState.OK
        measurement = None if of_physics is None else Measurement(state, median_s=physical_s * of_physics)
        candidate = Candidate(number, 0, number, configuration, "start")
        records.append(candidate.record(state, measurement=measurement))
    return Trials.from_records(records, placed.space.names)


def test_what_was_slower_than_by_physics_is_not_expected_to_be_fast_elsewhere():
    kernel = KERNEL.with_variants()

    def factor(configuration: dict[str, int]) -> float:
        return 20.0 if configuration["BLK_M"] == 64 else 1.0

    runs = [(problem, trials_of(problem, factor)) for problem in TUNED]
    runs.append((TUNED[0], trials_of(TUNED[0], lambda _: None, 10)))
    columns, times_s = expected_times(kernel, H200, runs, OTHERS)
    slow = columns["BLK_M"] == 64
    assert times_s.shape == (len(OTHERS), len(slow))
    for problem, of_problem_s in zip(OTHERS, times_s, strict=True):
        placed = PlacedKernel(KERNEL, problem, H200)
        runs_there = placed.runs(columns)
        assert (np.isfinite(of_problem_s) == runs_there).all()
        ratios = of_problem_s[runs_there] / Features(placed).physical_s(
            {name: column[runs_there] for name, column in columns.items()}
        )
        assert np.median(ratios[slow[runs_there]]) > 5 > 2 > np.median(ratios[~slow[runs_there]])
    places = [PlacedKernel(kernel, problem, H200) for problem in OTHERS]
    for configuration in (kernel.compiler.completed(row(columns, number)) for number in range(20)):
        assert set(configuration) == set(kernel.all_parameters)
        assert any(placed.contains(configuration) for placed in places)


def test_without_a_timed_trial_nothing_is_expected():
    runs = [(problem, trials_of(problem, lambda _: None, 10)) for problem in TUNED]
    columns, times_s = expected_times(KERNEL, H200, runs, OTHERS)
    assert columns == {}
    assert times_s.shape == (len(OTHERS), 0)
