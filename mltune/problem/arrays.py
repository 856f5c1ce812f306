"""The arrays problem: the arguments of any kernel at given sizes, its work where it is known, and its tolerances."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, Field, StrictBool, StrictFloat, StrictInt, StrictStr

from mltune.errors import ProblemError
from mltune.files.reading import raising
from mltune.files.validation import matching, validated
from mltune.problem.array_values import DTYPES, INITIAL, STORAGE, initial_array, scalar
from mltune.problem.problem import Buffer, CaseBuffer, Operands

MOST_BYTES = 2**40
"""Largest array, bytes."""

MOST_FLOPS = 2**80

_SEED, _OWN_SEED = 267, 1267  # of the cases of every configuration, and of a winner

Role = Literal["in", "out", "inout", "constant"]
Name = Annotated[StrictStr, matching(r"[A-Za-z_][A-Za-z0-9_]{0,63}", "be a name")]
Integer = Annotated[StrictInt, Field(ge=-(2**53), le=2**53)]
Number = Annotated[StrictInt, Field(ge=-(2**63), lt=2**64)] | Annotated[StrictFloat, Field(allow_inf_nan=False)]
Tolerance = Annotated[float, Field(ge=0, allow_inf_nan=False)]

_INITIAL = "|".join((*INITIAL, r"[^/\\\x00]{1,250}\.npy"))
_INITIAL_LAW = f"be one of {', '.join(INITIAL)}, or the name of an .npy file"


@dataclass(frozen=True, slots=True)
class Argument:
    """An argument of a kernel at given sizes: an array or, with shape None, a scalar of a `value`.

    The role of an array is ``"in"``, ``"out"``, ``"inout"`` or ``"constant"``: copied to the ``__constant__`` symbol of
    its name, and not passed. The largest error of a correct output is `tolerance`, relative to the sum of the correct
    value and the root mean square of all correct values of the array, plus `absolute`; 0 for exact results.
    """

    __pydantic_config__: ClassVar[dict[str, Any]] = {"extra": "forbid"}

    name: Name
    dtype: Literal[DTYPES]  # type: ignore[valid-type]
    shape: Annotated[tuple[Annotated[StrictInt, Field(ge=1, le=MOST_BYTES)], ...], Field(max_length=8)] | None = None
    role: Role = "in"
    initial: Annotated[StrictStr, matching(_INITIAL, _INITIAL_LAW)] | Number = "uniform"
    value: StrictBool | Number = 0
    tolerance: Tolerance = 0.0
    absolute: Tolerance = 0.0

    @property
    def nbytes(self) -> int:
        """Size of the array in bytes; 0 for a scalar."""
        return 0 if self.shape is None else math.prod(self.shape) * STORAGE[self.dtype].itemsize

    @property
    def scalar(self) -> Any:
        """The NumPy scalar that is passed."""
        return scalar(self.dtype, self.value)

    @property
    def words(self) -> NDArray[Any]:
        """The bits of a scalar as unsigned integers, of 64 bits where it is longer."""
        value = np.array([self.scalar])
        return value.view(f"uint{min(8 * value.itemsize, 64)}")

    def document(self) -> dict[str, Any]:
        """Return the argument for a winner's document; of a file with initial values only the name."""
        if self.shape is None:
            return {"name": self.name, "type": self.dtype, "value": self.value}
        initial = Path(self.initial).name if isinstance(self.initial, str) else self.initial
        return {
            "name": self.name,
            "type": f"pointer to {self.dtype}",
            "shape": list(self.shape),
            "role": self.role,
            "initial": 0 if self.role == "out" else initial,
        }


class _ArraysDocument(BaseModel, extra="forbid"):
    kind: Literal["arrays"] = "arrays"
    name: Annotated[StrictStr, matching(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}", "be a name")]
    sizes: Annotated[dict[Name, Integer], Field(max_length=60)]
    arguments: Annotated[list[Argument], Field(max_length=100)]
    definitions: Annotated[dict[Name, Integer], Field(max_length=100)] = {}
    flops: Annotated[StrictInt, Field(ge=0, le=MOST_FLOPS)] = 0
    bytes: Annotated[StrictInt, Field(ge=0, le=MOST_FLOPS)] = 0
    arithmetic: Literal["fp32", "fp64"] = "fp32"
    checked: Annotated[list[dict[Name, Integer]], Field(max_length=20)] = []


@dataclass(frozen=True, slots=True)
class ArraysProblem:
    """The arguments of a kernel at given sizes. Satisfies :class:`~mltune.problem.problem.RunnableProblem`.

    `definitions` are macros that follow from the sizes. `flops` are floating-point operations, `bytes` the least memory
    traffic; 0 where they are unknown. Every configuration is verified on `checks`, other sizes, before it is timed.
    `answer` has paths of ``.npy`` files with correct outputs, by argument, in place of the baseline's.
    """

    name: str
    sizes: tuple[tuple[str, int], ...]
    arguments: tuple[Argument, ...]
    definitions: tuple[tuple[str, int], ...] = ()
    flops: int = 0
    bytes: int = 0
    arithmetic: str = "fp32"
    checks: tuple[ArraysProblem, ...] = field(default=(), compare=False)
    answer: Mapping[str, str] = field(default_factory=dict, compare=False)

    kind: ClassVar[str] = "arrays"
    precision: ClassVar[str] = ""
    reference: ClassVar[str] = "default"
    is_product: ClassVar[bool] = False
    needs_baseline: ClassVar[bool] = True

    def __post_init__(self) -> None:
        names = [argument.name for argument in self.arguments]
        twice = [name for name in names if names.count(name) > 1]
        if twice:
            raise ProblemError(f"the argument {twice[0]} of {self.label} is there twice.")
        for argument in self.arguments:
            if argument.nbytes > MOST_BYTES:
                raise ProblemError(
                    f"{argument.name} of {self.label} has {argument.nbytes} bytes; an array has at most 2**40: choose "
                    "smaller sizes."
                )

    @property
    def label(self) -> str:
        """The name and the sizes, in their order."""
        return f"{self.name} {'x'.join(str(value) for _, value in self.sizes)}".strip()

    @property
    def size_names(self) -> tuple[str, ...]:
        """The names of the sizes; those that macros are made of are compiled in."""
        return tuple(name for name, _ in self.sizes) if not self.definitions else ()

    @property
    def case(self) -> str:
        """The name."""
        return self.name

    cost_case = cost_class = case

    @property
    def work_class(self) -> tuple[Any, ...]:
        """The name and the sizes."""
        return self.name, self.sizes

    @property
    def operand_bytes(self) -> int:
        """Memory of all arrays, bytes."""
        return sum(argument.nbytes for argument in self.arguments)

    @property
    def formula(self) -> str:
        """The call of the kernel."""
        return f"{self.name}({', '.join(argument.name for argument in self.arguments if argument.role != 'constant')})"

    @property
    def arrays(self) -> tuple[Argument, ...]:
        """The arguments that are arrays, those in constant memory too."""
        return tuple(argument for argument in self.arguments if argument.shape is not None)

    @property
    def buffers(self) -> tuple[Buffer, ...]:
        """The arrays, as stored in memory; those in constant memory are inputs."""
        return tuple(
            Buffer(array.name, "in" if array.role == "constant" else array.role, array.dtype) for array in self.arrays
        )

    @property
    def is_empty(self) -> bool:
        """Whether no array is written, or a written one has no elements."""
        return not any(array.nbytes for array in self.arrays if array.role in ("out", "inout"))

    @property
    def variables(self) -> dict[str, int]:
        """The sizes."""
        return dict(self.sizes)

    def macros(self) -> dict[str, int]:
        """Return the macros that follow from the sizes."""
        return dict(self.definitions)

    def operands(self, xp: Any, seed: int) -> dict[str, Any]:
        """Make the arrays, flat; outputs are zero."""
        generator = xp.random.default_rng(seed)
        return {
            array.name: initial_array(xp, generator, array.dtype, array.shape or (), self._initial(array))
            for array in self.arrays
        }

    @staticmethod
    def _initial(argument: Argument) -> str | float:
        return 0 if argument.role == "out" else argument.initial

    def kernel_arguments(self, operands: Operands) -> dict[str, Any]:
        """Return the arguments of a kernel by name, in order."""
        passed = [argument for argument in self.arguments if argument.role != "constant"]
        return {value.name: value.scalar if value.shape is None else operands[value.name] for value in passed}

    def verification_cases(self) -> tuple[ArraysCase, ...]:
        """Return the checks, and the problem itself."""
        return self._cases(_SEED)

    def own_cases(self) -> tuple[ArraysCase, ...]:
        """Return the same with other initial values."""
        return self._cases(_OWN_SEED)

    def _cases(self, seed: int) -> tuple[ArraysCase, ...]:
        problems = (*self.checks, self)
        return tuple(
            ArraysCase(problem, seed + number, is_timed=problem is self) for number, problem in enumerate(problems)
        )

    def winner_problems(self) -> tuple[ArraysProblem, ...]:
        """Return none: a winner is verified at the sizes of the checks."""
        return ()

    def reference_call(self, addresses: Mapping[str, int]) -> None:
        """Return none: the reference is the default configuration."""

    def argument_documents(self) -> list[dict[str, Any]]:
        """Return name, type and value or role of all arguments."""
        return [argument.document() for argument in self.arguments]

    def verification_document(self) -> dict[str, Any]:
        """Return the sizes at which a winner is verified."""
        return {
            "sizes": [dict(problem.sizes) for problem in (*self.checks, self)],
            "addresses": "aligned to 256 bytes, between guard zones",
        }

    def to_json(self) -> dict[str, Any]:
        """Return the problem as plain JSON values, its ``kind`` among them."""
        document = {
            "kind": self.kind,
            "name": self.name,
            "sizes": dict(self.sizes),
            "arguments": [_argument_to_json(argument) for argument in self.arguments],
            "definitions": dict(self.definitions),
            **{name: getattr(self, name) for name in ("flops", "bytes", "arithmetic")},
            "checked": [dict(problem.sizes) for problem in self.checks],
        }
        always = ("sizes", "arguments")
        return {name: value for name, value in document.items() if value not in ({}, [], 0) or name in always}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> ArraysProblem:
        """Rebuild a problem from :meth:`to_json`; it can be read and replayed. Only its kernel makes it runnable."""
        with raising(ProblemError, "a problem of kind arrays", ValueError):
            fields = validated(_ArraysDocument, dict(document))
        sizes, definitions = tuple(fields.sizes.items()), tuple(fields.definitions.items())
        checks = tuple(cls(fields.name, tuple(checked.items()), ()) for checked in fields.checked)
        work = (fields.flops, fields.bytes, fields.arithmetic)
        return cls(fields.name, sizes, tuple(fields.arguments), definitions, *work, checks)


@dataclass(frozen=True, slots=True)
class ArraysCase:
    """A problem with initial values from a seed; its correct outputs are those of a baseline, or in files."""

    problem: ArraysProblem
    seed: int
    is_timed: bool = False

    @property
    def label(self) -> str:
        """That of the problem."""
        return self.problem.label

    def buffers(self, xp: Any) -> dict[str, CaseBuffer]:
        """Make the arrays."""
        values, answer = self.problem.operands(xp, self.seed), self.problem.answer
        return {
            argument.name: CaseBuffer(
                argument.role,
                argument.dtype,
                values[argument.name],
                argument.shape or (),
                expected=initial_array(np, None, argument.dtype, argument.shape or (), answer[argument.name])
                if argument.name in answer
                else None,
                tolerance=argument.tolerance,
                absolute=argument.absolute,
            )
            for argument in self.problem.arrays
        }


def _argument_to_json(argument: Argument) -> dict[str, Any]:
    default = Argument("", "")
    document = {field.name: getattr(argument, field.name) for field in dataclasses.fields(argument)}
    document |= {} if argument.shape is None else {"shape": list(argument.shape)}
    if isinstance(argument.initial, str):
        document["initial"] = Path(argument.initial).name  # of a file; its folder may be another one next time
    return {name: value for name, value in document.items() if value != getattr(default, name)}


def default_tolerance(dtype: str) -> float:
    """Return the tolerance of an output whose kernel does not name one; integers are exact.

    Half precision may differ by some units in the last place, others by what sums of a million terms in another order
    do.
    """
    tolerances = {
        "float16": 4e-3,
        "bfloat16": 3e-2,
        "float32": 1e-4,
        "float64": 1e-10,
        "complex64": 1e-4,
        "complex128": 1e-10,
    }
    return tolerances.get(dtype, 0.0)
