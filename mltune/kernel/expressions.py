"""The expression language of kernel bundles: integer arithmetic and conditions over whole columns.

Expressions come from files, so ``eval`` is never used: the text is parsed with :mod:`ast`, every node is checked
against a short list, and becomes an operation on NumPy columns (:mod:`mltune.kernel.evaluation`). The language is a
subset of Python's:

- integers, floats and names;
- ``+ - * / // % **``, unary ``-`` and ``+``, and on integers ``& | ^ ~ << >>``;
- comparisons, chained too, also of a parameter with a text; ``and``, ``or``, ``not``; ``a if condition else b``;
- ``True`` and ``False``, calls of ``min``, ``max``, ``abs``, ``ceil``, ``floor``, ``int``, ``round``, ``sqrt``,
  ``ceil_div``, ``log2`` and ``is_pow2``, and what :mod:`mltune.kernel.notation` writes out: ``x in [1, 2]``.

It differs from Python in four points. Values are computed row by row. ``and``, ``or`` and ``not`` give truth values.
``is`` compares values. If a divisor is zero (or the argument of ``log2`` is not
positive, or that of ``sqrt`` or a shift is negative), the value is *undefined* in that row, and a restriction does not
hold there.
"""

from __future__ import annotations

import ast
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from mltune.errors import ExpressionError
from mltune.files.text import printable
from mltune.kernel import evaluation
from mltune.kernel.coding import LARGEST_INTEGER
from mltune.kernel.evaluation import COMPARISONS, FUNCTIONS, OPERATORS, Mask, Operation, Partial, Variables
from mltune.kernel.launch import Launch, TensorMap
from mltune.kernel.notation import OF_ITEMS, written_out

MAX_TEXT = 2000
"""Most characters of an expression."""

MAX_DEPTH = 100
"""Deepest nesting of an expression."""

Value: TypeAlias = int | float | NDArray[Any]
"""A number, or a column of numbers or of texts; a single text is a column without dimensions."""

_SPACES = str.maketrans("\t\r\n", "   ")


class Extent(NamedTuple):
    """Operations, names and numbers of an expression, and how many of them are nested at most."""

    parts: int
    depth: int


@dataclass(frozen=True, slots=True)
class Expression:
    """A checked expression with the names that it uses. Made by :func:`parse`."""

    text: str
    names: frozenset[str] = field(compare=False)
    _own: Extent = field(compare=False, repr=False)
    """The extent with nothing written out."""
    _uses: tuple[tuple[str, int, int], ...] = field(compare=False, repr=False)
    """Each name, the number of times that it is used, and the depth of its deepest use."""
    _operation: Operation = field(compare=False, repr=False)

    def __str__(self) -> str:
        return self.text

    def __reduce__(self) -> tuple[Callable[[str], Expression], tuple[str]]:
        return parse, (self.text,)

    @property
    def parts(self) -> int:
        """Number of its operations, names and numbers."""
        return self.extent({}).parts

    def extent(self, derived: Mapping[str, Extent]) -> Extent:
        """Return the extent of the expression with derived names written out, given the extents of these."""
        parts, depth = self._own
        for name, count, deepest in self._uses:
            if name in derived:
                parts += count * derived[name].parts
                depth = max(depth, deepest + derived[name].depth)
        return Extent(parts, depth)

    def evaluate(self, variables: Variables) -> Value:
        """Return the value for numbers or columns of equal length: a column if a column was used.

        Integers are int64, conditions bool, all else float64. A missing name, an integer that grows too large, or a
        value that is undefined in some row raises an ExpressionError.
        """
        result = self.evaluate_partial(variables)
        if not result.defined.all():
            raise ExpressionError(
                f"`{self.text}` is undefined: it divides by zero, or has log2 of a number that is not positive, or "
                "sqrt or a shift of a negative one"
            )
        value = np.asarray(result.value)
        return value if value.ndim or value.dtype.kind == "U" else value.item()

    def size(self, variables: Variables) -> int:
        """Return the value for numbers as a size of a launch; an ExpressionError where it is no integer >= 0."""
        return self._checked_size(self.evaluate(variables))

    def sizes(self, variables: Variables, count: int) -> list[int]:
        """Return the values for columns of a length as sizes of launches."""
        values = self.evaluate(variables)
        return [*map(self._checked_size, values.tolist() if isinstance(values, np.ndarray) else [values] * count)]

    def _checked_size(self, value: Any) -> int:
        if isinstance(value, np.ndarray | str) or not (0 <= value < LARGEST_INTEGER) or value != int(value):
            raise ExpressionError(f"`{_short(self.text)}` is {_short(value)}; sizes of a launch are integers >= 0")
        return int(value)

    def evaluate_partial(self, variables: Variables) -> Partial:
        """Return the value, and the rows in which it is defined."""
        try:
            with np.errstate(all="ignore"):
                result = self._operation(variables)
            evaluation.check_bound(result.value)
        except ValueError as error:
            raise self._error(error) from error
        return result

    def holds(self, variables: Variables) -> Mask:
        """Return the rows in which the expression is true and defined."""
        result = self.evaluate_partial(variables)
        try:
            return result.truth()
        except ValueError as error:
            raise self._error(error) from error

    def _error(self, law: object) -> ExpressionError:
        return ExpressionError(f"{law}, in `{_short(self.text)}`")


def _is_condition(node: ast.expr) -> bool:
    match node:
        case ast.BinOp(op=ast.BitAnd() | ast.BitOr() | ast.BitXor()):
            return _is_condition(node.left) and _is_condition(node.right)
        case ast.UnaryOp(op=op):
            return isinstance(op, ast.Not)
    return isinstance(node, ast.Compare | ast.BoolOp)


def _short(text: object) -> str:
    """Return text of a bundle for a message."""
    return printable(text, 120)


@lru_cache(10_000)  # kernels share many expressions, and each is loaded often
def parse(text: str) -> Expression:
    """Parse and check an expression; an ExpressionError where it is none, too long or too deeply nested."""
    if len(text) > MAX_TEXT:
        raise ExpressionError(f"{len(text)} characters are too many; an expression has at most {MAX_TEXT}")
    text = text.translate(_SPACES).strip()
    if not (text.isascii() and text.isprintable()):
        raise ExpressionError(f"`{_short(text)}` is no expression: it has a character that is not printable ASCII")
    try:
        tree = tree_of(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        deep = isinstance(error, RecursionError | MemoryError)
        what = "it is nested too deeply" if deep else getattr(error, "msg", error)  # without the place in "<unknown>"
        raise ExpressionError(f"`{_short(text)}` is no valid Python arithmetic: {_short(what)}") from error
    compiler = _Compiler(text)
    operation = compiler.compiled(tree, MAX_DEPTH)
    parts, depth, uses = 0, 0, dict[str, tuple[int, int]]()
    for level, node in _with_depths(tree, 1):
        parts, depth = parts + 1, max(depth, level)
        if isinstance(node, ast.Name):
            count, deepest = uses.get(node.id, (0, 0))
            uses[node.id] = (count + 1, max(deepest, level))
    own, uses_of_names = Extent(parts, depth), tuple((name, *use) for name, use in uses.items())
    return Expression(text, frozenset(compiler.names), own, uses_of_names, operation)


def tree_of(text: str) -> ast.expr:
    """Return the tree of an expression in which Python's notation of lists is written out."""
    with warnings.catch_warnings(action="ignore", category=SyntaxWarning):  # of `x is 1`
        return written_out(ast.parse(text, mode="eval").body)


def _with_depths(node: ast.expr, depth: int) -> Iterator[tuple[int, ast.expr]]:
    """Yield the parts of an expression, each with its depth."""
    yield depth, node
    if not isinstance(node, ast.Name):
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                yield from _with_depths(child, depth + 1)


def launch_of(formulas: Mapping[str, Any], launched: Sequence[int], variables: Variables) -> Launch:
    """Return the launch whose ``grid``, ``block``, ``shared_bytes`` and ``workspace_bytes`` are formulas or numbers.

    So are the fields of its ``tensor_maps``, behind the place of the array. One that is undefined or no size, and a
    grid or block that no GPU takes, raise an ExpressionError.
    """

    def number(formula: object) -> int:
        return parse(str(formula)).size(variables)

    (gx, gy, gz), (bx, by, bz) = (map(number, formulas[shape]) for shape in ("grid", "block"))
    workspace = formulas["workspace_bytes"]
    size = None if workspace is None else number(workspace)
    if not (gx < 2**31 and max(gy, gz) < 2**16 and min(bx, by, bz) >= 1 and max(bx, by, bz) <= 1024):
        raise ExpressionError(
            f"the launch has the grid {(gx, gy, gz)} and the block {(bx, by, bz)}; a grid is below (2**31, 2**16, "
            "2**16), and a block has 1 to 1024 threads in each direction"
        )
    maps = maps_of(formulas.get("tensor_maps", ()), variables)
    return Launch((gx, gy, gz), (bx, by, bz), number(formulas["shared_bytes"]), tuple(map(int, launched)), size, maps)


def maps_of(rows: Iterable[Sequence[Any]], variables: Variables) -> tuple[TensorMap, ...]:
    """Return tensor maps from rows: the place of an array, and the other fields as formulas or numbers."""
    return tuple(TensorMap(place, *(parse(str(field)).size(variables) for field in fields)) for place, *fields in rows)


class _Compiler:
    """Checks every node of a tree and makes its operation; collects the names."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.names: set[str] = set()

    def compiled(self, node: ast.expr, depth: int) -> Operation:
        """Return the operation of a node; raise an error for one that is not part of the language."""
        if depth == 0:
            raise self.error(f"it is nested more than {MAX_DEPTH} deep")
        match node:
            case ast.Constant(value=int() | float() as value):
                return self.number(value)
            case ast.Name(id=name):
                return self.name(name)
            case ast.BinOp(op=op) if type(op) in OPERATORS:
                return evaluation.applied(OPERATORS[type(op)], self.all([node.left, node.right], depth))
            case ast.UnaryOp(op=ast.Invert(), operand=operand) if _is_condition(operand):
                raise self.error("`~` of a condition is never 0; write `not`")
            case ast.UnaryOp(op=op) if type(op) in OPERATORS:
                return evaluation.applied(OPERATORS[type(op)], self.all([node.operand], depth))
            case ast.BoolOp():
                return evaluation.joined(self.all(node.values, depth), isinstance(node.op, ast.Or))
            case ast.Compare() if all(type(op) in COMPARISONS for op in node.ops):
                first, *operands = (self.comparand(operand, depth) for operand in (node.left, *node.comparators))
                return evaluation.compared(first, list(zip(map(type, node.ops), operands, strict=True)))
            case ast.IfExp():
                return evaluation.chosen(*self.all([node.test, node.body, node.orelse], depth))
            case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]) if name in FUNCTIONS:
                return self.call(name, arguments, depth)
        raise self.error(
            f"`{_short(ast.unparse(node))}` is no part of an expression, which consists of numbers, names, arithmetic, "
            "comparisons, and/or/not, if/else, lists after `in` and the functions "
            f"{', '.join((*FUNCTIONS, *OF_ITEMS))}; mltune.tune_kernel and mltune.tuned take a Python function in "
            "place of a text"
        )

    def all(self, nodes: Sequence[ast.expr], depth: int) -> list[Operation]:
        return [self.compiled(node, depth - 1) for node in nodes]

    def comparand(self, node: ast.expr, depth: int) -> Operation:
        """Return the operation of one side of a comparison, which may be a text."""
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            return evaluation.constant(node.value)
        return self.compiled(node, depth - 1)

    def number(self, value: float) -> Operation:
        if not (abs(value) < LARGEST_INTEGER):
            raise self.error(f"{_short(value)} is too large; a number in an expression stays below 2**53 in size")
        return evaluation.constant(value)

    def name(self, name: str) -> Operation:
        if name in FUNCTIONS:
            raise self.error(f"`{name}` is a function and needs arguments")
        self.names.add(name)
        return evaluation.variable(name)

    def call(self, name: str, arguments: Sequence[ast.expr], depth: int) -> Operation:
        function, arity = FUNCTIONS[name]
        if len(arguments) != arity if arity is not None else not arguments:
            raise self.error(f"`{name}` has {len(arguments)} arguments; it takes {arity or 'at least 1'}")
        return evaluation.applied(function, self.all(arguments, depth))

    def error(self, message: str) -> ExpressionError:
        return ExpressionError(f"{message}, in `{_short(self.text)}`")
