"""Configurations that a model of tunes expects to be fast at sizes that were not tuned."""

from collections import Counter
from collections.abc import Callable

import numpy as np

from mltune.cost.features import Features
from mltune.device.known import H200
from mltune.kernel.coding import row
from mltune.kernel.placed import PlacedKernel
from mltune.kernel.reader import load_kernel
from mltune.library.foreseen import foreseen
from mltune.problem.gemm import GemmProblem, parse_problem
from mltune.records.trial import Candidate, Measurement, TrialState
from mltune.records.trials import Trials

KERNEL = load_kernel("gemm_simt")
TUNED = [parse_problem("sgemm", trans="NT", m=size, n=size, k=512) for size in (512, 2048)]
OTHERS = [parse_problem("sgemm", trans="NT", m=size, n=128, k=512) for size in (256, 1024, 4096)]
WEIGHTS = np.ones(len(OTHERS))


def trials_of(problem: GemmProblem, factor: Callable[[dict[str, int]], float | None], count: int = 100) -> Trials:
    """Return trials whose times are those of physics, times a factor: None for one that fails."""
    placed = PlacedKernel(KERNEL.recorded_with(()), problem, H200)
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
    untimed = (TUNED[0], trials_of(TUNED[0], lambda _: None, 10))
    by_physics = foreseen(
        kernel, H200, [untimed, *((problem, trials_of(problem, lambda _: 1.0)) for problem in TUNED)], OTHERS, WEIGHTS
    )
    slow = Counter(configuration["BLK_M"] for configuration in by_physics).most_common(1)[0][0]

    def factor(configuration: dict[str, int]) -> float:
        return 20.0 if configuration["BLK_M"] == slow else 1.0

    chosen = foreseen(kernel, H200, [(problem, trials_of(problem, factor)) for problem in TUNED], OTHERS, WEIGHTS)
    assert chosen
    assert all(configuration["BLK_M"] != slow for configuration in chosen)
    for configuration in chosen:
        assert set(configuration) == set(kernel.all_parameters)
        assert any(PlacedKernel(kernel, problem, H200).contains(configuration) for problem in OTHERS)


def test_without_a_timed_trial_nothing_is_foreseen():
    runs = [(problem, trials_of(problem, lambda _: None, 10)) for problem in TUNED]
    assert foreseen(KERNEL, H200, runs, OTHERS, WEIGHTS) == []
