"""Facts of a run: what a run writes is read back, and anything else is ignored with a notice or refused."""

import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mltune.problem.problem import ACCURACIES
from mltune.records.declaration import Declaration, Finalist, Reference
from mltune.records.distinct import DistinctCount
from mltune.records.facts import MOST_KNOWN, NAMES, NEEDED, Facts, Limit, Plan, Stages, Stopping
from mltune.records.store import Store

DECLARED = Declaration(
    3, (Finalist(3, 2e-3, 1.9e-3, 2.1e-3),), rounds=5, as_of=20, rejected={1: "wrong"}, verified=True
)
HONEST = {
    "accuracy": "fp32",
    "choice": "sgemm",
    "declaration": DECLARED.to_json(),
    "limit": {"trials": 40, "time_s": None},
    "model": "gemm",
    "plans": [{"batch": 3, "known": 9, "first": 16, "size": 4}],
    "reference_median_s": 2e-3,
    "scored": [1, 7],
    "skipped": [7],
    "stages": {"valid": "9" * 30, "compilers": 8},
    "stopping": {"reason": "little is gained", "batch": 3},
    "whole": {"since": 1, "until": 4, "detail": "all 9 configurations would take 2 s, the search 1.5 s"},
    "wisdom": [{"BLK_M": 64}],
}
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats() | st.text(),
    lambda parts: st.lists(parts) | st.dictionaries(st.sampled_from(["trials", "reason", "number"]) | st.text(), parts),
    max_leaves=8,
)


def test_what_a_run_writes_is_read_back(tmp_path, make_run):
    make_run(tmp_path, **HONEST)
    with Store.read_only(tmp_path) as store:
        facts, documents = store.facts(), store.documents()

    assert documents == HONEST
    assert HONEST.keys() == NAMES
    assert facts.notice == ""
    assert (facts.declaration, facts.reference_median_s, facts.wisdom) == (DECLARED, 2e-3, [{"BLK_M": 64}])
    assert facts.limit == Limit(trials=40)
    assert facts.stages == Stages(valid="9" * 30, compilers=8.0)
    assert facts.plans == [Plan(batch=3, known=9, first=16, size=4)]
    assert [*facts.plans[0].numbers] == [16, 17, 18, 19]
    assert facts.stopping == Stopping(reason="little is gained", batch=3)
    assert [facts.whole.covers(batch) for batch in range(5)] == [False, True, True, True, False]
    assert isinstance(facts.scored, DistinctCount)
    assert facts.scored.estimate == 2


def test_all_classes_of_accuracy_are_facts():
    assert [Facts.of({"accuracy": accuracy}).accuracy for accuracy in ACCURACIES] == [*ACCURACIES]


@pytest.mark.parametrize("limit", [{"trials": 0, "time_s": 0}, {"trials": None, "time_s": 366 * 86_400.0}])
def test_the_least_and_the_largest_budget_are_facts(limit):
    assert Facts.of({"limit": limit}).notice == ""


def test_a_search_that_ends_before_its_first_batch_is_a_fact():
    stopping = Stopping(reason="nothing is left to try", batch=-1)
    assert Facts.of({"stopping": stopping.model_dump()}).stopping == stopping


def test_what_is_not_on_record_has_its_default():
    assert Facts.of({}) == Facts.of(dict.fromkeys(NAMES)) == Facts.of({"of a later version": 1, "notice": "forged"})


@given(st.sampled_from(sorted(NAMES)), VALUES)
@example("reference_median_s", math.nan)
@example("limit", {"trials": True})
@example("wisdom", [{}] * (MOST_KNOWN + 1))
def test_any_other_value_is_ignored_or_refused(name, value):
    try:
        facts = Facts.of(HONEST | {name: value})
    except ValueError:
        assert name in NEEDED
        return
    honest = Facts.of(HONEST)
    assert all(getattr(facts, other) == getattr(honest, other) for other in NAMES - {name, "scored", "skipped"})
    assert facts.notice == "" or f"is ignored: {name}" in facts.notice


@pytest.mark.parametrize(
    "forged",
    [
        {"median_s": 0.0},
        {"median_s": -1.0},
        {"median_s": math.inf},
        {"median_s": "soon"},
        {"median_s": None},
        {"elapsed_s": -1.0},
        {"noise": -0.5},
        {"power_w": math.inf},
        {"after": 2.5},
        {"after": -1},
    ],
)
def test_timings_of_the_reference_that_no_run_writes_are_refused(forged, tmp_path, make_run):
    from mltune.errors import DamagedRunError

    make_run(tmp_path)
    with Store.open(tmp_path) as store:
        store.append_reference(Reference(**{"after": 4, "elapsed_s": 1.0, "median_s": 2e-3, "noise": 0.01} | forged))
    with (
        Store.read_only(tmp_path) as store,
        pytest.raises(DamagedRunError, match="is no timing of the reference kernel"),
    ):
        store.references()
