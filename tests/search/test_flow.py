"""The flow of batches: nobody waits, whatever the seconds, and a resumption repeats it."""

import numpy as np
import pytest

from mltune.records.facts import Whole
from mltune.records.trial import Build, Candidate, Measurement, TrialState
from mltune.records.trials import Trials
from mltune.search.flow import MOST, MOST_OF_ALL, Flow
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


def play(flow, trials, whole, batches):
    """Return from how many batches each was planned."""
    pace, planned_from = Pace(), []
    for told in range(batches):
        while not flow.is_full(len(planned_from), told, pace, whole):
            flow.places(len(planned_from), told, pace, whole)
            planned_from.append(told)
        pace.add(trials[slice(*flow.ends[told : told + 2])])
    return planned_from


@pytest.mark.parametrize("seed", range(12))
def test_a_resumption_after_any_trial_repeats_the_flow(seed):
    trials, whole = seconds_of(seed)
    flow = new_flow()
    planned_from = play(flow, trials, whole, 15)
    for complete in range(0, flow.ends[15], 7):
        again = new_flow()
        incomplete = int(np.searchsorted(flow.ends, complete, side="right")) - 1
        assert again.resume(trials[:complete], complete, whole) == planned_from[incomplete]
        assert again.ends == flow.ends[: incomplete + 2]
        assert not again.is_full(incomplete, planned_from[incomplete], Pace(), whole)


@pytest.mark.parametrize("seed", range(12))
def test_compilers_and_gpu_have_enough_to_do_and_no_batch_is_too_large(seed):
    trials, whole = seconds_of(seed)
    flow, pace = new_flow(), Pace()
    planned_from = play(flow, trials, whole, 15)
    for told in range(15):
        under_way = flow.ends[int(np.searchsorted(planned_from, told, side="right"))] - flow.ends[told]
        alone_s = pace.compile_s + pace.trial_s
        assert under_way >= (CORES if told == 0 else alone_s / pace.busiest_s(CORES))
        pace.add(trials[slice(*flow.ends[told : told + 2])])
    sizes = np.diff(flow.ends)
    assert sizes.max() <= (MOST if whole.since is None else MOST_OF_ALL)
    assert (sizes[1:] <= np.maximum(4, flow.ends[1:-1])).all()


def test_what_is_proposed_before_any_result_is_limited_and_begins_with_a_design():
    for options, sizes in (({}, [8, 4, 4]), ({"compilers": 10}, [8, 2]), ({"batch": 4}, [4]), ({"compilers": 1}, [8])):
        flow = new_flow(**options)
        while not flow.is_full(number := len(flow.ends) - 1, 0, Pace(), Whole()):
            flow.places(number, 0, Pace(), Whole())
        assert np.diff(flow.ends).tolist() == sizes
