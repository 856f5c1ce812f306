"""The table of problem kinds, and the construction of problems from JSON documents.

A new kind is a module of this room and an entry in :data:`KINDS`. A kind that runs on a GPU implements
:class:`~mltune.problem.runnable.RunnableProblem`; it may have an entry in :data:`mltune.measure.references.REFERENCES`
and one in :data:`mltune.winner.examples.EXAMPLES`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from mltune.errors import ProblemError
from mltune.problem.gemm import GemmProblem
from mltune.problem.problem import Problem
from mltune.problem.recorded import RecordedProblem


@dataclass(frozen=True, slots=True)
class ProblemKind:
    """A kind of problem that a bundle may name under ``problem``.

    Attributes
    ----------
    variables : frozenset of str
        Variables of the problem that the expressions of a bundle may use.
    macros : frozenset of str
        Macros that select the case when a kernel is compiled; no parameter may have one of these names.
    from_json : callable
        Rebuilds a problem from its JSON document.
    """

    variables: frozenset[str]
    macros: frozenset[str]
    from_json: Callable[[Any], Problem]


_SAMPLE = GemmProblem("s", "N", "N", 1, 1, 1)

KINDS: Mapping[str, ProblemKind] = {
    GemmProblem.kind: ProblemKind(frozenset(_SAMPLE.variables()), frozenset(_SAMPLE.macros()), GemmProblem.from_json),
    RecordedProblem.kind: ProblemKind(frozenset(), frozenset(), RecordedProblem.from_json),
}
"""The problem kinds by name."""


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
