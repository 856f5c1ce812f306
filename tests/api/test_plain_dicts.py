"""The search over a plain dict of parameters."""

import math

import pytest

import mltune
from mltune.errors import SpaceError, UsageError

PARAMETERS = {"block": [16, 32, 64, 128], "unroll": [1, 2, 4], "order": ["row", "column"], "pad": [True, False]}
RESTRICTIONS = ["block * unroll <= 256", lambda configuration: configuration["order"] == "row" or configuration["pad"]]


def time_of(configuration):
    """Return a time in seconds; None where it fails."""
    if configuration["block"] == 128:
        return None
    return 1e-3 * (1 + abs(math.log2(configuration["block"]) - 6) + configuration["unroll"] + configuration["pad"])


def carry_out(search, trials, width=1):
    proposed = []
    while len(proposed) < trials and (configurations := search.ask(width)):
        proposed += configurations
        for configuration in reversed(configurations):
            search.tell(configuration, time_of(configuration))
    return proposed


def test_it_asks_and_is_told_in_plain_dicts():
    search = mltune.Search(PARAMETERS, RESTRICTIONS)
    proposed = carry_out(search, 100, 3)
    assert len(proposed) == len(search) == len(search.results)
    for one in proposed:
        assert list(one) == list(PARAMETERS)
        assert one["block"] * one["unroll"] <= 256
        assert one["order"] == "row" or one["pad"]
    assert len({tuple(one.values()) for one in proposed}) == len(proposed)
    assert search.best == {"block": 64, "unroll": 1, "order": "row", "pad": False}
    assert search.best_result == time_of(search.best)
    assert search.ask() is None
    assert search.ask(2) == []


def test_the_same_seed_proposes_the_same():
    runs = [carry_out(mltune.Search(PARAMETERS, seed=seed), 12) for seed in (3, 3, 4)]
    assert runs[0] == runs[1] != runs[2]


def test_it_learns_what_it_did_not_propose_and_larger_may_be_better():
    search = mltune.Search(PARAMETERS, maximise=True, scale="symlog")
    assert search.best is search.best_result is None
    own = {"pad": True, "block": 32, "unroll": 2, "order": "row"}
    search.tell(own, 5.0)
    search.tell({**own, "block": 64}, None)
    search.tell({**own, "block": 16}, -5.0)
    assert search.best == own
    assert own not in search.ask(50)


@pytest.mark.parametrize("wrong", [{"block": 17}, {"block": None}, {"other": 1}])
def test_a_result_of_no_configuration_is_refused(wrong):
    search = mltune.Search(PARAMETERS)
    with pytest.raises(UsageError, match="no configuration of this search: it has values of block, unroll, order, pad"):
        search.tell({**search.ask(), **wrong}, 1.0)
    with pytest.raises(UsageError, match="no configuration of this search"):
        search.tell({"block": 16}, 1.0)


def test_one_configuration_is_a_dict_and_several_are_a_list():
    single, listed = (mltune.Search(PARAMETERS, seed=5) for _ in range(2))
    for _ in range(6):
        configuration = single.ask()
        assert [configuration] == listed.ask(1)
        single.tell(configuration, time_of(configuration))
        listed.tell([configuration], [time_of(configuration)])
    pair = listed.ask(2)
    listed.tell(pair, list(map(time_of, pair)))
    assert len(listed.results) == 8
    with pytest.raises(UsageError, match="1 results of 2 configurations"):
        listed.tell(pair, [1.0])


@pytest.mark.parametrize("result", [0.0, -1e-3])
def test_a_result_that_has_no_logarithm_is_refused(result):
    search = mltune.Search(PARAMETERS)
    configuration = search.ask()
    with pytest.raises(UsageError, match=r"on a logarithmic scale it is positive.*scale='symlog'"):
        search.tell(configuration, result)
    assert not search.results
    search.tell(configuration, math.inf)
    assert search.best is None


def test_other_scales_and_restrictions_that_are_a_text_are_refused():
    with pytest.raises(UsageError, match=r"scale cannot be 'linear': .* take 'symlog'"):
        mltune.Search(PARAMETERS, scale="linear")
    with pytest.raises(UsageError, match=r"write \['block > 1'\]"):
        mltune.Search(PARAMETERS, "block > 1")


def test_a_search_needs_a_configuration():
    with pytest.raises(SpaceError, match="no configuration satisfies"):
        mltune.Search(PARAMETERS, ["block > 128"])
    with pytest.raises(UsageError, match="distinct"):
        mltune.Search({"block": []})
