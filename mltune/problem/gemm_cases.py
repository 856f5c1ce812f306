"""The GEMMs of a table in a plan: every precision with every transposition and size."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, Field, StrictFloat, StrictInt, StrictStr

from mltune.errors import ProblemError
from mltune.files.validation import distinct, matching
from mltune.problem.gemm import GemmProblem
from mltune.problem.gemm_operands import PRECISIONS, transpositions
from mltune.problem.problem import LARGEST_BATCH

_Ops = Annotated[StrictStr, matching(r"[NTC]{2}", "be two of the letters N, T and C, such as NT")]
_Extent = Annotated[StrictInt, Field(ge=1, le=2**40)]
_Extents = Annotated[list[_Extent], Field(min_length=3, max_length=3)]
_Scalar = StrictFloat | StrictInt | Annotated[list[StrictFloat | StrictInt], Field(min_length=2, max_length=2)]
_Leading = Annotated[StrictInt, Field(ge=0, le=2**40)]
_Precisions = list[Literal[*PRECISIONS]]  # type: ignore[valid-type]


class _Table(BaseModel, extra="forbid"):
    precisions: Annotated[_Precisions, Field(min_length=1), AfterValidator(distinct)]
    trans: Annotated[list[_Ops], Field(min_length=1, max_length=9), AfterValidator(distinct)] | Literal["all"]
    sizes: Annotated[list[_Extent | _Extents], Field(min_length=1, max_length=1000), AfterValidator(distinct)]
    alpha: _Scalar = 1.0
    beta: _Scalar = 0.0
    lda: _Leading = 0
    ldb: _Leading = 0
    ldc: _Leading = 0
    batch: Annotated[StrictInt, Field(ge=1, le=LARGEST_BATCH)] = 1
    epilogue: StrictStr = ""


def expand(table: Mapping[str, Any]) -> Iterator[GemmProblem]:
    """Yield the problems of a ``[[problems]]`` table, sizes outermost.

    The table has ``precisions``, ``trans`` (pairs of N, T, C, or ``"all"``) and ``sizes`` (m = n = k, or m, n and k),
    and may have ``alpha``, ``beta`` (a complex one as real and imaginary part), ``lda``, ``ldb``, ``ldc``, ``batch``
    and ``epilogue``. A missing key or impossible size raises a ProblemError, a malformed value a
    pydantic.ValidationError.
    """
    missing = [name for name, field in _Table.model_fields.items() if field.is_required() and name not in table]
    if missing:
        unknown = "".join(f", and there is no key {name}" for name in table if name not in _Table.model_fields)
        raise ProblemError(
            f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing{unknown}; problems are given by "
            "precisions, trans and sizes, or else by datasets."
        )
    cases = _Table.model_validate(table)
    scalars = cases.model_dump(include={"alpha", "beta", "lda", "ldb", "ldc", "batch", "epilogue"})
    for size in cases.sizes:
        extents = (size, size, size) if isinstance(size, int) else size
        for precision in cases.precisions:
            for trans_a, trans_b in _ops(precision, cases.trans):
                case = {"precision": precision, "trans_a": trans_a, "trans_b": trans_b}
                case["result"] = PRECISIONS[precision].result
                yield GemmProblem.from_json({**case, **dict(zip("mnk", extents, strict=True)), **scalars})


def as_table(problem: GemmProblem) -> dict[str, Any]:
    """Return the table of which :func:`expand` makes this problem alone.

    >>> as_table(GemmProblem("s", "N", "T", 8, 4, 2, beta=1.0))
    {'precisions': ['s'], 'trans': ['NT'], 'sizes': [[8, 4, 2]], 'beta': 1.0}
    """
    extents = [problem.m, problem.n, problem.k]
    usual = GemmProblem(problem.precision, problem.trans_a, problem.trans_b, problem.m, problem.n, problem.k).to_json()
    return {
        "precisions": [problem.precision],
        "trans": [problem.trans_a + problem.trans_b],
        "sizes": [extents[0] if len(set(extents)) == 1 else extents],
        **{name: value for name, value in problem.to_json().items() if usual.get(name) != value},
    }


def _ops(precision: str, trans: Sequence[str]) -> list[tuple[str, str]]:
    """Return the transpositions of a precision, each once."""
    if trans == "all":
        return [*transpositions(precision)]
    pairs = trans if PRECISIONS[precision].is_complex else [ops.replace("C", "T") for ops in trans]
    return [(ops[0], ops[1]) for ops in dict.fromkeys(pairs)]
