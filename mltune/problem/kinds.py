"""The table of problem kinds, and the construction of problems from JSON documents."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from mltune.errors import ProblemError
from mltune.problem.gemm import GemmProblem
from mltune.problem.problem import Problem
from mltune.problem.recorded import RecordedProblem


@dataclass(frozen=True, slots=True)
class ProblemKind:
    """A kind of problem, as a bundle names it under ``problem``.

    Attributes
    ----------
    variables : frozenset of str
        Variables of the problem that the expressions of a bundle may use.
    macros : frozenset of str
        Macros that select the case when a kernel is compiled; no parameter may have one of these names.
    from_json : callable
        Rebuilds a problem from its JSON document.
    expand : callable
        Yields the problems of a plan's ``[[problems]]`` table, given the keys that only this kind has. Raises
        :class:`~mltune.errors.ProblemError` or ``pydantic.ValidationError``.
    """

    variables: frozenset[str]
    macros: frozenset[str]
    from_json: Callable[[Any], Problem]
    expand: Callable[[Mapping[str, Any]], Iterator[Problem]]


def _expand_gemm(table: Mapping[str, Any]) -> Iterator[Problem]:
    from mltune.problem.gemm_cases import expand

    return expand(table)


def _expand_recorded(table: Mapping[str, Any]) -> Iterator[Problem]:
    raise ProblemError(
        "a kernel of kind recorded has no problems but those of its datasets; name them under `datasets`, "
        f"not {', '.join(table) or 'the kernel alone'}."
    )


_SAMPLE = GemmProblem("s", "N", "N", 1, 1, 1)

KINDS: Mapping[str, ProblemKind] = {
    GemmProblem.kind: ProblemKind(
        frozenset(_SAMPLE.variables()), frozenset(_SAMPLE.macros()), GemmProblem.from_json, _expand_gemm
    ),
    RecordedProblem.kind: ProblemKind(frozenset(), frozenset(), RecordedProblem.from_json, _expand_recorded),
}
"""The kinds of problems by name. A new kind is a module of this room and an entry here."""


def problem_from_json(document: Any) -> Problem:
    """Rebuild a problem of any kind.

    Parameters
    ----------
    document : mapping
        The result of ``to_json`` of a problem. A document without ``kind`` is a GEMM, as in the first format.

    Raises
    ------
    ProblemError
        There is no such kind, or the document does not describe a problem.
    """
    kind = document.get("kind", GemmProblem.kind) if isinstance(document, Mapping) else GemmProblem.kind
    if not isinstance(kind, str) or kind not in KINDS:
        raise ProblemError(f"the kind of a problem is one of {', '.join(KINDS)}, got {kind!r:.80}.")
    return KINDS[kind].from_json(document)
