"""A library from its description to its folder, on an imaginary GPU whose times follow from sizes."""

import contextlib
import json
import math
import shutil
from collections import Counter
from typing import ClassVar

import numpy as np
import pytest
from imaginary_gpu import ImaginaryBuilder, built, imaginary_runner

import mltune
import mltune.resolve.resolve  # the function that tests exchange is that of the module
from mltune.api import libraries
from mltune.campaign import library as library_module
from mltune.device.known import H200
from mltune.errors import BundleError, DamagedRunError, LibraryError, RunError, UsageError
from mltune.kernel.reader import load_kernel
from mltune.library import building, dispatcher
from mltune.library import spec as spec_module
from mltune.library.folder import read_library
from mltune.library.times import CROSS, read_times
from mltune.measure import build as build_module
from mltune.measure import runner as runner_module
from mltune.records.directory import PLAN_FILE, PROBLEMS
from mltune.records.events import no_events
from mltune.records.trial import Build, TrialState
from mltune.resolve import device as devices
from mltune.resolve.device import Target
from mltune.resolve.request import TuneRequest
from mltune.results.run import TuneResult
from mltune.tuning import session as session_module
from mltune.tuning.tuner import tune

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")

BUNDLE = """
[kernel]
name = "tiles"
source = "tiles.cu"
entry = "gemm"
problem = "gemm"
precisions = ["s"]

[parameters]
TILE = [16, 32, 64, 128, 256]
VEC = [1, 4]

[default]
TILE = 16
VEC = 1

[restrictions]
"VEC == 1 or lda % VEC == 0" = "rows begin aligned"

[launch]
block = ["TILE", "1", "1"]
grid = ["ceil_div(m, TILE)", "ceil_div(n, TILE)", "1"]
"""
SIZES = [64, 250, 1024, 2001, 4096]


class Builder(ImaginaryBuilder):
    """A builder for an imaginary GPU, on which large tiles are fast for large matrices, and vectors everywhere."""

    workers = 1
    built_at: ClassVar[list] = []

    def __init__(self, kernel, problem, architecture, **options):
        self.problem = problem
        self.speed = (2.0 if problem.m > 1000 else 0.9) if kernel.name == "large" else 1.0

    def submit(self, configuration):
        if "TILE" not in configuration:
            return built(time_s=1e-3 * (1 + 1e-3 * configuration["THREADS"]), noise=0.001)
        Builder.built_at.append(self.problem.m)
        away = abs(math.log2(configuration["TILE"]) - math.log2(self.problem.m) * 2 / 3)
        fails = configuration["TILE"] == 256 or (configuration["TILE"], self.problem.m, self.speed) == (128, 250, 1.0)
        deed = {"deed": "no build"} if fails else {}
        return built(
            time_s=1e-3 / self.speed * (1 + 0.2 * away) * (1.3 if configuration["VEC"] == 1 else 1.0),
            noise=0.001,
            **deed,
        )


@pytest.fixture
def bundle(tmp_path):
    folder = tmp_path / "tiles"
    folder.mkdir()
    (folder / "kernel.toml").write_text(BUNDLE)
    (folder / "tiles.cu").write_text('extern "C" __global__ void gemm() {}')
    return folder


@pytest.fixture
def large(bundle, tmp_path):
    """Return a kernel of the same space that is faster at large sizes."""
    folder = tmp_path / "large"
    shutil.copytree(bundle, folder)
    (folder / "kernel.toml").write_text(BUNDLE.replace('name = "tiles"', 'name = "large"'))
    return folder


@pytest.fixture
def build(bundle, tmp_path, idle_workers, monkeypatch):
    """Return a function that builds a library; campaigns are carried out in this process, one size after the other."""

    def carry_out(plan, run, **_):
        plans.append(plan)
        run.mkdir(exist_ok=True)
        (run / PLAN_FILE).write_text(plan.text)
        for task in plan.tasks:
            own = {
                "prior": "none",
                "wisdom": "none",
                "stop": False,
                "skip": False,
                "search": "random",
                "variants": False,
            }
            request = TuneRequest(
                task.problem, task.kernel, Target(cuda=0), trials=8, run=run / PROBLEMS / task.slug, **own
            )
            tune(request, events=no_events)
        return type("Result", (), {"interrupted": False, "directory": run})

    def runner(placed, *_, **__):
        return imaginary_runner(kernel=placed.kernel, problem=placed.problem, pool=idle_workers.pool)

    plans = []
    monkeypatch.setattr(libraries, "carry_out", carry_out)
    monkeypatch.setattr(runner_module, "_PAUSES_S", ())
    monkeypatch.setattr(runner_module, "GpuRunner", runner)
    monkeypatch.setattr(session_module, "gpu_facts", lambda *_: (H200, "13.0"))
    monkeypatch.setattr(build_module, "NvrtcBuilder", Builder)
    monkeypatch.setattr(build_module, "nvrtc_version", lambda: "13.0")
    monkeypatch.setattr(build_module, "compile_options", lambda architecture: ())
    monkeypatch.setattr(devices, "find_gpus", lambda: ((H200,), ""))
    monkeypatch.setattr(Builder, "built_at", [])

    def start(sizes=SIZES, out="lib", run="run", **library):
        asked = {"operation": "sgemm", "trans": "NN", "kernel": [str(bundle)], "trials": 60, "tuned": 3}
        asked = {name: value for name, value in {**asked, **library}.items() if value is not None}
        spec = {"library": asked, "sizes": {"shapes": list(sizes)}}
        return mltune.build_library(spec, tmp_path / out, run=tmp_path / run, progress=None)

    start.plans = plans
    return start


class Clock:
    """Seconds that pass as the test says: while tunes run, at each size, and with each time of a candidate."""

    def __init__(self, each_s=0.0, size_s=0.0):
        self.now, self.each_s, self.size_s, self.timed = 0.0, each_s, size_s, []

    def __call__(self):
        return self.now

    def time(self, plan, kernel, problem, configurations, *, until, **_):
        times = []
        self.now += self.size_s
        for configuration in configurations:
            if self.now >= until:
                break
            self.now += self.each_s
            self.timed.append((problem.m, *configuration.values()))
            times.append(self.time_s(problem, configuration))
        return times

    @staticmethod
    def time_s(problem, configuration):
        return 1e-3 * (1 + abs(math.log2(configuration["TILE"] * configuration.get("GROUP", 1)) - math.log2(problem.m)))


@pytest.fixture
def clock(build, monkeypatch):
    """Return a clock on which the tunes of a library take the time that its plan has, once."""
    clock, tune_all, begun = Clock(), libraries.carry_out, []

    def carry_out(plan, run, **options):
        clock.now += 0.0 if begun else plan.budget
        begun.append(plan)
        share_s = begun[0].budget / len(plan.tasks)
        monkeypatch.setattr(TuneResult, "elapsed_s", property(lambda run: share_s))
        return tune_all(plan, run, **options)

    for module in (libraries, library_module, building):
        monkeypatch.setattr(module, "perf_counter", clock)
    monkeypatch.setattr(libraries, "carry_out", carry_out)
    monkeypatch.setattr(library_module, "_time", clock.time)
    monkeypatch.setattr(dispatcher, "_TREES", 4)  # when something is timed is the subject, not what is learned of it
    return clock


MANY = [64 + 32 * number for number in range(90)]


@pytest.mark.parametrize("each_s", [0.01, 0.5, 4.0, 100.0])
@pytest.mark.sampled(1, nightly=5)
def test_a_building_keeps_its_time_however_slow_timing_is(build, clock, each_s):
    clock.each_s = each_s
    report = build(MANY, trials=None, time="100s")["report"]
    assert clock.now <= 1.1 * 100 + 10 + each_s, "the timing under way ends"
    timed = [one["size"][0] for one in report["sizes"]]
    tuned = [task.problem.m for task in build.plans[0].tasks]
    assert len(tuned) == 3
    assert len(timed) + len(report["not_timed"]) == 90
    if each_s < 0.1:
        assert report["not_timed"] == []
        elsewhere = next(size for size in MANY if size not in tuned)
        candidates, found = (sum(m == size for m, *_ in clock.timed) for size in (tuned[0], elsewhere))
        assert found == candidates > 3, "a shortlist has room for so few"
    elif each_s < 1:
        assert {*tuned} <= {*timed}, "the tuned sizes come first"
        assert report["not_timed"]


@pytest.mark.parametrize(("each_s", "size_s"), [(0.006, 0.12), (0.03, 0.6), (0.006, 1.0), (0.1, 0.0)])
@pytest.mark.sampled(1, nightly=5)
def test_the_portfolio_has_time_at_most_sizes(build, clock, each_s, size_s):
    """At 6 ms and 20 times as much for a size, all have it; where a size takes longer, as many as there is time for."""
    clock.each_s, clock.size_s = each_s, size_s
    report = build(MANY, trials=None, time="100s", tuned=10, most=2)["report"]
    assert clock.now <= 100 + size_s + each_s
    begun = build.plans[0].budget
    assert 100 - begun == pytest.approx(min(50.0, 90 * 150 * 0.006))
    timed = [one["size"][0] for one in report["sizes"]]
    cross_s = 0.6 * (100 - begun)
    is_enough = 8 * (size_s + 40 * each_s) + len(MANY) * (size_s + 2 * each_s) < cross_s
    assert len(timed) >= (90 if is_enough else cross_s / (size_s + 9 * each_s))
    thirds = Counter(MANY.index(size) // 30 for size in timed)
    assert min(thirds.values()) >= len(timed) / 6, "small, medium and large ones, also where the time ends early"


def test_often_used_sizes_are_timed_earlier(build, clock):
    clock.each_s, clock.size_s = 0.01, 0.5
    build(MANY[:60] + 50 * MANY[60:], trials=None, time="100s", tuned=4)
    tuned = {task.problem.m for task in build.plans[0].tasks}
    order = [size for size in dict.fromkeys(size for size, *_ in clock.timed) if size not in tuned]
    assert sum(size in MANY[60:] for size in order[:20]) >= 17
    assert order[:20] != sorted(order[:20])


def test_all_candidates_are_timed_at_the_tuned_sizes_and_the_promising_ones_elsewhere(build, clock, monkeypatch):
    monkeypatch.setattr(building, "_PROMISING_BY_WAVES", 4)
    clock.each_s = 0.01
    report = build(MANY[::5], trials=None, time="300s", tuned=12, most=1)["report"]
    counts = Counter(size for size, *_ in clock.timed)
    assert len(build.plans[0].tasks) == 12
    assert len(counts) == len(MANY[::5])
    of_tuned = {counts.pop(task.problem.m) for task in build.plans[0].tasks}
    assert min(of_tuned) > 5
    assert {*counts.values()} <= {4, 5}, "and the portfolio, of one"
    assert report["not_timed"] == []


class Foresight:
    """The seconds of an imaginary GPU, but for one candidate, which it takes for slow above a size."""

    def __init__(self, *_):
        pass

    def improved(self, problems, columns):
        return {"TILE": np.array([32, 64, 128]), "VEC": np.array([4, 4, 4])}

    def times_s(self, problems, columns):
        clock, tiles = Clock(), columns["TILE"].tolist()
        expected = [[clock.time_s(problem, {"TILE": tile}) for tile in tiles] for problem in problems]
        return np.array(expected) * np.where(
            columns["TILE"] == 64, [[1 + (problem.m > 1000)] for problem in problems], 1
        )


def test_a_candidate_is_not_timed_where_it_is_expected_to_be_far_behind(build, clock, monkeypatch):
    """Of tiles in powers of two the next but one takes 1.5 to 3 times as long."""
    monkeypatch.setattr(library_module, "model_of_times", Foresight)
    clock.each_s = 0.001
    report = build(MANY[::4], trials=None, time="300s", tuned=12)["report"]
    assert report["not_timed"] == []
    assert (128, 4) in {(tile, vec) for _, tile, vec, *_ in clock.timed}, "what a model that knows times proposes"
    timed, tiles = {(size, tile) for size, tile, *_ in clock.timed}, (16, 32, 64, 128)
    problems = [task.problem for task in build.plans[0].tasks]
    expected_s = Foresight().times_s(problems, {"TILE": np.array(tiles)})
    assert (expected_s[:, 2] > 2 * expected_s[:, 3]).sum() == 5, "64 seems slow at large sizes"
    for problem, of_size_s in zip(problems, expected_s, strict=True):
        near = [tile for tile, time_s in zip(tiles, of_size_s, strict=True) if time_s <= 1.3 * of_size_s.min()]
        assert [tile for tile in tiles if (problem.m, tile) in timed] == near
    assert report["dispatched"]["least"] > 0.8


def test_what_is_added_is_improved_again_once_its_times_are_known(build, clock, monkeypatch):
    given, tiles = [], iter([[32, 64], [128], [16]])

    class Noted(Foresight):
        def improved(self, problems, columns):
            given.append({*zip(columns["TILE"].tolist(), columns["VEC"].tolist(), strict=True)})
            table = np.array(next(tiles))
            return {"TILE": table, "VEC": np.full_like(table, 4)}

    monkeypatch.setattr(library_module, "model_of_times", Noted)
    clock.each_s = 0.001
    build(MANY[::4], trials=None, time="300s", tuned=12)
    _, first, second = given
    assert first >= {(32, 4), (64, 4)}
    assert second - first == {(128, 4)}


def test_what_is_not_built_in_time_is_no_candidate(build, clock, monkeypatch):
    def build_all(placed, configurations, *, until=math.inf):
        limits.append(until)
        made = [Build(TrialState.OK, cubin=b"code", entry="gemm"), None, Build(TrialState.COMPILE_ERROR, "no")]
        numbers = (0 if math.isinf(until) else (one["TILE"] == 16) + 2 * (one["TILE"] == 32) for one in configurations)
        return [made[number] for number in numbers]

    limits = []
    monkeypatch.setattr(build_module, "build_all", build_all)
    clock.each_s = 0.001
    build(MANY[::4], trials=None, time="100s", tuned=6)
    assert {tile for _, tile, *_ in clock.timed} == {64, 128}
    (limit_s,) = filter(math.isfinite, limits)
    assert build.plans[0].budget < limit_s < 100


def test_nothing_is_improved_of_a_kernel_without_candidates(build, clock, bundle, large, monkeypatch):
    def build_all(placed, configurations, *, until=math.inf):
        fails = placed.kernel.name == "large" and math.isfinite(until)
        made = Build(TrialState.COMPILE_ERROR, "no") if fails else Build(TrialState.OK, cubin=b"code", entry="gemm")
        return [made for _ in configurations]

    monkeypatch.setattr(build_module, "build_all", build_all)
    monkeypatch.setattr(library_module, "model_of_times", Foresight)
    clock.each_s = 0.001
    report = build(MANY[::4], trials=None, time="300s", tuned=6, kernel=[str(bundle), str(large)])["report"]
    assert (report["not_timed"], report["failed"]) == ([], [])


def test_what_is_valid_at_few_sizes_is_timed_at_those(build, clock):
    """Rows of half of the sizes forbid vectors."""
    clock.each_s = 0.001
    sizes = [size + number % 2 for number, size in enumerate(MANY[::4])]
    build(sizes, trials=None, time="300s", tuned=20, most=1)
    tuned = [task.problem.m for task in build.plans[0].tasks]
    aligned = sum(size % 4 == 0 for size in tuned)
    assert 8 < aligned < 15
    counts = Counter((tile, vec) for size, tile, vec, *_ in clock.timed if size in tuned)
    assert {vec for _, vec in counts} == {1, 4}
    assert all(count == (aligned if vec == 4 else 20) for (_, vec), count in counts.items())


def test_what_took_far_longer_than_elsewhere_is_timed_again(build, clock, tmp_path):
    """As when another process has the GPU: once."""
    disturbed, time_s = [], clock.time_s

    def once(problem, configuration):
        if problem.m == MANY[60] and problem.m not in disturbed:
            disturbed.append(problem.m)
            return 20 * time_s(problem, configuration)
        return time_s(problem, configuration)

    clock.each_s, clock.time_s = 0.01, once
    build(MANY[::3], trials=None, time="300s")
    (again,) = [one for one, count in Counter(clock.timed).items() if count > 1]
    assert again[0] == MANY[60]
    times = read_times(tmp_path / "run" / CROSS).times
    assert max(times[f"sgemm NN {MANY[60]}"].values()) < 0.02, "the undisturbed time counts"


def in_turns(clock, lucky=1.0):
    """Let tiles of 64 be the fastest, with vectors or without 2 % slower at every second size.

    The first timing of the slower ones is `lucky`.
    """
    seen = Counter()

    def time_s(problem, configuration):
        seen[at := (problem.m, *configuration.values())] += 1
        slower = 1.02 * (lucky if seen[at] == 1 else 1.0)
        away = abs(math.log2(configuration["TILE"]) - 6)
        return 1e-3 * (1 + away) * (slower if (problem.m // 32 + configuration["VEC"]) % 2 else 1.0)

    clock.each_s, clock.time_s = 0.001, time_s
    return seen


def test_the_fastest_by_luck_is_timed_again(build, clock, tmp_path):
    seen = in_turns(clock, lucky=0.97)
    report = build(MANY[::3], trials=None, time="300s", most=10)["report"]
    again = {m for (m, *_), count in seen.items() if count == 4}
    assert len(again) == 30
    assert report["dispatched"]["least"] == 1.0
    times = read_times(tmp_path / "run" / CROSS).times
    for m in again:
        fastest = sorted(times[f"sgemm NN {m}"].values())[:2]
        assert fastest[1] == pytest.approx(1.02 * fastest[0])


def test_finalists_are_measured_three_times(build, monkeypatch):
    monkeypatch.setattr(building, "_NEARLY", 100.0)
    builds = []
    for timings in (1, 3):
        monkeypatch.setattr(building, "_FINAL_TIMINGS", timings)
        Builder.built_at.clear()
        build(most=4, run=f"run{timings}")
        builds.append(Counter(Builder.built_at))
    assert {m: (builds[1] - builds[0])[m] for m in SIZES} == {64: 8, 250: 4, 1024: 8, 2001: 4, 4096: 8}


def test_what_fails_when_it_is_timed_again_is_never_dispatched_to(build, clock, monkeypatch):
    def time(plan, kernel, problem, configurations, **options):
        times = clock.time(plan, kernel, problem, configurations, **options)
        for number, configuration in enumerate(configurations[: len(times)]):
            timings[at := (problem.m, *configuration.values())] += 1
            if configuration == {"TILE": 64, "VEC": 4} and timings[at] == 3:
                times[number] = None
        return times

    timings = Counter()
    in_turns(clock)
    monkeypatch.setattr(library_module, "_time", time)
    document = build(MANY[::3], trials=None, time="300s", most=10)
    used = [document["configurations"][size["configuration"]]["configuration"] for size in document["report"]["sizes"]]
    assert {"TILE": 64, "VEC": 1} in used
    assert {"TILE": 64, "VEC": 4} not in used


def failing(clock, fails):
    """Let the default configuration be wrong at some sizes."""
    time = clock.time

    def failing_time(plan, kernel, problem, configurations, **options):
        if fails(problem.m):
            raise BundleError(f"the default configuration must give the right answer, but not at {problem.m}.")
        return time(plan, kernel, problem, configurations, **options)

    return failing_time


def test_a_size_at_which_the_default_is_wrong_costs_that_size_alone(build, clock, monkeypatch):
    clock.each_s = 0.01
    monkeypatch.setattr(library_module, "_time", failing(clock, lambda m: m in (MANY[0], MANY[60])))
    report = build(MANY[::3], trials=None, time="300s")["report"]
    assert [one["size"]["m"] for one in report["failed"]] == [MANY[0], MANY[60]]
    assert "not at 64" in report["failed"][0]["error"]
    assert [one["m"] for one in report["not_timed"]] == [MANY[0], MANY[60]]
    assert len(report["sizes"]) == 28


def test_where_the_default_is_wrong_everywhere_the_error_says_so(build, clock, monkeypatch):
    monkeypatch.setattr(library_module, "_time", failing(clock, lambda _: True))
    with pytest.raises(RunError, match=r"could be timed at any size\. the default configuration .* but not at"):
        build(MANY[::3], trials=None, time="300s")


def test_a_building_that_was_killed_while_timing_keeps_its_time_in_all(build, clock, monkeypatch):
    clock.each_s = 0.5

    def die(*given, **options):
        if clock.now > 85:
            raise KeyboardInterrupt
        return clock.time(*given, **options)

    monkeypatch.setattr(library_module, "_time", die)
    with pytest.raises(KeyboardInterrupt):
        build(MANY, trials=None, time="100s")
    before = len(clock.timed)
    assert before > 10
    monkeypatch.setattr(library_module, "_time", clock.time)
    build(MANY, trials=None, time="100s")
    assert clock.now <= 1.1 * 100 + 10
    assert len(clock.timed) > before
    assert len({*clock.timed}) == len(clock.timed), "nothing is timed twice"


def test_as_many_sizes_are_tuned_as_compiling_leaves_time_for(build, clock, monkeypatch, tmp_path):
    def built_at(compile_s, out):
        made = Build(TrialState.OK, cubin=b"code", entry="gemm", compile_s=compile_s)
        monkeypatch.setattr(build_module, "build_one", lambda *_: made)
        with pytest.raises(KeyboardInterrupt):  # the plan is the subject: nothing is tuned
            build(MANY[::9], trials=None, time="40s", tuned=9, out=out)
        return plans[-1]

    def plan_all(plan, run, **_):
        run.mkdir(exist_ok=True)
        (run / PLAN_FILE).write_text(plan.text)
        plans.append(plan)
        raise KeyboardInterrupt

    plans = []
    monkeypatch.setattr(libraries, "carry_out", plan_all)
    monkeypatch.setattr(build_module, "available_cores", lambda: 8)
    plan = built_at(0.0, "quick")
    assert len(plan.tasks) == 9
    assert plan.devices == ("cuda:0", "cuda:0"), "two sizes at once, with four compile processes each"
    assert not plan.produce, "nothing but times is needed of the tunes, and so no finals"
    assert plan.budget == pytest.approx(40 - 0.9 * 10)
    shutil.rmtree(tmp_path / "run")
    plan = built_at(0.5, "slow")
    assert len(plan.tasks) == 7, "31 s for tunes of 2.5 s and three batches, two at once"
    assert all(8.4 < task.minimum < 8.6 for task in plan.tasks)
    monkeypatch.setattr(spec_module, "representatives", lambda *_: (1, 2))
    assert [task.slug for task in built_at(0.0, "again").tasks] == [task.slug for task in plan.tasks], "it goes on"


@pytest.mark.nightly
def test_two_buildings_at_once_in_one_run_end_alike(build, clock, monkeypatch, tmp_path):
    clock.each_s, documents = 0.01, []

    def meanwhile(*given, **options):
        monkeypatch.setattr(library_module, "_time", clock.time)
        if not documents:
            documents.append(build(out="other"))
        return clock.time(*given, **options)

    monkeypatch.setattr(library_module, "_time", meanwhile)
    documents.append(build())
    assert documents[0]["report"] == documents[1]["report"]
    assert json.loads((tmp_path / "run" / CROSS).read_text())["seconds"] > 0


def test_the_default_configuration_is_a_candidate_though_it_is_slow(build, tmp_path):
    build([2001, 4096])
    times = json.loads((tmp_path / "run" / CROSS).read_text())["times"]
    of_default = [one for of_size in times.values() for key, one in of_size.items() if '"TILE": 16, "VEC": 1' in key]
    assert len(of_default) == 2
    for of_size, slow in zip(times.values(), of_default, strict=True):
        assert slow > min(time_s for time_s in of_size.values() if time_s)


def test_other_launches_of_a_winner_are_candidates_with_the_same_machine_code(build, bundle, clock, tmp_path):
    launched = "[launch.parameters]\nGROUP = [1, 2, 4]\n[launch]\narguments = ['GROUP']"
    text = BUNDLE.replace("VEC = 1\n", "VEC = 1\nGROUP = 1\n").replace("[launch]", launched)
    (bundle / "kernel.toml").write_text(text)
    document = build()
    launches = {tuple(one["configuration"].items())[:2] for one in document["configurations"]}
    code = (tmp_path / "lib" / "sgemm_nn.c").read_text().count("static const uint64_t cubin_")
    assert code == len(launches) < len(document["configurations"])


def test_other_machine_code_is_a_candidate_before_other_launches(build, bundle, monkeypatch):
    """Of 16 launches each winner would take the places of all that are second and third at a size."""
    launched = f"[launch.parameters]\nGROUP = {[*range(1, 17)]}\n[launch]\narguments = ['GROUP']"
    text = BUNDLE.replace("VEC = 1\n", "VEC = 1\nGROUP = 1\n").replace("[launch]", launched)
    (bundle / "kernel.toml").write_text(text)
    add, seen = building.Building._add_first_times, []

    def kept(self):
        seen.extend((one.configuration["TILE"], one.configuration["VEC"]) for one in self.candidates)
        return add(self)

    monkeypatch.setattr(building.Building, "_add_first_times", kept)
    build()
    codes = {*seen}
    until_all = max(map(seen.index, codes)) + 1
    assert len(codes) > 3
    assert len(seen) > until_all + 15
    assert until_all - len(codes) <= 6, "a winner and a general one of three sizes may repeat machine code"


def test_a_library_is_built_from_its_description(build, tmp_path):
    document = build()
    read, shared = read_library(tmp_path / "lib")
    assert read.model_dump() == json.loads((tmp_path / "lib" / "library.json").read_text()) == document
    assert shared
    assert document["name"] == "sgemm_nn"
    assert document["device"] == {"name": H200.name, "compute_capability": [9, 0], "sm_count": 132}
    used = [one["configuration"] for one in document["configurations"]]
    assert not {(128, 1), (256, 1), (256, 4)} & {(one["TILE"], one["VEC"]) for one in used}, "they fail at some size"
    assert any(not one["sizes_must_satisfy"] for one in document["configurations"]), "one is valid at every size"
    report = document["report"]
    assert [one["size"][0] for one in report["sizes"]] == SIZES
    assert report["portfolio"]["least"] > 0.8
    assert report["portfolio"]["mean"] >= report["dispatched"]["mean"]
    assert 0 < report["held_out"]["least"] <= report["held_out"]["mean"] <= 1
    assert report["not_timed"] == []
    assert report["tuned"] == 3
    for size in report["sizes"]:
        chosen = document["configurations"][size["configuration"]]
        assert not chosen["sizes_must_satisfy"] or size["size"][0] % 4 == 0, "it is valid there"


def test_times_that_are_known_are_not_measured_again(build, tmp_path):
    first = build()
    Builder.built_at.clear()
    again = build(out="again")
    assert again["report"] == first["report"]
    assert set(Builder.built_at) == {64}, "only what is chosen is compiled, at one size for all"
    times = json.loads((tmp_path / "run" / CROSS).read_text())["times"]
    assert len(times) == 5


def test_damaged_times_are_refused(build, tmp_path):
    build()
    (tmp_path / "run" / CROSS).write_text('{"times": {"sgemm NN 64": {"x": -1}}}')
    with pytest.raises(DamagedRunError, match="the times by size and candidate, cannot be read"):
        build()


def test_an_interrupted_build_says_how_it_goes_on(build, tmp_path, monkeypatch):
    monkeypatch.setattr(libraries, "interruptible", lambda _: contextlib.nullcontext(lambda: True))
    with pytest.raises(RunError, match=r"it goes on with run='.*'"):
        build()
    assert not (tmp_path / "lib").exists()


def test_a_size_that_the_operation_does_not_have_is_refused(build):
    with pytest.raises(UsageError):
        build(sizes=[{"rows": 5}, {"rows": 6}])


def test_sizes_of_a_product_lack_none_which_would_be_4096(build):
    with pytest.raises(UsageError, match=r"the sizes m, n are not .*; those of a product have m, n and k"):
        build(sizes=[{"m": 64, "n": 64}, {"m": 128, "n": 64}])


@pytest.mark.parametrize("name", ["double", "exp", "choose", "main", "read", "malloc", "restrict", "add_i", "n_"])
def test_a_name_that_is_taken_in_c_is_refused_before_anything_is_tuned(build, tmp_path, name):
    with pytest.raises(UsageError, match=f"{name} is taken in C, .*; name it otherwise"):
        build(name=name)
    assert not (tmp_path / "run").exists()


def test_a_name_is_refused_with_which_a_library_would_export_a_function_of_the_c_library(build):
    with pytest.raises(UsageError, match="sem_destroy is taken in C"):
        build(name="sem")


def test_a_kernel_of_another_kind_is_refused_by_its_kind(build):
    with pytest.raises(UsageError, match="softmax does not solve sgemm NN 64: it is of kind arrays"):
        build(kernel=["softmax"])


def test_single_products_and_batches_are_two_libraries(tmp_path):
    shapes = [{"m": 64, "n": 64, "k": 64, "batch": batch} for batch in (1, 8)]
    spec = {"library": {"operation": "sgemm", "kernel": ["gemm_simt"]}, "sizes": {"shapes": shapes}}
    with pytest.raises(UsageError, match="single products and batches, which do not share"):
        mltune.build_library(spec, tmp_path / "lib")


def test_a_kernel_whose_sizes_are_compiled_in_is_refused(build, tmp_path):
    spec = {"library": {"operation": "stencil"}, "sizes": {"shapes": [{"nx": 512}, {"nx": 1024}]}}
    kernel = load_kernel("stencil")
    if kernel.arrays.problem().size_names:
        pytest.skip("the sizes of this kernel are arguments")
    with pytest.raises(UsageError, match="compiled once for all sizes"):
        mltune.build_library(spec, tmp_path / "lib")


def test_a_folder_of_something_else_is_refused_before_anything_is_tuned(build, tmp_path):
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "notes.txt").write_text("mine")
    with pytest.raises(LibraryError, match="only a library that mltune wrote is replaced"):
        build()
    assert not (tmp_path / "run").exists()


def test_a_kernel_of_kind_arrays_is_a_library_of_its_sizes(build, tmp_path):
    spec = {"library": {"operation": "reduction", "trials": 20}, "sizes": {"grid": {"n": [2**20, 2**25, 12345]}}}
    document = mltune.build_library(spec, tmp_path / "lib", run=tmp_path / "run", progress=None)
    assert document["name"] == "reduction"
    assert document["sizes"] == document["extents"] == ["n"]
    assert [(one["name"], one["role"]) for one in document["parameters"]] == [
        ("n", "size"), ("sum", "inout"), ("input", "in"),
    ]  # fmt: skip
    assert document["alignment"] == 16
    header = (tmp_path / "lib" / "reduction.h").read_text()
    assert "int reduction(reduction_library *library, int64_t n_, float *sum_, const float *input_, void" in header


def test_kernels_compete_for_places_in_a_library(build, bundle, large):
    document = build(kernel=[str(bundle), str(large)])
    used = {
        one["size"][0]: document["configurations"][one["configuration"]]["kernel"]
        for one in document["report"]["sizes"]
    }
    assert {used[1024], used[2001], used[4096]} == {"large"}
