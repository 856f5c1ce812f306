"""Kernel bundles: a CUDA source with its parameters, restrictions, resources and launch."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

from mltune.device.facts import Device
from mltune.errors import BundleError, ExpressionError, UsageError
from mltune.files import folders
from mltune.files.text import many, no_such, printable
from mltune.kernel.arrays import ArraysDefinition
from mltune.kernel.launch import Launch, plain_entry
from mltune.kernel.parts import CompilerSpace, KernelResources, KernelSource, KernelSpace, LaunchRule
from mltune.problem.arrays import ArraysProblem
from mltune.problem.problem import STRICTEST, Problem

AnyProblem = TypeVar("AnyProblem", bound=Problem)

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


def device_variables(device: Device) -> dict[str, int]:
    """Return a device's variables in expressions; ``compute_capability`` is ``10 * major + minor``, 0 without CUDA."""
    major, minor = device.compute_capability or (0, 0)
    facts = {name: getattr(device, name) for name in DEVICE_VARIABLES}
    return facts | {"compute_capability": 10 * major + minor}


def variables_of(problem: Problem, device: Device) -> dict[str, int]:
    """Return the variables of a problem and of a device, which the expressions of a kernel bundle may use."""
    return {**problem.variables, **device_variables(device)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """A kernel that can be tuned. Made by :func:`mltune.kernel.reader.load_kernel`.

    Attributes
    ----------
    name : str
        For a built-in kernel the name of its folder.
    problem : str
        Kind of problem that it solves: a name of :data:`mltune.problem.kinds.KINDS`.
    source : KernelSource
    space : KernelSpace
    compiler : CompilerSpace
    launch_rule : LaunchRule
    resources : KernelResources
    arrays : ArraysDefinition or None
        Arguments, sizes and reference of a kernel of kind ``"arrays"``.
    folder : pathlib.Path
        The bundle.
    precisions : tuple of str
        Precisions that it is written for, such as ``("s", "d")``; empty for kinds of problems without one.
    accuracy : str
        Promise about its error: one of :data:`mltune.problem.problem.ACCURACIES`.
    verify : bytes
        A pickled function that decides on outputs; see :class:`mltune.measure.messages.Baseline`.
    candidate : bool
        Whether it is among the kernels that are tuned where none is named.
    batched : bool
        Whether it solves batches of GEMMs, too.
    epilogues : bool
        Whether it applies the epilogue of a GEMM.
    """

    name: str
    problem: str
    source: KernelSource = field(default_factory=KernelSource)
    space: KernelSpace = field(default_factory=KernelSpace)
    compiler: CompilerSpace = field(default_factory=CompilerSpace)
    launch_rule: LaunchRule = field(default_factory=LaunchRule)
    resources: KernelResources = field(default_factory=KernelResources)
    arrays: ArraysDefinition | None = None
    folder: Path = Path()
    precisions: tuple[str, ...] = ()
    accuracy: str = STRICTEST
    verify: bytes = b""
    candidate: bool = True
    batched: bool = False
    epilogues: bool = False

    @property
    def label(self) -> str:
        """The name, and that of the preset: ``"gemm_simt:astra"``."""
        return f"{self.name}:{self.space.preset}" if self.space.preset else self.name

    @property
    def is_built_in(self) -> bool:
        """Whether it comes with mltune."""
        return self.folder.resolve().parent == folders.assets("kernels").resolve()

    @property
    def all_parameters(self) -> dict[str, tuple[int, ...]]:
        """Values of every parameter: those compiled in, those passed at launch, and those of the compiler that vary."""
        varied = {name: self.compiler.parameters[name] for name in self.compiler.varied}
        return {**self.space.parameters, **self.space.launch_parameters, **varied}

    def check_problem(self, problem: Problem) -> None:
        """Check that the kernel solves a problem.

        Raises
        ------
        UsageError
            The problem is of another kind or precision, or lacks variables that the bundle's expressions may use.
        """
        missing = sorted(self.space.variables - problem.variables.keys())
        laws = {
            f"it is of kind {self.problem}, and the problem of kind {problem.kind}": problem.kind == self.problem,
            f"its precisions are {', '.join(self.precisions)}": problem.precision in (self.precisions or ("",)),
            "it has no batches": self.batched or problem.variables.get("batch", 1) == 1,
            "it applies no epilogue": self.epilogues or not problem.variables.get("has_epilogue"),
            "that is a problem of another kernel": self.arrays is None or problem.name == self.name,
            f"its expressions may use {', '.join(missing)}, which the problem does not give; leave the problem out for "
            "the recorded one, or give sizes of these names": not missing,
        }
        for law, holds in laws.items():
            if not holds:
                see = f"see {self.described_in}"
                raise UsageError(f"{self.name} does not solve {problem.label}: {law}; {see}.")

    def __repr__(self) -> str:
        return f"Kernel({self.name} for {self.problem}, {many(len(self.all_parameters), 'parameter')})"

    @property
    def described_in(self) -> str:
        """Where a person reads its restrictions and sizes: its ``kernel.toml``, or the call that made it."""
        return "the call" if self.folder == Path() else str(self.folder / "kernel.toml")

    def has_own_problem(self, name: object = None) -> bool:
        """Return whether the kernel has arguments of its own, and the name of a problem is theirs or not given."""
        return self.arrays is not None and name in (None, self.name)

    def own_problem(self, sizes: Mapping[str, int] | None = None) -> ArraysProblem:
        """Return the problem of the kernel's own arguments at sizes."""
        assert self.arrays is not None  # noqa: S101 - those of other kinds are parsed by name
        return self.arrays.problem(sizes)

    def restated(self, problem: AnyProblem) -> AnyProblem | ArraysProblem:
        """Return a problem with the arguments that the kernel has now; of another kind it stays as it is."""
        return problem if self.arrays is None else self.own_problem(problem.variables)

    def architecture_on(self, device: str) -> str:
        """Return the architecture for which the kernel is compiled on a device of an architecture.

        Raises
        ------
        UsageError
            It is for other devices.

        Examples
        --------
        >>> kernel = Kernel(name="toy", problem="recorded", source=KernelSource(architecture="sm_90a"))
        >>> kernel.architecture_on("sm_90")
        'sm_90a'
        """
        architecture = self.source.architecture
        if architecture.rstrip("af") not in ("", device):
            raise UsageError(
                f"{self.name} is for {architecture} alone, but the device is {device}; name another kernel."
            )
        return architecture or device

    def renaming(self, configuration: Mapping[str, int]) -> dict[str, str]:
        """Return the macro that gives the kernel the name that a configuration asks for; none if it keeps its own."""
        entry, variant = plain_entry(self.source.entry or ""), self.compiler.variant(configuration)
        return {entry: variant.entry(entry)} if variant.name else {}

    def recorded_with(self, names: Collection[str]) -> Kernel:
        """Return the kernel of which those compiler parameters vary that are among the names of a record.

        It was made with the defaults of the others.
        """
        compiler = replace(self.compiler, varied=tuple(name for name in self.compiler.parameters if name in names))
        labels = {name: texts for name, texts in self.space.labels.items() if name not in self.compiler.varied}
        labels |= {name: texts for name, texts in compiler.labels.items() if name in compiler.varied}
        return replace(self, compiler=compiler, space=replace(self.space, labels=labels))

    def with_variants(self) -> Kernel:
        """Return the kernel of which all compiler parameters vary."""
        return self.recorded_with(self.compiler.parameters)

    def has_parameters(self, names: Collection[str]) -> bool:
        """Return whether a record with parameters of some names can be one of this kernel."""
        return set(self.recorded_with(names).all_parameters) == set(names)

    def source_of(self, configuration: Mapping[str, int]) -> str:
        """Return the CUDA text of a configuration, without its macros; the kernel has a source."""
        return self.source.text_of(self.space.values_of(configuration))

    def macros(self, configuration: Mapping[str, int]) -> dict[str, int | float | str]:
        """Return the macros of a configuration: its parameters that are compiled in, and what its launch defines."""
        return self.launch_rule.macros(self.space.values_of(configuration))

    @property
    def reference_kernel(self) -> Kernel | None:
        """The kernel with the launch of the entry that gives the right answer; None where none does."""
        reference = None if self.arrays is None else self.arrays.reference
        if reference is None:
            return None
        return replace(
            self,
            source=replace(self.source, entry=reference.entry),
            launch_rule=LaunchRule(block=reference.block, grid=reference.grid),
            resources=KernelResources(unit=self.resources.unit),
        )

    def launch(self, configuration: Mapping[str, int], variables: Mapping[str, int]) -> Launch:
        """Return the launch of one configuration; `variables` are those of the device and of the computed problem.

        A size that is not an integer, or is negative, raises an ExpressionError.
        """
        try:
            return self.launch_rule.launch(self.space, configuration, variables)
        except ExpressionError as error:
            raise ExpressionError(f"{error}; see {self.described_in}.") from error

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
        >>> load_kernel("gemm_simt").with_values({"BLK_M": [64, 128]}).space.parameters["BLK_M"]
        (64, 128)
        """
        every = {**self.all_parameters, **self.compiler.parameters}
        for name, chosen in values.items():
            legal = every.get(name)
            if legal is None:
                raise BundleError(no_such(f"parameter of {self.name}", name, every, f"It has {', '.join(every)}"))
            if not chosen or not set(chosen) <= set(legal) or len(set(chosen)) != len(chosen):
                raise BundleError(
                    f"{name} cannot have the values {printable(list(chosen), 300)}: they are distinct ones of "
                    f"{printable(list(legal), 300)}."
                )

        def narrowed(parameters: Mapping[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
            return {name: tuple(values.get(name, legal)) for name, legal in parameters.items()}

        part = self.recorded_with({*self.compiler.varied, *values})
        compiled, launched = narrowed(self.space.parameters), narrowed(self.space.launch_parameters)
        space = replace(part.space, parameters=compiled, launch_parameters=launched)
        compiler = replace(part.compiler, parameters=narrowed(self.compiler.parameters))
        return replace(part, space=space, compiler=compiler)
