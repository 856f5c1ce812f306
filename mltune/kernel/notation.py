"""Python's notation for conditions over several values, written out in the expression language.

``x in [1, 2]`` becomes ``x == 1 or x == 2``, and ``all(n % 2 == 0 for n in (x, y))`` becomes
``x % 2 == 0 and y % 2 == 0``. What has no meaning over numbers stays as it is.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from functools import reduce
from typing import Any

MOST_NODES = 20_000
"""Most nodes that are written out."""

_MODULES = ("math", "np", "numpy")
_SPELLINGS = {"trunc": "int", "fabs": "abs", "rint": "round"}
"""Functions of Python's modules that have another name here."""
_IDENTITIES: Mapping[type[ast.cmpop], type[ast.cmpop]] = {ast.Is: ast.Eq, ast.IsNot: ast.NotEq}


def written_out(tree: ast.expr) -> ast.expr:
    """Return an expression without lists, membership, identity, and Python's functions of lists and modules.

    >>> ast.unparse(written_out(ast.parse("x not in (1, 2) and math.log2(x) is 3", mode="eval").body))
    'not (x == 1 or x == 2) and log2(x) == 3'
    """
    if any(isinstance(node, ast.In | ast.NotIn | ast.Is | ast.IsNot | ast.Call) for node in ast.walk(tree)):
        tree = _Notation().visit(tree)
    return tree


class _Notation(ast.NodeTransformer):
    def __init__(self) -> None:
        self._nodes = 0

    def visit_Compare(self, node: ast.Compare) -> ast.expr:
        if not any(isinstance(op, ast.In | ast.NotIn | ast.Is | ast.IsNot) for op in node.ops):
            self.generic_visit(node)
            return node
        operands = [node.left, *node.comparators]
        links = zip(operands, node.ops, operands[1:], strict=False)
        return _joined(ast.And(), [self._link(deepcopy(lhs), op, deepcopy(rhs)) for lhs, op, rhs in links])

    def _link(self, value: ast.expr, op: ast.cmpop, other: ast.expr) -> ast.expr:
        """Return one comparison of a chain."""
        value = self.visit(value)
        if isinstance(op, ast.In | ast.NotIn):
            if numbers := _range(other):
                ascending = numbers if numbers.step > 0 else numbers[::-1]
                template = f"{ascending[0]} <= x <= {ascending[-1]} and (x - {ascending[0]}) % {ascending.step} == 0"
                is_in = _Bound("x", value).visit(_tree(template))
            elif (items := self._items(other)) is not None:
                self._count(value, len(items))
                equal = [ast.Compare(deepcopy(value), [ast.Eq()], [self.visit(item)]) for item in items]
                is_in = _joined(ast.Or(), equal)
            else:
                return ast.Compare(value, [op], [other])
            return is_in if isinstance(op, ast.In) else ast.UnaryOp(ast.Not(), is_in)
        return ast.Compare(value, [_IDENTITIES.get(type(op), type(op))()], [self.visit(other)])

    def visit_Call(self, node: ast.Call) -> ast.expr:
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Name(id=module), attr=name)) if module in _MODULES:
                node = ast.Call(ast.Name(_SPELLINGS.get(name, name)), node.args, node.keywords)
        match node:
            case ast.Call(func=ast.Name(id="pow"), args=[base, exponent], keywords=[]):
                return ast.BinOp(self.visit(base), ast.Pow(), self.visit(exponent))
            case ast.Call(func=ast.Name(id="bool"), args=[value], keywords=[]):
                return _truth(self.visit(value))
            case ast.Call(func=ast.Name(id=name), args=[argument], keywords=[]) if name in OF_ITEMS:
                items = self._items(argument)
                if items or (items is not None and name not in ("min", "max")):
                    written: ast.expr = OF_ITEMS[name]([self.visit(item) for item in items])
                    return written
        self.generic_visit(node)
        return node

    def _items(self, node: ast.expr) -> list[ast.expr] | None:
        """Return the items of a list, a range, or a comprehension over these; None for anything else."""
        match node:
            case ast.List(elts=items) | ast.Tuple(elts=items) | ast.Set(elts=items):
                return items
            case ast.Call() if (numbers := _range(node)) is not None:
                self._count(node, len(numbers[:MOST_NODES]))
                return [_tree(str(number)) for number in numbers]
            case ast.GeneratorExp(elt=element, generators=[loop]) | ast.ListComp(elt=element, generators=[loop]):
                values = self._items(loop.iter) if isinstance(loop.target, ast.Name) and not loop.ifs else None
                if values is not None and isinstance(loop.target, ast.Name):
                    self._count(element, sum(len([*ast.walk(value)]) for value in values))
                    return [_Bound(loop.target.id, value).visit(deepcopy(element)) for value in values]
        return None

    def _count(self, node: ast.expr, copies: int) -> None:
        self._nodes += len([*ast.walk(node)]) * copies
        if self._nodes > MOST_NODES:
            raise ValueError(f"its lists stand for more than {MOST_NODES} parts of an expression")


class _Bound(ast.NodeTransformer):
    """Replaces a name by a value."""

    def __init__(self, name: str, value: ast.expr) -> None:
        self._name, self._value = name, value

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return deepcopy(self._value) if node.id == self._name else node


def _tree(text: str) -> ast.expr:
    return ast.parse(text, mode="eval").body


def _range(node: ast.expr) -> range | None:
    """Return a range whose bounds are numbers."""
    match node:
        case ast.Call(func=ast.Name(id="range"), args=arguments, keywords=[]):
            with suppress(TypeError, ValueError):
                return range(*map(ast.literal_eval, arguments))
    return None


def _truth(node: ast.expr) -> ast.expr:
    """Return whether a value is not 0."""
    if isinstance(node, ast.Compare | ast.BoolOp) or (isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not)):
        return node
    return ast.UnaryOp(ast.Not(), ast.UnaryOp(ast.Not(), node))


def _joined(op: ast.boolop, nodes: Sequence[ast.expr]) -> ast.expr:
    """Return what ``any`` or ``all`` returns of some conditions."""
    if not nodes:
        return _tree(str(isinstance(op, ast.And)))
    return ast.BoolOp(op, list(nodes)) if len(nodes) > 1 else _truth(nodes[0])


def _folded(name: str) -> Callable[[Sequence[ast.expr]], ast.expr]:
    return lambda nodes: ast.Call(ast.Name(name), list(nodes), [])


OF_ITEMS: Mapping[str, Callable[[Sequence[ast.expr]], Any]] = {
    "any": lambda nodes: _joined(ast.Or(), nodes),
    "all": lambda nodes: _joined(ast.And(), nodes),
    "len": lambda nodes: _tree(str(len(nodes))),
    "sum": lambda nodes: reduce(lambda total, node: ast.BinOp(total, ast.Add(), node), nodes) if nodes else _tree("0"),
    "min": _folded("min"),
    "max": _folded("max"),
}
"""Functions of a list."""
