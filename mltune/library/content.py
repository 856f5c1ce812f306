"""The content of a library, and how it follows from kernels, problems and builds."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from mltune.errors import UsageError
from mltune.kernel.bundle import Kernel
from mltune.kernel.coding import Floats
from mltune.kernel.expressions import Expression
from mltune.kernel.placed import PlacedKernel
from mltune.library.dispatcher import Dispatcher
from mltune.library.document import C_TYPES, ConfigurationOfLibrary, LaunchFormulas
from mltune.problem.problem import RunnableProblem
from mltune.records.trial import Build
from mltune.results.winner import formula, formulas_of, known_values, restrictions_on

_ARRAYS_ALIGNMENT = 16
"""What the addresses of arrays are multiples of: kernels of kind arrays are verified at such alone."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """An argument of the kernel, and how a call of the library gives it.

    The role is ``size``, ``in``, ``out``, ``inout``, ``scalar``, which the caller chooses, or ``computed`` from the
    sizes by the formula in `value`. The type of an array is that of its elements.
    """

    name: str
    dtype: str
    role: str
    value: str = ""


@dataclass(frozen=True, slots=True)
class Configuration:
    """A configuration of a kernel as the document has it, but for the place of its machine code; and this code."""

    document: ConfigurationOfLibrary
    cubin: bytes


@dataclass(frozen=True, slots=True)
class Content:
    """The content of a library: name in C, problem at one of its sizes, computation in one line, and configurations.

    Expressions may use the `sizes`; the dispatcher reads the `extents` among them. Addresses of arrays are multiples of
    `alignment`. The device has ``name``, ``compute_capability`` and ``sm_count``.
    """

    name: str
    problem: Mapping[str, Any]
    formula: str
    sizes: tuple[str, ...]
    extents: tuple[str, ...]
    parameters: tuple[Parameter, ...]
    alignment: int
    device: Mapping[str, Any]
    configurations: tuple[Configuration, ...]
    dispatcher: Dispatcher
    versions: Mapping[str, str]
    report: Mapping[str, Any]

    def to_json(self) -> dict[str, Any]:
        """Return all but the machine code as plain JSON values."""
        cubins = self.cubins()
        plain = ("name", "formula", "problem", "device", "alignment", "report", "versions")
        return {name: getattr(self, name) for name in plain} | {
            "sizes": [*self.sizes],
            "extents": [*self.extents],
            "parameters": [
                {"name": parameter.name, "dtype": parameter.dtype, "role": parameter.role}
                for parameter in self.signature()
            ],
            "configurations": [
                configuration.document.model_dump() | {"cubin": cubins.index(configuration.cubin)}
                for configuration in self.configurations
            ],
            "dispatcher": self.dispatcher.to_json(),
        }

    def cubins(self) -> list[bytes]:
        """Return the machine code, each once, in the order of the source."""
        return list(dict.fromkeys(configuration.cubin for configuration in self.configurations))

    def signature(self) -> list[Parameter]:
        """Return the parameters of a call: sizes that are no arguments, then arguments that are not computed."""
        passed = [parameter for parameter in self.parameters if parameter.role != "computed"]
        lacking = {*self.sizes} - {parameter.name for parameter in passed}
        return [*(Parameter(name, "int64", "size") for name in self.sizes if name in lacking), *passed]


def configuration_of(placed: PlacedKernel, configuration: Mapping[str, int], build: Build) -> Configuration:
    """Return a configuration of a kernel as a library has it; its build has machine code, or none yet."""
    kernel, values = placed.kernel, known_values(placed, configuration)
    written, zeros = partial(formula, values=values, derived=kernel.space.derived), kernel.launch_rule.zeros
    tiles, of_tile = (" * ".join(f"({written(factor)})" for factor in factors) for factors in _tiles(kernel))
    document = ConfigurationOfLibrary.model_construct(  # it is checked with the whole document
        kernel=kernel.name,
        configuration=dict(kernel.space.labelled(configuration)),
        entry=build.entry or kernel.source.entry or "",
        launch=LaunchFormulas.model_construct(
            **formulas_of(kernel, values),
            zeros=None if zeros is None else written(zeros),
            tiles=tiles,
            of_tile=of_tile or "0",
            launched=[int(configuration[name]) for name in kernel.launch_rule.arguments],
        ),
        sizes_must_satisfy=dict(restrictions_on(kernel, values, placed.problem.size_names)),
        most_shared_bytes=placed.device.shared_bytes_per_block - (build.shared_bytes or 0),
        cubin=0,
    )
    return Configuration(document, build.cubin)


def is_valid_at_all_sizes(placed: PlacedKernel, configuration: Mapping[str, int]) -> bool:
    """Return whether no restriction on the sizes is left of a configuration that runs at some."""
    return not restrictions_on(placed.kernel, known_values(placed, configuration), placed.problem.size_names)


def tiles_at(placed: PlacedKernel, configurations: Sequence[Mapping[str, int]]) -> Floats:
    """Return the pieces of work of the launches of configurations at a size, and the work of each: (n_configs, 2).

    0 is undefined or not known, NaN not valid. The pieces are the ``tiles`` among the resources of the kernel, because
    a block may take several tiles, one after the other; without them the blocks. The work of a tile is the bytes that
    it moves, of a kernel of arrays with resources: some configurations read twice what others read once.
    """
    columns = {name: np.array([configuration[name] for configuration in configurations]) for name in configurations[0]}
    kernel, variables, valid = placed.kernel, placed.variables, placed.runs(columns)
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
    tiles = (resources["tiles"],) if "tiles" in resources else kernel.launch_rule.grid
    return tiles, [resources[name] for name in moved]


def kernel_parameters(kernel: Kernel, problem: RunnableProblem) -> tuple[Parameter, ...]:
    """Return the parameters of a kernel's function that follow the problem.

    Sizes that are compiled in, a launch that is not known at other sizes, and an array in constant memory raise a
    UsageError.
    """
    if not kernel.launch_rule.has_formulas or not problem.size_names:
        raise UsageError(
            f"the kernel of {problem.label} is compiled for its own size, or its launch is computed by your Python "
            "call; a kernel of a library is compiled once for all sizes."
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
    """Return the name in C of a problem: ``sgemm_nt``."""
    return re.sub(r"[^a-z0-9_]", "_", problem.case.lower())[:40]


def parameters_of(
    documents: Sequence[Mapping[str, Any]],
    roles: Mapping[str, str],
    sizes: Sequence[str],
    formulas: Mapping[str, str],
) -> tuple[Parameter, ...]:
    """Return the parameters of a kernel from the documents of its arguments.

    `roles` are those of its arrays, and `formulas` those of scalars that follow from the sizes. An array in constant
    memory, which belongs to one call at a time, and a computed scalar whose type C lacks raise a UsageError.
    """
    parameters = []
    for document in documents:
        name, dtype = str(document["name"]), str(document["type"])
        if document.get("role") == "constant":
            raise UsageError(f"{name} lies in constant memory; arguments of a library are passed to its kernel.")
        if dtype.startswith("pointer to "):
            parameters.append(Parameter(name, dtype.removeprefix("pointer to "), roles[name]))
        elif name in formulas:
            if dtype not in C_TYPES:
                raise UsageError(f"{name} follows from sizes and is {dtype}, neither an integer nor a number.")
            parameters.append(Parameter(name, dtype, "computed", formulas[name]))
        else:
            parameters.append(Parameter(name, dtype, "size" if name in sizes and dtype == "int64" else "scalar"))
    return tuple(parameters)
