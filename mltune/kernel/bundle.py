"""Kernel bundles: a CUDA source with its parameters, restrictions, resources and launch."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from mltune.device.facts import Device
from mltune.errors import BundleError, ExpressionError, UsageError
from mltune.files.text import did_you_mean, printable
from mltune.kernel.arrays import ArraysDefinition
from mltune.kernel.coding import Columns, labelled, length
from mltune.kernel.compiler_parameters import Variant, variant_of
from mltune.kernel.evaluation import Partial
from mltune.kernel.expressions import Expression, Value, parse
from mltune.kernel.launch import Launch, plain_entry
from mltune.problem.problem import STRICTEST, Problem

DEVICE_VARIABLES = (
    "compute_capability",
    "sm_count",
    "warp_size",
    "l2_bytes",
    "shared_bytes_per_sm",
    "shared_bytes_per_block",
    "reserved_shared_bytes",
    "registers_per_sm",
    "max_registers_per_thread",
    "max_threads_per_sm",
    "max_threads_per_block",
    "max_blocks_per_sm",
)
"""Variables of a device that expressions may use."""

_ZERO, _ONE = parse("0"), parse("1")
_Shape = tuple[Expression, Expression, Expression]


def device_variables(device: Device) -> dict[str, int]:
    """Return the variables of a device that the expressions of a kernel bundle may use.

    ``compute_capability`` is ``10 * major + minor``: 90 for compute capability 9.0. Without CUDA it is 0.
    """
    major, minor = device.compute_capability or (0, 0)
    facts = {name: getattr(device, name) for name in DEVICE_VARIABLES}
    return facts | {"compute_capability": 10 * major + minor}


def variables_of(problem: Problem, device: Device) -> dict[str, int]:
    """Return the variables of a problem and of a device, which the expressions of a kernel bundle may use."""
    return {**problem.variables(), **device_variables(device)}


@dataclass(frozen=True, slots=True)
class Restriction:
    """A condition that every configuration satisfies, with the reason that is shown to users.

    One that is ``only_in_search`` leaves out what does the same as another configuration for a problem: it runs.
    """

    expression: Expression
    reason: str
    only_in_search: bool = False

    @property
    def text(self) -> str:
        """The condition as written."""
        return self.expression.text


ACCESS_BYTES = (1, 2, 4, 8, 16, 32, 64, 128)
"""Bytes that one lane can load or store: up to those that shared memory delivers at once."""


@dataclass(frozen=True, slots=True)
class Access:
    """One load or store of a kernel's main loop, with the layout of the lanes of a warp.

    `count` has the instructions of a thread in a step, `bytes` those of a lane, and `lanes` the digits of a lane's
    number, the fastest first, each with its radix and its stride in bytes.
    """

    memory: Literal["shared", "global"]
    count: Expression
    bytes: Expression
    lanes: tuple[tuple[Expression, Expression], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """A kernel that can be tuned. Made by :func:`mltune.kernel.reader.load_kernel`.

    Attributes
    ----------
    name : str
        For a built-in kernel the name of its folder.
    problem : str
        Kind of problem that it solves: a name of :data:`mltune.problem.kinds.KINDS`.
    parameters : mapping of str to tuple of int
        Values of the parameters that are compiled in, each as the macro of its name.
    launch_parameters : mapping of str to tuple of int
        Values of the parameters that are passed at launch: another value needs no compile.
    compiler_parameters : mapping of str to tuple of int
        Values of the controls of the compiler (:mod:`mltune.kernel.compiler_parameters`), the default first.
    compiler_labels : mapping of str to tuple of str
        The values of those that are texts, which count the positions in these lists.
    controls : mapping of str to bytes
        The files of controls that are values of ``apply_controls``, by name.
    varied : tuple of str
        The compiler parameters that are part of the search space; the others have their defaults.
    arguments : tuple of str
        Launch parameters that follow the problem's arguments in a call of the kernel, in order.
    folder : pathlib.Path
        The bundle.
    source : str or None
        The CUDA text; None for a kernel whose timings were recorded elsewhere: it can be replayed, but not built.
    entry : str or None
        Name of the kernel function (``extern "C"``); None without a source.
    headers : mapping of str to str
        The texts of the headers that the source may include, by the name in ``#include``.
    header_paths : mapping of str to str
        The paths, in the kernel's folder, of those that are included by another name.
    include : tuple of str
        Folders in the kernel's folder in which headers are looked for.
    source_hash : str
        SHA-256 of the source, its headers, the entry, the launch and the files of controls; empty without a source.
    space_hash : str
        SHA-256 of the parameters, derived names and restrictions.
    precisions : tuple of str
        Precisions that it is written for, such as ``("s", "d")``; empty for kinds of problems without one.
    architecture : str
        The only one that it is compiled for, such as ``"sm_90a"`` (:meth:`architecture_on`); empty for any.
    unit : str
        The unit that makes its multiply-adds, such as ``"tensor_fp64"``; empty for that of the problem's arithmetic.
    derived : mapping of str to Expression
        Names for values that follow from parameters, problem and device; each uses only names before it.
    restrictions : tuple of Restriction
        Conditions that every configuration satisfies.
    resources : mapping of str to Expression
        Estimates before compiling, from which occupancy and features are computed. No other expression uses them.
    block, grid : tuple of three Expression
        Shape of a launch.
    shared_bytes : Expression
        Dynamic shared memory of a launch, bytes per block: the resource of that name, or 0.
    workspace : Expression or None
        Bytes of the memory that a launch is given besides its arguments; None for a kernel that takes none.
    zeros : Expression or None
        Bytes at its beginning that are zero before and after a launch; None for all of it.
    variables : frozenset of str
        Variables of a problem that its expressions may use.
    accesses : mapping of str to Access
        Loads and stores of the main loop by name, from which bank conflicts and cache traffic are computed.
    options : tuple of str
        Further options of the compiler.
    labels : mapping of str to tuple of (float or str)
        The values of the parameters that are not integers: those parameters count the positions in these lists.
    default : mapping of str to int
        The default configuration, which is always measured, and first; empty where there is none.
    arrays : ArraysDefinition or None
        Arguments, sizes and reference of a kernel of kind ``"arrays"``.
    configurations : Columns or None
        The valid configurations where they are listed; None where restrictions define them.
    verify : bytes
        A pickled function that decides on outputs; see :class:`mltune.measure.messages.Baseline`.
    preset : str
        Name of the part of the space that this is; empty for all of it.
    accuracy : str
        Promise about its error: one of :data:`mltune.problem.problem.ACCURACIES`.
    candidate : bool
        Whether it is among the kernels that are tuned where none is named.
    batched : bool
        Whether it solves batches of GEMMs, too.
    same_as : tuple of str
        Further values of ``source_hash``: of versions that compile to the same machine code, and launch it alike.
    """

    name: str
    problem: str
    parameters: Mapping[str, tuple[int, ...]]
    launch_parameters: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    compiler_parameters: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    compiler_labels: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    controls: Mapping[str, bytes] = field(default_factory=dict)
    varied: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()
    folder: Path = Path()
    source: str | None = None
    entry: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    header_paths: Mapping[str, str] = field(default_factory=dict)
    include: tuple[str, ...] = ()
    source_hash: str = ""
    space_hash: str = ""
    precisions: tuple[str, ...] = ()
    architecture: str = ""
    unit: str = ""
    derived: Mapping[str, Expression] = field(default_factory=dict)
    restrictions: tuple[Restriction, ...] = ()
    resources: Mapping[str, Expression] = field(default_factory=dict)
    block: _Shape = (_ONE, _ONE, _ONE)
    grid: _Shape = (_ONE, _ONE, _ONE)
    shared_bytes: Expression = _ZERO
    workspace: Expression | None = None
    zeros: Expression | None = None
    variables: frozenset[str] = frozenset()
    accesses: Mapping[str, Access] = field(default_factory=dict)
    options: tuple[str, ...] = ()
    labels: Mapping[str, tuple[float | str, ...]] = field(default_factory=dict)
    default: Mapping[str, int] = field(default_factory=dict)
    arrays: ArraysDefinition | None = None
    configurations: Columns | None = None
    verify: bytes = b""
    preset: str = ""
    accuracy: str = STRICTEST
    candidate: bool = True
    batched: bool = False
    same_as: tuple[str, ...] = ()

    has_formulas: ClassVar[bool] = True
    """Whether the shape of a launch is given by expressions, and so is known at every size."""

    @property
    def label(self) -> str:
        """The name, and that of the preset: ``"gemm_simt:astra"``."""
        return f"{self.name}:{self.preset}" if self.preset else self.name

    @property
    def all_parameters(self) -> dict[str, tuple[int, ...]]:
        """Values of every parameter: those compiled in, those passed at launch, and those of the compiler that vary."""
        varied = {name: self.compiler_parameters[name] for name in self.varied}
        return {**self.parameters, **self.launch_parameters, **varied}

    def check_problem(self, problem: Problem) -> None:
        """Check that the kernel solves a problem.

        Raises
        ------
        UsageError
            The problem is of another kind or precision, or lacks variables that the bundle's expressions may use.
        """
        see = f"see {self.folder / 'kernel.toml'}"
        if problem.kind != self.problem:
            raise UsageError(
                f"a kernel solves problems of its own kind, but {self.name} is of kind {self.problem} and "
                f"{problem.label} of kind {problem.kind}; {see}."
            )
        if problem.precision not in (self.precisions or ("",)):
            raise UsageError(
                f"a kernel solves problems of its own precisions, but {self.name} has {', '.join(self.precisions)} "
                f"and {problem.name} was requested; {see}."
            )
        if problem.variables().get("batch", 1) > 1 and not self.batched:
            raise UsageError(f"a batch needs a kernel for batches, but {self.name} is not, got {problem.label}; {see}.")
        if self.arrays is not None and problem.name != self.name:
            raise UsageError(
                f"a kernel solves problems of its own, but {problem.label} is one of another kernel than {self.name}; "
                f"{see}."
            )
        missing = sorted(self.variables - problem.variables().keys())
        if missing:
            raise UsageError(
                f"a problem must give the variables that the expressions of its kernel may use, but {problem.label} "
                f"does not give {', '.join(missing)} to {self.name}; leave the problem out for the recorded one, "
                f"or give sizes of these names; {see}."
            )

    def is_version(self, source_hash: str) -> bool:
        """Return whether a hash is that of this source, or of one that compiles to the same machine code."""
        return source_hash == self.source_hash or source_hash in self.same_as

    def architecture_on(self, device: str) -> str:
        """Return the architecture for which the kernel is compiled on a device of an architecture.

        Raises
        ------
        UsageError
            It is for other devices.

        Examples
        --------
        >>> kernel = Kernel(name="toy", problem="recorded", parameters={}, architecture="sm_90a")
        >>> kernel.architecture_on("sm_90")
        'sm_90a'
        """
        if self.architecture.rstrip("af") not in ("", device):
            raise UsageError(
                f"a kernel for one architecture runs on devices of that alone, but {self.name} is for "
                f"{self.architecture} and the device is {device}; name another kernel."
            )
        return self.architecture or device

    def scope(self, variables: Mapping[str, Value]) -> Scope:
        """Return the names that expressions may use: the given ones, and the derived ones, computed at first use.

        A parameter with labels is given by its positions, and stands for its labels.
        """
        labelled = {
            name: _labelled(labels, variables[name]) for name, labels in self.labels.items() if name in variables
        }
        return Scope({**variables, **labelled}, self.derived)

    def labelled(self, configuration: Mapping[str, int]) -> dict[str, int | float | str]:
        """Return a configuration with labels in place of their positions."""
        return labelled(configuration, self.labels)

    def variant(self, configuration: Mapping[str, int]) -> Variant:
        """Return what a configuration asks of the compiler; a parameter that it lacks has its default."""
        codes = {name: configuration.get(name, values[0]) for name, values in self.compiler_parameters.items()}
        return variant_of(labelled(codes, self.compiler_labels))

    def renaming(self, configuration: Mapping[str, int]) -> dict[str, str]:
        """Return the macro that gives the kernel the name that a configuration asks for; none if it keeps its own."""
        entry, variant = plain_entry(self.entry or ""), self.variant(configuration)
        return {entry: variant.entry(entry)} if variant.name else {}

    def completed(self, configuration: Mapping[str, int]) -> dict[str, int]:
        """Return a configuration with the compiler parameters that vary, and no others; it may lack some defaults.

        >>> kernel = Kernel(name="toy", problem="recorded", parameters={}, compiler_parameters={"level": (5, 8)})
        >>> kernel.completed({"N": 1, "level": 8}), kernel.in_variants().completed({"N": 1})
        ({'N': 1}, {'N': 1, 'level': 5})
        """
        fixed = self.compiler_parameters.keys() - set(self.varied)
        varied = {name: value for name, value in configuration.items() if name not in fixed}
        return varied | {name: self.compiler_parameters[name][0] for name in self.varied if name not in varied}

    def with_defaults(self, columns: Columns) -> Columns:
        """Return a table of configurations with the defaults of the compiler parameters that it lacks."""
        lacking = {name: values[0] for name, values in self.compiler_parameters.items() if name not in columns}
        return {**columns, **{name: np.full(length(columns), value) for name, value in lacking.items()}}

    def recorded_with(self, names: Collection[str]) -> Kernel:
        """Return the kernel of which those compiler parameters vary that are among the names of a record.

        It was made with the defaults of the others.
        """
        varied = tuple(name for name in self.compiler_parameters if name in names)
        labels = {name: texts for name, texts in self.labels.items() if name not in self.varied}
        labels |= {name: self.compiler_labels[name] for name in varied if name in self.compiler_labels}
        return replace(self, varied=varied, labels=labels)

    def in_variants(self) -> Kernel:
        """Return the kernel of which all compiler parameters vary."""
        return self.recorded_with(self.compiler_parameters)

    @property
    def needed(self) -> list[Restriction]:
        """The restrictions without which a configuration does not run."""
        return [restriction for restriction in self.restrictions if not restriction.only_in_search]

    def has_parameters(self, names: Collection[str]) -> bool:
        """Return whether a record with parameters of some names can be one of this kernel."""
        return set(self.recorded_with(names).all_parameters) == set(names)

    @property
    def is_generated(self) -> bool:
        """Whether each configuration may have a text of its own."""
        return False

    def source_of(self, configuration: Mapping[str, int]) -> str:
        """Return the CUDA text of a configuration, without its macros; the kernel has a source."""
        return self.source or ""

    def macros(self, configuration: Mapping[str, int]) -> dict[str, int | float | str]:
        """Return the macros of a configuration: its parameters that are compiled in."""
        return self.labelled({name: configuration[name] for name in self.parameters})

    def parameters_of(self, names: Iterable[str]) -> frozenset[str]:
        """Return the parameters that names depend on, through derived names."""
        return frozenset(
            name for name in self._reached(names) if name in self.parameters or name in self.launch_parameters
        )

    def parts_of(self, expressions: Iterable[Expression]) -> int:
        """Return the number of parts that are evaluated for expressions, those of derived names once each."""
        used = list(expressions)
        reached = self._reached(name for expression in used for name in expression.names)
        return sum(
            expression.parts
            for expression in (*used, *(self.derived[name] for name in reached if name in self.derived))
        )

    def _reached(self, names: Iterable[str]) -> set[str]:
        """Return names and all that they depend on."""
        reached: set[str] = set()
        waiting = list(names)
        while waiting:
            name = waiting.pop()
            if name not in reached:
                reached.add(name)
                waiting += self.derived[name].names if name in self.derived else ()
        return reached

    def evaluate(
        self, columns: Columns, variables: Mapping[str, int], expressions: Mapping[str, Expression] | None = None
    ) -> dict[str, NDArray[Any]]:
        """Evaluate expressions, by default the derived names, over a table of configurations.

        An ExpressionError tells of a value that is undefined for some configuration, as its divisor is zero.

        >>> derived = {"THR": parse("BLK // 4")}
        >>> kernel = Kernel(name="toy", problem="recorded", parameters={"BLK": (16, 32)}, derived=derived)
        >>> kernel.evaluate({"BLK": np.array([16, 32])}, {})["THR"].tolist()
        [4, 8]
        """
        scope = self.scope({**variables, **columns})
        chosen = self.derived if expressions is None else expressions
        size = length(columns)
        return {name: _column(name, expression, scope, size) for name, expression in chosen.items()}

    @property
    def reference_kernel(self) -> Kernel | None:
        """The kernel with the launch of the entry that gives the right answer; None where none does."""
        reference = None if self.arrays is None else self.arrays.reference
        if reference is None:
            return None
        launched = replace(self, entry=reference.entry, block=reference.block, grid=reference.grid, shared_bytes=_ZERO)
        return replace(launched, arguments=(), workspace=None, resources={}, accesses={})

    def launch(self, configuration: Mapping[str, int], variables: Mapping[str, int]) -> Launch:
        """Return the launch of one configuration; `variables` are those of the device and of the computed problem.

        A size that is not an integer, or is negative, raises an ExpressionError.
        """
        scope = self.scope({**variables, **configuration})

        def sizes(expressions: Iterable[Expression]) -> Iterator[int]:
            return (expression.size(scope) for expression in expressions)

        try:
            (gx, gy, gz), (bx, by, bz), (shared_bytes,) = map(sizes, (self.grid, self.block, [self.shared_bytes]))
            workspace_bytes = None if self.workspace is None else self.workspace.size(scope)
        except ExpressionError as error:
            raise ExpressionError(f"{error}; see {self.folder / 'kernel.toml'}.") from error
        arguments = tuple(int(configuration[name]) for name in self.arguments)
        return Launch((gx, gy, gz), (bx, by, bz), shared_bytes, arguments, workspace_bytes)

    def with_values(self, values: Mapping[str, Sequence[int]]) -> Kernel:
        """Return the kernel with fewer values for some parameters: a part of its search space.

        A compiler parameter among them is part of the space.

        Raises
        ------
        BundleError
            A parameter or one of its values does not exist, or no value is left.

        Examples
        --------
        >>> from mltune.kernel.reader import load_kernel
        >>> load_kernel("gemm_simt").with_values({"BLK_M": [64, 128]}).parameters["BLK_M"]
        (64, 128)
        """
        every = {**self.all_parameters, **self.compiler_parameters}
        for name, chosen in values.items():
            legal = every.get(name)
            if legal is None:
                raise BundleError(
                    f"a parameter of {self.name} is one of {', '.join(every)}, got {name!r}"
                    f"{did_you_mean(name, every) or '.'}"
                )
            if not chosen or not set(chosen) <= set(legal) or len(set(chosen)) != len(chosen):
                raise BundleError(
                    f"the values of {name} are distinct ones of {printable(list(legal), 300)}, "
                    f"got {printable(list(chosen), 300)}"
                )

        def narrowed(parameters: Mapping[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
            return {name: tuple(values.get(name, legal)) for name, legal in parameters.items()}

        return replace(
            self.recorded_with({*self.varied, *values}),
            parameters=narrowed(self.parameters),
            launch_parameters=narrowed(self.launch_parameters),
            compiler_parameters=narrowed(self.compiler_parameters),
        )


class Scope(dict[str, Value | Partial]):
    """Names and their values; derived names that are not among the variables are computed at first use and cached."""

    def __init__(self, variables: Mapping[str, Value | Partial], derived: Mapping[str, Expression]) -> None:
        super().__init__(variables)
        self._derived = derived

    def __missing__(self, name: str) -> Value | Partial:
        self[name] = value = self._derived[name].evaluate_partial(self)
        return value


def _labelled(labels: tuple[float | str, ...], value: Value | Partial) -> Value | Partial:
    if isinstance(value, Partial | float):
        return value
    chosen = np.array(labels)[value]
    return chosen.item() if isinstance(chosen, np.floating) else np.asarray(chosen)


def _column(name: str, expression: Expression, scope: Scope, size: int) -> NDArray[Any]:
    try:
        return np.array(np.broadcast_to(expression.evaluate(scope), (size,)))
    except ExpressionError as error:
        raise ExpressionError(f"{name}: {error}") from error
