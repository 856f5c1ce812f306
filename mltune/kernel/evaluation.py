"""Evaluation of checked expressions over whole columns."""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from mltune.errors import ExpressionError
from mltune.files.text import printable

MAX_INTEGER = 2**53
"""Bound on the size of integers, so that sums of products do not overflow and floats represent them exactly."""

Value: TypeAlias = int | float | NDArray[Any]
"""A number, or a column of numbers or of texts; a single text is a column without dimensions."""

Mask: TypeAlias = bool | NDArray[np.bool_]
"""One truth value for all rows, or a column of truth values."""


@dataclass(frozen=True, slots=True)
class Partial:
    """A value, and the rows in which it is defined; in other rows it is arbitrary."""

    value: Value
    defined: Mask = True

    def truth(self) -> Mask:
        """Return the rows in which the value is true and defined."""
        return _both(_truth(self.value), self.defined)


COMPARISONS: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
"""Comparisons by their syntax node."""

_ARITHMETIC: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}


def evaluate(tree: ast.expr, text: str, variables: Mapping[str, Value | Partial]) -> Partial:
    """Evaluate a checked tree.

    Parameters
    ----------
    tree : ast.expr
        Checked by :func:`mltune.kernel.expressions.parse`.
    text : str
        The expression as written, for messages.
    variables : mapping of str to int, float, ndarray or Partial

    Raises
    ------
    ExpressionError
        A name is missing, or a number grows too large.
    """
    text = printable(text, 120)
    walk = _Walk(text, variables)
    with np.errstate(all="ignore"):
        try:
            result = walk.visit(tree)
        except OverflowError as error:
            raise ExpressionError(f"numbers must stay in range, but `{text}` does not: {error}") from error
    walk.bound(result.value)
    return result


class _Walk:
    """One evaluation of a tree."""

    def __init__(self, text: str, variables: Mapping[str, Value | Partial]) -> None:
        self.text = text
        self.variables = variables

    def visit(self, node: ast.expr) -> Partial:
        match node:
            case ast.Constant(value=int() | float() as value):
                return Partial(value)
            case ast.Constant(value=str() as text):
                return Partial(np.array(text))
            case ast.Name(id=name):
                return self._name(name)
            case ast.BinOp():
                return self._binary(node)
            case ast.UnaryOp():
                return self._unary(node)
            case ast.Compare():
                return self._compare(node)
            case ast.BoolOp():
                return self._boolean(node)
            case ast.IfExp():
                return self._conditional(node)
            case ast.Call(func=ast.Name(id=name), args=arguments):
                return self._call(name, [self.visit(argument) for argument in arguments])
        raise AssertionError(f"unchecked node {ast.dump(node)}")

    def _name(self, name: str) -> Partial:
        try:
            value = self.variables[name]
        except KeyError:
            raise ExpressionError(
                f"every name of an expression must be known, but `{name}` in `{self.text}` is not"
            ) from None
        return value if isinstance(value, Partial) else Partial(_loaded(value))

    def _binary(self, node: ast.BinOp) -> Partial:
        left, right = self.visit(node.left), self.visit(node.right)
        a, b = _number(left.value), _number(right.value)
        defined = _both(left.defined, right.defined)
        if isinstance(node.op, ast.Pow):
            return Partial(self._power(a, b), defined)
        if isinstance(node.op, ast.Div | ast.FloorDiv | ast.Mod):
            b, nonzero = _divisor(b)
            defined = _both(defined, nonzero)
        elif isinstance(node.op, ast.Mult) and not (_is_float(a) or _is_float(b)):
            self._bound(_magnitude(a) * _magnitude(b))
        return Partial(_ARITHMETIC[type(node.op)](a, b), defined)

    def _power(self, base: Value, exponent: Value) -> Value:
        lowest, highest = _range(exponent) if isinstance(exponent, np.ndarray) else (exponent, exponent)
        if _is_float(exponent) or lowest < 0 or highest > 64:
            raise ExpressionError(f"an exponent must be an integer from 0 to 64, but it is not in `{self.text}`")
        self._bound(_magnitude(base) ** int(highest))
        return np.power(base, exponent) if isinstance(base, np.ndarray) else base**exponent

    def _unary(self, node: ast.UnaryOp) -> Partial:
        operand = self.visit(node.operand)
        match node.op:
            case ast.USub():
                return Partial(-_number(operand.value), operand.defined)
            case ast.UAdd():
                return Partial(_number(operand.value), operand.defined)
            case _:
                return Partial(_negated(_truth(operand.value)), operand.defined)

    def _compare(self, node: ast.Compare) -> Partial:
        left = self.visit(node.left)
        truth: Mask = True
        defined = left.defined
        for op, comparator in zip(node.ops, node.comparators, strict=True):
            right = self.visit(comparator)
            truth = _both(truth, self._compared(op, left.value, right.value))
            defined = _both(defined, right.defined)
            left = right
        return Partial(truth, defined)

    def _compared(self, op: ast.cmpop, left: Value, right: Value) -> Mask:
        """Compare two values; texts are equal or not, and never equal to a number."""
        texts = _is_text(left), _is_text(right)
        if any(texts) and not isinstance(op, ast.Eq | ast.NotEq):
            raise ExpressionError(f"texts are compared with == and != only, which `{self.text}` does not do")
        if texts[0] != texts[1]:
            return isinstance(op, ast.NotEq)
        return _plain(COMPARISONS[type(op)](left, right))

    def _boolean(self, node: ast.BoolOp) -> Partial:
        """Combine conditions. In a row that an earlier operand decides, later operands may be undefined."""
        decides_on = isinstance(node.op, ast.Or)
        first = self.visit(node.values[0])
        truth, defined = _truth(first.value), first.defined
        for operand in node.values[1:]:
            if isinstance(truth, bool) and truth is decides_on:
                break
            other = self.visit(operand)
            decided = truth if decides_on else _negated(truth)
            if other.defined is not True:
                defined = _both(defined, _either(decided, other.defined))
            value = _truth(other.value)
            truth = _either(truth, value) if decides_on else _both(truth, value)
        return Partial(truth, defined)

    def _conditional(self, node: ast.IfExp) -> Partial:
        test = self.visit(node.test)
        condition = _truth(test.value)
        if isinstance(condition, bool):
            chosen = self.visit(node.body if condition else node.orelse)
            return Partial(chosen.value, _both(test.defined, chosen.defined))
        body, other = self.visit(node.body), self.visit(node.orelse)
        value = np.where(condition, _number(body.value), _number(other.value))
        defined = test.defined
        if not (body.defined is True and other.defined is True):
            defined = _both(defined, np.where(condition, body.defined, other.defined))
        return Partial(value, defined)

    def _call(self, name: str, arguments: list[Partial]) -> Partial:
        values = [_number(argument.value) for argument in arguments]
        defined = reduce(_both, (argument.defined for argument in arguments))
        first = values[0]
        match name:
            case "min" | "max":
                for value in values[1:]:
                    first = _extreme(name, first, value)
                return Partial(first, defined)
            case "abs":
                return Partial(_extreme("max", first, -first), defined)
            case "ceil" | "floor":
                return Partial(self._rounded(name, first), defined)
            case "ceil_div":
                divisor, nonzero = _divisor(values[1])
                quotient: Value = -(-first // divisor)
                return Partial(quotient, _both(defined, nonzero))
            case "log2":
                return Partial(_log2(first), _both(defined, _plain(first > 0)))
            case _:
                if _is_float(first):
                    raise ExpressionError(f"`is_pow2` takes an integer, but `{self.text}` gives it a float")
                return Partial(_both(_plain(first > 0), _plain((first & (first - 1)) == 0)), defined)  # type: ignore[operator]

    def _rounded(self, name: str, value: Value) -> Value:
        if not _is_float(value):
            return value
        self._bound(_magnitude(value))
        if isinstance(value, np.ndarray):
            return (np.ceil if name == "ceil" else np.floor)(value).astype(np.int64)
        return math.ceil(value) if name == "ceil" else math.floor(value)

    def bound(self, value: Value) -> None:
        """Raise an error for integers that are too large."""
        if not (_is_float(value) or _is_text(value)) and not (
            isinstance(value, np.ndarray) and value.dtype == np.bool_
        ):
            self._bound(_magnitude(value))

    def _bound(self, magnitude: float) -> None:
        if not magnitude < MAX_INTEGER:
            raise ExpressionError(f"numbers must stay below 2**53 in size, but `{self.text}` reaches {magnitude:.4g}")


def _loaded(value: Value) -> Value:
    """Return a variable in the types of the language: int64, float64 or bool columns, or a plain number."""
    if isinstance(value, np.ndarray):
        if value.dtype.kind in "iu" and value.dtype != np.int64:
            return value.astype(np.int64)
        if value.dtype.kind not in "iufbU":
            raise ExpressionError(f"a variable is a column of numbers, got one of {value.dtype}")
        return value
    return value.item() if isinstance(value, np.generic) else value


def _number(value: Value) -> Value:
    """Return truth values as 0 and 1, for arithmetic."""
    if _is_text(value):
        raise ExpressionError("texts are compared with == and != only, and cannot be computed with")
    if isinstance(value, np.ndarray):
        return value.astype(np.int64) if value.dtype == np.bool_ else value
    return int(value) if isinstance(value, bool) else value


def _truth(value: Value) -> Mask:
    if _is_text(value):
        raise ExpressionError("a text is neither true nor false; compare it with == or !=")
    if isinstance(value, np.ndarray):
        return value if value.dtype == np.bool_ else value != 0
    return bool(value)


def _plain(value: Any) -> Mask:
    return value if isinstance(value, np.ndarray) and value.ndim else bool(value)


def _is_text(value: Value) -> bool:
    return isinstance(value, np.ndarray) and value.dtype.kind == "U"


def _is_float(value: Value) -> bool:
    return value.dtype.kind == "f" if isinstance(value, np.ndarray) else isinstance(value, float)


def _range(column: Any) -> tuple[float, float]:
    return (column.min().item(), column.max().item()) if column.size else (0, 0)


def _magnitude(value: Value) -> float:
    """Return the largest absolute value in a column, as a Python number, which cannot overflow."""
    if isinstance(value, np.ndarray):
        lowest, highest = _range(value)
        return max(-lowest, highest, 0)
    return abs(value)


def _both(a: Mask, b: Mask) -> Mask:
    if isinstance(a, bool):
        return b if a else False
    if isinstance(b, bool):
        return a if b else False
    return a & b


def _either(a: Mask, b: Mask) -> Mask:
    if isinstance(a, bool):
        return True if a else b
    if isinstance(b, bool):
        return True if b else a
    return a | b


def _negated(a: Mask) -> Mask:
    return not a if isinstance(a, bool) else ~a


def _divisor(value: Value) -> tuple[Value, Mask]:
    """Return a divisor with zeros replaced, and the rows in which it was not zero."""
    if isinstance(value, np.ndarray):
        zero = value == 0
        return (np.where(zero, 1, value), ~zero) if zero.any() else (value, True)
    return (value, True) if value != 0 else (1, False)


def _log2(value: Value) -> Value:
    """Return the binary logarithm; an arbitrary number where the value is not positive."""
    if isinstance(value, np.ndarray):
        return np.asarray(np.log2(np.where(value > 0, value, 1)))
    return math.log2(value) if value > 0 else 0.0


def _extreme(name: str, a: Value, b: Value) -> Value:
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        return np.minimum(a, b) if name == "min" else np.maximum(a, b)
    return min(a, b) if name == "min" else max(a, b)
