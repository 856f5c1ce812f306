"""Operations of the expression language on numbers, and on columns of numbers and texts.

Every value is an array of NumPy; a single number or text is one without dimensions. What an operation refuses is a
``ValueError`` with the law and the facts, to which :class:`~mltune.kernel.expressions.Expression` adds the text.
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from mltune.kernel.coding import LARGEST_INTEGER

Array: TypeAlias = NDArray[Any] | np.generic
"""A column, or a single value."""

Mask: TypeAlias = NDArray[np.bool_] | np.bool_

_TRUE = np.True_


@dataclass(frozen=True, slots=True)
class Partial:
    """A value, and the rows in which it is defined; in other rows it is arbitrary."""

    value: Array
    defined: Mask = _TRUE

    def truth(self) -> Mask:
        """Return the rows in which the value is true and defined."""
        return _truth(self.value) & self.defined


Variables: TypeAlias = Mapping[str, Any]
"""Numbers, columns or partial values by name."""

Operation: TypeAlias = Callable[[Variables], Partial]
"""A part of an expression: it returns its value for variables."""

_Function: TypeAlias = Callable[..., Any]
"""A function of the language: from arrays to a value, or to a partial one."""


def constant(value: float | str) -> Operation:
    """Return the operation of a number or a text in an expression."""
    partial = Partial(np.asarray(value))
    return lambda variables: partial


def variable(name: str) -> Operation:
    """Return the operation of a name. Integers become int64."""

    def load(variables: Variables) -> Partial:
        try:
            value = variables[name]
        except KeyError:
            raise ValueError(f"the name `{name}` is not known") from None
        if isinstance(value, Partial):
            return value
        column = np.asarray(value)
        if column.dtype.kind not in "iufbU":
            raise ValueError(f"`{name}` has the type {column.dtype}; a variable is a column of numbers or texts")
        return Partial(column.astype(np.int64, copy=False) if column.dtype.kind in "iu" else column)

    return load


def applied(function: _Function, operands: Sequence[Operation]) -> Operation:
    """Return the operation that applies a function to numbers: defined where they and its result are."""

    def apply(variables: Variables) -> Partial:
        arguments = [operand(variables) for operand in operands]
        raw = function(*(_number(argument.value) for argument in arguments))
        result = raw if isinstance(raw, Partial) else Partial(raw)
        defined = reduce(operator.and_, (argument.defined for argument in arguments), result.defined)
        return Partial(result.value, defined)

    return apply


def compared(first: Operation, comparisons: Sequence[tuple[type[ast.cmpop], Operation]]) -> Operation:
    """Return the operation of a chain of comparisons."""

    def compare(variables: Variables) -> Partial:
        lhs = first(variables)
        truth: Mask = _TRUE
        defined = lhs.defined
        for kind, operand in comparisons:
            right = operand(variables)
            truth = truth & _compared(kind, lhs.value, right.value)
            defined = defined & right.defined
            lhs = right
        return Partial(truth, defined)

    return compare


def joined(operands: Sequence[Operation], decides_on: bool) -> Operation:
    """Return the operation of ``or``, which True decides, or ``and``, which False decides.

    In a row that an earlier operand decides, later operands may be undefined.
    """
    combine: _Function = operator.or_ if decides_on else operator.and_

    def join(variables: Variables) -> Partial:
        first = operands[0](variables)
        truth, defined = _truth(first.value), first.defined
        for operand in operands[1:]:
            decided = truth if decides_on else ~truth
            if decided.all():
                break
            other = operand(variables)
            defined = defined & (decided | other.defined)
            truth = combine(truth, _truth(other.value))
        return Partial(truth, defined)

    return join


def chosen(test: Operation, body: Operation, other: Operation) -> Operation:
    """Return the operation of ``body if test else other``; a single condition evaluates only what it chooses."""

    def choose(variables: Variables) -> Partial:
        tested = test(variables)
        condition = _truth(tested.value)
        if condition.ndim == 0:
            branch = (body if condition else other)(variables)
            return Partial(branch.value, tested.defined & branch.defined)
        first, second = body(variables), other(variables)
        value = np.where(condition, _number(first.value), _number(second.value))
        defined = np.where(condition, first.defined, second.defined)
        return Partial(value, tested.defined & defined)

    return choose


def check_bound(value: Array) -> None:
    """Refuse integers that are too large."""
    if value.dtype.kind == "i":
        _check_magnitude(_magnitude(value))


def _number(value: Array) -> Array:
    """Return truth values as 0 and 1, for arithmetic."""
    if value.dtype.kind == "U":
        raise ValueError("a text is no number; texts are compared with == and != only")
    return value.astype(np.int64) if value.dtype.kind == "b" else value


def _truth(value: Array) -> Mask:
    if value.dtype.kind == "U":
        raise ValueError("a text is neither true nor false, and is compared with == or !=")
    return value if value.dtype.kind == "b" else value != 0  # type: ignore[return-value]


def _compared(kind: type[ast.cmpop], lhs: Array, right: Array) -> Any:
    """Compare two values; texts are equal or not, and never equal to a number."""
    texts = lhs.dtype.kind == "U", right.dtype.kind == "U"
    if any(texts) and kind not in (ast.Eq, ast.NotEq):
        raise ValueError("a text has no order; texts are compared with == and != only")
    if texts[0] != texts[1]:
        return np.bool_(kind is ast.NotEq)
    return COMPARISONS[kind](lhs, right)


def _is_float(value: Array) -> bool:
    return value.dtype.kind == "f"


def _magnitude(value: Any) -> Any:
    """Return the largest absolute value, as a Python number, which cannot overflow."""
    if value.ndim == 0:
        return abs(value.item())
    return max(-value.min().item(), value.max().item(), 0) if value.size else 0


def _check_magnitude(magnitude: float) -> None:
    if not magnitude < LARGEST_INTEGER:
        raise ValueError(f"a number reaches {magnitude:.4g}; numbers must stay below 2**53 in size")


def _multiplied(a: Any, b: Any) -> Any:
    if not (_is_float(a) or _is_float(b)):
        _check_magnitude(_magnitude(a) * _magnitude(b))
    return a * b


def _divided(divide: Callable[[Any, Any], Any]) -> _Function:
    """Return a division that is undefined where the divisor is zero."""

    def apply(a: Any, b: Any) -> Partial:
        nonzero = b != 0
        if nonzero.all():
            return Partial(divide(a, b))
        return Partial(divide(a, np.where(nonzero, b, 1)), nonzero)

    return apply


def _power(base: Any, exponent: Any) -> Any:
    if exponent.size and (_is_float(exponent) or exponent.min() < 0 or exponent.max() > 64):
        raise ValueError("an exponent is no integer from 0 to 64")
    _check_magnitude(float(_squared(np.float64(_magnitude(base)), np.int64(_magnitude(exponent)))))
    return _squared(base, exponent)


def _squared(base: Any, exponent: Any) -> Any:
    """Return a power by repeated squaring: the steps, and so the rounding, of a library's C code."""
    power = np.ones(np.broadcast(base, exponent).shape, base.dtype)
    for bit in range(int(_magnitude(exponent)).bit_length()):
        power = np.where(exponent >> bit & 1, power * base, power)
        base = base * base
    return power


def _rounded(rounding: Callable[[Any], Any]) -> _Function:
    def apply(value: Any) -> Any:
        if not _is_float(value):
            return value
        _check_magnitude(_magnitude(value))
        return rounding(value).astype(np.int64)

    return apply


def _log2(value: Any) -> Partial:
    """Return logarithms of the C library, as C code has them: those of NumPy differ from them in the last bit."""
    positive = value > 0
    distinct, places = np.unique(np.where(positive, value, 1), return_inverse=True)
    return Partial(np.array(list(map(math.log2, distinct.tolist())))[places].reshape(np.shape(value)), positive)


def _bitwise(function: _Function) -> _Function:
    def apply(*values: Any) -> Any:
        if any(map(_is_float, values)):
            raise ValueError("one of `&`, `|`, `^`, `~`, `<<` and `>>` gets a float; they take integers")
        return function(*values)

    return apply


def _shifted_left(value: Any, count: Any) -> Partial:
    """Return a shift, undefined for a negative count; the result is refused where it is too large."""
    _check_magnitude(_magnitude(np.asarray(value * np.exp2(np.minimum(count, 64)))))
    return Partial(np.where(value == 0, 0, value << np.clip(count, 0, 63)), count >= 0)


def _is_pow2(value: Any) -> Any:
    if _is_float(value):
        raise ValueError("`is_pow2` gets a float; it takes an integer")
    return (value > 0) & ((value & (value - 1)) == 0)


COMPARISONS: Mapping[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
OPERATORS: Mapping[type[ast.operator | ast.unaryop], _Function] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: _multiplied,
    ast.Div: _divided(operator.truediv),
    ast.FloorDiv: _divided(operator.floordiv),
    ast.Mod: _divided(operator.mod),
    ast.Pow: _power,
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
    ast.Not: lambda value: value == 0,
    ast.BitAnd: _bitwise(operator.and_),
    ast.BitOr: _bitwise(operator.or_),
    ast.BitXor: _bitwise(operator.xor),
    ast.Invert: _bitwise(operator.invert),
    ast.LShift: _bitwise(_shifted_left),
    ast.RShift: _bitwise(lambda value, count: Partial(value >> np.clip(count, 0, 63), count >= 0)),
}
FUNCTIONS: Mapping[str, tuple[_Function, int | None]] = {
    "min": (lambda *values: reduce(np.minimum, values), None),
    "max": (lambda *values: reduce(np.maximum, values), None),
    "abs": (abs, 1),
    "ceil": (_rounded(np.ceil), 1),
    "floor": (_rounded(np.floor), 1),
    "int": (_rounded(np.trunc), 1),
    "round": (_rounded(np.rint), 1),
    "sqrt": (lambda value: Partial(np.sqrt(value), value >= 0), 1),
    "ceil_div": (_divided(lambda a, b: -(-a // b)), 2),
    "log2": (_log2, 1),
    "is_pow2": (_is_pow2, 1),
}
"""The functions with their number of arguments (None: one or more)."""
