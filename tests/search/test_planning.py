"""Proposals are valid, distinct and repeatable, and better than chance."""

import numpy as np
import pytest

from mltune.cost.encoding import Source, physical
from mltune.kernel.space import TableSpace
from mltune.records.trial import TrialRecord, TrialState
from mltune.records.trials import Trials
from mltune.search.history import Results
from mltune.search.planning import BatchPlanner, PlannerOptions


def make_planner(landscape, seed=0, prior=True, **options):
    return BatchPlanner(
        landscape.space,
        [physical(landscape.prior, landscape.columns)] if prior else [],
        seed=seed,
        **options,
    )


def learn(results, landscape, proposals, scores=None):
    """Tell results what a landscape has measured of proposals."""
    scores = landscape.scores[[proposal.index for proposal in proposals]] if scores is None else scores
    states = [TrialState.OK if np.isfinite(score) else TrialState.LAUNCH_ERROR for score in scores]
    records = [TrialRecord(0, 0, one.index, {}, state) for one, state in zip(proposals, states, strict=True)]
    results.learn(Trials.from_records(records, ()), scores)


def search(landscape, batches, seed=0, size=16, **options):
    """Run batches against the landscape; return the proposals of each."""
    planner, results = make_planner(landscape, seed, **options), Results()
    planned = []
    for batch in range(batches):
        planned.append(planner.plan(results.history(), batch, size))
        learn(results, landscape, planned[-1])
    return planned


def test_no_configuration_is_proposed_twice(landscape):
    planned = search(landscape, 12)
    indices = [proposal.index for batch in planned for proposal in batch]
    assert len(indices) == len(set(indices)) == 12 * 16
    assert all(0 <= index < landscape.space.count for index in indices)


def test_every_source_has_its_share(landscape):
    planned = search(landscape, 8, options=PlannerOptions(random=0.25))
    assert {proposal.proposed_by for proposal in planned[0]} == {"start"}
    later = [proposal.proposed_by for batch in planned[1:] for proposal in batch]
    assert set(later) == {"model", "random"}
    assert 0.1 < later.count("random") / len(later) < 0.45


@pytest.mark.system
@pytest.mark.nightly
def test_chance_has_its_share_for_ever(landscape):
    planned = search(landscape, 40)
    drawn = [proposal.proposed_by for batch in planned[20:] for proposal in batch].count("random")
    assert 1 <= drawn <= 30


def test_a_source_is_asked_once_about_each_configuration_of_the_initial_design(landscape):
    asked = []

    def expected(columns):
        asked.extend(landscape.space.index_of(columns).tolist())
        return np.log(landscape.prior(columns))

    planner = BatchPlanner(landscape.space, [Source(expected, -4.0)], seed=0, options=PlannerOptions(start_pool=100))
    planner.plan(Results().history(), 0, 16)
    assert 100 < len(asked) == len(set(asked))


def test_a_source_that_decides_chooses_first_from_all_of_a_listed_space(landscape):
    """Not from the few configurations alone that are drawn for the design."""
    wanted = landscape.space.rows(np.array([landscape.space.count // 2]))

    def expected(columns):
        return -np.sum([columns[name] != wanted[name] for name in columns], axis=0, dtype=float)

    sources = [Source(lambda columns: np.zeros(len(columns[min(columns)])), -1.0), Source(expected, -9.0, decides=True)]
    first = BatchPlanner(landscape.space, sources, seed=0, options=PlannerOptions(start_pool=20, start_rounds=0))
    assert first.plan(Results().history(), 0, 1)[0].index == landscape.space.count // 2


@pytest.mark.parametrize("prior", [True, False])
def test_the_initial_design_is_promising_and_spread_out(landscape, prior):
    planned = search(landscape, 1, prior=prior, size=8)
    design = [proposal.index for proposal in planned[0]]
    assert {proposal.proposed_by for proposal in planned[0]} == {"start"}
    columns = landscape.space.rows(np.array(design))
    assert all(len(np.unique(columns[name])) > 1 for name in ("Q", "R"))
    if prior:
        assert landscape.prior(columns).min() > np.median(landscape.prior(landscape.columns))


def test_the_initial_design_continues_while_everything_fails(landscape):
    planner, results = make_planner(landscape), Results()
    seen = []
    for batch in range(8):
        seen += planner.plan(results.history(), batch, 16)
        learn(results, landscape, seen[-16:], np.full(16, np.nan))
    assert [proposal.proposed_by for proposal in seen] == ["start"] * 96 + ["random"] * 32


def test_the_same_seed_searches_the_same(landscape):
    first = search(landscape, 5, seed=3)
    again = search(landscape, 5, seed=3)
    other = search(landscape, 5, seed=4)
    assert first == again
    assert first != other


def test_a_resumed_run_proposes_what_the_interrupted_one_would_have(landscape):
    planned = search(landscape, 6)
    results = Results()
    learn(results, landscape, [proposal for batch in planned[:5] for proposal in batch])
    assert make_planner(landscape).plan(results.history(), 5, 16) == planned[5]


def test_a_space_is_searched_to_its_end_and_no_further(landscape):
    some = np.arange(0, landscape.space.count, 90)
    space = TableSpace({name: column[some] for name, column in landscape.columns.items()})
    planner = BatchPlanner(space, [physical(landscape.prior, landscape.columns)], seed=0)
    results, tried = Results(), []
    while proposals := planner.plan(results.history(), len(tried), 16):
        learn(results, landscape, proposals, np.array([float(one.index) for one in proposals]))
        tried += [one.index for one in proposals]
    assert sorted(tried) == list(range(space.count))


def test_running_configurations_are_not_proposed_again(landscape):
    planner, results = make_planner(landscape), Results()
    running = {proposal.index for proposal in planner.plan(results.history(), 0, 10)}
    planned = planner.plan(results.history(sorted(running)), 0, 40)
    assert not running & {proposal.index for proposal in planned}


@pytest.mark.parametrize("listed", [50_000, 0])
def test_finds_the_top_much_sooner_than_chance(landscape, listed):
    ranked = np.sort(landscape.scores[np.isfinite(landscape.scores)])[::-1]
    found = []
    for seed in range(3):
        planned = search(landscape, 6, seed=seed, prior=False, options=PlannerOptions(listed=listed))
        found.append(np.nanmax(landscape.scores[[proposal.index for batch in planned for proposal in batch]]))
    # The best of 96 random draws is about the 33rd of those that run.
    assert np.median(found) >= ranked[5]


def test_failures_are_learned(landscape):
    searches = [search(landscape, 14, seed=seed, prior=False) for seed in range(3)]
    batches = [batch for planned in searches for batch in planned[8:]]
    late = [proposal.index for batch in batches for proposal in batch if proposal.proposed_by == "model"]
    assert np.isnan(landscape.scores[late]).mean() < 0.5 * np.isnan(landscape.scores).mean()
