"""Times that a model of tunes expects at sizes that were not tuned."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from mltune.cost.features import Features
from mltune.device.known import H200
from mltune.kernel.coding import row
from mltune.kernel.placed import PlacedKernel
from mltune.kernel.reader import load_kernel
from mltune.problem.gemm import GemmProblem, parse_problem
from mltune.tuning.cross import Timed, TimeModel, model_of_times

KERNEL = load_kernel("gemm_simt")
TUNED = [parse_problem("sgemm", trans="NT", m=size, n=size, k=512) for size in (512, 2048)]
OTHERS = [parse_problem("sgemm", trans="NT", m=size, n=128, k=512) for size in (256, 1024, 4096)]


def timed(problem: GemmProblem, factor: Callable[[dict[str, int]], float], count: int = 100) -> Timed:
    """Return configurations and seconds, which are those of physics, times a factor."""
    placed = PlacedKernel(KERNEL.recorded_with(()), problem, H200)
    columns = placed.space.rows(placed.space.sample(count, np.random.default_rng(1)))
    factors = [factor(row(columns, number)) for number in range(count)]
    return problem, columns, Features(placed).physical_s(columns) * factors


def test_what_was_slower_than_by_physics_is_not_expected_to_be_fast_elsewhere():
    kernel = KERNEL.with_variants()

    def factor(configuration: dict[str, int]) -> float:
        return 20.0 if configuration["BLK_M"] == 64 else 1.0

    model = model_of_times(kernel, H200, [timed(problem, factor) for problem in TUNED])
    assert isinstance(model, TimeModel)
    space = PlacedKernel(KERNEL.recorded_with(()), OTHERS[0], H200).space
    columns = space.rows(space.sample(100, np.random.default_rng(3)))
    improved = model.improved(OTHERS, columns)
    assert (improved["BLK_M"] == 64).mean() < 0.02 < (columns["BLK_M"] == 64).mean(), "what is slow is not proposed"
    given_s, improved_s = (model.times_s(OTHERS, table) for table in (columns, improved))
    assert (improved_s.min(axis=1) < 0.99 * given_s.min(axis=1)).all(), "random ones are near the fastest"
    assert improved_s.shape[1] <= 4 * len(OTHERS), "four for each problem, with code of their own"
    columns = space.rows(space.sample(1000, np.random.default_rng(2)))
    times_s, slow = model.times_s(OTHERS, columns), columns["BLK_M"] == 64
    assert times_s.shape == (len(OTHERS), 1000)
    for problem, of_problem_s in zip(OTHERS, times_s, strict=True):
        placed = PlacedKernel(KERNEL, problem, H200)
        runs_there = placed.runs(columns)
        assert (np.isfinite(of_problem_s) == runs_there).all()
        ratios = of_problem_s[runs_there] / Features(placed).physical_s(
            {name: column[runs_there] for name, column in columns.items()}
        )
        assert np.median(ratios[slow[runs_there]]) > 5 > 2 > np.median(ratios[~slow[runs_there]])
    for configuration in (kernel.compiler.completed(row(columns, number)) for number in range(20)):
        assert set(configuration) == set(kernel.all_parameters)
        assert any(PlacedKernel(kernel, problem, H200).contains(configuration) for problem in OTHERS)


def test_without_times_or_physics_nothing_is_expected():
    assert model_of_times(KERNEL, H200, []) is None
    unknown = replace(KERNEL, resources=replace(KERNEL.resources, estimates={}))
    assert model_of_times(unknown, H200, [timed(TUNED[0], lambda _: 1.0, 10)]) is None
