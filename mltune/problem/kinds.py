"""The table of problem kinds, and the construction of problems from JSON documents.

A new kind is a module of this room and an entry in :data:`KINDS`. A kind that runs on a GPU implements
:class:`~mltune.problem.problem.RunnableProblem`. Other rooms know no kind: they use the protocols and this table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from mltune.errors import ProblemError
from mltune.files.text import no_such
from mltune.problem import gemm_cases
from mltune.problem.arrays import ArraysProblem
from mltune.problem.gemm import ARGUMENTS, GemmProblem, parse_problem
from mltune.problem.gemm_operands import PRECISIONS
from mltune.problem.problem import SHAPE, Problem, RunnableProblem
from mltune.problem.recorded import RecordedProblem


@dataclass(frozen=True, slots=True)
class ProblemKind:
    """A kind of problem that a bundle may name under ``problem``.

    Attributes
    ----------
    variables, macros : frozenset of str
        Variables that the expressions of a bundle may use; macros that select the case, whose names no parameter has.
    from_json : callable
        Rebuilds a problem from its JSON document.
    can_be_built : bool
        Whether kernels of the kind may have a source. Others are only replayed.
    names : mapping of str to str
        Names of problems on the command line, in lower case, and the precision of each; empty without names.
    parse : callable or None
        Makes a problem of a name: ``parse(name, default=None, **options)``. What is not given is as in `default`, a
        recorded problem of the kind, if there is one. None where problems have no names.
    arguments : tuple of str
        Arguments that a kernel of every problem of the kind has first, in order; empty where bundles name their own.
    options : tuple of str
        The options of ``parse``: those of a shape that the kind has
        (:class:`mltune.problem.problem.ShapeOptions`), and further ones.
    expand : callable or None
        Yields the problems of a plan's ``[[problems]]`` table, given the keys that only this kind has; None where the
        kernel's bundle makes them. Raises :class:`~mltune.errors.ProblemError` or ``pydantic.ValidationError``.
    table : callable or None
        The inverse of ``expand``: returns the keys of a table for one problem; None where datasets name the problems.
    """

    from_json: Callable[[Any], Problem]
    variables: frozenset[str] = frozenset()
    macros: frozenset[str] = frozenset()
    expand: Callable[[Mapping[str, Any]], Iterator[Problem]] | None = None
    table: Callable[[Any], dict[str, Any]] | None = None
    can_be_built: bool = False
    names: Mapping[str, str] = field(default_factory=dict)
    parse: Callable[..., RunnableProblem] | None = None
    arguments: tuple[str, ...] = ()
    options: tuple[str, ...] = ()

    @property
    def precisions(self) -> tuple[str, ...]:
        """Precisions of which a bundle lists at least one; empty for a kind without precisions."""
        return tuple(dict.fromkeys(filter(None, self.names.values())))


def _table_of_arrays(problem: ArraysProblem) -> dict[str, Any]:
    return {"sizes": [dict(problem.sizes)]}


def _expand_recorded(table: Mapping[str, Any]) -> Iterator[Problem]:
    raise ProblemError(
        f"{', '.join(table) or 'the kernel alone'} cannot be given: a kernel of kind recorded has the problems of "
        "its datasets; name them under `datasets`."
    )


_SAMPLE = GemmProblem("s", "N", "N", 1, 1, 1, batch=2, epilogue="relu")

KINDS: Mapping[str, ProblemKind] = {
    GemmProblem.kind: ProblemKind(
        GemmProblem.from_json,
        variables=frozenset(_SAMPLE.variables),
        macros=frozenset(_SAMPLE.macros()),
        expand=gemm_cases.expand,
        table=gemm_cases.as_table,
        can_be_built=True,
        names={f"{precision}gemm": precision for precision in PRECISIONS},
        parse=parse_problem,
        arguments=ARGUMENTS,
        options=(*SHAPE, "alpha", "beta"),
    ),
    ArraysProblem.kind: ProblemKind(ArraysProblem.from_json, table=_table_of_arrays, can_be_built=True),
    RecordedProblem.kind: ProblemKind(RecordedProblem.from_json, expand=_expand_recorded),
}
"""The problem kinds by name."""


def problem_from_json(document: Any) -> Problem:
    """Rebuild a problem from its ``to_json``; without ``kind`` it is a GEMM, as in the first format."""
    kind = document.get("kind", GemmProblem.kind) if isinstance(document, Mapping) else GemmProblem.kind
    if not isinstance(kind, str) or kind not in KINDS:
        raise ProblemError(f"{kind!r:.80} is no kind of problem: it is one of {', '.join(KINDS)}.")
    return KINDS[kind].from_json(document)


def timed_problem(
    name: str, size: str = "", flops: int = 1, arithmetic: str = "fp32", values: Mapping[str, int] | None = None
) -> Problem:
    """Make a problem of which only timings are known; the arguments are the fields of a recorded problem."""
    return RecordedProblem(name, size, flops, arithmetic, values or {})


OF_A_RUN = ("device", "kernel", "seed", "time", "trials")
"""Arguments beside those of a problem, which a wrong name may have meant."""


def kind_of_name(name: str) -> ProblemKind | None:
    """Return the kind of the problems of a name; None where no kind has it."""
    return next((kind for kind in KINDS.values() if name.lower() in kind.names), None)


def problem_from_name(name: str, *, default: Problem | None = None, **options: Any) -> RunnableProblem:
    """Make a problem of a name and options, such as ``size``; others are those of a `default` of the same kind."""
    kind = kind_of_name(name)
    if kind is None or kind.parse is None:
        names = [label for kind in KINDS.values() for label in kind.names]
        raise ProblemError(no_such("problem", name, names, f"A problem is one of {', '.join(names)}"))
    if unknown := [option for option in options if option not in kind.options]:
        law = f"They are {', '.join(kind.options)}"
        raise ProblemError(no_such(f"option of {name}", unknown[0], [*kind.options, *OF_A_RUN], law))
    return kind.parse(name.lower(), default=default if default and KINDS[default.kind] is kind else None, **options)
