"""kernels/gemm_tf32 itself, without a GPU: its source on the host, every access checked, its results against NumPy."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from emulation.host import COMPILER_EXISTS, HostKernel, build_runtime, place
from gemm import Configuration, check_configurations, sample

from mltune.device.known import H200
from mltune.kernel.bundle import Kernel, device_variables
from mltune.kernel.reader import load_kernel
from mltune.problem.gemm import CASES, GemmProblem

pytestmark = pytest.mark.skipif(not COMPILER_EXISTS, reason="needs g++")

SINGLE = [case for case in CASES if case[0] in "sc"]
SMALL = {
    "BLK_M": (16, 32, 48),
    "BLK_N": (16, 32, 48),
    "BLK_K": (8, 16, 32),
    "MIN_BLOCKS": (1,),
    "RASTER_GROUP": (1, 2, 4),
}
"""Values of small tiles, which are quick to emulate."""

WAYS = (
    lambda c: c["FRAGMENTS"] == 1 and c["MMA_K"] == 4 and c["PROMOTE_K"] == 8,
    lambda c: c["FRAGMENTS"] == 2 and c["MMA_K"] == 8 and c["PROMOTE_K"] > 8 and c["VEC_A"] + c["VEC_B"] > 2,
    lambda c: c["FRAGMENTS"] == 1 and c["MMA_K"] == 8 and c["VEC_A"] + c["VEC_B"] > 2,
    lambda c: c["FRAGMENTS"] == 2 and c["MMA_K"] == 8 and c["PROMOTE_K"] == 8,
)


@pytest.fixture(scope="module")
def kernel() -> Kernel:
    return load_kernel("gemm_tf32")


@pytest.fixture(scope="module")
def runtime(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_runtime(tmp_path_factory.mktemp("emulation"))


def sizes(configuration: Configuration) -> Iterator[tuple[int, int, int]]:
    """Sizes around a configuration's tile, from one element to several tiles; depths below and above the pipeline's."""
    m, n, k = (configuration[name] for name in ("BLK_M", "BLK_N", "BLK_K"))
    stages = configuration["STAGES"]
    yield m, n, stages * k
    yield m + 1, n - 1, (stages + 1) * k + 1
    yield 2 * m + 1, n, 15
    yield m - 1, n + 1, k + 17
    yield 1, 1, 1
    yield m, n, 0


def run(kernel: Kernel, runtime: Path, case: tuple[str, str, str], configurations: list[Configuration]) -> None:
    check_configurations(kernel, case, runtime, configurations, sizes)


@pytest.mark.parametrize("case", SINGLE, ids="".join)
@pytest.mark.sampled(5)
def test_random_configurations(kernel: Kernel, runtime: Path, case: tuple[str, str, str]) -> None:
    drawn = sample(kernel.with_values(SMALL), case, 256, seed=CASES.index(case))
    run(kernel, runtime, case, [next(filter(WAYS[SINGLE.index(case) // 3 % len(WAYS)], drawn))])


@pytest.mark.slow
@pytest.mark.parametrize("case", SINGLE, ids="".join)
def test_many_random_configurations(kernel: Kernel, runtime: Path, case: tuple[str, str, str]) -> None:
    run(kernel, runtime, case, list(sample(kernel.with_values(SMALL), case, 8, seed=100 + CASES.index(case))))
