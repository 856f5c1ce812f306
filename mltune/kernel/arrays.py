"""The arguments of a kernel of any kind: expressions over the sizes of its problem, from which problems are made."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from mltune.errors import ExpressionError, ProblemError, UsageError
from mltune.files.reading import raising
from mltune.files.text import no_such, printable
from mltune.kernel.expressions import Expression
from mltune.problem.arrays import Argument, ArraysProblem, Role

Shape3 = tuple[Expression, Expression, Expression]


@dataclass(frozen=True, slots=True)
class ArgumentDefinition:
    """An argument whose shape or value depends on the sizes; see :class:`~mltune.problem.arrays.Argument`."""

    name: str
    dtype: str
    shape: tuple[Expression, ...] | None
    role: Role
    initial: str | float
    value: Expression | float | None
    tolerance: float
    absolute: Expression | float | None = None

    def at(self, sizes: Mapping[str, int]) -> Argument:
        """Return the argument at given sizes."""
        shape = None if self.shape is None else tuple(_whole(extent, sizes, 1) for extent in self.shape)
        value, absolute = (_number(expression, sizes) for expression in (self.value, self.absolute))
        if absolute < 0:
            raise ExpressionError(f"`{self.absolute}` cannot be {absolute}: it is an error that is allowed, at least 0")
        return Argument(self.name, self.dtype, shape, self.role, self.initial, value, self.tolerance, float(absolute))


@dataclass(frozen=True, slots=True)
class ReferenceEntry:
    """A kernel of the same source that gives the right answer, launched with the parameters of the default."""

    entry: str
    block: Shape3
    grid: Shape3


@dataclass(frozen=True, slots=True)
class ArraysDefinition:
    """The problem of a kernel at any sizes.

    `definitions` are macros that follow from the `sizes`, which have defaults. Without `reference` the default
    configuration or `answer` is right: paths of ``.npy`` files with the outputs at the default sizes. Every
    configuration is verified at the sizes of `checks`, too.
    """

    name: str
    sizes: Mapping[str, int]
    arguments: tuple[ArgumentDefinition, ...]
    definitions: Mapping[str, Expression] = field(default_factory=dict)
    flops: Expression | None = None
    bytes: Expression | None = None
    arithmetic: str = "fp32"
    checks: tuple[Mapping[str, int], ...] = ()
    reference: ReferenceEntry | None = None
    answer: Mapping[str, str] = field(default_factory=dict)

    def problem(self, sizes: Mapping[str, int] | None = None) -> ArraysProblem:
        """Make the problem at given sizes."""
        for name in sizes or {}:
            if name not in self.sizes:
                law = f"It has {', '.join(self.sizes) or 'none'}"
                raise UsageError(no_such(f"size of {self.name}", name, self.sizes, law))
        all_sizes = {**self.sizes, **(sizes or {})}
        problem = self._at(all_sizes)
        checks = tuple(self._at({**all_sizes, **check}) for check in self.checks)
        return replace(problem, checks=checks, answer=self.answer)

    def _at(self, sizes: Mapping[str, int]) -> ArraysProblem:
        text = " ".join(f"{name}={value}" for name, value in sizes.items())
        with raising(ProblemError, f"{self.name} at {text}", ExpressionError):
            return ArraysProblem(
                self.name,
                tuple(sizes.items()),
                tuple(argument.at(sizes) for argument in self.arguments),
                tuple((name, _whole(expression, sizes, -(2**53))) for name, expression in self.definitions.items()),
                0 if self.flops is None else _whole(self.flops, sizes, 0),
                0 if self.bytes is None else _whole(self.bytes, sizes, 0),
                self.arithmetic,
            )


def arithmetic_of(arguments: Iterable[ArgumentDefinition]) -> str:
    """Return the arithmetic of a kernel that names none: ``"fp64"`` if an argument is of doubles."""
    return "fp64" if any(argument.dtype in ("float64", "complex128") for argument in arguments) else "fp32"


def _number(value: Expression | float | None, sizes: Mapping[str, int]) -> Any:
    number = value.evaluate(sizes) if isinstance(value, Expression) else value or 0
    if isinstance(number, np.ndarray):
        raise ExpressionError(f"`{value}` is no number")
    return number


def _whole(expression: Expression, sizes: Mapping[str, int], least: int) -> int:
    value = expression.evaluate(sizes)
    if isinstance(value, np.ndarray) or value != int(value) or value < least:
        raise ExpressionError(
            f"`{printable(expression, 120)}` cannot be {value}: it is a whole number of at least {least}"
        )
    return int(value)
