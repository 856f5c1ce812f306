import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mltune.errors import ProblemError
from mltune.problem.gemm import CASES, GemmProblem
from mltune.problem.kinds import problem_from_json
from mltune.problem.problem import Problem
from mltune.problem.recorded import RecordedProblem

CONVOLUTION = RecordedProblem("convolution", "64x32", flops=2**40, arithmetic="fp64", values={"width": 64})


@pytest.mark.parametrize("problem", [*(GemmProblem(*case, 3, 4, 5) for case in CASES), CONVOLUTION])
def test_every_problem_survives_json(problem: Problem) -> None:
    assert isinstance(problem, Problem)
    again = problem_from_json(json.loads(json.dumps(problem.to_json())))
    assert again == problem
    assert (again.kind, again.label, again.variables) == (problem.kind, problem.label, problem.variables)


def test_a_document_without_a_kind_is_a_gemm() -> None:
    document = {"precision": "s", "trans_a": "N", "trans_b": "T", "m": 1, "n": 2, "k": 3}
    assert problem_from_json(document) == GemmProblem("s", "N", "T", 1, 2, 3)
    assert problem_from_json(document | {"kind": "gemm"}) == GemmProblem("s", "N", "T", 1, 2, 3)
    assert "kind" not in GemmProblem("s", "N", "T", 1, 2, 3).to_json()


def test_the_label_of_a_recorded_problem() -> None:
    assert CONVOLUTION.label == "convolution 64x32"
    assert RecordedProblem("table").label == "table"


@pytest.mark.parametrize(
    "document",
    [
        {"kind": "fft"},
        {"kind": None},
        {"kind": []},
        {"kind": "recorded"},
        {"kind": "recorded", "name": "x", "colour": 1},
        {"kind": "recorded", "name": "X y"},
        {"kind": "recorded", "name": 3},
        {"kind": "recorded", "name": "x", "size": "\n"},
        {"kind": "recorded", "name": "x", "size": "x" * 101},
        {"kind": "recorded", "name": "x", "flops": 0},
        {"kind": "recorded", "name": "x", "flops": 1.5},
        {"kind": "recorded", "name": "x", "flops": True},
        {"kind": "recorded", "name": "x", "flops": 2**90},
        {"kind": "recorded", "name": "x", "arithmetic": "int8"},
        {"kind": "recorded", "name": "x", "arithmetic": []},
        {"kind": "recorded", "name": "x", "values": [1]},
        {"kind": "recorded", "name": "x", "values": {"a b": 1}},
        {"kind": "recorded", "name": "x", "values": {"a": 0.5}},
        {"kind": "recorded", "name": "x", "values": {"a": 2**70}},
        [],
        "gemm",
        None,
    ],
)
def test_a_malformed_problem_is_refused(document: object) -> None:
    with pytest.raises(ProblemError):
        problem_from_json(document)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
        lambda inner: (
            st.lists(inner) | st.dictionaries(st.sampled_from(["kind", "name", "flops", "values", "size", "m"]), inner)
        ),
    )
)
def test_whatever_a_document_holds_it_is_a_problem_or_refused(document: object) -> None:
    try:
        problem = problem_from_json(document)
    except ProblemError:
        return
    assert problem.flops >= 0
