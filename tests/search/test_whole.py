"""Whole spaces: everything is measured where that is cheap; limits, surprises, failures and a resumption are minded."""

import itertools
from collections import deque
from dataclasses import replace

import numpy as np
import pytest

from mltune.cost.features import Features
from mltune.device.known import UNKNOWN
from mltune.kernel.bundle import Kernel
from mltune.kernel.parts import KernelSpace
from mltune.kernel.placed import PlacedKernel
from mltune.kernel.space import TableSpace
from mltune.problem.kinds import timed_problem
from mltune.records.facts import Facts, Whole
from mltune.records.trial import Build, Measurement, TrialState
from mltune.records.trials import Trials
from mltune.search.search import KernelSearch, SearchSettings

CORES = 16
SMALL = {"M": (16, 32, 64, 128, 256), "N": (16, 32, 64, 128, 256), "K": (8, 16, 32), "VM": (1, 2, 4)}
LARGER = SMALL | {"VM": (1, 2, 4, 8)}
LAUNCHES = {"M": (16, 32), "GRID": tuple(range(1, 501))}
LARGE = SMALL | {"VN": (1, 2, 4), "PAD": (0, 1), "STAGES": (1, 2, 3, 4)}


def compile_always(number):
    return 0.3


def compile_slowly(number):
    return 0.3 if number < 24 else 20.0


class Bench:
    """A space with made times, and the seconds of compilers and GPU, on record as those of a run."""

    def __init__(self, values, launch=(), compile_s=compile_always, run_s=0.01, fails=0.0):
        rows = np.array(list(itertools.product(*values.values())), dtype=np.int64)
        self.columns = dict(zip(values, rows.T, strict=True))
        self.space = TableSpace(self.columns)
        self.launch, self.compile_s, self.run_s = launch, compile_s, run_s
        rng = np.random.default_rng(0)
        off = sum(
            np.abs(np.log2(column) - np.log2(np.median(column)))
            for name, column in self.columns.items()
            if name != "PAD"
        )
        self.times_s = 1e-3 * (1.0 + off) * rng.uniform(0.9, 1.1, len(rows))
        self.failed = rng.random(len(rows)) < fails

    def search(self, **options):
        macros = {name: values for name, values in self.space.values.items() if name not in self.launch}
        launched = {name: self.space.values[name] for name in self.launch}
        parameters = KernelSpace(parameters=macros, launch_parameters=launched)
        problem = timed_problem("made")
        placed = PlacedKernel(Kernel(name="made", problem=problem.kind, space=parameters), problem, UNKNOWN)
        return KernelSearch(self.space, Features(placed), SearchSettings(adapts=True, compilers=CORES, **options))

    def record(self, candidate, built):
        key = tuple(value for name, value in candidate.configuration.items() if name not in self.launch)
        build = Build(TrialState.OK, compile_s=self.compile_s(candidate.number), cached=key in built)
        built.add(key)
        elapsed_s = 0.5 + 0.03 * candidate.number
        if self.failed[candidate.index]:
            return replace(
                candidate.record(TrialState.COMPILE_ERROR, build=replace(build, state=TrialState.COMPILE_ERROR)),
                elapsed_s=elapsed_s,
            )
        measured = Measurement(TrialState.OK, median_s=float(self.times_s[candidate.index]), time_s=self.run_s)
        return replace(candidate.record(TrialState.OK, build=build, measurement=measured), elapsed_s=elapsed_s)

    def play(self, search, most=10_000, records=(), under_way=()):
        """Measure until the search ends or so many are on record; return the records, finished at no time."""
        records, built, in_flight = [*records], set(), deque(under_way)
        while len(records) < most:
            while not search.waits and (batch := search.ask()):
                in_flight += batch
            if not in_flight:
                break
            records.append(replace(self.record(in_flight.popleft(), built), finished_at=0.0))
            search.tell(records[-1:])
        return records


def indices_of(records):
    return [record.index for record in records]


@pytest.mark.parametrize("fails", [0.0, 0.3])
def test_a_small_space_is_measured_as_a_whole_each_configuration_once(fails):
    bench = Bench(SMALL, fails=fails)
    search = bench.search()
    records = bench.play(search)
    assert sorted(indices_of(records)) == list(range(bench.space.count))
    assert search.verdict == "all 225 configurations were measured"
    assert not any(record.state is TrialState.SKIPPED for record in records)


def test_the_best_come_first():
    bench = Bench(SMALL)
    order = indices_of(bench.play(bench.search()))
    assert order.index(int(np.argmin(bench.times_s))) < 60
    assert np.mean(bench.times_s[order[20:80]]) < 0.8 * np.mean(bench.times_s[order[160:]])


def test_a_large_space_with_a_build_for_each_is_searched_and_the_decision_says_why():
    bench = Bench(LARGE)
    search = bench.search()
    assert len(bench.play(search)) < bench.space.count / 2
    assert search.verdict.startswith("the last ")
    assert search.whole == Whole(detail=search.whole.detail)
    assert search.whole.detail.startswith("not everything is measured: all 5,400 configurations would take ")


def test_two_builds_for_a_thousand_launches_are_a_whole_space():
    shared, apart = Bench(LAUNCHES, ("GRID",), run_s=1e-3), Bench(LAUNCHES, run_s=1e-3)
    search = shared.search()
    assert len(shared.play(search)) == 1000
    assert search.verdict == "all 1,000 configurations were measured"
    assert len(apart.play(apart.search())) < 500


@pytest.mark.parametrize(
    ("limits", "law"),
    [
        ({"trials": 224}, "there are 225 configurations, and trials=224"),
        ({"time_s": 2.0}, "all 225 configurations would"),
    ],
)
def test_a_budget_that_is_too_short_for_everything_is_named_and_the_search_goes_on_as_without(limits, law):
    bench = Bench(SMALL)
    search, usual = bench.search(**limits), bench.search()
    usual._whole_space = None
    assert indices_of(bench.play(search, 60)) == indices_of(bench.play(usual, 60))
    assert search.whole.since is None
    assert search.whole.detail.startswith(f"not everything is measured: {law}")
    assert search.whole.detail.endswith("trials=224" if "trials" in limits else "s are left")


def test_a_budget_that_suffices_changes_nothing():
    bench = Bench(SMALL)
    assert bench.play(bench.search(trials=225, time_s=60.0)) == bench.play(bench.search())


def test_a_space_whose_builds_get_slow_in_the_middle_is_given_up():
    bench = Bench(LARGER, compile_s=compile_slowly)
    search = bench.search()
    records = bench.play(search)
    assert search.whole.since is not None
    assert search.whole.until is not None
    assert len(records) < bench.space.count / 2
    assert search.whole.detail.startswith("not everything is measured: all 300 configurations would take ")
    assert search.verdict.startswith("the last ")


@pytest.mark.sampled(2, nightly=10)
@pytest.mark.parametrize("kept", [0, 17, 100, 180])
@pytest.mark.parametrize("slow", [False, True])
def test_a_resumed_run_makes_the_same_choices_with_another_budget_too(kept, slow):
    bench = Bench(LARGER, compile_s=compile_slowly) if slow else Bench(SMALL)
    search, interrupted = bench.search(), bench.search()
    undisturbed = bench.play(search)
    first = bench.play(interrupted, kept)
    plans = [plan.model_dump() for plan in interrupted.plans]
    facts = Facts.of({"whole": interrupted.whole.model_dump(), "plans": plans})
    resumed = bench.search(**({"trials": 300, "time_s": 3.0} if kept else {}))
    under_way = resumed.resume(Trials.from_records(first, bench.space.names), facts.plans, whole=facts.whole)
    assert indices_of(bench.play(resumed, records=first, under_way=under_way)) == indices_of(undisturbed)
    assert resumed.whole == search.whole


def test_without_the_stopping_rule_or_compilers_nothing_is_forecast():
    bench = Bench(SMALL)
    for options in ({"stop": False}, {"search": "random"}):
        search = bench.search(**options)
        bench.play(search, 60)
        assert search.whole == Whole()
