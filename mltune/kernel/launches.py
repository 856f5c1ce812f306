"""Faults of launches: why a device refuses to launch configurations that a kernel bundle counts as valid."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from mltune.errors import ExpressionError
from mltune.files.text import printable
from mltune.kernel.bundle import Kernel, Scope
from mltune.kernel.columns import Columns, length, row
from mltune.kernel.expressions import Expression

LARGEST_GRID = (2**31 - 1, 2**16 - 1, 2**16 - 1)
"""Most blocks of a grid along x, y and z, on every CUDA device."""

LARGEST_BLOCK = (1024, 1024, 64)
"""Most threads of a block along x, y and z, on every CUDA device."""


class LaunchFault(NamedTuple):
    """A part of a launch that is wrong.

    Attributes
    ----------
    reason : str
        The law, the facts, and an example.
    share : float
        Share of the configurations in which it is wrong.
    """

    reason: str
    share: float


def launch_faults(kernel: Kernel, columns: Columns, variables: Mapping[str, int]) -> list[LaunchFault]:
    """Return why configurations cannot be launched: at most one fault for each part of the launch.

    Parameters
    ----------
    kernel : Kernel
    columns : Columns
        Valid configurations, such as a sample of the search space.
    variables : mapping of str to int
        Variables of the problem and of the device.

    Examples
    --------
    >>> from mltune.kernel.expressions import parse
    >>> one, limits = parse("1"), {"max_threads_per_block": 1024, "shared_bytes_per_block": 49152}
    >>> kernel = Kernel(name="toy", problem="gemm", parameters={"BLK": (1, 2)}, grid=(parse("BLK - 1"), one, one))
    >>> (fault,) = launch_faults(kernel, {"BLK": np.array([1, 2])}, limits)
    >>> fault.reason
    'launch.grid: a grid has from 1 to 2147483647 blocks along x, but `BLK - 1` is 0 for 1 of 2, such as BLK=1'
    """
    scope = kernel.scope({**variables, **columns})
    most_threads, most_bytes = variables["max_threads_per_block"], variables["shared_bytes_per_block"]
    wanted: list[tuple[str, Sequence[Expression], int, int]] = [
        *(
            (f"launch.{key}: a {key} has from 1 to {limit} {unit} along {axis}", [expression], 1, limit)
            for key, unit, shape, limits in (
                ("grid", "blocks", kernel.grid, LARGEST_GRID),
                ("block", "threads", kernel.block, LARGEST_BLOCK),
            )
            for axis, expression, limit in zip("xyz", shape, limits, strict=True)
        ),
        (f"launch.block: a block has at most {most_threads} threads", kernel.block, 1, most_threads),
        (f"resources.shared_bytes: a block has from 0 to {most_bytes} bytes", [kernel.shared_bytes], 0, most_bytes),
    ]
    found = [_fault(law, factors, scope, columns, (low, high)) for law, factors, low, high in wanted]
    return [fault for fault in found if fault is not None]


def _fault(
    law: str, factors: Sequence[Expression], scope: Scope, columns: Columns, bounds: tuple[int, int]
) -> LaunchFault | None:
    """Return what is wrong with the product of expressions, which must be an integer within bounds."""
    size = length(columns)
    value, defined = np.ones(size), np.ones(size, dtype=bool)
    try:
        for factor in factors:
            partial = factor.evaluate_partial(scope)
            value, defined = value * partial.value, defined & partial.defined
    except ExpressionError as error:
        return LaunchFault(f"{law}, but {error}", 1.0)
    wrong = ~(defined & (value >= bounds[0]) & (value <= bounds[1]) & (value == np.floor(value)))
    if not wrong.any():
        return None
    first, count = int(np.argmax(wrong)), int(np.count_nonzero(wrong))
    text = " * ".join(f"`{printable(factor, 120)}`" for factor in factors)
    told = f"{value[first]:.6g}" if defined[first] else "undefined (division by zero)"
    example = printable(", ".join(f"{name}={one}" for name, one in row(columns, first).items()), 200)
    return LaunchFault(f"{law}, but {text} is {told} for {count} of {size}, such as {example}", count / size)
