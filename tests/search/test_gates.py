"""Gates decide the same whenever they are used, exempt exploring proposals, and audit a share of the skips."""

from types import SimpleNamespace

import numpy as np
import pytest
from hidden_optima import hidden, play, search_of

from mltune.cost.features import Features
from mltune.dataset.dataset import load_dataset
from mltune.device.known import H200
from mltune.kernel.reader import load_kernel
from mltune.kernel.space import TableSpace
from mltune.problem.gemm import GemmProblem
from mltune.records.trial import Build, TrialRecord, TrialState
from mltune.records.trials import Trials
from mltune.search.gates import MOST_ROWS, Gates, exempt_proposals
from mltune.search.history import History, Results

PROBLEM = GemmProblem("s", "N", "T", 4096, 4096, 4096)


def history_of(indices, scores):
    nothing = np.empty(0, dtype=np.int64)
    return History(indices, scores, nothing, np.empty(0), nothing, nothing, set(indices.tolist()))


@pytest.fixture(scope="module")
def measured():
    """Return 700 measured configurations of the stencil whose speed is the physical prior's, dimmed by spills."""
    kernel = load_kernel("gemm_simt")
    features = Features(kernel, PROBLEM, H200)
    space = TableSpace(load_dataset("h200-sgemm-nt-4096-random").columns)
    rng = np.random.default_rng(0)
    indices = space.sample(1400, rng)
    columns = space.rows(indices)
    spills = rng.random(1400) < 0.3
    scores = np.log(np.maximum(features.prior(columns), 0.01)) - 0.5 * spills + rng.normal(0, 0.01, 1400)
    reports = [
        Build(TrialState.OK, registers=100, spill_bytes=int(64 * spilled), code_bytes=5000) for spilled in spills
    ]
    results = Results()
    pairs = zip(indices.tolist(), reports, strict=True)
    records = [TrialRecord(at, 0, index, {}, TrialState.OK, build=build) for at, (index, build) in enumerate(pairs)]
    results.learn(Trials.from_records(records, ()), scores)
    known = np.argsort(indices[:700])
    history = history_of(indices[:700][known], scores[:700][known])
    return SimpleNamespace(
        features=features,
        space=space,
        history=history,
        results=results,
        new=space.rows(indices[700:]),
        new_builds=reports[700:],
        new_scores=scores[700:],
        spills=spills[700:],
    )


def gates(measured, seed=0, **changes):
    given = {"history": measured.history, "results": measured.results, "previous": None, **changes}
    first = Gates(measured.features, given["results"], measured.space, seed)
    return (given["previous"] or first).following(given["history"])


NUMBERS = range(700)
NONE_EXEMPT = np.zeros(700, dtype=bool)


def skipped(decisions):
    return np.array([skip is not None for skip in decisions[0]])


def test_both_gates_skip_and_are_not_wrong(measured):
    made = gates(measured)
    better = measured.new_scores > np.nanmax(measured.history.scores)
    before = skipped(made.decide("before_compile", measured.new, NUMBERS, NONE_EXEMPT))
    after = skipped(made.decide("after_compile", measured.new, NUMBERS, NONE_EXEMPT, measured.new_builds))
    assert before.mean() > 0.3
    assert after.mean() > before.mean()
    assert after[measured.spills].mean() > before[measured.spills].mean()
    assert not (better & (before | after)).any()


@pytest.mark.parametrize("known", [None, 0, 23])
def test_while_little_is_known_nothing_is_skipped(measured, known):
    history = None if known is None else history_of(measured.history.indices[:known], measured.history.scores[:known])
    made = gates(measured, history=history)
    assert made.decide("before_compile", measured.new, NUMBERS, NONE_EXEMPT)[0] == [None] * 700


def test_while_everything_fails_nothing_is_skipped(measured):
    made = gates(measured, history=history_of(measured.history.indices[:60], np.full(60, np.nan)))
    assert not skipped(made.decide("before_compile", measured.new, NUMBERS, NONE_EXEMPT)).any()


def test_without_builds_there_is_no_gate_after_compiling(measured):
    made = gates(measured, results=Results())
    assert not skipped(made.decide("after_compile", measured.new, NUMBERS, NONE_EXEMPT, measured.new_builds)).any()
    assert skipped(made.decide("before_compile", measured.new, NUMBERS, NONE_EXEMPT)).any()


def test_optimistic_ends_lie_above_most_of_the_truth(measured):
    skips, _ = gates(measured).decide("before_compile", measured.new, NUMBERS, NONE_EXEMPT)
    ends = [(skip.optimistic, truth) for skip, truth in zip(skips, measured.new_scores, strict=True) if skip]
    assert np.mean([end >= truth for end, truth in ends]) > 0.93


def test_what_differs_in_up_to_three_parameters_from_one_of_the_fastest_is_near(measured):
    made, history = gates(measured), measured.history
    fastest = measured.space.rows(history.indices[np.argsort(-history.scores[: made.fitted_to])[:20]])
    for name, near in (("BLK_M", True), ("DIM_X", True), ("BLK_K", True), ("BLK_N", False)):
        fastest[name] = np.full(20, -1)
        assert made.near(fastest).tolist() == [near] * 20


def test_nothing_is_skipped_that_may_be_faster_than_the_best_of_the_first_eight(measured):
    order = np.argsort(measured.history.scores, kind="stable")  # all gains are still to come
    some = history_of(measured.history.indices[order], measured.history.scores[order])
    early = float(some.scores[7])
    few, _ = gates(measured, history=some).decide("before_compile", measured.new, NUMBERS, NONE_EXEMPT)
    many, _ = gates(measured).decide("before_compile", measured.new, NUMBERS, NONE_EXEMPT)
    assert all(skip.optimistic < early for skip in few if skip)
    assert skipped((few,)).sum() < skipped((many,)).sum()


def test_of_what_is_better_than_the_best_little_is_skipped():
    """In searches that have not met the fastest group: below the best so far 37 of these 50 would be skipped."""
    found = []
    for family, number in (("mirrored", 0), ("isolated", 2)):
        space = hidden(family, number)
        search, order = search_of(space), play(search_of(space), np.exp(-space.speed), 200)
        for rows in (50, 100, 200):
            scores = space.speed[order[:rows]]
            history = history_of(order[:rows], scores)
            better = np.setdiff1d(np.flatnonzero(space.speed > scores.max()), order[:rows])
            made = Gates(search._features, Results(), search._space, 0).following(history)
            columns, exempt = search._space.rows(better), np.zeros(len(better), dtype=bool)
            found += skipped(made.decide("before_compile", columns, better, exempt)).tolist()
    assert len(found) == 50
    assert np.mean(found) <= 0.05


def test_models_stay_until_the_schedule_asks_for_more(measured):
    first = gates(measured)
    scores = measured.history.scores.copy()
    scores[-1] = scores.max() + 0.5
    again = gates(measured, history=history_of(measured.history.indices, scores), previous=first)
    assert first.fitted_to == again.fitted_to > 0
    one, other = (each.decide("before_compile", measured.new, NUMBERS, NONE_EXEMPT) for each in (first, again))
    assert one[0] == other[0]


def test_a_resumed_run_hears_the_same(measured):
    """Fitted late, with more known, the models are those that the undisturbed run carried on."""
    early, late = (history_of(measured.history.indices[:at], measured.history.scores[:at]) for at in (270, 300))
    carried = gates(measured, history=late, previous=gates(measured, history=early))
    resumed = gates(measured, history=late)
    assert carried.fitted_to == resumed.fitted_to > 0
    for gate in ("before_compile", "after_compile"):
        first, second = (
            each.decide(gate, measured.new, NUMBERS, NONE_EXEMPT, measured.new_builds) for each in (carried, resumed)
        )
        assert first[0] == second[0]
        np.testing.assert_array_equal(first[1], second[1])


def test_what_explores_is_spared_by_both_gates_and_what_the_model_proposed_by_the_first():
    sources = ["start", "random", "model", "tpe"]
    assert exempt_proposals(sources, "before_compile").tolist() == [True, True, True, False]
    assert exempt_proposals(sources, "after_compile").tolist() == [True, True, False, False]


def test_a_model_learns_from_a_bounded_number_of_rows(measured):
    from mltune.search.history import fastest_and_some

    scores = np.random.default_rng(0).normal(size=5 * MOST_ROWS)
    rows = fastest_and_some(scores, MOST_ROWS, MOST_ROWS // 5, np.random.default_rng(0))
    assert len(rows) == len(set(rows.tolist())) == MOST_ROWS
    assert set(np.argsort(-scores)[: MOST_ROWS // 5]) <= set(rows.tolist())
    few = fastest_and_some(scores[:300], MOST_ROWS, MOST_ROWS // 5, np.random.default_rng(0))
    np.testing.assert_array_equal(few, np.arange(300))
