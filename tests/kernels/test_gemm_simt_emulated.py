"""kernels/gemm_simt itself, without a GPU: its source on the host, every access checked, its results against NumPy.

All 26 cases, random legal configurations, sizes around the tile, leading dimensions and addresses that allow wide loads
and that forbid them, and NaN wherever the BLAS forbids to read.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from emulation.host import COMPILER_EXISTS, EmulationError, HostKernel, build_runtime, place

from mltune.device.known import H200
from mltune.kernel.bundle import Kernel, device_variables
from mltune.kernel.reader import load_kernel
from mltune.kernel.space import ConstrainedSpace
from mltune.problem.gemm import CASES, GemmProblem

pytestmark = pytest.mark.skipif(not COMPILER_EXISTS, reason="needs g++")

Configuration = Mapping[str, int]

SMALL = {
    "BLK_M": (16, 32, 48, 64),
    "BLK_N": (16, 32, 48, 64),
    "BLK_K": (4, 8, 16),
    "MIN_BLOCKS": (1,),
    "RASTER_GROUP": (1, 2, 4),
}
"""Values of small tiles, which are quick to emulate."""

PIPELINES = {
    "ASTRA's": lambda c: c["STAGES"] == 1,
    "two tiles, staged in registers": lambda c: c["STAGES"] == 2 and not (c["ASYNC_A"] or c["ASYNC_B"]),
    "asynchronous": lambda c: c["ASYNC_A"] and c["ASYNC_B"],
    "mixed": lambda c: c["ASYNC_A"] != c["ASYNC_B"],
}


@pytest.fixture(scope="module")
def kernel() -> Kernel:
    return load_kernel("gemm_simt")


@pytest.fixture(scope="module")
def runtime(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_runtime(tmp_path_factory.mktemp("emulation"))


def sample(kernel: Kernel, case: tuple[str, str, str], count: int, seed: int) -> Iterator[Configuration]:
    """Draw distinct legal configurations of a case."""
    problem = GemmProblem(*case, 4096, 4096, 4096)
    space = ConstrainedSpace(kernel, problem.variables() | device_variables(H200))
    columns = space.rows(space.sample(count, np.random.default_rng(seed)))
    for values in zip(*columns.values(), strict=True):
        yield dict(zip(columns, map(int, values), strict=True))


def sizes(configuration: Configuration) -> Iterator[tuple[int, int, int]]:
    """Sizes around a configuration's tile, from one element to several tiles."""
    m, n, k = (configuration[name] for name in ("BLK_M", "BLK_N", "BLK_K"))
    stages = configuration["STAGES"]
    yield m, n, stages * k
    yield m + 1, n - 1, (stages + 1) * k + 1
    yield 2 * m + 1, 2 * n, k - 1
    yield m - 1, n + 1, k + 1
    yield 1, 1, 1
    yield m, n, 0


def problems(
    case: tuple[str, str, str], configuration: Configuration
) -> Iterator[tuple[GemmProblem, tuple[int, int, int]]]:
    """Problems around a configuration's tile, each with the offsets of A, B and C from an aligned address, elements."""
    is_complex = case[0] in "cz"
    alpha, beta = (1.25 - 0.5j, -0.75 + 0.25j) if is_complex else (1.25, -0.75)
    for number, (m, n, k) in enumerate(sizes(configuration)):
        tight = GemmProblem(*case, m, n, k, alpha, beta)
        padded = [-(-rows // 16) * 16 + 16 for rows, _ in tight.shapes()]
        odd = [rows + 1 + rows % 2 for rows, _ in tight.shapes()]
        aligned = dataclasses.replace(tight, lda=padded[0], ldb=padded[1], ldc=padded[2])
        yield aligned, (0, 0, 0)
        if number == 0:  # one operand at a time forbids wide accesses
            yield dataclasses.replace(aligned, lda=odd[0]), (0, 0, 0)
            yield dataclasses.replace(aligned, ldb=odd[1]), (0, 0, 1)
            yield dataclasses.replace(aligned, ldc=odd[2]), (1, 0, 0)
            yield aligned, (0, 1, 0)
            yield dataclasses.replace(aligned, alpha=0.0), (0, 0, 0)
            yield dataclasses.replace(aligned, alpha=0.0, beta=0.0), (0, 0, 0)
            yield dataclasses.replace(aligned, beta=0.0), (0, 0, 0)
        if number == 1:
            yield dataclasses.replace(tight, lda=odd[0], ldb=odd[1], ldc=odd[2], beta=0.0), (1, 1, 1)
            yield tight, (2, 2, 2)


def check(
    kernel: Kernel, host: HostKernel, problem: GemmProblem, offsets: tuple[int, int, int], configuration: Configuration
) -> None:
    """Run one problem on random operands and on integers, and assert that the results are right."""
    launch = kernel.launch(configuration, problem.variables() | device_variables(H200))
    for integers in (False, True):
        made = problem.operands(np, seed=1, integers=integers)
        reference, bound = problem.answer(made), problem.error_bound(made)
        placed = zip(made.items(), offsets, strict=True)
        operands = {name: place(buffer, offset) for (name, buffer), offset in placed}
        host.launch(problem, operands, launch)
        result = problem.result(operands["C"])
        error = problem.worst_error(result, reference, bound)
        assert error <= 1, (
            f"error {error} of the bound, first at {np.argwhere(~(abs(result - reference) <= abs(bound)))[:1].tolist()}"
        )
        assert not integers or (result == reference).all()
        assert np.isnan(problem.padding(operands["C"])).all(), "the padding of C was written"


def check_configurations(
    kernel: Kernel, case: tuple[str, str, str], runtime: Path, configurations: Iterable[Configuration]
) -> None:
    """Compile configurations and run each on all its problems; a failure contains everything needed to repeat it."""
    macros = GemmProblem(*case, 1, 1, 1).macros()

    def build(configuration: Configuration) -> tuple[Configuration, HostKernel]:
        parameters = {name: configuration[name] for name in kernel.parameters}
        return configuration, HostKernel(kernel.folder / f"{kernel.name}.cu", parameters | macros, runtime)

    with ThreadPoolExecutor(2) as pool:
        for configuration, host in pool.map(build, configurations):
            for problem, offsets in problems(case, configuration):
                try:
                    check(kernel, host, problem, offsets, configuration)
                except (EmulationError, AssertionError) as error:
                    pytest.fail(f"{error}\nin {problem}, offsets {offsets}\nof {configuration}")


@pytest.mark.parametrize("case", CASES, ids="".join)
def test_random_configurations(kernel: Kernel, runtime: Path, case: tuple[str, str, str]) -> None:
    drawn = list(sample(kernel.with_values(SMALL), case, 512, seed=CASES.index(case)))
    chosen = [next(filter(pipeline, drawn)) for pipeline in PIPELINES.values()]
    check_configurations(kernel, case, runtime, chosen)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids="".join)
def test_many_random_configurations(kernel: Kernel, runtime: Path, case: tuple[str, str, str]) -> None:
    check_configurations(kernel, case, runtime, sample(kernel, case, 8, seed=100 + CASES.index(case)))
