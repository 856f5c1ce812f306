"""A judgement says the same whenever it is asked, exempts what explores, and sends its share to the audit."""

from types import SimpleNamespace

import numpy as np
import pytest

from mltune.device.known import H200
from mltune.kernel.bundle import device_variables
from mltune.kernel.reader import load_kernel
from mltune.kernel.space import ConstrainedSpace
from mltune.learn.features import Features
from mltune.learn.gates import MOST_ROWS, Gates, spared
from mltune.learn.history import History
from mltune.problem.gemm import GemmProblem
from mltune.records.trial import Build, TrialState

PROBLEM = GemmProblem("s", "N", "T", 4096, 4096, 4096)


def history_of(indices, scores):
    nothing = np.empty(0, dtype=np.int64)
    return History(indices, scores, nothing, np.empty(0), nothing, set(indices.tolist()))


@pytest.fixture(scope="module")
def bench():
    """Return 700 measured configurations of the stencil whose speed is the physical prior's, dimmed by spills."""
    kernel = load_kernel("gemm_simt")
    features = Features(kernel, PROBLEM, H200)
    space = ConstrainedSpace(kernel, PROBLEM.variables() | device_variables(H200))
    rng = np.random.default_rng(0)
    indices = space.sample(1400, rng)
    columns = space.rows(indices)
    spills = rng.random(1400) < 0.3
    scores = np.log(np.maximum(features.prior(columns), 0.01)) - 0.5 * spills + rng.normal(0, 0.01, 1400)
    builds = {
        int(index): Build(TrialState.OK, registers=100, spill_bytes=int(64 * spilled), code_bytes=5000)
        for index, spilled in zip(indices, spills, strict=True)
    }
    known = np.argsort(indices[:700])
    history = history_of(indices[:700][known], scores[:700][known])
    return SimpleNamespace(
        features=features,
        space=space,
        history=history,
        builds=builds,
        new=space.rows(indices[700:]),
        new_builds=[builds[int(index)] for index in indices[700:]],
        new_scores=scores[700:],
        spills=spills[700:],
    )


def judgement(bench, seed=0, **changes):
    given = {"history": bench.history, "builds": bench.builds, "previous": None, **changes}
    return Gates(bench.features, given["history"], given["builds"], bench.space, seed, given["previous"])


NUMBERS = range(700)
NONE_EXEMPT = np.zeros(700, dtype=bool)


def skipped(verdicts):
    return np.array([skip is not None for skip in verdicts[0]])


def test_both_gates_skip_and_are_not_wrong(bench):
    judged = judgement(bench)
    better = bench.new_scores > np.nanmax(bench.history.scores)
    before = skipped(judged.before(bench.new, NUMBERS, NONE_EXEMPT))
    after = skipped(judged.after(bench.new, bench.new_builds, NUMBERS, NONE_EXEMPT))
    assert before.mean() > 0.3
    assert after.mean() > before.mean()
    assert after[bench.spills].mean() > before[bench.spills].mean()
    assert not (better & (before | after)).any()


@pytest.mark.parametrize("known", [None, 0, 23])
def test_while_little_is_known_nothing_is_skipped(bench, known):
    history = None if known is None else history_of(bench.history.indices[:known], bench.history.scores[:known])
    judged = judgement(bench, history=history)
    assert not judged.is_fresh
    assert judged.before(bench.new, NUMBERS, NONE_EXEMPT)[0] == [None] * 700
    assert judged.optimistic(bench.new) is None


def test_while_everything_fails_nothing_is_skipped(bench):
    judged = judgement(bench, history=history_of(bench.history.indices[:60], np.full(60, np.nan)))
    assert not skipped(judged.before(bench.new, NUMBERS, NONE_EXEMPT)).any()
    assert judged.optimistic(bench.new) is None


def test_without_builds_there_is_no_gate_after_compiling(bench):
    judged = judgement(bench, builds={})
    assert not skipped(judged.after(bench.new, bench.new_builds, NUMBERS, NONE_EXEMPT)).any()
    assert skipped(judged.before(bench.new, NUMBERS, NONE_EXEMPT)).any()


def test_optimistic_ends_lie_above_most_of_the_truth(bench):
    ends = judgement(bench).optimistic(bench.new)
    assert np.mean(ends >= bench.new_scores) > 0.93


def test_what_explores_is_exempt_and_the_audit_draws_from_the_skipped(bench):
    exempt = np.arange(700) % 2 == 0
    skips, audited = judgement(bench).before(bench.new, NUMBERS, exempt)
    was_skipped = skipped((skips,))
    assert not was_skipped[exempt].any()
    assert not audited[~was_skipped].any()
    assert 0 < audited.sum() < 0.15 * was_skipped.sum()


def test_the_verdict_hangs_on_the_configuration_and_its_number_alone(bench):
    some = {name: column[300:] for name, column in bench.new.items()}
    whole = judgement(bench).before(bench.new, NUMBERS, NONE_EXEMPT)
    part = judgement(bench).before(some, range(300, 700), np.zeros(400, dtype=bool))
    assert whole[0][300:] == part[0]
    np.testing.assert_array_equal(whole[1][300:], part[1])


def test_models_stay_until_the_schedule_asks_for_more_but_the_best_is_the_latest(bench):
    first = judgement(bench)
    scores = bench.history.scores.copy()
    scores[-1] = scores.max() + 0.5
    again = judgement(bench, history=history_of(bench.history.indices, scores), builds={}, previous=first)
    assert first.is_fresh
    assert not again.is_fresh
    np.testing.assert_array_equal(again.optimistic(bench.new), first.optimistic(bench.new))
    many, few = (skipped(each.before(bench.new, NUMBERS, NONE_EXEMPT)).sum() for each in (again, first))
    assert many > few


def test_a_resumed_run_hears_the_same(bench):
    """Fitted late, with more known, the models are those that the undisturbed run carried on."""
    early, late = (history_of(bench.history.indices[:at], bench.history.scores[:at]) for at in (270, 300))
    carried = judgement(bench, history=late, previous=judgement(bench, history=early))
    resumed = judgement(bench, history=late)
    assert not carried.is_fresh
    assert resumed.is_fresh
    for gate in ("before", "after"):
        builds = (bench.new_builds,) if gate == "after" else ()
        first, second = (getattr(each, gate)(bench.new, *builds, NUMBERS, NONE_EXEMPT) for each in (carried, resumed))
        assert first[0] == second[0]
        np.testing.assert_array_equal(first[1], second[1])


def test_what_explores_is_spared_by_both_gates_and_what_the_model_proposed_by_the_first():
    sources = ["start", "random", "model", "tpe"]
    assert spared(sources, "before_compile").tolist() == [True, True, True, False]
    assert spared(sources, "after_compile").tolist() == [True, True, False, False]


def test_a_model_learns_from_a_bounded_number_of_rows(bench):
    from mltune.learn.history import fastest_and_some

    scores = np.random.default_rng(0).normal(size=5 * MOST_ROWS)
    rows = fastest_and_some(scores, MOST_ROWS, MOST_ROWS // 5, np.random.default_rng(0))
    assert len(rows) == len(set(rows.tolist())) == MOST_ROWS
    assert set(np.argsort(-scores)[: MOST_ROWS // 5]) <= set(rows.tolist())
    few = fastest_and_some(scores[:300], MOST_ROWS, MOST_ROWS // 5, np.random.default_rng(0))
    np.testing.assert_array_equal(few, np.arange(300))
