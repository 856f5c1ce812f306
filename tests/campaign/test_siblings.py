"""Problems of one campaign that start from what the others have found, without a wisdom."""

import pytest

from mltune.campaign.campaign import CampaignSettings
from mltune.records.store import Store
from mltune.results.reader import read_run
from tests.campaign.conftest import SIMPLE, carry_out, events_of, kill, records_of, start, stored_trials, wait_until

PLAN = """
[plan]
title = "The same case at two sizes"
budget = "96 trials"
minimum = "32 trials"
produce = ["winners"]

[[problems]]                        # all configurations of the first are recorded for the second
datasets = ["h200-sgemm-nt-1024-random", "h200-sgemm-nt-4096-random"]
"""
FIRST, SECOND = "h200-sgemm-nt-1024-random", "h200-sgemm-nt-4096-random"


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    return carry_out(PLAN, tmp_path_factory.mktemp("siblings") / "campaign").directory


def known(directory):
    """Return the configurations that each problem was given, as its store records them."""
    found = {}
    for slug in (FIRST, SECOND):
        with Store.read_only(directory / "problems" / slug) as store:
            found[slug] = store.documents().get("wisdom") or []
    return found


def test_the_second_problem_measures_the_winner_of_the_first_before_all_else(uninterrupted):
    """The winner is that of the first time slice: the problem has another one after the second has begun."""
    after_its_slice = read_run(uninterrupted / "problems" / FIRST).records.take(slice(0, 32))
    first = records_of(uninterrupted)[SECOND][0]

    assert first.proposed_by == "wisdom"
    assert first.configuration == after_its_slice.fastest(1)[0].configuration
    assert known(uninterrupted) == {FIRST: [], SECOND: [dict(first.configuration)]}
    assert "wisdom" not in {one.proposed_by for one in records_of(uninterrupted)[FIRST]}


def test_the_event_log_says_where_it_comes_from(uninterrupted):
    (told,) = (event for event in events_of(uninterrupted) if event["event"] == "wisdom")
    assert (told["slug"], told["detail"]) == (SECOND, "the nearest size, sgemm NT 1024")


@pytest.mark.parametrize("trials", [40, *(pytest.param(one, marks=pytest.mark.slow) for one in (20, 70))])
@pytest.mark.slow
def test_a_campaign_that_is_killed_and_resumed_proposes_the_same(trials, uninterrupted, tmp_path):
    process = start(tmp_path, PLAN)
    assert wait_until(lambda: stored_trials(tmp_path) >= trials)
    kill(process)

    carry_out(PLAN, tmp_path)

    assert known(tmp_path) == known(uninterrupted)
    assert records_of(tmp_path) == records_of(uninterrupted)


def test_it_can_be_switched_off(tmp_path):
    carry_out(PLAN.replace("96 trials", "64 trials") + SIMPLE, tmp_path, settings=CampaignSettings(siblings=False))
    assert known(tmp_path) == {FIRST: [], SECOND: []}


def test_a_sibling_that_cannot_be_read_is_left_out(uninterrupted, tmp_path):
    store = tmp_path / "problems" / FIRST / "run.sqlite"
    store.parent.mkdir(parents=True)
    store.write_bytes((uninterrupted / "problems" / FIRST / "run.sqlite").read_bytes()[:5000])

    result = carry_out(PLAN.replace("96 trials", "64 trials") + SIMPLE, tmp_path)

    assert set(result.failed) == {FIRST}
    assert len(records_of(tmp_path, without=FIRST)[SECOND]) >= 32


def test_the_same_problem_on_another_gpu_of_the_architecture(tmp_path):
    plan = PLAN.replace(FIRST, "convolution_rtx_a4000").replace(SECOND, "convolution_rtx_a6000")
    carry_out(plan.replace("96 trials", "64 trials") + SIMPLE, tmp_path)

    (told,) = (event for event in events_of(tmp_path) if event["event"] == "wisdom")
    assert told["detail"] == "the same problem, from a NVIDIA RTX A4000 with 48 multiprocessors"
