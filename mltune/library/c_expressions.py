"""Expressions of kernel bundles over the sizes of a call, translated to C with the meaning that they have in mltune.

Integers are ``int64_t``, everything else ``double``; the functions of ``templates/expressions.c.txt`` do what
:mod:`mltune.kernel.evaluation` does. Where a value is undefined or refused, the variable ``bad`` is set.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias

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
class CValue:
    """An expression in C of type ``double``, or ``int64_t``, which is 0 or 1 where it is a truth value."""

    text: str
    is_float: bool = False
    is_truth: bool = False

    @property
    def value(self) -> str:
        """The expression, where ``bad`` is set for an integer that is too large."""
        is_small = self.is_float or self.is_truth or self.text.isdecimal()
        return self.text if is_small else f"bounded({self.text}, bad)"

    @property
    def size(self) -> str:
        """The expression as a size of a launch, an ``int64_t``, where ``bad`` is set for what is no integer."""
        return f"whole({self.text}, bad)" if self.is_float else self.value

    @property
    def as_float(self) -> str:
        """The expression as a ``double``."""
        return self.text if self.is_float else f"(double)({self.text})"

    @property
    def truth(self) -> str:
        """Whether the expression is not 0."""
        return self.text if self.is_truth else f"(({self.text}) != 0)"

    @property
    def kind(self) -> str:
        """The suffix of functions for values of its type."""
        return "f" if self.is_float else "i"


@dataclass(frozen=True, slots=True)
class _Choice:
    """An integer where a test holds and a float elsewhere, or the other way round: the type follows from the sizes."""

    test: str
    yes: _Term
    no: _Term

    @property
    def as_float(self) -> str:
        return f"({self.test} ? {self.yes.as_float} : {self.no.as_float})"

    @property
    def truth(self) -> str:
        return f"({self.as_float} != 0)"


_Term: TypeAlias = CValue | _Choice


def to_c(formula: str, names: Mapping[str, str]) -> CValue:
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
    >>> to_c("ceil_div(m, 128) * 2", {"m": "m"}).size
    'bounded(mul_i(ceil_div_i(m, 128, bad), 2, bad), bad)'
    >>> to_c("m / 4", {"m": "s[0]"}).size
    'whole(div_f((double)(s[0]), (double)(4), bad), bad)'
    >>> to_c("m / 3 if m > 9 else 1", {"m": "m"}).value
    '((m > 9) ? div_f((double)(m), (double)(3), bad) : (double)(1))'
    """
    term = _Translation(formula, names).term(ast.parse(formula, mode="eval").body)
    value = term if isinstance(term, CValue) else CValue(_applied(_bounded, term).as_float, is_float=True)
    if len(value.text) > _MOST_CHARACTERS:
        raise ExpressionError(
            f"an expression in C has at most {_MOST_CHARACTERS} characters: `{printable(formula, 120)}`"
        )
    return value


class _Translation:
    def __init__(self, formula: str, names: Mapping[str, str]) -> None:
        self._formula = formula
        self._names = names

    def term(self, node: ast.expr) -> _Term:
        match node:
            case ast.Constant(value=bool() | int() | float() as value):
                return CValue(repr(value) if isinstance(value, float) else str(int(value)), isinstance(value, float))
            case ast.Name(id=name) if name in self._names:
                return CValue(self._names[name])
            case ast.BinOp(op=ast.Div()):
                return _applied(_divided, self.term(node.left), self.term(node.right))
            case ast.BinOp(op=ast.Pow()):
                return _applied(_power, self.term(node.left), self.term(node.right))
            case ast.BinOp(op=op) if type(op) in _ARITHMETIC:
                return _called(_ARITHMETIC[type(op)], self.term(node.left), self.term(node.right))
            case ast.UnaryOp(op=ast.Not()):
                return _truth(f"(!{self.term(node.operand).truth})")
            case ast.UnaryOp(op=ast.USub()):
                return _called("neg", self.term(node.operand))
            case ast.UnaryOp(op=ast.UAdd()):
                return self.term(node.operand)
            case ast.BoolOp():
                word = " || " if isinstance(node.op, ast.Or) else " && "
                return _truth(f"({word.join(self.term(value).truth for value in node.values)})")
            case ast.Compare() if all(type(op) in _COMPARISONS for op in node.ops):
                return self.comparison([_COMPARISONS[type(op)] for op in node.ops], [node.left, *node.comparators])
            case ast.IfExp():
                yes, no = self.term(node.body), self.term(node.orelse)
                return _chosen(self.term(node.test).truth, yes, no)
            case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]):
                return self.function(name, list(map(self.term, arguments)))
        raise ExpressionError(
            f"an expression over sizes is translated to C, but `{printable(ast.unparse(node), 120)}` in "
            f"`{printable(self._formula, 120)}` has no counterpart there."
        )

    def comparison(self, words: list[str], operands: list[ast.expr]) -> _Term:
        """Return a chain of comparisons, all of which are made: each may be undefined."""

        def chain(*sides: CValue) -> CValue:
            pairs = zip(sides, words, sides[1:], strict=False)
            links = [f"({a.text} {word} {b.text})" for a, word, b in pairs]
            return _truth(links[0] if len(links) == 1 else f"({' & '.join(links)})")

        return _applied(chain, *map(self.term, operands))

    def function(self, name: str, terms: list[_Term]) -> _Term:
        match name:
            case "min" | "max":
                return functools.reduce(functools.partial(_called, name), terms)
            case "abs" | "ceil_div":
                return _called(name, *terms)
            case "ceil" | "floor":
                return _applied(lambda a: CValue(f"integer({name}({a.text}), bad)") if a.is_float else a, *terms)
            case "log2":
                return _applied(lambda a: CValue(f"log2_f({a.as_float}, bad)", True), *terms)
            case "is_pow2":
                return _applied(lambda a: _truth("refused(bad)" if a.is_float else f"is_pow2({a.text})"), *terms)
        raise ExpressionError(
            f"a function of an expression has a counterpart in C, but `{printable(name, 60)}` has none."
        )


def _applied(function: Callable[..., CValue], *terms: _Term) -> _Term:
    """Return a function of some terms, applied to both sides of each choice among them."""
    for place, term in enumerate(terms):
        if isinstance(term, _Choice):
            sides = ((*terms[:place], side, *terms[place + 1 :]) for side in (term.yes, term.no))
            return _chosen(term.test, *(_applied(function, *side) for side in sides))
    return function(*terms)


def _chosen(test: str, yes: _Term, no: _Term) -> _Term:
    if isinstance(yes, CValue) and isinstance(no, CValue) and yes.is_float == no.is_float:
        return CValue(f"({test} ? {yes.text} : {no.text})", yes.is_float)
    return _Choice(test, yes, no)


def _called(name: str, *terms: _Term) -> _Term:
    """Return a call of a function that has a version for integers and one for floats."""

    def call(*values: CValue) -> CValue:
        is_float = any(value.is_float for value in values)
        texts = ", ".join(value.as_float if is_float else value.text for value in values)
        return CValue(f"{name}_{'f' if is_float else 'i'}({texts}, bad)", is_float)

    return _applied(call, *terms)


def _divided(a: CValue, b: CValue) -> CValue:
    return CValue(f"div_f({a.as_float}, {b.as_float}, bad)", True)


def _power(base: CValue, exponent: CValue) -> CValue:
    whole = "refused(bad)" if exponent.is_float else exponent.text
    return CValue(f"pow_{base.kind}({base.text}, {whole}, bad)", base.is_float)


def _bounded(value: CValue) -> CValue:
    return replace(value, text=value.value)


def _truth(text: str) -> CValue:
    return CValue(text, is_truth=True)
