"""The kernels of arrays, without a GPU: their sources on the host, every access checked, their results against NumPy.

Random valid configurations of small blocks, sizes around a tile and far from multiples of it, and arrays that begin at
addresses that forbid wide accesses.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from arrays import Argument, ArraysBundle, Configuration
from emulation.arrays_host import HostArraysKernel
from emulation.host import COMPILER_EXISTS, EmulationError, place

from mltune.kernel.launch import Launch

pytestmark = pytest.mark.skipif(not COMPILER_EXISTS, reason="needs g++")

Arrays = Mapping[str, np.ndarray]


def transposed(arrays: Arrays) -> np.ndarray:
    return arrays["input"].T


def summed(arrays: Arrays) -> np.ndarray:
    return arrays["sum"] + arrays["input"].astype(np.float64).sum(keepdims=True)


def softmax(arrays: Arrays) -> np.ndarray:
    values = arrays["input"].astype(np.float64)
    powers = np.exp(values - values.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


def relaxed(arrays: Arrays) -> np.ndarray:
    grid = arrays["input"].astype(np.float64)
    for _ in range(4):
        new = grid.copy()
        ring = grid[:-2, 1:-1] + grid[2:, 1:-1] + grid[1:-1, :-2] + grid[1:-1, 2:]
        new[1:-1, 1:-1] = 0.5 * grid[1:-1, 1:-1] + 0.125 * ring
        grid = new
    return grid


def convolved(arrays: Arrays) -> np.ndarray:
    image, weights = arrays["input"].astype(np.float64), arrays["filter"].astype(np.float64)
    windows = np.lib.stride_tricks.sliding_window_view(image, weights.shape)
    return np.einsum("yxij,ij->yx", windows, weights)


@dataclass(frozen=True)
class Case:
    """What is emulated of a bundle.

    Attributes
    ----------
    answer : callable
        The right output from all arrays.
    tolerance : float
        Of ``|output - answer|``, relative to ``|answer| + rms(answer)``.
    small : dict
        Values of small blocks, which are quick to emulate.
    kinds : sequence of callable
        Ways that a configuration may work; the same number of configurations is drawn of each.
    sizes : sequence of dict
        Problems. The space is that of the first.
    """

    answer: Callable[[Arrays], np.ndarray]
    tolerance: float
    small: dict[str, tuple[int, ...]]
    kinds: tuple[Callable[[Configuration], Any], ...]
    sizes: tuple[dict[str, int], ...]


CASES = {
    "transpose": Case(
        transposed,
        0.0,
        {"TILE_X": (16, 32, 64), "TILE_Y": (16, 32, 64), "THREADS": (64, 128), "GROUP": (1, 4)},
        (
            lambda c: c["VEC_LOAD"] == c["VEC_STORE"] == 1,
            lambda c: c["VEC_LOAD"] == c["VEC_STORE"] == 4,
            lambda c: c["VEC_LOAD"] != c["VEC_STORE"] and not c["SWIZZLE"],
            lambda c: c["VEC_LOAD"] != c["VEC_STORE"] and c["SWIZZLE"],
            lambda c: c["RASTER"] == 2 and c["GROUP"] > 1,
        ),
        (
            {"rows": 128, "columns": 192},
            {"rows": 132, "columns": 76},
            {"rows": 67, "columns": 131},
            {"rows": 1, "columns": 5},
        ),
    ),
    "reduction": Case(
        summed,
        1e-5,
        {"THREADS": (64, 128), "BLOCKS_PER_SM": (0, 1), "MIN_BLOCKS": (1,)},
        (
            lambda c: c["COMBINE"] == 0 and c["BLOCKS_PER_SM"],
            lambda c: c["COMBINE"] == 1 and c["BLOCKS_PER_SM"],
            lambda c: c["COMBINE"] == 2 and c["BLOCKS_PER_SM"],
            lambda c: c["BLOCKS_PER_SM"] == 0,
            lambda c: c["SPLIT"] and c["VEC"] == 4,
        ),
        ({"n": 40000}, {"n": 8191}, {"n": 1}, {"n": 3}),
    ),
    "softmax": Case(
        softmax,
        2e-3,
        {
            "LANES": (8, 16, 32, 64, 128),
            "ROWS": (1, 2, 4),
            "HELD": (1, 2, 4),
            "BLOCKS_PER_SM": (0, 1),
            "MIN_BLOCKS": (1,),
        },
        (
            lambda c: c["LANES"] < 32,
            lambda c: c["LANES"] > 32 and c["ONLINE"] and c["PACKED"],
            lambda c: c["LANES"] > 32 and not c["ONLINE"],
            lambda c: c["LANES"] == 32 and c["ONLINE"],
            lambda c: c["PREFETCH"],
        ),
        (
            {"rows": 293, "columns": 96},
            {"rows": 3, "columns": 8},
            {"rows": 5, "columns": 2048},
            {"rows": 7, "columns": 301},
            {"rows": 2, "columns": 1},
        ),
    ),
    "stencil": Case(
        relaxed,
        1e-5,
        {"BLOCK_X": (32, 64), "BLOCK_Y": (1, 2, 4), "ROWS": (1, 2, 4, 8, 16, 32, 64), "MIN_BLOCKS": (1,)},
        (
            lambda c: c["METHOD"] == 0 and c["VEC"] < 4,
            lambda c: c["METHOD"] == 0 and c["VEC"] >= 4,
            lambda c: c["METHOD"] == 1 and c["VEC"] < 8,
            lambda c: c["METHOD"] == 1 and c["VEC"] == 8,
            lambda c: c["METHOD"] == 2,
        ),
        (
            {"nx": 1040, "ny": 137, "steps": 4},
            {"nx": 131, "ny": 37, "steps": 4},
            {"nx": 4, "ny": 70, "steps": 4},
            {"nx": 3, "ny": 1, "steps": 4},
        ),
    ),
    "convolution_cuda": Case(
        convolved,
        1e-5,
        {"block_size_x": (16, 32, 48), "block_size_y": (1, 2, 4)},
        (
            lambda c: not c["use_shmem"] and c["read_only"],
            lambda c: not c["use_shmem"] and not c["read_only"],
            lambda c: c["use_padding"],
            lambda c: c["use_shmem"] and not c["use_padding"],
            lambda c: c["tile_size_x"] > 1 and c["tile_size_y"] > 1,
        ),
        (
            {"width": 192, "height": 16, "filter_width": 5, "filter_height": 3},
            {"width": 53, "height": 19, "filter_width": 5, "filter_height": 3},
            {"width": 1, "height": 2, "filter_width": 5, "filter_height": 3},
        ),
    ),
}


def filled(argument: Argument, rng: np.random.Generator, offset: int) -> np.ndarray:
    """Return an array some elements behind an aligned address; outputs are not numbers before they are written."""
    if argument.role == "scalar":
        return np.array(argument.initial, argument.dtype)
    count = int(np.prod(argument.shape))
    if argument.role == "out":
        values = np.full(count, np.nan, argument.dtype)
    elif isinstance(argument.initial, str):
        drawn = rng.normal(size=count) if argument.initial == "normal" else rng.uniform(-1, 1, count)
        values = drawn.astype(argument.dtype)
    else:
        values = np.full(count, argument.initial, argument.dtype)
    return place(values, offset).reshape(argument.shape)


def check(
    bundle: ArraysBundle,
    case: Case,
    host: HostArraysKernel,
    sizes: dict[str, int],
    launch: Launch,
    offsets: tuple[int, int],
    *,
    reference: bool = False,
) -> None:
    """Run one problem and assert that its output is right; offsets are those of outputs and inputs, in elements."""
    rng = np.random.default_rng(1)
    arguments = bundle.arguments(sizes)
    outputs = {argument.name for argument in arguments if argument.role in ("out", "inout")}
    arrays = {argument.name: filled(argument, rng, offsets[argument.name not in outputs]) for argument in arguments}
    answer = case.answer(arrays)
    passed = {argument.name: arrays[argument.name] for argument in arguments if argument.role != "constant"}
    for argument in arguments:
        if argument.role == "constant":
            host.set_constant(argument.name, arrays[argument.name])
    host.launch(passed, outputs, launch, reference=reference)
    (output,) = (arrays[name] for name in outputs)
    error = abs(output.astype(np.float64) - answer)
    allowed = case.tolerance * (abs(answer) + np.sqrt(np.mean(answer.astype(np.float64) ** 2)))
    wrong = np.argwhere(~(error <= allowed))
    assert not len(wrong), f"{len(wrong)} elements are wrong, first {wrong[0].tolist()}"


def build(bundle: ArraysBundle, case: Case, configuration: Configuration, runtime: Path) -> HostArraysKernel:
    definitions = bundle.definitions(configuration, case.sizes[0])
    entries = bundle.document["kernel"]["entry"], bundle.document["reference"]["entry"]
    return HostArraysKernel(bundle.source, definitions, *entries, runtime)


def check_configuration(
    bundle: ArraysBundle, case: Case, configuration: Configuration, runtime: Path
) -> HostArraysKernel:
    """Compile a configuration, run all problems and return it; a failure contains everything needed to repeat it."""
    host = build(bundle, case, configuration, runtime)
    problems = [(sizes, (0, 0)) for sizes in case.sizes] + [(case.sizes[0], (0, 1)), (case.sizes[0], (2, 0))]
    for sizes, offsets in problems:
        try:
            check(bundle, case, host, sizes, bundle.launch(configuration, sizes), offsets)
        except (EmulationError, AssertionError) as error:
            pytest.fail(f"{error}\nat {sizes}, offsets {offsets}\nof {configuration}")
    return host


@pytest.mark.parametrize("name", CASES)
@pytest.mark.system
@pytest.mark.sampled(0, system=3, nightly=99)
def test_the_default_and_the_reference_are_right(name: str, runtime: Path) -> None:
    bundle, case = ArraysBundle(name), CASES[name]
    host = check_configuration(bundle, case, bundle.default, runtime)
    for sizes in case.sizes:
        check(bundle, case, host, sizes, bundle.reference_launch(sizes), (0, 0), reference=True)


@pytest.mark.parametrize("kind", range(5))
@pytest.mark.parametrize("name", CASES)
@pytest.mark.sampled(2, nightly=7)
def test_a_random_configuration_is_right(name: str, kind: int, runtime: Path) -> None:
    bundle, case = ArraysBundle(name), CASES[name]
    drawn = bundle.sample(2000, kind, case.sizes[0], case.small)
    check_configuration(bundle, case, next(filter(case.kinds[kind], drawn)), runtime)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_many_random_configurations_are_right(name: str, runtime: Path) -> None:
    bundle, case = ArraysBundle(name), CASES[name]
    for configuration in bundle.sample(30, 100, case.sizes[0], case.small):
        check_configuration(bundle, case, configuration, runtime)
