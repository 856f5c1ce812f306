"""Expressions of kernel bundles over the sizes of a call, translated to C with the meaning that they have in mltune.

Integers are ``int64_t``, everything else ``double``. Where a value is undefined, or leaves the integers below 2**53,
the variable ``bad`` is set.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass

from mltune.errors import ExpressionError
from mltune.files.text import printable

_ARITHMETIC: Mapping[type[ast.operator], str] = {
    ast.Add: "add",
    ast.Sub: "sub",
    ast.Mult: "mul",
    ast.FloorDiv: "floor_div",
    ast.Mod: "mod",
}
_COMPARISONS: Mapping[type[ast.cmpop], str] = {
    ast.Eq: "==",
    ast.NotEq: "!=",
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
}
_MOST_CHARACTERS = 100_000


@dataclass(frozen=True, slots=True)
class _Term:
    text: str
    is_float: bool = False

    @property
    def as_float(self) -> str:
        return self.text if self.is_float else f"(double)({self.text})"


def to_c(formula: str, names: Mapping[str, str]) -> str:
    """Return a formula in C, in which names have other ones.

    Parameters
    ----------
    formula : str
        An expression without parameters, as :func:`mltune.results.winner.formula` makes it.
    names : mapping of str to str
        What stands in C for each size: an expression of type ``int64_t``.

    Raises
    ------
    ExpressionError
        It has a text, another name, or an operation that C code cannot have.

    Examples
    --------
    >>> to_c("ceil_div(m, 128) * 2", {"m": "m"})
    'mul_i(ceil_div_i(m, 128, bad), 2, bad)'
    >>> to_c("m / 3 if m > 9 else 1", {"m": "s[0]"})
    '(((s[0] > 9)) ? div_f((double)(s[0]), (double)(3), bad) : (double)(1))'
    """
    text = _Translation(formula, names).term(ast.parse(formula, mode="eval").body).text
    if len(text) > _MOST_CHARACTERS:
        raise ExpressionError(
            f"an expression in C has at most {_MOST_CHARACTERS} characters: `{printable(formula, 120)}`"
        )
    return text


class _Translation:
    def __init__(self, formula: str, names: Mapping[str, str]) -> None:
        self._formula = formula
        self._names = names

    def term(self, node: ast.expr) -> _Term:
        match node:
            case ast.Constant(value=bool() | int() | float() as value):
                return _Term(repr(value) if isinstance(value, float) else str(int(value)), isinstance(value, float))
            case ast.Name(id=name) if name in self._names:
                return _Term(self._names[name])
            case ast.BinOp(op=ast.Div()):
                return _Term(f"div_f({self.term(node.left).as_float}, {self.term(node.right).as_float}, bad)", True)
            case ast.BinOp(op=ast.Pow()):
                base = self.term(node.left)
                return _Term(f"pow_{_kind(base)}({base.text}, {self.term(node.right).text}, bad)", base.is_float)
            case ast.BinOp(op=op) if type(op) in _ARITHMETIC:
                return self.call(_ARITHMETIC[type(op)], node.left, node.right)
            case ast.UnaryOp(op=ast.Not()):
                return _Term(f"(({self.term(node.operand).text}) == 0)")
            case ast.UnaryOp(op=ast.USub()):
                operand = self.term(node.operand)
                return _Term(f"(-({operand.text}))", operand.is_float)
            case ast.UnaryOp(op=ast.UAdd()):
                return self.term(node.operand)
            case ast.BoolOp():
                word = " || " if isinstance(node.op, ast.Or) else " && "
                return _Term(f"({word.join(f'({self.term(one).text})' for one in node.values)})")
            case ast.Compare() if all(type(op) in _COMPARISONS for op in node.ops):
                sides = [self.term(one).text for one in (node.left, *node.comparators)]
                words = [_COMPARISONS[type(op)] for op in node.ops]
                pairs = zip(sides, words, sides[1:], strict=False)
                return _Term(f"({' && '.join(f'({a} {word} {b})' for a, word, b in pairs)})")
            case ast.IfExp():
                test, *both = map(self.term, (node.test, node.body, node.orelse))
                is_float = any(one.is_float for one in both)
                yes, no = (one.as_float if is_float else one.text for one in both)
                return _Term(f"({test.text} ? {yes} : {no})", is_float)
            case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]):
                return self.function(name, arguments)
        raise ExpressionError(
            f"an expression over sizes is translated to C, but `{printable(ast.unparse(node), 120)}` in "
            f"`{printable(self._formula, 120)}` has no counterpart there."
        )

    def call(self, name: str, *operands: ast.expr) -> _Term:
        terms = [self.term(one) for one in operands]
        is_float = any(one.is_float for one in terms)
        values = ", ".join(one.as_float if is_float else one.text for one in terms)
        return _Term(f"{name}_{'f' if is_float else 'i'}({values}, bad)", is_float)

    def function(self, name: str, arguments: list[ast.expr]) -> _Term:
        match name:
            case "min" | "max":
                first, *others = arguments
                call = ast.Call(ast.Name(name), arguments[:-1], [])
                return self.call(name, call, arguments[-1]) if others else self.term(first)
            case "abs" | "ceil_div":
                return self.call(name, *arguments)
            case "ceil" | "floor":
                value = self.term(arguments[0])
                return _Term(f"whole({name}({value.text}), bad)") if value.is_float else value
            case "log2":
                return _Term(f"log2_f({self.term(arguments[0]).as_float}, bad)", True)
            case "is_pow2":
                return _Term(f"is_pow2_i({self.term(arguments[0]).text}, bad)")
        raise ExpressionError(
            f"a function of an expression has a counterpart in C, but `{printable(name, 60)}` has none."
        )


def _kind(term: _Term) -> str:
    return "f" if term.is_float else "i"
