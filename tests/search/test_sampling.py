"""Proposals are valid, distinct and repeatable, and better than chance."""

import numpy as np
import optuna
import pytest
from endings import add_ended

from mltune.cost.encoding import physical
from mltune.errors import SpaceError
from mltune.kernel.space import TableSpace
from mltune.records.trial import TrialRecord, TrialState
from mltune.search.history import tell
from mltune.search.sampling import BatchSampler, SamplerOptions


def make_sampler(landscape, seed=0, prior=True, **options):
    return BatchSampler(
        landscape.space,
        [physical(landscape.prior, landscape.columns)] if prior else [],
        seed=seed,
        **options,
    )


def ended(landscape, index):
    score = landscape.scores[index]
    state = TrialState.OK if np.isfinite(score) else TrialState.LAUNCH_ERROR
    configuration = {name: int(column[index]) for name, column in landscape.columns.items()}
    return TrialRecord(index, 0, index, configuration, state), float(score) if np.isfinite(score) else None


def search(landscape, batches, seed=0, size=16, **options):
    """Run batches against the landscape; return the proposals of each and the study."""
    sampler = make_sampler(landscape, seed, **options)
    study = optuna.create_study(direction="maximize", sampler=sampler)
    planned = []
    for batch in range(batches):
        planned.append(sampler.plan(study, batch, size))
        for proposal in planned[-1]:
            record, score = ended(landscape, proposal.index)
            add_ended(study, sampler.distributions, record, score)
    return planned, study


def test_no_configuration_is_proposed_twice(landscape):
    planned, _ = search(landscape, 12)
    indices = [proposal.index for batch in planned for proposal in batch]
    assert len(indices) == len(set(indices)) == 12 * 16
    assert all(0 <= index < landscape.space.count for index in indices)


def test_every_source_has_its_share(landscape):
    planned, _ = search(landscape, 8, options=SamplerOptions(random=0.25))
    assert {proposal.proposed_by for proposal in planned[0]} == {"start"}
    later = [proposal.proposed_by for batch in planned[1:] for proposal in batch]
    assert set(later) == {"model", "random"}
    assert 0.1 < later.count("random") / len(later) < 0.45


def test_chance_has_its_share_for_ever(landscape):
    planned, _ = search(landscape, 40)
    drawn = [proposal.proposed_by for batch in planned[20:] for proposal in batch].count("random")
    assert 1 <= drawn <= 30


@pytest.mark.parametrize("prior", [True, False])
def test_the_initial_design_is_promising_and_spread_out(landscape, prior):
    planned, _ = search(landscape, 1, prior=prior, size=8)
    design = [proposal.index for proposal in planned[0]]
    assert {proposal.proposed_by for proposal in planned[0]} == {"start"}
    columns = landscape.space.rows(np.array(design))
    assert all(len(np.unique(columns[name])) > 1 for name in ("Q", "R"))
    if prior:
        assert landscape.prior(columns).min() > np.median(landscape.prior(landscape.columns))


def test_the_initial_design_continues_while_everything_fails(landscape):
    sampler = make_sampler(landscape)
    study = optuna.create_study(direction="maximize", sampler=sampler)
    seen = []
    for batch in range(8):
        seen.append(sampler.plan(study, batch, 16))
        for proposal in seen[-1]:
            record = TrialRecord(
                0, 0, proposal.index, ended(landscape, proposal.index)[0].configuration, TrialState.CRASHED
            )
            add_ended(study, sampler.distributions, record, None)
    kinds = [proposal.proposed_by for batch in seen for proposal in batch]
    assert kinds == ["start"] * 96 + ["random"] * 32


def test_the_same_seed_searches_the_same(landscape):
    first, _ = search(landscape, 5, seed=3)
    again, _ = search(landscape, 5, seed=3)
    other, _ = search(landscape, 5, seed=4)
    assert first == again
    assert first != other


def test_a_resumed_run_proposes_what_the_interrupted_one_would_have(landscape):
    planned, _ = search(landscape, 6)
    sampler = make_sampler(landscape)
    study = optuna.create_study(direction="maximize", sampler=sampler)
    for proposal in [proposal for batch in planned[:5] for proposal in batch]:
        record, score = ended(landscape, proposal.index)
        add_ended(study, sampler.distributions, record, score)
    assert sampler.plan(study, 5, 16) == planned[5]


def test_a_space_is_searched_to_its_end_and_no_further(landscape):
    some = np.arange(0, landscape.space.count, 90)
    space = TableSpace({name: column[some] for name, column in landscape.columns.items()})
    sampler = BatchSampler(space, [physical(landscape.prior, landscape.columns)], seed=0)
    study = optuna.create_study(direction="maximize", sampler=sampler)
    tried = []
    while proposals := sampler.plan(study, len(tried), 16):
        sampler.enqueue(proposals)
        for proposal in proposals:
            study.tell(study.ask(sampler.distributions), float(proposal.index))
            tried.append(proposal.index)
    assert sorted(tried) == list(range(space.count))
    with pytest.raises(SpaceError, match="none is left"):
        study.ask(sampler.distributions)


def test_optuna_gets_the_planned_proposals(landscape):
    sampler = make_sampler(landscape)
    study = optuna.create_study(direction="maximize", sampler=sampler)
    planned = sampler.plan(study, 0, 16)
    sampler.enqueue(planned)
    for expected in planned:
        trial = study.ask(sampler.distributions)
        assert trial.params == ended(landscape, expected.index)[0].configuration
        tell(study, trial, *ended(landscape, expected.index))


def test_running_configurations_are_not_proposed_again(landscape):
    sampler = make_sampler(landscape)
    study = optuna.create_study(direction="maximize", sampler=sampler)
    running = sampler.plan(study, 0, 10)
    sampler.enqueue(running)
    for _ in running:
        study.ask(sampler.distributions)
    planned = sampler.plan(study, 0, 40)
    assert not {proposal.index for proposal in running} & {proposal.index for proposal in planned}


def test_parameters_are_not_asked_for_one_by_one(landscape):
    sampler = make_sampler(landscape)
    study = optuna.create_study(direction="maximize", sampler=sampler)
    sampler.enqueue(sampler.plan(study, 0, 1))
    trial = study.ask()
    with pytest.raises(ValueError, match="whole configurations"):
        trial.suggest_int("Z", 0, 1)


def test_the_history_is_available_to_the_gates(landscape):
    sampler = make_sampler(landscape)
    study = optuna.create_study(direction="maximize", sampler=sampler)
    assert sampler.history is None
    for index in range(0, 3600, 50):
        add_ended(study, sampler.distributions, *ended(landscape, index))
    sampler.plan(study, 1, 16)
    assert sampler.history.scores.shape == (72,)


@pytest.mark.parametrize("listed", [50_000, 0])
def test_finds_the_top_much_sooner_than_chance(landscape, listed):
    ranked = np.sort(landscape.scores[np.isfinite(landscape.scores)])[::-1]
    found = []
    for seed in range(3):
        planned, _ = search(landscape, 6, seed=seed, prior=False, options=SamplerOptions(listed=listed))
        found.append(np.nanmax(landscape.scores[[proposal.index for batch in planned for proposal in batch]]))
    # The best of 96 random draws is about the 33rd of those that run.
    assert np.median(found) >= ranked[5]


def test_failures_are_learned(landscape):
    searches = [search(landscape, 14, seed=seed, prior=False)[0] for seed in range(3)]
    batches = [batch for planned in searches for batch in planned[8:]]
    late = [proposal.index for batch in batches for proposal in batch if proposal.proposed_by == "model"]
    assert np.isnan(landscape.scores[late]).mean() < 0.5 * np.isnan(landscape.scores).mean()
