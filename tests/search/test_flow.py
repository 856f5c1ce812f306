"""The flow of batches: nobody waits, whatever the seconds, and not too much is under way."""

import numpy as np
import pytest

from mltune.records.facts import Whole
from mltune.records.trial import Build, Candidate, Measurement, TrialState
from mltune.records.trials import Trials
from mltune.search.flow import MOST, MOST_OF_ALL, PLANNING_S, Flow
from mltune.search.history import Pace

CORES = 16


def record(number, compile_s, time_s):
    measured = Measurement(TrialState.OK, median_s=1.0, time_s=time_s)
    return Candidate(number, 0, number, {"A": number}, "model").record(
        TrialState.OK, build=Build(TrialState.OK, compile_s=compile_s), measurement=measured
    )


def seconds_of(seed, count=600):
    """Return trials whose seconds drift over orders of magnitude, and what is measured as a whole."""
    rng = np.random.default_rng(seed)
    compile_s, time_s = 10.0 ** np.cumsum(rng.normal(0.0, 0.1, (2, count)), axis=1) * [[0.5], [0.01]]
    trials = Trials.from_records(map(record, range(count), compile_s.tolist(), time_s.tolist()), ("A",))
    since = int(rng.integers(3, 12))
    return trials, (Whole(), Whole(since=since), Whole(since=since, until=since + 3))[seed % 3]


def new_flow(**options):
    return Flow(**({"adapts": True, "batch": 16, "in_flight": bool, "compilers": CORES, "start": 8} | options))


def play(flow, trials, whole):
    """Tell one trial after the other; return after each how many are under way, and the sizes of all batches."""
    pace, sizes, under_way = Pace(), [], []
    for told in range(300):
        while True:
            size, enough = flow.next(len(sizes), sum(sizes) - told, told, pace, whole)
            if sum(sizes) - told >= enough:
                break
            sizes.append(size)
        under_way.append(sum(sizes) - told)
        pace = Pace.of(Pace.seconds(trials[told : told + 1]), pace.sums)
    return under_way, sizes


@pytest.mark.parametrize("seed", range(12))
def test_compilers_and_gpu_have_enough_to_do_and_not_too_much(seed):
    trials, whole = seconds_of(seed)
    under_way, sizes = play(new_flow(), trials, whole)
    pace, most = Pace(), 0
    for told, running in enumerate(under_way):
        needed = CORES if told == 0 else (pace.compile_s + pace.trial_s) / pace.busiest_s(CORES)
        assert running >= needed - 0.5
        latest = max(MOST, needed + 2) if whole.since is None else 2 * MOST_OF_ALL
        most = max(most - 1, needed + latest)  # the pace changes while they are under way
        assert running <= most + PLANNING_S / (pace.busiest_s(CORES) or 1.0)
        pace = Pace.of(Pace.seconds(trials[told : told + 1]), pace.sums)
    assert max(sizes) <= (MOST if whole.since is None else MOST_OF_ALL)
    assert (np.array(sizes[1:]) <= np.maximum(4, np.cumsum(sizes)[:-1])).all()


def test_what_is_proposed_before_any_result_is_limited_and_begins_with_a_design():
    for options, sizes in (({}, [8, 4, 4]), ({"compilers": 10}, [8, 2]), ({"batch": 4}, [4]), ({"compilers": 1}, [8])):
        flow, proposed = new_flow(**options), []
        while (following := flow.next(len(proposed), sum(proposed), 0, Pace(), Whole()))[1] > sum(proposed):
            proposed.append(following[0])
        assert proposed == sizes


@pytest.mark.parametrize("most", [1, 2, 3])
def test_batches_of_a_given_size_are_in_flight_up_to_a_given_number(most):
    trials, whole = seconds_of(0)
    under_way, sizes = play(new_flow(adapts=False, in_flight=lambda number: most), trials, whole)
    assert {*sizes} == {16}
    assert max(under_way) == 16 * most
    assert min(under_way) == 16 * (most - 1) + 1
