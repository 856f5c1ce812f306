"""The search by ask and tell: proposals are valid, new, repeatable, and the same after a resumption."""

import math
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from mltune.cost.features import Features
from mltune.dataset.dataset import load_dataset
from mltune.device.known import H200
from mltune.errors import BundleError
from mltune.kernel.bundle import variables_of
from mltune.kernel.placed import PlacedKernel
from mltune.kernel.reader import load_kernel
from mltune.kernel.space import ConstrainedSpace, TableSpace, find_near
from mltune.problem.gemm import GemmProblem
from mltune.records.distinct import DistinctCount
from mltune.records.facts import Plan
from mltune.records.trial import SEARCHES, Measurement, TrialState
from mltune.records.trials import Trials
from mltune.search.search import KernelSearch, SearchSettings, Start
from mltune.tuning.training import train

PROBLEM = GemmProblem("s", "N", "T", 4096, 4096, 4096)
GATED = "h200-sgemm-nt-4096-complete"
SMALL = "convolution_rtx_a4000"


@cache
def space_of(bundle):
    kernel = load_kernel(bundle)
    space = ConstrainedSpace(kernel, variables_of(PROBLEM, H200))
    return space, Features(PlacedKernel(kernel, PROBLEM, H200))


def search_of(bundle, name):
    return KernelSearch(*space_of(str(bundle)), SearchSettings(search=name, batch=4))


@cache
def recorded(name):
    data = load_dataset(name)
    manifest = data.manifest
    features = Features(PlacedKernel(load_kernel(manifest.kernel), manifest.problem, manifest.device))
    return data, TableSpace(data.columns), features, data.numbers("median_s"), data.builds()


class Replay:
    """A search of a recorded space, with its results."""

    def __init__(self, name, seconds=lambda index: (0.0, 0.1), **options):
        self.seconds, self.options = seconds, dict(options)
        self.data, space, features, self.times_s, self.builds = recorded(name)
        start = Start(
            *(options.pop(name, default) for name, default in (("default", None), ("fast", ()), ("pretrained", None)))
        )
        counts = {"skipped": options.pop("skipped", None)}
        self.search = KernelSearch(space, features, SearchSettings(**options), start, **counts)
        self.records, self.under_way, self.plans = {}, {}, []

    def result(self, candidate):
        compile_s, time_s = self.seconds(candidate.index)
        build = replace(self.builds[candidate.index], compile_s=compile_s)
        if not candidate.is_skipped and build.state is TrialState.OK:
            (candidate,) = self.search.decide([(candidate, build)])
        if candidate.is_skipped:
            return candidate.record(TrialState.SKIPPED)
        median_s = float(self.times_s[candidate.index])
        state = TrialState.OK if math.isfinite(median_s) else TrialState.LAUNCH_ERROR
        measured = Measurement(state, median_s=median_s if state is TrialState.OK else None, time_s=time_s)
        return candidate.record(state, build=build, measurement=measured)

    def begin(self, candidates):
        self.under_way |= {candidate.number: self.result(candidate) for candidate in candidates}

    def ask(self):
        while not self.search.waits and (candidates := self.search.ask()):
            self.plans = self.search.plans
            self.begin(candidates)

    def end(self, *numbers):
        """Report the results of trials."""
        ended = {number: self.under_way.pop(number) for number in numbers}
        self.records |= ended
        self.search.tell(ended.values())

    def run(self, batches):
        """Ask for batches, each reported at once and in order; return the records, also of what is under way."""
        for _ in range(batches):
            self.ask()
            if not self.under_way:
                break
            oldest = min(record.batch for record in self.under_way.values())
            self.end(*[number for number, record in self.under_way.items() if record.batch == oldest])
        return essence(self.records | self.under_way)

    def resumed(self, count, plans):
        """Return a search that goes on from the first trials that ended, and from plans on record."""
        again = Replay(self.data.manifest.name, self.seconds, **self.options)
        again.records = dict([*self.records.items()][:count])
        trials = Trials.from_records(again.records.values(), again.search.space.names)
        again.begin(again.search.resume(trials, plans))
        return again


def essence(records):
    return [replace(records[number], finished_at=0.0) for number in sorted(records)]


@pytest.mark.parametrize("name", SEARCHES)
def test_each_proposes_distinct_configurations_and_names_the_source(name):
    search = search_of("gemm_shared", name)
    candidates = []
    for _ in range(4):
        batch = search.ask()
        candidates += batch
        measured = [Measurement(TrialState.OK, median_s=3e-3 + 1e-5 * (one.index % 7)) for one in batch]
        search.tell(
            [one.record(TrialState.OK, measurement=result) for one, result in zip(batch, measured, strict=True)]
        )
    assert [one.number for one in candidates] == list(range(16))
    assert len({one.index for one in candidates}) == 16
    own = {"model": {"start", "model", "random"}, "tpe": {"tpe", "random"}}.get(name, {"random"})
    assert {one.proposed_by for one in candidates} <= own


def test_thresholds_need_resources(bare_bundle):
    with pytest.raises(BundleError, match="does not name"):
        search_of(bare_bundle, "astra").ask()


def test_another_name_is_refused(tile_bundle):
    with pytest.raises(ValueError, match="model, tpe, random, astra"):
        search_of(tile_bundle, "grid")


def test_a_batch_in_flight_is_planned_without_the_results_of_those_before_it():
    blind, informed = Replay(GATED, in_flight=lambda number: 3), Replay(GATED)
    first = [blind.run(3), informed.run(3)]
    assert [one.index for one in first[0][:16]] == [one.index for one in first[1][:16]]
    assert [one.index for one in first[0][16:32]] != [one.index for one in first[1][16:32]]


@pytest.mark.parametrize(
    ("compile_s", "time_s", "compilers", "sizes", "fewest"),
    [
        pytest.param(1.0, 0.02, 16, [8, 4, 4, 4], 17, id="compiling dominates"),
        pytest.param(1.0, 0.02, 64, [8, 4, 4, 4], 53, id="many cores"),
        pytest.param(1.0, 0.02, 2, [8, 4, 4, 4], 2, id="few cores"),
        pytest.param(0.1, 1.0, 16, [8, 4, 4, 4], 1, id="measuring dominates"),
        pytest.param(3.0, 0.5, 16, [8, 4, 4, 4], 7, id="builds wait for the GPU, but it would for builds"),
        pytest.param(0.0, 1e-3, 16, [8, 4, 4, 16], 51, id="planning takes longer than measuring"),
        pytest.param(1.0, 0.02, math.inf, [8, 4, 4, 4], 1, id="builds take no time"),
        pytest.param(0.0, 0.0, 16, [8, 4, 4, 4], 1, id="no seconds"),
    ],
)
@pytest.mark.sampled(3, nightly=99)
def test_batches_are_as_large_and_as_many_as_the_seconds_of_the_trials_demand(
    compile_s, time_s, compilers, sizes, fewest
):
    replay = Replay(GATED, lambda index: (compile_s, time_s), skip=False, stop=False, adapts=True, compilers=compilers)
    records = replay.run(5)
    assert np.bincount([record.batch for record in records]).tolist()[:4] == sizes
    replay.ask()
    assert fewest <= len(replay.under_way) < fewest + replay.plans[-1].size


def test_a_first_batch_is_no_larger_than_asked_for_and_builds_from_the_cache_take_no_time():
    replay = Replay(GATED, lambda index: (1.0, 0.02), adapts=True, compilers=16, batch=4)
    replay.builds = [replace(build, cached=True) for build in replay.builds[:]]
    assert np.bincount([record.batch for record in replay.run(4)]).tolist() == [4, 4, 4, 4]


def varying(index):
    """Return the seconds of a build and of a run."""
    rng = np.random.default_rng(index)
    return float(rng.lognormal(-0.7, 0.8)), float(rng.lognormal(-2.0, 0.8))


@pytest.mark.parametrize(
    ("name", "seed", "trials"),
    [(SMALL, 0, 60), *(pytest.param(*case, marks=pytest.mark.nightly) for case in ((SMALL, 1, 60), (GATED, 1, 130)))],
)
def test_a_search_that_was_interrupted_at_any_moment_goes_on_as_if_it_had_not_been(name, seed, trials):
    """Trials end in any order, one or several at a time; in a longer run gates skip."""
    rng = np.random.default_rng(seed)
    whole, moments, ends = Replay(name, varying, adapts=True, compilers=16, stop=False, seed=seed), [], []
    while len(whole.records) < trials:
        moments.append((len(ends), len(whole.records), whole.plans, essence(whole.under_way)))  # killed before a plan
        whole.ask()
        moments.append((len(ends), len(whole.records), whole.plans, essence(whole.under_way)))  # or after it
        building = [*whole.under_way][:16]
        ends.append(rng.permutation(building)[: rng.integers(1, 4)].tolist())
        whole.end(*ends[-1])
    assert [*whole.records] != sorted(whole.records)
    states = {record.state for record in whole.records.values()}
    assert name == SMALL or TrialState.SKIPPED in states
    for at in rng.choice(len(moments), 5, replace=False):
        ended, count, plans, under_way = moments[at]
        again = whole.resumed(count, plans)
        assert essence(again.under_way) == under_way
        for numbers in ends[ended:]:
            again.ask()
            again.end(*numbers)
        assert [*again.records] == [*whole.records]
        assert essence(again.records) == essence(whole.records)


def test_what_is_planned_next_uses_every_result_and_never_waits_for_one_that_is_late():
    replay = Replay(SMALL, lambda index: (varying(index)[0], 0.01), adapts=True, compilers=16, stop=False)
    replay.ask()
    late = next(iter(replay.under_way))
    for _ in range(80):
        replay.end(next(number for number in replay.under_way if number != late))
        replay.ask()
        assert 16 <= len(replay.under_way) <= 28
        assert late in replay.under_way
    assert replay.plans[0].first == 0
    assert replay.plans[-1].known >= 76
    assert len({record.index for record in (*replay.records.values(), *replay.under_way.values())}) == len(
        replay.records | replay.under_way
    )


def test_where_no_plan_is_on_record_later_batches_fill_the_gaps():
    """As in runs of earlier versions."""
    whole = Replay(GATED)
    whole.run(2)
    rng = np.random.default_rng(0)
    whole.records = {number: record for number, record in whole.records.items() if number < 16 or rng.random() < 0.5}
    again = whole.resumed(len(whole.records), ())
    assert again.under_way == {}
    again.run(2)
    assert sorted(again.records) == list(range(len(whole.records) + 32))
    assert again.records.items() >= whole.records.items()
    assert len({record.index for record in again.records.values()}) == len(again.records)


def test_a_batch_that_was_interrupted_keeps_what_is_on_record_though_the_plan_is_another():
    whole = Replay(GATED)
    whole.run(2)
    whole.records = {number: record for number, record in whole.records.items() if number < 16 or number % 2}
    whole.options["seed"] = 1
    again = whole.resumed(24, [Plan(batch=1, known=16, first=16, size=16)])
    assert sorted(again.under_way) == list(range(16, 32, 2))
    assert len({record.index for record in (*again.records.values(), *again.under_way.values())}) == 32


def test_a_shorter_batch_can_be_asked_for():
    replay = Replay(GATED)
    assert len(replay.search.ask(5)) == 5


def test_the_search_ends_with_the_space():
    replay = Replay(SMALL)
    few = {name: column[:40] for name, column in replay.data.columns.items()}
    search = KernelSearch(TableSpace(few), replay.search.features)
    found = []
    while batch := search.ask():
        found += [one.index for one in batch]
        search.tell([one.record(TrialState.CRASHED) for one in batch])
    assert sorted(found) == list(range(40))
    assert search.verdict == "nothing is left to try: all 40 configurations are on record"


@pytest.mark.system
def test_it_stops_by_itself_and_gives_the_reason():
    replay = Replay("convolution_rtx_a6000")
    records = replay.run(60)
    assert "measurements gained less than 1 %" in replay.search.verdict
    assert len(records) < 60 * 16
    assert replay.search.ask() == []


@pytest.mark.system
def test_told_not_to_skip_it_skips_nothing():
    records = Replay(GATED, skip=False).run(14)
    assert {record.state for record in records} == {TrialState.OK}


def test_finds_better_than_chance():
    best = []
    for seed in range(3):
        records = Replay(SMALL, seed=seed, skip=False).run(6)
        best.append(min(record.median_s for record in records if record.median_s))
    times_s = np.sort(load_dataset(SMALL).numbers("median_s"))
    assert np.median(best) <= times_s[30]  # the best of 96 random draws is about the 40th of the 4,000 that run


def test_where_physics_does_not_guide_the_search_begins_as_with_parameters_alone():
    def first(**changes):
        replay = Replay(SMALL)
        placed = replay.search.features.placed
        kernel = replace(placed.kernel, resources=replace(placed.kernel.resources, **changes))
        features = Features(PlacedKernel(kernel, placed.problem, placed.device))
        assert features.has_prior or "estimates" in changes
        batch = KernelSearch(replay.search.space, features).ask()
        return [candidate.index for candidate in batch]

    assert first(guides=False) == first(estimates={}, accesses={}) != first()


def test_the_default_configuration_comes_first_and_no_gate_skips_it():
    data = load_dataset(GATED)
    slow = int(np.nanargmax(data.numbers("median_s")))
    default = {name: int(column[slow]) for name, column in data.columns.items()}

    found = Replay(GATED, default=default).run(3)

    assert (found[0].number, found[0].configuration, found[0].proposed_by) == (0, default, "default")
    assert found[0].state is TrialState.OK
    assert len({record.index for record in found}) == len(found) == 48
    assert {record.proposed_by for record in found[1:16]} == {"start"}


@pytest.mark.parametrize("name", sorted({*SEARCHES} - {"astra"}))  # that needs the resources of a kernel
def test_every_search_begins_with_the_default(name):
    space = load_dataset(SMALL).space
    default = {key: int(column[0]) for key, column in space.rows(np.array([77])).items()}
    batch = Replay(SMALL, search=name, batch=4, default=default).search.ask()
    assert (batch[0].index, batch[0].proposed_by) == (77, "default")
    assert [one.is_skipped for one in batch] == [False] * 4


def test_most_proposals_are_skipped_before_compiling_once_enough_is_measured():
    skipped, none = DistinctCount(), DistinctCount()
    replay = Replay(GATED, batch=8, skipped=skipped, stop=False)
    replay.run(3)
    assert skipped.estimate == 0, "24 are measured first"

    found = replay.run(17)
    proposed = [record for record in found[24:] if record.proposed_by == "model"]
    assert len(found) == 160
    assert 1.2 * len(proposed) < skipped.estimate <= 2 * len(proposed), "three are proposed for each"
    again = [record.index for record in found[24:]]
    assert 0 < skipped.estimate - skipped.without(np.array(again)) < len(again), "some are compiled later"
    audited = [record for record in found if record.audited and record.skip.gate == "before_compile"]
    assert 0 < len(audited) < 0.15 * len(proposed)
    assert {record.proposed_by for record in audited} == {"model"}
    assert all(record.build is not None for record in audited)

    Replay(GATED, batch=8, skip=False, skipped=none).run(10)
    assert none.estimate == 0


def test_a_default_outside_the_space_is_not_proposed():
    names = load_dataset(SMALL).columns
    batch = Replay(SMALL, default=dict.fromkeys(names, 10**6)).search.ask()
    assert batch[0].proposed_by != "default"


def test_the_best_known_configuration_precedes_the_default_and_no_gate_skips_them():
    space = load_dataset(SMALL).space
    rows = [{key: int(column[0]) for key, column in space.rows(np.array([at])).items()} for at in (77, 5, 77, 9)]
    outside = dict.fromkeys(space.names, 10**6)

    batch = Replay(SMALL, default=rows[0], fast=[rows[1], outside, rows[2], {}, rows[3]]).search.ask()

    first = [(one.index, one.proposed_by) for one in batch[:4]]
    assert first[:3] == [(5, "wisdom"), (77, "default"), (9, "wisdom")]
    assert first[3][1] == "start"
    assert not any(one.is_skipped for one in batch[:3])


def test_what_a_model_remembers_comes_after_the_default_in_place_of_what_a_wisdom_knows():
    space = load_dataset(SMALL).space
    rows = [{key: int(column[0]) for key, column in space.rows(np.array([at])).items()} for at in (77, 5, 9)]
    model = train([load_dataset(SMALL)]).closest(load_dataset(SMALL).manifest.problem, H200)
    model = replace(model, first=(rows[1], dict.fromkeys(space.names, 10**6), rows[2]))

    alone = Replay(SMALL, default=rows[0], pretrained=model).search.ask()
    beside = Replay(SMALL, default=rows[0], pretrained=model, fast=[rows[0], rows[0]]).search.ask()

    assert [(one.index, one.proposed_by) for one in alone[:3]] == [
        (77, "default"),
        (5, "start"),
        (9, "start"),
    ]
    assert [one.index for one in beside[:2]] == [77, 9]


def test_what_a_model_remembers_of_another_problem_is_replaced_by_what_is_near():
    data = load_dataset(SMALL)
    model = train([data]).closest(data.manifest.problem, H200)
    remembered = {name: int(column[0]) for name, column in data.space.rows(np.array([5])).items()}
    name = max(data.space.values, key=lambda one: len(data.space.values[one]))
    almost = remembered | {name: 10**6}  # valid elsewhere
    near = find_near(data.space, almost)
    differing = [one for one in remembered if data.columns[one][near] != remembered[one]]

    batch = Replay(SMALL, pretrained=replace(model, first=(almost,))).search.ask()

    assert 4 * len(differing) <= len(remembered)
    assert (batch[0].index, batch[0].proposed_by) == (near, "start")
    assert find_near(data.space, dict.fromkeys(remembered, 10**6)) == -1
    assert find_near(data.space, {**almost, "of another kernel": 1}) == -1


def test_what_was_fast_on_another_gpu_follows_the_choice_of_physics_and_model():
    data = load_dataset(SMALL)
    rows = [{key: int(column[0]) for key, column in data.space.rows(np.array([at])).items()} for at in (77, 5)]
    model = replace(train([data]), first=(), elsewhere=())
    chosen = Replay(SMALL, pretrained=model).search.ask()[0]

    found = Replay(SMALL, pretrained=replace(model, first=(rows[0],), elsewhere=(rows[1],))).search.ask()
    known = Replay(SMALL, pretrained=replace(model, elsewhere=(rows[1],)), fast=rows[:1]).search.ask()

    assert [one.index for one in found[:3]] == [77, chosen.index, 5]
    assert {one.proposed_by for one in found} == {"start"}
    assert [one.index for one in known[:2]] == [77, chosen.index]


def test_known_configurations_that_do_not_fit_a_batch_follow_in_the_next():
    space = load_dataset(SMALL).space
    known = [{key: int(column[0]) for key, column in space.rows(np.array([at])).items()} for at in range(5)]
    found = Replay(SMALL, batch=2, fast=known).run(3)
    assert [one.proposed_by for one in found] == ["wisdom"] * 5 + ["start"]
