"""The emulator finds every fault planted in a small kernel, and none in the kernel itself."""

import functools

import numpy as np
import pytest
from emulation.arrays_host import HostArraysKernel
from emulation.host import COMPILER_EXISTS, HERE, EmulationError, HostKernel, place
from gemm import check_configurations

from mltune.kernel.launch import Launch
from mltune.kernel.reader import load_kernel
from mltune.problem.gemm import GemmProblem

pytestmark = pytest.mark.skipif(not COMPILER_EXISTS, reason="needs g++")

SPLIT_K = load_kernel(HERE.parent / "split_k")
"""A kernel with a workspace."""

FAULTS = {
    1: "while a copy to it is in flight",
    2: "while a copy to it is in flight",
    3: "memory is read out of bounds: 4 bytes",
    4: "which was never written",
    5: "must arrive at the same barrier",
    6: "shared memory is accessed at byte .*, but the block has 1280 bytes",
    7: "misaligned",
    8: "an array index at line .* is out of bounds: 2",
    9: "while a copy to it is in flight",
    10: "must arrive at the same barrier",
    11: "shared memory is written at byte .*, which thread .* wrote since the last barrier",
    12: "which was never written",
    13: "A is written",
    14: "the launch made more than",
    15: "an access of 16 bytes must be aligned",
    16: "an access of 8 bytes must be aligned",
    18: "which another thread read since the last barrier",
    17: "memory is .* out of bounds: 4 bytes at byte .* of C",
}


@functools.cache
def small_gemm(runtime, macros: tuple[tuple[str, int], ...]) -> HostKernel:
    return HostKernel(HERE / "small_gemm.cu", dict(macros), runtime)


def launch(runtime, problem: GemmProblem, operands: dict[str, np.ndarray], fault: int = 0) -> None:
    kernel = small_gemm(runtime, tuple((problem.macros() | {"BREAK": fault}).items()))
    grid = -(-problem.m // 8) * -(-problem.n // 8)
    shape = Launch((grid, 1, 1), (64, 1, 1), shared_bytes=5 * 64 * problem.element_bytes, arguments=(1,))
    kernel.launch(problem, operands, shape, most_accesses=10**6)


@pytest.mark.parametrize("precision", ["s", "d"])
@pytest.mark.parametrize("sizes", [(1, 1, 1), (8, 8, 8), (20, 13, 27), (5, 30, 16), (3, 3, 0)])
def test_a_right_kernel_is_right(runtime, precision, sizes):
    problem = GemmProblem(precision, "N", "N", *sizes, alpha=1.5, beta=-0.5, lda=21, ldb=29, ldc=23)
    operands = problem.operands(np, seed=1)
    reference, bound = problem.answer(operands), problem.error_bound(operands)
    operands = {name: place(matrix, 1) for name, matrix in operands.items()}
    launch(runtime, problem, operands)
    assert problem.worst_error(problem.result(operands["C"]), reference, bound) < 1
    assert np.isnan(problem.padding(operands["C"])).all()


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.sampled(6, nightly=99)
def test_a_planted_fault_is_found(runtime, fault):
    problem = GemmProblem("s", "N", "N", 20, 13, 27, beta=0.5)
    operands = problem.operands(np, seed=1)
    operands = {name: place(matrix, 0) for name, matrix in operands.items()}
    with pytest.raises(EmulationError, match=FAULTS[fault]):
        launch(runtime, problem, operands, fault)


@pytest.mark.parametrize(
    "case",
    [("s", "N", "N"), ("d", "T", "T"), ("h", "T", "N"), ("b", "N", "T"), ("hs", "T", "T"), ("bs", "N", "N")],
    ids="".join,
)
@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.sampled(3, nightly=5)
def test_a_kernel_with_a_workspace_is_right_again_and_again(runtime, case, parts):
    configuration = {"MISDEED": 0, "PARTS": parts, "UNUSED": 1}
    check_configurations(SPLIT_K, case, runtime, [configuration], lambda _: [(17, 9, 10), (8, 8, 2)])


def test_what_a_workspace_keeps_from_launch_to_launch_is_found(runtime):
    configuration = {"MISDEED": 1, "PARTS": 2, "UNUSED": 1}
    with pytest.raises(pytest.fail.Exception, match="of the bound, first at"):
        check_configurations(SPLIT_K, ("s", "N", "N"), runtime, [configuration], lambda _: [(8, 8, 2)])


def test_an_access_behind_a_workspace_is_found(runtime):
    configuration = {"MISDEED": 2, "PARTS": 2, "UNUSED": 1}
    with pytest.raises(pytest.fail.Exception, match="out of bounds: 4 bytes at byte 516 of the workspace"):
        check_configurations(SPLIT_K, ("s", "N", "N"), runtime, [configuration], lambda _: [(8, 8, 2)])


def test_a_kernel_that_does_not_compile_is_an_error(runtime, tmp_path):
    source = tmp_path / "kernel.cu"
    source.write_text("this is not CUDA")
    with pytest.raises(EmulationError, match="failed"):
        HostKernel(source, {}, runtime)


ARRAYS_FAULTS = {
    1: "lanes of a warp must arrive at the same shuffle",
    2: "lanes of a warp must arrive at the same shuffle",
    3: "memory is written out of bounds: 4 bytes",
    4: "input is written",
    5: "out of bounds",
}
N = 250


def launch_arrays(runtime, block: tuple[int, int, int], fault: int = 0) -> dict[str, np.ndarray]:
    source = HERE / "small_arrays.cu"
    kernel = HostArraysKernel(source, f"#define BREAK {fault}\n", "small", "small_reference", runtime)
    kernel.set_constant("weights", np.array([0.5, 0.0], dtype=np.float32))
    arrays = {
        "output": place(np.full(N, np.nan, dtype=np.float32), 1),
        "blocks": np.zeros(1, dtype=np.int32),
        "input": place(np.random.default_rng(1).uniform(size=N).astype(np.float32), 0),
        "n": np.array(N, dtype=np.int32),
    }
    kernel.launch(arrays, {"output", "blocks"}, Launch((2, 1, 2), block, 0, ()))
    return arrays


@pytest.mark.parametrize("block", [(64, 1, 1), (16, 2, 2)])
def test_shuffles_atomics_and_constants_are_right(runtime, block):
    arrays = launch_arrays(runtime, block)
    warps = np.zeros(256)
    warps[:N] = arrays["input"]
    warps = warps.reshape(8, 32)
    left = np.concatenate([warps[:, :1], warps[:, :-1]], axis=1)
    right = np.concatenate([warps[:, 1:], warps[:, -1:]], axis=1)
    answer = 0.5 * (left + right + warps[:, :1]) + warps.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(arrays["output"], answer.ravel()[:N], rtol=1e-5)
    assert arrays["blocks"][0] == 1 + 2 + 3 + 4


@pytest.mark.parametrize("fault", ARRAYS_FAULTS)
def test_a_fault_planted_in_a_kernel_of_arrays_is_found(runtime, fault):
    with pytest.raises(EmulationError, match=ARRAYS_FAULTS[fault]):
        launch_arrays(runtime, (64, 1, 1), fault)


def test_a_shuffle_of_an_incomplete_warp_is_found(runtime):
    with pytest.raises(EmulationError, match="the warp has 16 lanes"):
        launch_arrays(runtime, (48, 1, 1))
