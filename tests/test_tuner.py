"""The loop, in replay: what it finds, what it records, and that killing it changes nothing."""

import dataclasses
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from mltune.errors import RunDirectoryError
from mltune.kernel.problem import parse_problem
from mltune.records.dataset import load_dataset
from mltune.records.store import Store
from mltune.records.trial import TrialRecord, TrialState
from mltune.run import TuneRequest, TuneResult
from mltune.tuner import BATCH, tune

DATASET = "h200-sgemm-nt-4096-random"
PROBLEM = parse_problem("sgemm", trans="NT", m=4096, n=4096, k=4096)
TRIALS = 6 * BATCH


def search(run: Path, *, trials: int | None = TRIALS, seed: int = 0, time_s: float | None = None) -> TuneResult:
    return tune(TuneRequest(PROBLEM, device=f"replay:{DATASET}", trials=trials, time_s=time_s, seed=seed, run=run))


def essence(records: list[TrialRecord]) -> list[TrialRecord]:
    """Return records in order of number, without the time at which each was made."""
    return sorted((dataclasses.replace(record, finished_at=0.0) for record in records), key=lambda one: one.number)


def stored(run: Path) -> list[TrialRecord]:
    with Store.read_only(run) as store:
        return essence(store.records())


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory) -> TuneResult:
    return search(tmp_path_factory.mktemp("run") / "undisturbed")


def test_every_trial_ends_in_one_state_and_is_on_file(undisturbed):
    document = undisturbed.to_json()

    assert document["trials"] == sum(document["counts"].values()) == TRIALS
    assert [record.number for record in undisturbed.records] == list(range(TRIALS))
    assert stored(undisturbed.run) == essence(undisturbed.records)


def test_no_configuration_is_proposed_twice(undisturbed):
    configurations = [tuple(record.configuration.items()) for record in undisturbed.records]

    assert len(set(configurations)) == len(configurations)


def test_best_is_the_fastest_that_was_right(undisturbed):
    right = [record for record in undisturbed.records if record.state is TrialState.OK]

    assert undisturbed.best is min(right, key=lambda record: record.measurement.median_s)


def test_result_names_what_the_command_prints(undisturbed):
    document = undisturbed.to_json()

    assert document.keys() == {
        "problem", "device", "kernel", "trials", "counts", "best", "seconds", "run"
    }  # fmt: skip
    assert document["best"].keys() == {"configuration", "median_s", "tflops", "share_of_peak", "share_of_cublas"}
    assert document["seconds"].keys() == {"search", "compile", "time", "wait", "total"}


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
    again, other = search(tmp_path / "again"), search(tmp_path / "other", seed=1)

    assert essence(again.records) == essence(undisturbed.records)
    assert essence(other.records) != essence(undisturbed.records)


@pytest.mark.parametrize("share", [0.2, 0.5, 0.8])
def test_killed_run_goes_on_as_if_it_had_not_been(undisturbed, tmp_path, share):
    run = tmp_path / "killed"
    script = f"from pathlib import Path; from tests.test_tuner import search; search(Path({str(run)!r}))"
    process = subprocess.Popen([sys.executable, "-c", script], cwd=Path(__file__).parent.parent, start_new_session=True)
    deadline = time.monotonic() + 60
    while process.poll() is None and time.monotonic() < deadline:
        if (run / "run.sqlite").exists() and len(safely_stored(run)) >= share * TRIALS:
            os.killpg(process.pid, signal.SIGKILL)
        time.sleep(0.01)
    process.wait()
    before = stored(run)
    assert len(before) > 0

    search(run)

    assert stored(run) == essence(undisturbed.records)
    assert before == [record for record in stored(run) if record.number in {one.number for one in before}]


def safely_stored(run: Path) -> list[TrialRecord]:
    """Return what is stored, nothing while the store is being made."""
    try:
        return stored(run)
    except RunDirectoryError:
        return []


def test_finished_run_is_not_run_again(undisturbed):
    again = search(undisturbed.run)

    assert essence(again.records) == essence(undisturbed.records)
    assert again.best == undisturbed.best


def test_run_in_two_parts_is_the_run_in_one(undisturbed, tmp_path):
    search(tmp_path / "run", trials=2 * BATCH + 5)

    search(tmp_path / "run")

    assert stored(tmp_path / "run") == essence(undisturbed.records)


def test_run_of_another_seed_is_refused(undisturbed):
    with pytest.raises(RunDirectoryError, match="seed"):
        search(undisturbed.run, seed=5)


def test_time_limit_ends_the_run(tmp_path):
    result = search(tmp_path / "run", trials=None, time_s=1.0)

    assert len(result.records) > 0
    assert result.seconds["total"] < 5


def test_exhausted_space_ends_the_run(tmp_path):
    """A table of few rows is tried whole, and then there is nothing to propose."""
    from mltune.records.dataset import dataset_from_records, write_dataset
    from mltune.records.header import RunHeader

    recorded = load_dataset(DATASET)
    builds, measured = recorded.builds(), recorded.measurements()
    records = [
        TrialRecord(
            number=row,
            batch=0,
            index=row,
            configuration={name: int(column[row]) for name, column in recorded.columns.items()},
            state=builds[row].state if measured[row] is None else measured[row].state,
            build=builds[row],
            measurement=measured[row],
        )
        for row in range(50)
    ]
    manifest = recorded.manifest
    header = RunHeader(
        manifest.kernel,
        manifest.source_hash,
        dict(manifest.parameters),
        manifest.problem.to_json(),
        manifest.device.to_json(),
        0,
    )
    write_dataset(dataset_from_records(records, header, name="few", kind="random"), tmp_path)

    result = tune(TuneRequest(PROBLEM, device=f"replay:{tmp_path / 'few.parquet'}", trials=500, run=tmp_path / "run"))

    assert len(result.records) == 50
