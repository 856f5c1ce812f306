"""From kernels, problems and builds to what a library consists of."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from mltune.errors import UsageError
from mltune.kernel.bundle import variables_of
from mltune.kernel.expressions import Expression
from mltune.library.source import Configuration, Parameter, parameters_of
from mltune.results.winner import formula, formulas_of, known_values, restrictions_on

if TYPE_CHECKING:
    from mltune.device.facts import Device
    from mltune.kernel.bundle import Kernel
    from mltune.kernel.coding import Floats
    from mltune.problem.problem import RunnableProblem
    from mltune.records.trial import Build

_ARRAYS_ALIGNMENT = 16
"""What the addresses of arrays are multiples of: kernels of kind arrays are verified at such alone."""


def configuration_of(
    kernel: Kernel, problem: RunnableProblem, device: Device, configuration: Mapping[str, int], build: Build
) -> Configuration:
    """Return a configuration of a kernel as a library has it; its build has machine code, or none yet."""
    values = known_values(kernel, problem, device, configuration)
    launch = formulas_of(kernel, values)
    tiles, of_tile = (
        " * ".join(f"({formula(factor, values, kernel.space.derived)})" for factor in factors)
        for factors in _tiles(kernel)
    )
    return Configuration(
        kernel.name,
        kernel.space.labelled(configuration),
        build.entry or kernel.source.entry or "",
        build.cubin,
        tuple(launch["grid"]),
        tuple(launch["block"]),
        launch["shared_bytes"],
        launch["workspace_bytes"],
        None if kernel.launch_rule.zeros is None else formula(kernel.launch_rule.zeros, values, kernel.space.derived),
        tiles,
        of_tile or "0",
        restrictions_on(kernel, values, problem.size_names),
        tuple(int(configuration[name]) for name in kernel.launch_rule.arguments),
        device.shared_bytes_per_block - (build.shared_bytes or 0),
    )


def tiles_at(
    kernel: Kernel, problem: RunnableProblem, device: Device, configurations: Sequence[Mapping[str, int]]
) -> Floats:
    """Return the pieces of work of the launches of configurations at a size, and the work of each.

    The pieces are the ``tiles`` among the resources of the kernel; without them the blocks. A block may take several
    tiles, one after the other, and then the blocks do not say how long that lasts. The work of a tile is the bytes
    that it moves, of a kernel of arrays with resources: some configurations read twice what others read once.

    Returns
    -------
    ndarray of shape (n_configs, 2)
        0 where it is undefined or not known, NaN where a configuration is not valid.
    """
    columns = {name: np.array([configuration[name] for configuration in configurations]) for name in configurations[0]}
    variables = variables_of(problem, device)
    scope, valid = kernel.space.scope({**variables, **columns}), np.ones(len(configurations), dtype=np.bool_)
    for restriction in kernel.space.needed:
        valid &= restriction.expression.evaluate_partial(scope).truth()
    scope = kernel.space.scope({**variables, **{name: column[valid] for name, column in columns.items()}})
    tiles = np.full((len(configurations), 2), np.nan)
    for place, factors in enumerate(_tiles(kernel)):
        parts = [factor.evaluate_partial(scope) for factor in factors]
        product = math.prod(np.where(part.defined, part.value, 0.0) for part in parts)
        tiles[valid, place] = product if factors else 0.0
    return tiles


def _tiles(kernel: Kernel) -> tuple[Sequence[Expression], Sequence[Expression]]:
    """Return the factors of the pieces of work of a launch, and of the work of each: none where it is not known."""
    resources = kernel.resources.estimates
    moved = ["steps", "global_bytes"] if kernel.arrays and {"steps", "global_bytes"} <= resources.keys() else []
    return (resources["tiles"],) if "tiles" in resources else kernel.launch_rule.grid, [
        resources[name] for name in moved
    ]


def kernel_parameters(kernel: Kernel, problem: RunnableProblem) -> tuple[Parameter, ...]:
    """Return the parameters of a kernel's function that follow the problem.

    Raises
    ------
    UsageError
        Sizes are compiled in, the launch is not known at other sizes, or an array is in constant memory.
    """
    if not kernel.launch_rule.has_formulas or not problem.size_names:
        raise UsageError(
            f"a kernel of a library is compiled once for all sizes, but that of {problem.label} is compiled for its "
            "own, or its launch is computed by your Python call."
        )
    roles = {buffer.name: buffer.role for buffer in problem.buffers}
    if kernel.arrays is None:
        return parameters_of(problem.argument_documents(), roles, problem.size_names, {})
    values = {argument.name: argument.value for argument in kernel.arrays.arguments}
    formulas = {name: value.text for name, value in values.items() if isinstance(value, Expression) and value.names}
    return parameters_of(problem.argument_documents(), roles, (), formulas)


def alignment_of(kernel: Kernel) -> int:
    """Return what the addresses of a kernel's arrays must be multiples of; 1 where any address is verified."""
    return 1 if kernel.arrays is None else _ARRAYS_ALIGNMENT


def name_of(problem: RunnableProblem) -> str:
    """Return the name in C of a problem: ``sgemm_nt``.

    >>> from mltune.problem.gemm import parse_problem
    >>> name_of(parse_problem("sgemm", trans="NT", size=64))
    'sgemm_nt'
    """
    return re.sub(r"[^a-z0-9_]", "_", problem.case.lower())[:40]
