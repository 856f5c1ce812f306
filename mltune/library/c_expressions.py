"""Expressions of kernel bundles over the sizes of a call, translated to C with the meaning that they have in mltune.

Integers are ``int64_t``, everything else ``double``; the functions of ``templates/expressions.c.txt`` do what
:mod:`mltune.kernel.evaluation` does. Where a value is undefined or refused, the variable ``bad`` is set.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from typing import TypeAlias

from mltune.errors import ExpressionError
from mltune.files.text import printable

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
class _Conditional:
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


_Term: TypeAlias = CValue | _Conditional


def to_c(formula: str, names: Mapping[str, str]) -> CValue:
    """Return an expression without parameters (:func:`mltune.results.winner.formula`) in C, with names of ``int64_t``.

    A text, another name, and an operation that C code cannot have raise an ExpressionError.
    """
    try:
        term = _translated(ast.parse(formula, mode="eval").body, names)
    except ValueError as error:
        raise ExpressionError(
            f"`{error}` in `{printable(formula, 120)}` has no counterpart in C, to which an expression over sizes is "
            "translated."
        ) from None
    value = term if isinstance(term, CValue) else CValue(_applied(_bounded, term).as_float, is_float=True)
    if len(value.text) > _MOST_CHARACTERS:
        raise ExpressionError(
            f"`{printable(formula, 120)}` is too long: an expression in C has at most {_MOST_CHARACTERS} characters"
        )
    return value


def _translated(node: ast.expr, names: Mapping[str, str]) -> _Term:
    def translate(*nodes: ast.expr) -> list[_Term]:
        return [_translated(node, names) for node in nodes]

    match node:
        case ast.Constant(value=bool() | int() | float() as value):
            return CValue(repr(value) if isinstance(value, float) else str(int(value)), isinstance(value, float))
        case ast.Name(id=name) if name in names:
            return CValue(names[name])
        case ast.BinOp(op=op) if type(op) in OPERATIONS:
            return OPERATIONS[type(op)](*translate(node.left, node.right))
        case ast.UnaryOp(op=op) if type(op) in OPERATIONS:
            return OPERATIONS[type(op)](*translate(node.operand))
        case ast.BoolOp():
            word = " || " if isinstance(node.op, ast.Or) else " && "
            return _truth(f"({word.join(term.truth for term in translate(*node.values))})")
        case ast.Compare() if all(type(op) in COMPARISONS for op in node.ops):
            words = [COMPARISONS[type(op)] for op in node.ops]
            return _applied(partial(_compared, words), *translate(node.left, *node.comparators))
        case ast.IfExp():
            test, yes, no = translate(node.test, node.body, node.orelse)
            return _chosen(test.truth, yes, no)
        case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]) if name in OPERATIONS:
            return OPERATIONS[name](*translate(*arguments))
    raise ValueError(printable(ast.unparse(node), 120))


def _applied(function: Callable[..., CValue], *terms: _Term) -> _Term:
    """Return a function of some terms, applied to both sides of each choice among them."""
    for place, term in enumerate(terms):
        if isinstance(term, _Conditional):
            sides = ((*terms[:place], side, *terms[place + 1 :]) for side in (term.yes, term.no))
            return _chosen(term.test, *(_applied(function, *side) for side in sides))
    return function(*terms)


def _chosen(test: str, yes: _Term, no: _Term) -> _Term:
    if isinstance(yes, CValue) and isinstance(no, CValue) and yes.is_float == no.is_float:
        return CValue(f"({test} ? {yes.text} : {no.text})", yes.is_float)
    return _Conditional(test, yes, no)


def _called(name: str, *terms: _Term) -> _Term:
    """Return a call of a function that has a version for integers and one for floats."""

    def call(*values: CValue) -> CValue:
        is_float = any(value.is_float for value in values)
        texts = ", ".join(value.as_float if is_float else value.text for value in values)
        return CValue(f"{name}_{'f' if is_float else 'i'}({texts}, bad)", is_float)

    return _applied(call, *terms)


def _bounded(value: CValue) -> CValue:
    return replace(value, text=value.value)


def _compared(words: Sequence[str], *sides: CValue) -> CValue:
    """Return a chain of comparisons, all of which are made: each may be undefined."""
    links = [f"({a.text} {word} {b.text})" for a, word, b in zip(sides, words, sides[1:], strict=False)]
    return _truth(links[0] if len(links) == 1 else f"({' & '.join(links)})")


def _divided(a: CValue, b: CValue) -> CValue:
    return CValue(f"div_f({a.as_float}, {b.as_float}, bad)", True)


def _power(base: CValue, exponent: CValue) -> CValue:
    whole = "refused(bad)" if exponent.is_float else exponent.text
    return CValue(f"pow_{base.kind}({base.text}, {whole}, bad)", base.is_float)


def _rounded(name: str, a: CValue) -> CValue:
    return CValue(f"integer({name}({a.text}), bad)") if a.is_float else a


def _float_of(name: str, a: CValue) -> CValue:
    return CValue(f"{name}_f({a.as_float}, bad)", True)


def _bitwise(template: str, *values: CValue) -> CValue:
    is_whole = not any(value.is_float for value in values)
    return CValue(template.format(*(value.text for value in values)) if is_whole else "refused(bad)")


def _is_pow2(a: CValue) -> CValue:
    return _truth("refused(bad)" if a.is_float else f"is_pow2({a.text})")


def _truth(text: str) -> CValue:
    return CValue(text, is_truth=True)


def _folded(name: str) -> Callable[..., _Term]:
    return lambda *terms: reduce(partial(_called, name), terms)


OPERATIONS: Mapping[type[ast.operator | ast.unaryop] | str, Callable[..., _Term]] = {
    ast.Add: partial(_called, "add"),
    ast.Sub: partial(_called, "sub"),
    ast.Mult: partial(_called, "mul"),
    ast.Div: partial(_applied, _divided),
    ast.FloorDiv: partial(_called, "floor_div"),
    ast.Mod: partial(_called, "mod"),
    ast.Pow: partial(_applied, _power),
    ast.USub: partial(_called, "neg"),
    ast.UAdd: lambda term: term,
    ast.Not: lambda term: _truth(f"(!{term.truth})"),
    ast.BitAnd: partial(_applied, partial(_bitwise, "({} & {})")),
    ast.BitOr: partial(_applied, partial(_bitwise, "({} | {})")),
    ast.BitXor: partial(_applied, partial(_bitwise, "({} ^ {})")),
    ast.Invert: partial(_applied, partial(_bitwise, "(~(int64_t)({}))")),
    ast.LShift: partial(_applied, partial(_bitwise, "shifted_left({}, {}, bad)")),
    ast.RShift: partial(_applied, partial(_bitwise, "shifted_right({}, {}, bad)")),
    "min": _folded("min"),
    "max": _folded("max"),
    "abs": partial(_called, "abs"),
    "ceil": partial(_applied, partial(_rounded, "ceil")),
    "floor": partial(_applied, partial(_rounded, "floor")),
    "ceil_div": partial(_called, "ceil_div"),
    "log2": partial(_applied, partial(_float_of, "log2")),
    "sqrt": partial(_applied, partial(_float_of, "sqrt")),
    "int": partial(_applied, partial(_rounded, "trunc")),
    "round": partial(_applied, partial(_rounded, "rint")),
    "is_pow2": partial(_applied, _is_pow2),
}
"""The operators and functions of :mod:`mltune.kernel.evaluation` in C."""
COMPARISONS: Mapping[type[ast.cmpop], str] = {
    ast.Eq: "==",
    ast.NotEq: "!=",
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
}
