"""The expression language of kernel bundles: integer arithmetic and conditions over whole columns.

Expressions come from files, so ``eval`` is never used: the text is parsed with :mod:`ast`, every node is checked
against a short list, and the tree is evaluated over numpy columns. The language is a subset of Python's:

- integers, floats and names;
- ``+ - * / // % **``, unary ``-`` and ``+``;
- comparisons, chained too, also of a parameter with a text; ``and``, ``or``, ``not``; ``a if condition else b``;
- calls of ``min``, ``max``, ``abs``, ``ceil``, ``floor``, ``ceil_div``, ``log2`` and ``is_pow2``.

It differs from Python in three points. Values are computed row by row. ``and``, ``or`` and ``not`` give truth values.
If a divisor is zero (or the argument of ``log2`` is not positive), the value is *undefined* in that row, and a
restriction does not hold there.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mltune.errors import ExpressionError
from mltune.files.text import printable
from mltune.kernel.evaluation import COMPARISONS, MAX_INTEGER, Partial, Value, evaluate

MAX_TEXT = 1000
"""Most characters of an expression."""

MAX_DEPTH = 100
"""Deepest nesting of an expression."""

FUNCTIONS = {"min": None, "max": None, "abs": 1, "ceil": 1, "floor": 1, "ceil_div": 2, "log2": 1, "is_pow2": 1}
"""Number of arguments of each function (None: one or more)."""


_SPACES = str.maketrans("\t\r\n", "   ")


class Extent(NamedTuple):
    """The size of an expression.

    Attributes
    ----------
    parts : int
        Operations, names and numbers.
    depth : int
        Parts on the longest way from the whole expression to a name or number.
    """

    parts: int
    depth: int


@dataclass(frozen=True, slots=True)
class Expression:
    """A checked expression. Made by :func:`parse`.

    Attributes
    ----------
    text : str
        The expression as written.
    names : frozenset of str
        Names that it uses.
    """

    text: str
    names: frozenset[str] = field(compare=False)
    _tree: ast.expr = field(compare=False, repr=False)

    def __str__(self) -> str:
        return self.text

    @property
    def parts(self) -> int:
        """Number of its operations, names and numbers."""
        return sum(isinstance(node, ast.expr) for node in ast.walk(self._tree))

    def extent(self, derived: Mapping[str, Extent]) -> Extent:
        """Return the extent of the expression with derived names written out, given the extents of these."""
        return _extent(self._tree, derived)

    def evaluate(self, variables: Mapping[str, Value | Partial]) -> Value:
        """Return the value for numbers or columns of equal length.

        Parameters
        ----------
        variables : mapping of str to int, float, ndarray or Partial
            At least every name of the expression.

        Returns
        -------
        int, float or ndarray
            A column if a column was used; integers are int64, conditions bool, all else float64.

        Raises
        ------
        ExpressionError
            A name is missing, an integer grows too large, or the value is undefined in some row.
        """
        result = self.evaluate_partial(variables)
        if not np.all(result.defined):
            raise ExpressionError(
                f"a divisor must not be zero and the argument of log2 must be positive, which fails in `{self.text}`"
            )
        return result.value

    def evaluate_partial(self, variables: Mapping[str, Value | Partial]) -> Partial:
        """Return the value, and the rows in which it is defined."""
        return evaluate(self._tree, self.text, variables)

    def holds(self, variables: Mapping[str, Value | Partial]) -> bool | NDArray[np.bool_]:
        """Return the rows in which the expression is true and defined."""
        return self.evaluate_partial(variables).truth()


def _short(text: object) -> str:
    """Return text of a bundle for a message."""
    return printable(text, 120)


def parse(text: str) -> Expression:
    """Parse and check an expression.

    Raises
    ------
    ExpressionError
        The text is not an expression of the language, or is too long or too deeply nested.

    Examples
    --------
    >>> parse("ceil_div(n, BLK) * 2").evaluate({"n": 100, "BLK": np.array([16, 32])}).tolist()
    [14, 8]
    """
    if len(text) > MAX_TEXT:
        raise ExpressionError(f"an expression has at most {MAX_TEXT} characters, got {len(text)}")
    text = text.translate(_SPACES).strip()
    if not (text.isascii() and text.isprintable()):
        raise ExpressionError(f"an expression is printable ASCII, got `{_short(text)}`")
    try:
        tree = ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        deep = isinstance(error, RecursionError | MemoryError)
        what = "it is nested too deeply" if deep else getattr(error, "msg", error)  # without the place in "<unknown>"
        raise ExpressionError(
            f"an expression must be valid Python arithmetic, but `{_short(text)}` is not: {_short(what)}"
        ) from error
    names: set[str] = set()
    _check(tree, text, names, MAX_DEPTH)
    return Expression(text, frozenset(names), tree)


def _extent(node: ast.expr, derived: Mapping[str, Extent]) -> Extent:
    if isinstance(node, ast.Name):
        parts, depth = derived.get(node.id, (0, 0))
        return Extent(parts + 1, depth + 1)
    children = [_extent(child, derived) for child in ast.iter_child_nodes(node) if isinstance(child, ast.expr)]
    return Extent(1 + sum(child.parts for child in children), 1 + max((child.depth for child in children), default=0))


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


_BINARY = (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Mod, ast.Pow)
_UNARY = (ast.USub, ast.UAdd, ast.Not)


def _check(node: ast.expr, text: str, names: set[str], depth: int) -> None:
    """Raise an error for a node that is not part of the language; collect the names."""
    if depth == 0:
        raise ExpressionError(f"an expression is nested at most {MAX_DEPTH} deep, but `{_short(text)}` is deeper")
    match node:
        case ast.Constant(value=int() | float() as value) if not isinstance(value, bool):
            if not (abs(value) < MAX_INTEGER):
                raise ExpressionError(
                    f"a number in an expression must stay below 2**53 in size, got {_short(value)} in `{_short(text)}`"
                )
            children: list[ast.expr] = []
        case ast.Name(id=name):
            if name in FUNCTIONS:
                raise ExpressionError(f"`{name}` is a function and needs arguments in `{_short(text)}`")
            names.add(name)
            children = []
        case ast.BinOp(op=op) if isinstance(op, _BINARY):
            children = [node.left, node.right]
        case ast.UnaryOp(op=op) if isinstance(op, _UNARY):
            children = [node.operand]
        case ast.BoolOp():
            children = node.values
        case ast.Compare() if all(type(op) in COMPARISONS for op in node.ops):
            children = [child for child in (node.left, *node.comparators) if not _is_text(child)]
        case ast.IfExp():
            children = [node.test, node.body, node.orelse]
        case ast.Call(func=ast.Name(id=name), args=children, keywords=[]) if name in FUNCTIONS:
            wanted = FUNCTIONS[name]
            if len(children) != wanted if wanted is not None else not children:
                raise ExpressionError(
                    f"`{name}` takes {wanted or 'at least 1'} arguments, got {len(children)} in `{_short(text)}`"
                )
        case _:
            raise ExpressionError(
                f"an expression consists of numbers, names, arithmetic, comparisons, and/or/not, if/else and the "
                f"functions {', '.join(FUNCTIONS)}, but `{_short(text)}` has "
                f"`{_short(ast.get_source_segment(text, node))}`"
            )
    for child in children:
        _check(child, text, names, depth - 1)
