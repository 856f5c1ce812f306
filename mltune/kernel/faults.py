"""Faults of a kernel bundle: expressions that are wrong for configurations that it counts as valid."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from mltune.errors import ExpressionError, ProblemError
from mltune.files.text import printable
from mltune.kernel.bundle import Kernel
from mltune.kernel.coding import Columns, length, row
from mltune.kernel.expressions import Expression
from mltune.kernel.launch import ELEMENT_KINDS
from mltune.kernel.parts import ACCESS_BYTES, Scope
from mltune.problem.array_values import open_array
from mltune.problem.arrays import ArraysProblem
from mltune.problem.problem import Problem

LARGEST_GRID = (2**31 - 1, 2**16 - 1, 2**16 - 1)
"""Most blocks of a grid along x, y and z, on every CUDA device."""

LARGEST_BLOCK = (1024, 1024, 64)
"""Most threads of a block along x, y and z, on every CUDA device."""

LARGEST_WORKSPACE = 2**40
"""Most bytes of a workspace, more than any device has."""


class BundleFault(NamedTuple):
    """The key of a wrong expression, the facts and an example, its law, and the share of the configurations."""

    reason: str
    share: float


class _Law(NamedTuple):
    """The product of some expressions is a whole number within bounds and among the listed ones, if any are.

    Where the bounds are infinite, it is any number.
    """

    key: str
    text: str
    factors: Sequence[Expression]
    lowest: float = -math.inf
    highest: float = math.inf
    listed: Sequence[int] = ()


def find_faults(
    kernel: Kernel, columns: Columns, variables: Mapping[str, int], table: str = "launch"
) -> list[BundleFault]:
    """Return why configurations cannot be launched or computed; `table` of kernel.toml has the launch's shape."""
    scope = kernel.space.scope({**variables, **columns})
    faults = [_fault(law, scope, columns) for law in _laws(kernel, variables, table)]
    return [fault for fault in faults if fault is not None]


def find_file_faults(problem: Problem) -> list[BundleFault]:
    """Return what is wrong with the files of arrays, at the sizes of a problem and of its checks."""
    if not isinstance(problem, ArraysProblem):
        return []
    faults = []
    for size in (problem, *problem.checks):
        initial = {f"arguments.{a.name}.initial": (a.initial, a) for a in size.arrays if a.role != "out"}
        answer = {f"reference.answer.{a.name}": (size.answer[a.name], a) for a in size.arrays if a.name in size.answer}
        for key, (file, argument) in (initial | answer).items():
            try:
                if isinstance(file, str) and file.endswith(".npy"):
                    open_array(Path(file), argument.dtype, argument.shape or ())
            except ProblemError as error:
                faults.append(BundleFault(f"{key}: {printable(str(error).rstrip('.'), 400)} ({size.label})", 1.0))
    return faults


def _laws(kernel: Kernel, variables: Mapping[str, int], table: str) -> Iterator[_Law]:
    threads, shared_bytes = variables["max_threads_per_block"], variables["shared_bytes_per_block"]
    for axis, expression, most in zip("xyz", kernel.launch_rule.grid, LARGEST_GRID, strict=True):
        yield _Law(f"{table}.grid", f"a grid has from 1 to {most} blocks along {axis}", [expression], 1, most)
    for axis, expression, most in zip("xyz", kernel.launch_rule.block, LARGEST_BLOCK, strict=True):
        yield _Law(f"{table}.block", f"a block has from 1 to {most} threads along {axis}", [expression], 1, most)
    yield _Law(f"{table}.block", f"a block has at most {threads} threads", kernel.launch_rule.block, 1, threads)
    law = f"a block has from 0 to {shared_bytes} bytes"
    yield _Law("resources.shared_bytes", law, [kernel.launch_rule.shared_bytes], 0, shared_bytes)
    for name, size in (("workspace", kernel.launch_rule.workspace), ("zeros", kernel.launch_rule.zeros)):
        if size is not None:
            law = f"a workspace has from 0 to {LARGEST_WORKSPACE} bytes"
            yield _Law(f"launch.{name}", law, [size], 0, LARGEST_WORKSPACE)
    for _, (element_bytes, *extents, box) in kernel.launch_rule.tensor_maps:
        key = "launch.tensor_maps"
        yield _Law(key, "an element of a matrix has 1, 2, 4 or 8 bytes", [element_bytes], listed=[*ELEMENT_KINDS])
        for extent in extents:
            yield _Law(key, "a matrix has from 0 to 2**32 elements along a line, and lines", [extent], 0, 2**32)
        yield _Law(key, "a copy is of 1 to 256 lines", [box], 1, 256)
    for name, expression in kernel.resources.estimates.items():
        yield _Law(f"resources.{name}", "a resource is a number in every valid configuration", [expression])
    for name, access in kernel.resources.accesses.items():
        for expression in (access.count, *(lane for digit in access.lanes for lane in digit)):
            yield _Law(f"access.{name}", "an access has numbers in every valid configuration", [expression])
        law = f"a lane accesses one of {ACCESS_BYTES} bytes"
        yield _Law(f"access.{name}.bytes", law, [access.bytes], listed=ACCESS_BYTES)


def _fault(law: _Law, scope: Scope, columns: Columns) -> BundleFault | None:
    size = length(columns)
    value, defined = np.ones(size), np.ones(size, dtype=bool)
    try:
        for factor in law.factors:
            partial = factor.evaluate_partial(scope)
            value, defined = value * np.asarray(partial.value), defined & partial.defined
    except ExpressionError as error:
        return BundleFault(f"{law.key}: {error}; {law.text}", 1.0)
    whole = (value == np.floor(value)) | (law.lowest == -math.inf)
    wrong = ~(defined & np.isfinite(value) & whole & (value >= law.lowest) & (value <= law.highest))
    wrong |= ~np.isin(value, law.listed) if law.listed else False
    if not wrong.any():
        return None
    first, count = int(np.argmax(wrong)), int(np.count_nonzero(wrong))
    text = " * ".join(f"`{printable(factor, 120)}`" for factor in law.factors)
    told = f"{value[first]:.6g}" if defined[first] else "undefined (division by zero)"
    example = printable(", ".join(f"{name}={value}" for name, value in row(columns, first).items()), 200)
    fact = f"{text} is {told} for {count} of {size} configurations, such as {example}"
    return BundleFault(f"{law.key}: {fact}; {law.text}", count / size)
