"""Problems of one campaign that learn from what the others have measured."""

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from mltune.campaign.campaign import run_plan
from mltune.campaign.scheduler import Scheduler
from mltune.cost.model_file import choose_model
from mltune.dataset.dataset import load_dataset
from mltune.device.known import find_device
from mltune.errors import MltuneWarning
from mltune.kernel.reader import load_kernel
from mltune.problem.kinds import problem_from_name
from mltune.records.directory import FILE
from mltune.resolve.device import Target
from mltune.resolve.request import TuneRequest
from mltune.results.reader import read_run
from mltune.tuning.session import open_session
from mltune.tuning.tuner import tune
from mltune.tuning.wisdom import FEWEST, Siblings, earlier_sweeps, near_run, nearest, sibling_model
from tests.campaign.conftest import events_of, kill, placed, records_of, start, stored_trials, wait_until

PLAN = """
[plan]
title = "Two transpositions"
budget = "160 trials"
minimum = "80 trials"
produce = []

[[problems]]
datasets = ["h200-sgemm-nn-4096-random", "h200-sgemm-nt-4096-random"]
"""
FIRST, SECOND = "h200-sgemm-nn-4096-random", "h200-sgemm-nt-4096-random"


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    return run_plan(placed(PLAN), tmp_path_factory.mktemp("models") / "campaign").directory


def test_the_second_problem_starts_from_a_model_of_the_first(uninterrupted):
    (told,) = (event for event in events_of(uninterrupted) if event["event"] == "model")
    assert (told["slug"], told["detail"]) == (SECOND, FIRST)
    assert not (uninterrupted / "problems" / FIRST / "siblings.json").exists()


@pytest.mark.slow
def test_a_campaign_that_is_killed_and_resumed_uses_the_same_model(uninterrupted, tmp_path):
    process = start(tmp_path, PLAN)
    assert wait_until(lambda: stored_trials(tmp_path) >= 96)
    kill(process)

    run_plan(placed(PLAN), tmp_path)

    assert records_of(tmp_path) == records_of(uninterrupted)
    assert (tmp_path / "problems" / SECOND / "siblings.npy").is_file()


def test_a_run_whose_model_is_damaged_goes_on_without(uninterrupted, tmp_path):
    directory = Path(shutil.copytree(uninterrupted / "problems" / SECOND, tmp_path / "run"))
    (directory / "siblings.npy").write_bytes(b"nothing")
    before = read_run(directory)
    request = TuneRequest(before.problem, load_kernel("gemm_simt"), Target(dataset=SECOND), trials=90, run=directory)
    with pytest.warns(MltuneWarning, match="goes on without it"):
        assert len(tune(request, events=lambda *_, **__: None).records) == 90


@pytest.fixture
def second():
    manifest = load_dataset(SECOND).manifest
    return open_session(TuneRequest(manifest.problem, load_kernel(manifest.kernel), Target(dataset=SECOND)))


def test_a_run_learns_from_the_runs_beside_it(uninterrupted, second, tmp_path):
    """Also from those of a campaign; not from itself, from damaged ones, or from those on other GPUs."""
    shutil.copytree(uninterrupted, tmp_path / "campaign")
    shutil.copytree(tmp_path / "campaign" / "problems" / FIRST, tmp_path / "single")
    shutil.copytree(tmp_path / "single", tmp_path / "damaged")
    (tmp_path / "damaged" / FILE).write_bytes(b"nothing")

    names = sorted(one.name for one in earlier_sweeps(second, tmp_path / "new"))
    assert names == ["sgemm-nn-4096", "sgemm-nn-4096", "sgemm-nt-4096"]
    assert len(earlier_sweeps(second, tmp_path / "single")) == 2
    second.placed = replace(second.placed, device=find_device("a100")[0])
    assert earlier_sweeps(second, tmp_path / "new") == ()


def test_what_was_measured_here_and_a_model_count_together(uninterrupted, second, tmp_path):
    shutil.copytree(uninterrupted / "problems" / FIRST, tmp_path / "single")
    sweeps = earlier_sweeps(second, tmp_path / "new")
    shipped = choose_model("gemm_simt", second.placed.kernel)
    known = shipped.load(second.placed.problem, second.placed.device)

    found = sibling_model(second, tmp_path / "new", sweeps, shipped, begins=True)
    again = sibling_model(second, tmp_path / "new", (), None, begins=False)

    assert [one.sweep for one in found.members] == [sweeps[0].name, *(one.sweep for one in known.members)]
    assert [one.sweep for one in again.members] == [one.sweep for one in found.members]
    assert sibling_model(second, tmp_path / "other", (), shipped, begins=True) is None


def test_the_nearest_count(uninterrupted):
    run = read_run(uninterrupted / "problems" / FIRST, FIRST)

    def distance(name, trans, size):
        found = near_run(problem_from_name(name, trans=trans, size=size), run)
        return found and found.distance

    assert distance("sgemm", "NN", 4096) < distance("sgemm", "NN", 2048) < distance("sgemm", "NT", 4096)
    assert distance("sgemm", "NT", 4096) < distance("sgemm", "NN", 512)
    assert distance("dgemm", "NN", 4096) is None
    assert distance("sgemm", "NT", 512) is None
    near = near_run(run.problem, run)
    (sweep,) = nearest([near])
    assert FEWEST <= len(sweep.median_s) <= len(run.records)  # without what was skipped
    assert np.nanmin(sweep.median_s) == run.best_time_s
    assert len(nearest([near, None, *[near] * 9])) == 4


def test_a_problem_that_begins_is_told_what_was_read_of_the_others_some_seconds_ago(uninterrupted, tmp_path):
    directory = Path(shutil.copytree(uninterrupted, tmp_path / "campaign"))
    shutil.rmtree(directory / "problems" / SECOND)
    plan = placed(PLAN)
    scheduler = Scheduler(plan, directory)
    told = scheduler.siblings(plan.task(SECOND))
    (directory / "problems" / FIRST / FILE).write_bytes(b"nothing")

    again = scheduler.siblings(plan.task(SECOND))
    assert told.entries
    assert told.sweeps
    assert again.entries == told.entries
    assert [one.name for one in again.sweeps] == [one.name for one in told.sweeps]
    assert scheduler.siblings(plan.task(FIRST)) == Siblings()  # which has trials
