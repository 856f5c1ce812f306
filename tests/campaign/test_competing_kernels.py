"""A problem with several kernels: the budget goes to the better one, and nothing is lost by a kill."""

import dataclasses
import os
import subprocess
import sys
from functools import partial
from types import SimpleNamespace

import pytest

from mltune.campaign import campaign
from mltune.campaign.scheduler import Scheduler
from mltune.dataset.dataset import load_dataset, make_dataset, write_dataset
from mltune.errors import MltuneWarning, RunDirectoryError
from mltune.kernel.reader import load_kernel
from mltune.resolve.plan import Plan, Task
from mltune.results.summary import fastest, summarise_campaign
from tests.campaign.conftest import ROOT, carry_out, events_of, kill, records_of, stored_trials, wait_until
from tests.campaign.test_interruptions import children
from tests.owned_folders import write_winner

DATASET = "convolution_mi250x_gcd"
TRIALS = 128


def write_kernel(folder, name, slower, accuracy="ieee"):
    """Write a bundle and recorded timings of it, which are slower than those of a shipped one by a factor."""
    import pyarrow as pa

    text = (load_kernel("convolution").folder / "kernel.toml").read_text()
    (folder / name).mkdir(parents=True)
    changed = text.replace('name = "convolution"', f'name = "{name}"\naccuracy = "{accuracy}"')
    (folder / name / "kernel.toml").write_text(changed)
    recorded = load_dataset(DATASET)
    table, at = recorded.table, recorded.table.schema.get_field_index("median_s")
    times = [None if one is None else slower * one for one in table["median_s"].to_pylist()]
    table = table.set_column(at, table.schema.field(at), pa.array(times, table.schema.field(at).type))
    manifest = recorded.manifest
    kept = {key: getattr(manifest, key) for key in ("source_hash", "problem", "device", "created", "versions")}
    facts = {"name": name, "kernel": name, "kind": manifest.kind, "seed": manifest.seed, **kept}
    write_dataset(make_dataset(table, dict(manifest.parameters), **facts), folder)


@pytest.fixture(scope="module")
def kernels(tmp_path_factory):
    """Return the folder of a kernel and of one that is half as fast."""
    folder = tmp_path_factory.mktemp("kernels")
    write_kernel(folder, "good", 1.0, "fp32")
    write_kernel(folder, "poor", 2.0)
    return folder


SIMPLE = {"search": "random", "skip": False, "stop": False}


def plan_of(folder, *names, budget=TRIALS, minimum=16.0, **options):
    """Return a placed plan of one problem with several kernels."""
    problem = load_dataset(DATASET).manifest.problem
    tasks = [
        Task(name, load_kernel(folder / name), problem, str(folder / f"{name}.parquet"), 1.0, minimum, choice="it")
        for name in names
    ]
    return Plan("choice", "Choice", "trials", float(budget), tuple(tasks), devices=("replay",), options=options)


@pytest.fixture(scope="module")
def uninterrupted(kernels, tmp_path_factory):
    directory = tmp_path_factory.mktemp("choice") / "run"
    carry_out(plan_of(kernels, "poor", "good"), directory)
    return directory


def test_every_kernel_begins_and_the_rest_goes_to_the_better_one(uninterrupted):
    trials = {slug: len(records) for slug, records in records_of(uninterrupted).items()}
    assert trials["poor"] == 16
    assert trials["good"] == TRIALS - 16


def test_the_better_one_gets_the_rest_at_once(uninterrupted):
    slices = [
        (event["slug"], event["limit"]) for event in events_of(uninterrupted) if event["event"] == "slice_started"
    ]
    assert slices == [("poor", 16), ("good", 16), ("good", TRIALS - 16)]


@pytest.mark.parametrize(
    ("least_s", "limit"),
    [
        ({"poor": 2e-3, "good": 1e-3}, TRIALS),
        ({"poor": 1.4e-3, "good": 1e-3}, 16),
        ({"poor": 2e-5, "good": 1e-5}, 16),
        ({"poor": 2e-3, "good": 0.0}, 16),
    ],
)
def test_a_kernel_that_no_other_can_approach_gets_all_at_once(kernels, tmp_path, monkeypatch, least_s, limit):
    monkeypatch.setattr("mltune.campaign.scheduler.least_time", lambda task, devices, **_: least_s[task.slug])
    plan = plan_of(kernels, "poor", "good", **SIMPLE)
    time_slice = Scheduler(plan, tmp_path / "run").next([], None)
    assert (time_slice.slug, time_slice.limit) == ("good", limit)
    if limit == TRIALS:
        carry_out(plan, tmp_path / "run")
        (begun,) = (one for one in events_of(tmp_path / "run") if one["event"] == "slice_started")
        assert (begun["slug"], begun["limit"]) == ("good", TRIALS)


@pytest.mark.parametrize(("poor_s", "bounds", "most_s"), [(2e-3, ["good"], 9.8), (1.4e-3, ["good", "poor"], 9.0)])
def test_only_bounds_that_may_decide_are_computed_and_their_seconds_count(
    kernels, tmp_path, monkeypatch, poor_s, bounds, most_s
):
    computed, now_s = [], [0.0]

    def least_time(task, devices, of_hardware):
        if not of_hardware:
            computed.append(task.slug)
            now_s[0] += 0.2
        return {"poor": poor_s, "good": 1e-3}[task.slug]

    monkeypatch.setattr("mltune.campaign.scheduler.least_time", least_time)
    monkeypatch.setattr("mltune.campaign.scheduler.time", SimpleNamespace(monotonic=lambda: now_s[0]))
    plan = dataclasses.replace(plan_of(kernels, "poor", "good"), unit="s")
    time_slice = Scheduler(plan, tmp_path).next([], 10.0)
    assert computed == bounds
    assert (time_slice.limit > 9.0) == (len(bounds) == 1)
    assert time_slice.limit <= most_s


@pytest.mark.slow
def test_kernels_that_are_equally_fast_share_the_budget(kernels, tmp_path):
    write_kernel(tmp_path, "good", 1.0)
    write_kernel(tmp_path, "twin", 1.0)
    carry_out(plan_of(tmp_path, "good", "twin"), tmp_path / "run")
    assert {slug: len(records) for slug, records in records_of(tmp_path / "run").items()} == {"good": 64, "twin": 64}


def test_the_result_is_that_of_the_fastest_with_its_rivals(uninterrupted):
    result = fastest(uninterrupted)
    assert (result.kernel, result.accuracy, result.slug) == ("good", "fp32", "good")
    assert [(one.kernel, one.accuracy) for one in result.rivals] == [("good", "fp32"), ("poor", "ieee")]
    assert result.best_time_s < result.rivals[1].best_time_s
    summary = summarise_campaign(uninterrupted)
    assert (summary["distinct"], summary["with_winner"]) == (1, 1)
    assert [(one["slug"], one["chosen"]) for one in summary["problems"]] == [("poor", False), ("good", True)]


def test_the_directory_of_several_problems_has_no_single_result(kernels, tmp_path):
    plan = plan_of(kernels, "poor", "good", budget=32, **SIMPLE)
    apart = tuple(dataclasses.replace(task, choice="") for task in plan.tasks)
    carry_out(dataclasses.replace(plan, tasks=apart), tmp_path / "run")
    with pytest.raises(RunDirectoryError, match=r"holds 2.*, and a result is that of one problem"):
        fastest(tmp_path / "run")


@pytest.mark.slow
def test_killed_and_resumed_it_ends_with_the_same_records(kernels, uninterrupted, tmp_path):
    directory = tmp_path / "run"
    script = (
        "import sys; from pathlib import Path; from mltune.campaign.campaign import run_plan\n"
        "from tests.campaign.test_competing_kernels import plan_of\n"
        "run_plan(plan_of(Path(sys.argv[1]), 'poor', 'good'), Path(sys.argv[2]))\n"
    )
    for least in (5, 40):
        with subprocess.Popen(
            [sys.executable, "-c", script, str(kernels), str(directory)], cwd=ROOT, start_new_session=True
        ) as process:
            assert wait_until(partial(_enough, directory, least, process))
            workers = children(process.pid)
            kill(process)
        for pid in workers:
            assert wait_until(lambda pid=pid: not os.path.exists(f"/proc/{pid}"))  # it ends with its parent
    assert stored_trials(directory) > 0
    carry_out(plan_of(kernels, "poor", "good"), directory)
    assert records_of(directory) == records_of(uninterrupted)


def _enough(directory, least, process):
    return stored_trials(directory) >= least or process.poll() is not None


@pytest.mark.slow
def test_a_larger_budget_continues_where_it_ended(kernels, tmp_path):
    carry_out(plan_of(kernels, "poor", "good", budget=64), tmp_path / "run")
    before = records_of(tmp_path / "run")
    carry_out(plan_of(kernels, "poor", "good", budget=96), tmp_path / "run")
    after = records_of(tmp_path / "run")
    assert sum(map(len, after.values())) == 96
    assert all(after[slug][: len(records)] == records for slug, records in before.items())


def test_the_winner_of_all_has_a_folder_of_its_own(kernels, tmp_path, monkeypatch):
    """In replay nothing is compiled: a folder is put where a run on a GPU has its own."""

    def run(plan, directory, **options):
        result = carry_out(plan, directory, **options)
        for slug in ("good", "poor"):
            write_winner(directory / "problems" / slug / "winner", kernel=slug)
        return result

    monkeypatch.setattr(campaign, "run_plan", run)
    monkeypatch.setattr(campaign, "place", lambda plan, *gpus: plan)
    with pytest.warns(MltuneWarning, match="no GPU found"):
        result = campaign.tune_choice(plan_of(kernels, "poor", "good", budget=48, **SIMPLE), run=tmp_path / "run")
    assert (result.kernel, len(result.rivals)) == ("good", 2)
    assert (tmp_path / "run/winner/kernel.cu").read_text() == "good"
