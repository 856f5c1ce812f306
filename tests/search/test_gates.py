"""Gates decide the same whenever they are used, exempt exploring proposals, and audit a share of the skips."""

from types import SimpleNamespace

import numpy as np
import pytest
from hidden_optima import hidden, play, search_of

from mltune.cost.features import Features
from mltune.dataset.dataset import load_dataset
from mltune.device.known import H200
from mltune.kernel.placed import PlacedKernel
from mltune.kernel.reader import load_kernel
from mltune.kernel.space import TableSpace
from mltune.problem.gemm import GemmProblem
from mltune.records.trial import Build, TrialRecord, TrialState
from mltune.records.trials import Trials
from mltune.search.gates import MOST_ROWS, Gates
from mltune.search.history import History, Results

PROBLEM = GemmProblem("s", "N", "T", 4096, 4096, 4096)


def history_of(indices, scores):
    nothing = np.empty(0, dtype=np.int64)
    return History(indices, scores, nothing, np.empty(0), nothing, nothing, set(indices.tolist()))


@pytest.fixture(scope="module")
def measured():
    """Return 700 measured configurations of the stencil whose speed is the physical prior's, dimmed by spills."""
    kernel = load_kernel("gemm_simt")
    features = Features(PlacedKernel(kernel, PROBLEM, H200))
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


def decided(made, measured, exempt=NONE_EXEMPT):
    return made.decide(measured.new, NUMBERS, exempt, measured.new_builds)


def test_the_gate_after_compiling_skips_and_is_not_wrong(measured):
    better = measured.new_scores > np.nanmax(measured.history.scores)
    after = skipped(decided(gates(measured), measured))
    assert after.mean() > 0.3
    assert after[measured.spills].mean() > after[~measured.spills].mean()
    assert not (better & after).any()


def test_before_compiling_the_fastest_of_the_proposals_are_kept_and_a_few_of_the_others(measured):
    kept, audited = gates(measured).screen(measured.new, 200, np.random.default_rng(0))
    drawn = np.array([skip is not None for skip in audited])

    assert len(kept) == len(audited) == 200
    assert np.all(np.diff(kept) > 0), "in the order of the proposals"
    assert 0 < drawn.sum() < 0.1 * 500
    fastest = np.argsort(-measured.new_scores)[:20]
    assert np.isin(fastest, kept[~drawn]).mean() > 0.9
    left = np.setdiff1d(np.arange(700), kept)
    assert np.median(measured.new_scores[kept[~drawn]]) > np.median(measured.new_scores[left]) + 0.2
    assert {skip.gate for skip in audited if skip} == {"before_compile"}
    assert all(skip is None or skip.optimistic > skip.predicted for skip in audited)


def test_what_is_wanted_is_kept_whole_and_at_most_half_of_it_for_the_audit(measured):
    screening = gates(measured)  # whose model is fitted once
    everything, nothing = screening.screen(measured.new, 700, np.random.default_rng(0))
    assert everything.tolist() == list(range(700))
    assert nothing == [None] * 700
    for seed in range(20):
        kept, audited = screening.screen(measured.new, 2, np.random.default_rng(seed))
        assert len(kept) == 2
        assert sum(skip is not None for skip in audited) <= 1


@pytest.mark.parametrize("known", [None, 0, 23])
def test_while_little_is_known_nothing_is_skipped(measured, known):
    history = None if known is None else history_of(measured.history.indices[:known], measured.history.scores[:known])
    made = gates(measured, history=history)
    assert decided(made, measured)[0] == [None] * 700
    assert not made.screens


def test_while_everything_fails_nothing_is_skipped(measured):
    made = gates(measured, history=history_of(measured.history.indices[:60], np.full(60, np.nan)))
    assert not skipped(decided(made, measured)).any()
    assert not made.screens


def test_without_builds_there_is_no_gate_after_compiling(measured):
    made = gates(measured, results=Results())
    assert not skipped(decided(made, measured)).any()
    assert made.screens


def test_optimistic_ends_lie_above_most_of_the_truth(measured):
    skips, _ = decided(gates(measured), measured)
    ends = [(skip.optimistic, truth) for skip, truth in zip(skips, measured.new_scores, strict=True) if skip]
    assert np.mean([end >= truth for end, truth in ends]) > 0.93


def test_what_explores_is_exempt_and_the_audit_draws_from_the_skipped(measured):
    exempt = np.arange(700) % 2 == 0
    skips, audited = decided(gates(measured), measured, exempt)
    was_skipped = skipped((skips,))
    assert not was_skipped[exempt].any()
    assert not audited[~was_skipped].any()
    assert 0 < audited.sum() < 0.15 * was_skipped.sum()


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
    few, _ = decided(gates(measured, history=some), measured)
    many, _ = decided(gates(measured), measured)
    assert all(skip.optimistic < early for skip in few if skip)
    assert skipped((few,)).sum() < skipped((many,)).sum()


def test_of_what_is_better_than_the_best_little_is_skipped():
    """In searches that have not met the fastest group: below the best so far most of these 40 would be skipped."""
    found = []
    for family, number in (("mirrored", 0), ("isolated", 2)):
        space = hidden(family, number)
        search, order = search_of(space), play(search_of(space, skip=False), np.exp(-space.speed), 200)
        for rows in (50, 100, 200):
            scores = space.speed[order[:rows]]
            history = history_of(order[:rows], scores)
            better = np.setdiff1d(np.flatnonzero(space.speed > scores.max()), order[:rows])
            built, results = Build(TrialState.OK, registers=32), Results()  # the compiler's report says nothing
            records = [
                TrialRecord(at, 0, index, {}, TrialState.OK, build=built) for at, index in enumerate(order[:rows])
            ]
            results.learn(Trials.from_records(records, ()), scores)
            made = Gates(search.features, results, search.space, 0).following(history)
            columns, exempt = search.space.rows(better), np.zeros(len(better), dtype=bool)
            found += skipped(made.decide(columns, better, exempt, [built] * len(better))).tolist()
    assert len(found) == 40
    assert np.mean(found) <= 0.05


def test_models_stay_until_the_schedule_asks_for_more(measured):
    first = gates(measured)
    scores = measured.history.scores.copy()
    scores[-1] = scores.max() + 0.5
    again = gates(measured, history=history_of(measured.history.indices, scores), previous=first)
    assert first.fitted_to == again.fitted_to > 0
    one, other = (decided(each, measured) for each in (first, again))
    assert one[0] == other[0]


def test_a_resumed_run_hears_the_same(measured):
    """Fitted late, with more known, the models are those that the undisturbed run carried on."""
    early, late = (history_of(measured.history.indices[:at], measured.history.scores[:at]) for at in (270, 300))
    carried = gates(measured, history=late, previous=gates(measured, history=early))
    resumed = gates(measured, history=late)
    assert carried.fitted_to == resumed.fitted_to > 0
    first, second = (decided(each, measured) for each in (carried, resumed))
    assert first[0] == second[0]
    np.testing.assert_array_equal(first[1], second[1])
    first, second = (each.screen(measured.new, 200, np.random.default_rng(0)) for each in (carried, resumed))
    assert first[1] == second[1]
    np.testing.assert_array_equal(first[0], second[0])


def test_a_model_learns_from_a_bounded_number_of_rows(measured):
    from mltune.search.history import fastest_and_some

    scores = np.random.default_rng(0).normal(size=5 * MOST_ROWS)
    rows = fastest_and_some(scores, MOST_ROWS, MOST_ROWS // 5, np.random.default_rng(0))
    assert len(rows) == len(set(rows.tolist())) == MOST_ROWS
    assert set(np.argsort(-scores)[: MOST_ROWS // 5]) <= set(rows.tolist())
    few = fastest_and_some(scores[:300], MOST_ROWS, MOST_ROWS // 5, np.random.default_rng(0))
    np.testing.assert_array_equal(few, np.arange(300))
