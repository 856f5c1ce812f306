"""GEMM bundles on the host: random legal configurations run on problems of all kinds, their results against NumPy.

Leading dimensions and addresses allow wide accesses or forbid them, and what the BLAS forbids to read is NaN.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from emulation.host import EmulationError, HostKernel, empty_workspace, place

from mltune.device.facts import Device
from mltune.device.known import H200
from mltune.kernel.bundle import Kernel, variables_of
from mltune.kernel.space import ConstrainedSpace
from mltune.problem.array_values import stored
from mltune.problem.gemm import GemmProblem
from mltune.problem.gemm_operands import HALF_PRECISION, numbers

Configuration = Mapping[str, int]


def sample(kernel: Kernel, case: tuple[str, str, str], count: int, seed: int) -> Iterator[Configuration]:
    """Draw distinct legal configurations of a case."""
    problem = GemmProblem(*case, 4096, 4096, 4096)
    space = ConstrainedSpace(kernel, variables_of(problem, H200))
    columns = space.rows(space.sample(count, np.random.default_rng(seed)))
    for values in zip(*columns.values(), strict=True):
        yield dict(zip(columns, map(int, values), strict=True))


def problems(
    case: tuple[str, str, str], sizes: Iterable[tuple[int, int, int]]
) -> Iterator[tuple[GemmProblem, tuple[int, int, int]]]:
    """Problems of some sizes, each with the offsets of A, B and C from an aligned address, elements."""
    is_complex = case[0] in "cz"
    alpha, beta = (1.25 - 0.5j, -0.75 + 0.25j) if is_complex else (1.25, -0.75)
    for number, (m, n, k) in enumerate(sizes):
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
            yield dataclasses.replace(aligned, ldc=odd[2], beta=0.0), (0, 0, 2)
        if number == 1:
            yield dataclasses.replace(tight, lda=odd[0], ldb=odd[1], ldc=odd[2], beta=0.0), (1, 1, 1)
            yield tight, (2, 2, 2)


def check(
    kernel: Kernel,
    host: HostKernel,
    problem: GemmProblem,
    offsets: tuple[int, int, int],
    configuration: Configuration,
    device: Device = H200,
) -> None:
    """Run one problem on random operands and on integers, and assert that the results are right.

    Of a workspace what must be zero is left zero, and the rest may hold anything before a launch.
    """
    variables = variables_of(problem, device)
    launch = kernel.launch(configuration, variables)
    workspace = empty_workspace(launch)
    zeros = len(workspace)
    if kernel.launch_rule.zeros is not None:
        zeros = min(zeros, int(kernel.launch_rule.zeros.evaluate(kernel.space.scope({**variables, **configuration}))))
    for integers in (False, True):
        workspace[zeros:] = 0xFF  # NaN of any precision, and a raised flag
        made = problem.operands(np, seed=1, integers=integers)
        reference, bound = problem.answer(made), problem.error_bound(made)
        placed = zip(made.items(), (*offsets, *[offsets[2]] * 3), strict=False)  # vectors lie as C does
        operands = {name: place(buffer, offset) for (name, buffer), offset in placed}
        host.launch(problem, operands, launch, workspace)
        kind = problem.types.result
        result = numbers(problem.result(operands["C"]), kind)
        error = problem.worst_error(problem.result(operands["C"]), reference, bound)
        assert error <= 1, (
            f"error {error} of the bound, first at {np.argwhere(~(abs(result - reference) <= abs(bound)))[:1].tolist()}"
        )
        exact = numbers(stored(np, reference, kind), kind) if kind in HALF_PRECISION else reference
        assert not integers or not problem.finish.is_exact or (result == exact).all()
        assert np.isnan(numbers(problem.padding(operands["C"]), kind)).all(), "the padding of C was written"
        assert zeros == len(workspace) or not workspace[:zeros].any(), "the zeros of the workspace are left zero"


def lines(problem: GemmProblem, operands: Mapping[str, np.ndarray]) -> Iterator[np.ndarray]:
    """Yield rows of op(A), then columns of op(B), as views whose last index is k."""
    for name, (_, columns), along in zip("AB", problem.shapes(), (problem.trans_a, problem.trans_b), strict=False):
        matrix = operands[name].reshape(columns, -1)
        yield matrix if (along == "N") == (name == "B") else matrix.T


def spoil(line: np.ndarray, rng: np.random.Generator) -> None:
    """Put into rows or columns what is hard to split: infinities, NaN, zeros, denormal and widely spread numbers."""
    line[1] *= np.float32(2.0) ** rng.integers(-60, 60, len(line[1]))
    line[3] = 0
    line[5] *= np.float32(1e-42)
    line[7, 11] = np.inf
    line[9, 13] = np.nan
    line[10] *= np.float32(1e30)
    line[11, ::2] *= np.float32(2.0**-30)


def check_spoilt(problem: GemmProblem, operands: Mapping[str, np.ndarray], launch: Callable[[], np.ndarray]) -> None:
    """Assert that a kernel is right where the answer is finite, and not finite elsewhere."""
    with np.errstate(all="ignore"):
        answer, bound = problem.answer(operands), problem.error_bound(operands)
    result = launch()
    finite = np.isfinite(answer) & (abs(answer) < 1e37)
    underflow = problem.k * 2.0**-149 * (1 + 1j if problem.is_complex else 1)  # is no part of the bound
    assert problem.worst_error(result[finite], answer[finite], bound[finite] + underflow) <= 1
    assert not np.isfinite(result[~np.isfinite(answer)]).any()
    assert 0.5 < finite.mean() < 1
    infinite = np.isinf(answer)
    assert problem.is_complex or (infinite.any() and (result[infinite] == answer[infinite]).all())


def build_host(kernel: Kernel, runtime: Path, configuration: Configuration, problem: GemmProblem) -> HostKernel:
    """Compile one configuration for the host."""
    parameters = {name: configuration[name] for name in kernel.space.parameters}
    return HostKernel(kernel.folder / f"{kernel.name}.cu", parameters | problem.macros(), runtime)


def check_configurations(
    kernel: Kernel,
    case: tuple[str, str, str],
    runtime: Path,
    configurations: Iterable[Configuration],
    sizes: Callable[[Configuration], Iterable[tuple[int, int, int]]],
    device: Device = H200,
    *,
    batch: int = 1,
    epilogue: str = "",
) -> None:
    """Compile configurations and run each on all its problems; a failure contains everything needed to repeat it."""
    smallest = GemmProblem(*case, 1, 1, 1, batch=batch, epilogue=epilogue)

    def build(configuration: Configuration) -> tuple[Configuration, HostKernel]:
        return configuration, build_host(kernel, runtime, configuration, smallest)

    with ThreadPoolExecutor(2) as pool:
        for configuration, host in pool.map(build, configurations):
            for single, offsets in problems(case, sizes(configuration)):
                problem = dataclasses.replace(single, batch=batch, epilogue=epilogue)
                try:
                    check(kernel, host, problem, offsets, configuration, device)
                except (EmulationError, AssertionError) as error:
                    pytest.fail(f"{error}\nin {problem}, offsets {offsets}\nof {configuration}")
