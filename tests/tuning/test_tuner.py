"""The loop, in replay: what it finds, what it records, and that killing it changes nothing."""

import dataclasses
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import Future
from pathlib import Path

import numpy as np
import pytest

from mltune.dataset.dataset import load_dataset
from mltune.dataset.replay import ReplayBuilder, ReplayRunner
from mltune.errors import BundleError, RunDirectoryError, UsageError
from mltune.kernel.reader import load_kernel
from mltune.kernel.space import TableSpace
from mltune.problem.gemm import parse_problem
from mltune.records.store import PHASES, Store
from mltune.records.trial import BATCH, TrialRecord, TrialState
from mltune.resolve.device import Target
from mltune.resolve.request import TuneRequest
from mltune.results.reader import read_run
from mltune.results.run import TuneResult
from mltune.search.stopping import ENOUGH
from mltune.tuning import tuner
from mltune.tuning.session import open_session
from mltune.tuning.tuner import tune
from tests import damages
from tests.conftest import few_rows

DATASET = "h200-sgemm-nt-4096-complete"
"""A recorded space in which the gates skip after two batches."""

STOPPED = "convolution_rtx_a6000"
PROBLEM = parse_problem("sgemm", trans="NT", m=4096, n=4096, k=4096)
KERNEL = load_kernel("gemm_simt")
TRIALS = 6 * BATCH
PLAIN = {"search": "random", "skip": False, "stop": False}
"""Options of runs whose subject is not the search."""

ASKED = {"undisturbed": (TRIALS, DATASET), "gated": (12 * BATCH, DATASET), "stopped": (2000, STOPPED)}
"""Trials and dataset of the runs that others are compared with."""


def search(run: Path, *, trials: int | None = TRIALS, dataset: str = DATASET, **more) -> TuneResult:
    manifest = load_dataset(dataset).manifest
    kernel, target = load_kernel(manifest.kernel), Target(dataset=dataset)
    return tune(TuneRequest(manifest.problem, kernel, target, trials=trials, run=run, **more))


def essence(records: list[TrialRecord]) -> list[TrialRecord]:
    """Return records in order of number, without the time at which each was made."""
    return sorted((dataclasses.replace(record, finished_at=0.0) for record in records), key=lambda one: one.number)


def stored(run: Path) -> list[TrialRecord]:
    with Store.read_only(run) as store:
        return essence(store.records())


@pytest.fixture(scope="module")
def gated(tmp_path_factory) -> TuneResult:
    """Return a run in which both gates and the audit are at work."""
    return search(tmp_path_factory.mktemp("run") / "gated", trials=ASKED["gated"][0])


@pytest.fixture(scope="module")
def stopped(tmp_path_factory) -> TuneResult:
    """Return a run that ends by itself."""
    return search(tmp_path_factory.mktemp("run") / "stopped", trials=ASKED["stopped"][0], dataset=STOPPED)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory) -> TuneResult:
    return search(tmp_path_factory.mktemp("run") / "undisturbed")


def test_every_trial_ends_in_one_state_and_is_on_file(undisturbed):
    document = undisturbed.to_json()

    assert document["trials"] == sum(document["counts"].values()) == TRIALS
    assert [record.number for record in undisturbed.records] == list(range(TRIALS))
    assert stored(undisturbed.directory) == essence(undisturbed.records)


def test_no_configuration_is_proposed_twice(undisturbed):
    configurations = [tuple(record.configuration.items()) for record in undisturbed.records]

    assert len(set(configurations)) == len(configurations)


def test_best_is_the_fastest_that_was_right(undisturbed):
    right = [record for record in undisturbed.records if record.state is TrialState.OK]

    assert undisturbed.best == min(right, key=lambda record: record.measurement.median_s)


def test_result_names_what_the_command_prints(undisturbed):
    document = undisturbed.to_json()

    assert document.keys() == {
        "problem", "device", "kernel", "replayed", "trials", "counts", "best", "seconds", "run", "stopped", "notice",
        "skips", "model", "whole", "accuracy", "label", "reference", "choice", "funnel",
    }  # fmt: skip
    assert document["best"].keys() == {
        "configuration", "median_s", "gb_per_s", "tflops", "share_of_peak", "share_of_reference",
        "interval_s", "interval_share_of_reference", "ties", "verified", "error",
    }  # fmt: skip
    assert document["seconds"].keys() == set(PHASES)


@pytest.mark.slow
def test_search_finds_better_than_chance(undisturbed, tmp_path):
    """In the median of three seeds it beats what a random search of as many trials is expected to find."""
    rate = 1.0 / load_dataset(DATASET).numbers("median_s")
    rate = np.sort(np.nan_to_num(rate))
    ranks = np.arange(1, len(rate) + 1) / len(rate)
    expected = float((rate * np.diff(ranks**TRIALS, prepend=0.0)).sum())
    found = [1.0 / undisturbed.best.measurement.median_s]
    found += [1.0 / search(tmp_path / str(seed), seed=seed).best.measurement.median_s for seed in (1, 2)]

    assert np.median(found) > expected


def test_same_seed_gives_the_same_trials_and_another_seed_others(undisturbed, tmp_path):
    again, other = search(tmp_path / "again"), search(tmp_path / "other", seed=1, trials=BATCH)

    assert essence(again.records) == essence(undisturbed.records)
    assert essence(other.records) != essence(undisturbed.records)[:BATCH]


@pytest.mark.parametrize(
    ("name", "share"),
    [
        ("undisturbed", 0.2),
        *(
            pytest.param(*one, marks=pytest.mark.slow)
            for one in (("undisturbed", 0.8), ("gated", 0.3), ("gated", 0.7), ("stopped", 0.6))
        ),
    ],
)
def test_killed_run_goes_on_as_if_it_had_not_been(name, share, tmp_path, request):
    """Also where gates skipped in between, and where it ends by itself."""
    whole = request.getfixturevalue(name)
    run, trials, dataset = tmp_path / "killed", *ASKED[name]
    script = (
        "from pathlib import Path; from tests.tuning.test_tuner import search; "
        f"search(Path({str(run)!r}), trials={trials}, dataset={dataset!r})"
    )
    process = subprocess.Popen([sys.executable, "-c", script], cwd=Path(__file__).parents[2], start_new_session=True)
    deadline = time.monotonic() + 300
    while process.poll() is None and time.monotonic() < deadline:
        if (run / "run.sqlite").exists() and len(safely_stored(run)) >= share * len(whole.records):
            os.killpg(process.pid, signal.SIGKILL)
        time.sleep(0.01)
    process.wait()
    before = stored(run)
    assert len(before) > 0

    again = search(run, trials=trials, dataset=dataset)

    assert stored(run) == essence(whole.records)
    assert again.stopped == whole.stopped
    assert before == [record for record in stored(run) if record.number in {one.number for one in before}]


@pytest.mark.system
def test_all_that_computes_in_threads_is_loaded_before_threads_are_limited(tmp_path):
    """Else sums would depend on the cores, and a run that is resumed on others would go another way."""
    script = f"""
import threadpoolctl
from pathlib import Path
from mltune.cost.regressors import preload
from tests.tuning.test_tuner import search

def pools():
    return {{pool["filepath"] for pool in threadpoolctl.threadpool_info()}}

preload()
before = pools()
search(Path({str(tmp_path / "run")!r}), trials=96)
print(*sorted(pools() - before))
"""
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == ""


def test_models_are_imported_while_the_first_builds_are_made_and_compute_with_one_thread(tmp_path):
    script = f"""
import json, sys
import threadpoolctl
import mltune
from mltune.dataset.replay import ReplayBuilder

submit, seen = ReplayBuilder.submit, []

def noted(self, configuration):
    modules = [name for name in ("scipy", "sklearn", "sklearn.ensemble") if name in sys.modules]
    seen.append((modules, [pool["num_threads"] for pool in threadpoolctl.threadpool_info()]))
    return submit(self, configuration)

ReplayBuilder.submit = noted
mltune.tune(device="replay:convolution_rtx_a4000", trials=48, run={str(tmp_path / "run")!r}, progress=None)
print(json.dumps([seen[7], seen[8], seen[-1]]))
"""
    environment = {**os.environ, "OMP_NUM_THREADS": "2", "OPENBLAS_NUM_THREADS": "2"}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=300, env=environment)
    assert done.returncode == 0, done.stderr
    (first, _), (second, _), (modules, threads) = json.loads(done.stdout)
    assert first == []
    assert "scipy" in second  # and perhaps a part of scikit-learn, for which the second batch does not wait
    assert modules == ["scipy", "sklearn", "sklearn.ensemble"]
    assert len(threads) > 1  # NumPy's, and those of the models
    assert set(threads) == {1}


def test_compilers_and_runner_start_before_the_space_is_counted(tmp_path, monkeypatch):
    order = []

    class Counted(TableSpace):
        @property
        def count(self):
            order.append("count")
            return super().count

    def enter(builder):
        order.append("start")
        return builder

    session = open_session(TuneRequest(PROBLEM, KERNEL, Target(dataset=DATASET)))
    session.placed = dataclasses.replace(session.placed, chosen=Counted(session.recorded.columns))
    order.clear()
    monkeypatch.setattr(tuner, "open_session", lambda *_, **__: session)
    monkeypatch.setattr(ReplayBuilder, "__enter__", enter)
    search(tmp_path / "run", trials=BATCH, **PLAIN)
    assert order[:2] == ["start", "count"]


def safely_stored(run: Path) -> list[TrialRecord]:
    """Return what is stored, nothing while the store is being made."""
    try:
        return stored(run)
    except RunDirectoryError:
        return []


def test_finished_run_is_not_run_again(undisturbed):
    again = search(undisturbed.directory)

    assert essence(again.records) == essence(undisturbed.records)
    assert again.best == undisturbed.best


def test_run_in_two_parts_is_the_run_in_one(undisturbed, tmp_path):
    """Also where a gate has skipped in the first part, and skips in the second."""
    trials = 4 * BATCH + 5
    search(tmp_path / "run", trials=trials)

    search(tmp_path / "run")

    assert stored(tmp_path / "run") == essence(undisturbed.records)
    assert sides_of(undisturbed, trials) == {True, False}


def sides_of(result: TuneResult, trials: int) -> set[bool]:
    """Return on which sides of a number of trials gates skipped."""
    return {record.number >= trials for record in result.records if record.state is TrialState.SKIPPED}


@pytest.mark.nightly
@pytest.mark.parametrize("trials", [7 * BATCH + 3, 7 * BATCH])
def test_what_gates_skipped_is_proposed_the_same_in_two_parts(gated, tmp_path, trials):
    search(tmp_path / "run", trials=trials)

    search(tmp_path / "run", trials=ASKED["gated"][0])

    assert stored(tmp_path / "run") == essence(gated.records)
    assert sides_of(gated, trials) == {True, False}


def test_batches_that_follow_from_seconds_are_the_same_in_two_parts(tmp_path, monkeypatch):
    def with_compilers(*given, **options):
        return dataclasses.replace(open_session(*given, **options), compilers=12)

    monkeypatch.setattr(tuner, "open_session", with_compilers)
    whole = search(tmp_path / "whole", trials=70)
    search(tmp_path / "run", trials=33)
    search(tmp_path / "run", trials=70)

    assert stored(tmp_path / "run") == essence(whole.records)
    sizes = np.bincount([record.batch for record in whole.records])
    assert sizes[:4].tolist() == [8, 4, 4, 4], "an initial design, then one for each further compiler"


def test_without_the_skip_everything_is_measured(undisturbed, tmp_path):
    result = search(tmp_path / "run", trials=5 * BATCH, skip=False)

    assert TrialState.SKIPPED in {record.state for record in undisturbed.records[: 5 * BATCH]}
    assert {record.state for record in result.records} == {TrialState.OK}
    assert all(record.skip is None and not record.audited for record in result.records)


@pytest.mark.system
def test_each_search_proposes_itself(tmp_path):
    results = {
        name: search(tmp_path / name, trials=4 * BATCH, search=name, dataset="h200-sgemm-nt-4096-random")
        for name in ("random", "tpe", "astra")
    }
    sources = {name: {record.proposed_by for record in result.records} for name, result in results.items()}

    assert sources == {"random": {"random"}, "tpe": {"tpe", "random"}, "astra": {"random"}}  # TPE repeats itself


def test_thresholds_of_a_kernel_that_names_no_resources_are_refused(tmp_path):
    with pytest.raises(BundleError, match=r"convolution does not name the \[resources\]"):
        search(tmp_path / "run", dataset=STOPPED, search="astra")


def test_a_run_that_ends_by_itself_says_why(stopped):
    assert len(stopped.records) < ASKED["stopped"][0]
    assert "measurements gained less than 1 %" in stopped.stopped
    assert stopped.to_json()["stopped"] == stopped.stopped


def test_a_run_that_ended_by_itself_is_not_taken_up_again_unless_told_to(stopped, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(stopped.directory, run)

    again = search(run, trials=2 * ASKED["stopped"][0], dataset=STOPPED)
    assert essence(again.records) == essence(stopped.records)
    assert again.stopped == stopped.stopped

    longer = search(run, trials=len(stopped.records) + BATCH, dataset=STOPPED, stop=False)
    assert len(longer.records) == len(stopped.records) + BATCH
    assert longer.stopped == ""


@pytest.mark.system
@pytest.mark.nightly
def test_in_two_parts_it_ends_where_it_would_have(stopped, tmp_path):
    """A verdict is counted once, in whichever part it fell."""
    for share in (0.4, 0.6, 0.85):
        search(tmp_path / "run", trials=int(share * len(stopped.records)), dataset=STOPPED)

    last = search(tmp_path / "run", trials=ASKED["stopped"][0], dataset=STOPPED)

    assert essence(last.records) == essence(stopped.records)
    assert last.stopped == stopped.stopped


@pytest.mark.system
def test_told_not_to_it_does_not_end_by_itself(stopped, tmp_path):
    trials = len(stopped.records) + 2 * BATCH

    assert len(search(tmp_path / "run", trials=trials, dataset=STOPPED, stop=False).records) == trials


@pytest.mark.parametrize("place", [".", "problems/sgemm", "problems/new/../sgemm"])
def test_the_directories_of_a_plan_are_refused(place, tmp_path, monkeypatch):
    """`mltune run` resumes them."""
    (tmp_path / "problems/sgemm").mkdir(parents=True)
    (tmp_path / "problems/new").mkdir()
    (tmp_path / "plan.toml").write_text("")
    before = sorted(tmp_path.rglob("*"))
    for directory in (tmp_path, tmp_path / "problems"):
        monkeypatch.chdir(directory)
        with pytest.raises(RunDirectoryError, match=r"directory of a (plan, which|problem of a plan:) `mltune run "):
            search(Path(os.path.relpath(tmp_path / place)))
    assert sorted(tmp_path.rglob("*")) == before


def test_a_folder_called_problems_is_no_plan(tmp_path):
    assert len(search(tmp_path / "problems/sgemm", trials=BATCH, **PLAIN).records) == BATCH


def test_run_of_another_seed_is_refused(undisturbed):
    with pytest.raises(RunDirectoryError, match="seed"):
        search(undisturbed.directory, seed=5)


def test_a_time_limit_ends_the_run(tmp_path):
    """However busy the machine is: only what was planned before the limit is measured after it."""
    result = search(tmp_path / "run", trials=None, time_s=0.5, **PLAIN)

    assert result.seconds["total"] >= 0.5
    late = [record for record in result.records if record.elapsed_s > 0.5]
    assert len(late) <= 2 * BATCH


def test_the_shortest_time_has_trials(tmp_path):
    """Loading takes longer than that, and is not part of it."""
    assert len(search(tmp_path / "run", trials=None, time_s=1e-3).records) >= 8


def test_a_run_without_a_result_goes_on_until_its_first(tmp_path, monkeypatch):
    """Where one measurement takes longer than the limit, the run has a winner all the same."""
    submit = ReplayRunner.submit

    def slowly(runner, configuration, build, **options):
        late, answer = Future(), submit(runner, configuration, build, **options).result()
        late.set_running_or_notify_cancel()
        threading.Timer(0.1, late.set_result, [answer]).start()
        return late

    monkeypatch.setattr(ReplayRunner, "submit", slowly)
    result = search(tmp_path / "run", trials=None, time_s=0.05, **PLAIN)

    assert result.best is not None
    assert len(result.records) <= BATCH


@pytest.mark.system
def test_an_exhausted_space_ends_the_run_with_that_reason(tmp_path):
    """A table of few rows is tried whole, and then there is nothing to propose."""
    target = Target(dataset=str(few_rows(tmp_path, DATASET, rows=50)))
    result = tune(TuneRequest(PROBLEM, KERNEL, target, trials=500, run=tmp_path / "run"))

    assert len(result.records) == 50
    assert result.stopped == "nothing is left to try: all 50 configurations are on record"
    assert read_run(tmp_path / "run").stopped == result.stopped
    assert result.to_json()["stopped"] == result.stopped

    for stop in (True, False):  # also where nothing else ends the search
        again = tune(TuneRequest(PROBLEM, KERNEL, target, trials=600, run=tmp_path / "run", stop=stop))
        assert essence(again.records) == essence(result.records)
        assert again.stopped == result.stopped


@pytest.mark.parametrize("trials", [40, *(pytest.param(one, marks=pytest.mark.slow) for one in (32, 50))])
@pytest.mark.system
def test_a_space_is_exhausted_in_two_parts_as_in_one(tmp_path, trials):
    target = Target(dataset=str(few_rows(tmp_path, DATASET, rows=50)))
    whole = tune(TuneRequest(PROBLEM, KERNEL, target, trials=500, run=tmp_path / "whole"))

    first = tune(TuneRequest(PROBLEM, KERNEL, target, trials=trials, run=tmp_path / "parts"))
    second = tune(TuneRequest(PROBLEM, KERNEL, target, trials=500, run=tmp_path / "parts"))

    assert len(first.records) == trials
    assert not first.stopped
    assert essence(second.records) == essence(whole.records)
    assert second.stopped == whole.stopped


@pytest.mark.parametrize("share", [0.0, 1.5, math.nan])
def test_a_goal_is_a_share_of_the_bound(share):
    with pytest.raises(UsageError, match="share of the upper bound"):
        TuneRequest(PROBLEM, KERNEL, Target(), enough=share)


@pytest.mark.system
def test_a_run_ends_at_its_goal_and_goes_on_with_a_higher_one(tmp_path):
    whole = search(tmp_path / "whole", trials=7 * BATCH)
    first = search(tmp_path / "run", trials=7 * BATCH, enough=0.5)
    assert first.stopped == ENOUGH
    assert len(first.records) < 100
    assert len(first.records) % 4 == 0, "whole batches"
    assert essence(first.records) == essence(whole.records)[: len(first.records)]
    assert len(search(tmp_path / "run", trials=7 * BATCH, enough=0.5).records) == len(first.records)
    assert stored(tmp_path / "run") == essence(first.records)

    further = search(tmp_path / "run", trials=7 * BATCH, enough=1.0)
    assert further.stopped == ""
    assert essence(further.records) == essence(whole.records)


def test_a_run_with_the_most_trials_says_so_and_stays_whole(tmp_path, monkeypatch):
    monkeypatch.setattr(tuner, "MOST_TRIALS", 24)
    monkeypatch.setattr("mltune.records.store.MOST_TRIALS", 24)
    for trials in (24, 30):
        found = search(tmp_path / "run", trials=trials)
        assert len(found.records) == 24
        assert "the most that a run may have" in found.stopped


def test_a_run_whose_gates_have_lost_their_predictions_goes_on(gated, tmp_path):
    shutil.copytree(gated.directory, tmp_path / "run")
    damages._forged("trials", "predicted", None, "gate IS NOT NULL")(tmp_path / "run")
    assert len(search(tmp_path / "run", trials=len(gated.records) + 16, stop=False).records) > len(gated.records)
