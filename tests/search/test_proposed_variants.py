"""The search tries other compiler parameters on the best configurations, and proposes with those of the best."""

import itertools

import numpy as np

from mltune.cost.encoding import Source
from mltune.kernel.space import TableSpace
from mltune.search.history import Results
from mltune.search.planning import BatchPlanner
from tests.search.test_planning import learn

SLOW, FAST = (0, 0), (1, 2)


VALUES = {"S": (0, 1), "U": (0, 1, 2)}


def searched(landscape, batches, gain, varied=VALUES, size=16, loss=0.0):
    """Search with S and U as parameters of the compiler; a gain is that of S = 1, U = 2, and a loss that of S = 1."""
    columns = landscape.columns
    scores = -0.1 * np.abs(np.log2(columns["P"]) - 3) - 0.01 * columns["R"] - 0.1 * columns["T"]
    scores = scores + gain * ((columns["S"] == 1) & (columns["U"] == 2)) - loss * (columns["S"] == 1)
    planner = BatchPlanner(landscape.space, seed=0, varied=varied)
    results, planned = Results(), []
    for batch in range(batches):
        proposals = planner.plan(results.history(), batch, size)
        learn(results, landscape, proposals, scores[[one.index for one in proposals]])
        planned.append(proposals)
    return planned, scores


def variants(landscape, proposals):
    rows = landscape.space.rows(np.array([one.index for one in proposals], dtype=np.int64))
    return list(zip(rows["S"].tolist(), rows["U"].tolist(), strict=True))


def test_the_initial_design_has_their_defaults(landscape):
    planned, _ = searched(landscape, 1, 0.2)
    assert set(variants(landscape, planned[0])) == {SLOW}


def test_the_default_need_not_be_the_lowest_value(landscape):
    planned, _ = searched(landscape, 1, 0.2, varied={"S": (1, 0), "U": (2, 0, 1)})
    assert set(variants(landscape, planned[0])) == {FAST}


def test_a_source_is_not_asked_about_no_configurations():
    space = TableSpace({"P": np.array([1, 1]), "S": np.array([0, 1])})

    def expected(columns):
        assert len(columns["P"]), "a regressor refuses to predict nothing"
        return -1.0 * columns["P"]

    planner = BatchPlanner(space, [Source(expected, -4.0)], seed=0, varied={"S": (0, 1)})
    assert len(planner.plan(Results().history(), 0, 8)) > 0


def test_a_recording_need_not_have_all_combinations(landscape):
    columns = {name: column[::7] for name, column in landscape.columns.items()}
    space, results, tried = TableSpace(columns), Results(), set()
    planner = BatchPlanner(space, seed=0, varied=VALUES)
    for batch in itertools.count():
        proposals = planner.plan(results.history(), batch, 64)
        if not proposals:
            break
        learn(results, landscape, proposals, -columns["P"][[one.index for one in proposals]].astype(float))
        tried |= {one.index for one in proposals}
    others = np.stack([column for name, column in columns.items() if name not in VALUES])
    _, variant_of, count = np.unique(others, axis=1, return_inverse=True, return_counts=True)
    assert set(np.flatnonzero(count[variant_of] == 1).tolist()) <= tried <= set(range(space.count))


def test_the_best_are_tried_with_all_others_a_few_in_each_batch(landscape):
    planned, scores = searched(landscape, 3, 0.2)
    best = max(planned[0], key=lambda one: scores[one.index]).index
    tried = [one for one in planned[1] if one.proposed_by == "variant"]
    assert len(tried) == 4
    assert planned[1][:4] == tried
    others = {name: column[best] for name, column in landscape.columns.items() if name not in "SU"}
    rows = landscape.space.rows(np.array([one.index for one in tried]))
    assert all((rows[name] == value).all() for name, value in others.items())
    assert SLOW not in variants(landscape, tried)


def test_they_are_a_quarter_of_a_small_batch(landscape):
    planned, _ = searched(landscape, 6, 0.2, size=8)
    assert {sum(one.proposed_by == "variant" for one in batch) for batch in planned[1:]} == {2}


def test_values_that_are_slower_three_times_are_not_tried_again(landscape):
    def tried(loss):
        planned, _ = searched(landscape, 16, 0.0, varied={"S": (0, 1)}, loss=loss)
        return [sum(one.proposed_by == "variant" for one in batch) for batch in planned]

    assert 3 <= sum(tried(0.02)) <= 4
    assert not any(tried(0.02)[2:])
    assert sum(tried(0.005)) > sum(tried(0.02))  # that may be noise


def test_proposals_follow_the_best(landscape):
    planned, scores = searched(landscape, 12, 0.2)
    by_model = [one for one in planned[-1] if one.proposed_by == "model"]
    assert set(variants(landscape, by_model)) == {FAST}
    best = max((one for batch in planned for one in batch), key=lambda one: scores[one.index])
    assert scores[best.index] >= np.quantile(scores, 0.999)


def test_where_they_are_slower_only_the_best_are_tried(landscape):
    planned, _ = searched(landscape, 12, -0.5)
    for batch in planned:
        assert set(variants(landscape, [one for one in batch if one.proposed_by != "variant"])) <= {
            SLOW,
            (0, 1),
            (0, 2),
            (1, 0),
            (1, 1),
        }
        assert sum(one.proposed_by == "variant" for one in batch) <= 4
    measured = [one for batch in planned for one in batch]
    assert sum(one == FAST for one in variants(landscape, measured)) < 0.1 * len(measured)


def test_no_random_configuration_has_other_parameters_than_the_best(landscape):
    planned, _ = searched(landscape, 30, 0.2)
    drawn = [one for batch in planned[12:] for one in batch if one.proposed_by == "random"]
    assert drawn
    assert set(variants(landscape, drawn)) == {FAST}


def test_the_search_ends_when_all_are_tried_with_the_fastest(landscape):
    small = landscape.space.count // 6
    planned, _ = searched(landscape, 40, 0.0, size=96)
    tried = [one.index for batch in planned for one in batch]
    assert len(set(tried)) == len(tried)
    assert not planned[-1]
    assert small <= len(tried) < landscape.space.count


def test_without_parameters_of_the_compiler_nothing_changes(landscape):
    planned, _ = searched(landscape, 4, 0.2, varied={})
    assert not [one for batch in planned for one in batch if one.proposed_by == "variant"]
