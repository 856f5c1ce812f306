"""Faults that a campaign survives without losing or changing a record."""

import json
import os
import signal
import time
from pathlib import Path

import numpy as np
import pytest

from mltune.records.trial import TrialState
from tests.campaign.conftest import (
    FAULTY,
    LEARNED,
    PLAN,
    declarations_of,
    events_of,
    faults,
    kill,
    records_of,
    start,
    start_slowly,
    stored_trials,
    wait_until,
)
from tests.conftest import origin

SHORT = PLAN.replace('"report", ', "")

FAULTS = {
    "a worker is killed": ({"fault": "die", "signal": signal.SIGKILL}, "worker_died"),
    "a worker is killed twice": ({"fault": "die", "signal": signal.SIGKILL}, "worker_died"),
    "only a worker is interrupted": ({"fault": "die", "signal": signal.SIGTERM}, None),
    "a worker faults": ({"fault": "die", "signal": signal.SIGSEGV}, "worker_died"),
    "a worker hangs": ({"fault": "hang"}, "worker_died"),
    "an unexpected exception": ({"fault": "raise"}, "worker_died"),
    "the GPU is lost for two seconds": ({"fault": "lose GPU", "for_s": 2.0}, "gpu_lost"),
    "the disk is full for two seconds": ({"fault": "fill disk", "for_s": 2.0}, "disk_full"),
    "the clock is set back by a week": ({"fault": "set clock", "by_s": -604_800.0}, None),
    "the clock is set forward by a week": ({"fault": "set clock", "by_s": 604_800.0}, None),
}

ALIKE = {
    *("a worker is killed twice", "the GPU is lost for two seconds", "the clock is set back by a week"),
    *("a worker faults", "only a worker is interrupted", "the clock is set forward by a week"),
    *("the disk is full for two seconds", "an unexpected exception", "a worker hangs"),
}
"""Those that another one is much like."""


@pytest.mark.parametrize("name", [pytest.param(one, marks=[pytest.mark.slow] * (one in ALIKE)) for one in FAULTS])
def test_a_fault_changes_no_record(name, request, tmp_path):
    fault, event = FAULTS[name]
    plan, fixture = (LEARNED, "learned") if name in ALIKE else (SHORT, "uninterrupted")
    undisturbed = request.getfixturevalue(fixture)
    caused = [fault | {"at": 20}, *([fault | {"at": 3}] if "twice" in name else [])]
    directory = tmp_path / "campaign"
    process = start(directory, plan, worker=FAULTY, **faults(directory, *caused))

    assert process.wait(timeout=300) == 0
    assert records_of(directory) == records_of(undisturbed.directory)
    assert declarations_of(directory) == declarations_of(undisturbed.directory)
    logged = [str(one["event"]) for one in events_of(directory)]
    assert (event is None) == (not {"worker_died", "gpu_lost", "disk_full"} & set(logged))
    assert event is None or logged.count(event) == len(caused)
    assert len(os.listdir(f"{directory}-faults")) >= len(caused)


@pytest.mark.slow
def test_a_problem_whose_worker_always_dies_is_given_up_and_the_others_are_not(uninterrupted, tmp_path):
    """Its first measurement kills the worker, three times."""
    directory = tmp_path / "campaign"
    deaths = [{"fault": "die", "signal": signal.SIGKILL, "at": 1}] * 3
    process = start(directory, SHORT, worker=FAULTY, **faults(directory, *deaths))

    assert process.wait(timeout=300) == 0
    records = records_of(directory)
    assert len(records["h200-sgemm-nt-4096-random"]) < 24
    for name, expected in records_of(uninterrupted.directory).items():
        assert name == "h200-sgemm-nt-4096-random" or records[name][:24] == expected[:24]


@pytest.mark.parametrize(
    "value",
    [
        "nan",
        *(pytest.param(one, marks=pytest.mark.slow) for one in ("faster than light", "zero", "negative", "infinite")),
    ],
)
@pytest.mark.sampled(1)
@pytest.mark.system
def test_an_impossible_time_is_not_recorded(value, tmp_path):
    directory = tmp_path / "campaign"
    process = start(
        directory,
        SHORT,
        worker=FAULTY,
        **faults(directory, {"fault": "wrong time", "time": value, "at": 5}),
    )

    assert process.wait(timeout=300) == 0
    records = [one for records in records_of(directory).values() for one in records]
    rejected = [one for one in records if one.state is TrialState.UNSTABLE and one.median_s is None]
    assert len(rejected) == 1
    assert rejected[0].measurement.samples_s == ()
    assert rejected[0].detail


@pytest.mark.slow
def test_killed_anywhere_any_number_of_times_it_ends_with_the_same_records(learned, tmp_path, request):
    """Whole campaigns; the campaign or a worker is killed at random moments, also during imports."""
    kills = request.config.getoption("--kills")
    tally = hammer(tmp_path, kills, records_of(learned.directory), declarations_of(learned.directory))

    assert tally["kills"] >= kills
    assert tally["records_lost"] == 0
    output = request.config.getoption("--faults-output")
    if output:
        header = origin(f"pytest tests/campaign -m slow -k killed_anywhere --kills {kills} --faults-output FILE")
        Path(output).write_text(json.dumps(header | tally) + "\n")


def hammer(folder: Path, kills: int, records: dict, declarations: dict) -> dict[str, float | int | list[float]]:
    """Kill campaigns so many times; every campaign that ends must equal the uninterrupted one."""
    rng = np.random.default_rng(267)
    tally: dict = {
        "kills": 0,
        "of_workers": 0,
        "campaigns": 0,
        "records_lost": 0,
        "records_compared": 0,
        "recovery_s": [],
    }
    while tally["kills"] < kills:
        directory = folder / f"campaign-{tally['campaigns']}"
        while _killed(directory, rng, tally) and tally["kills"] < kills:
            pass
        assert start(directory, LEARNED).wait(timeout=300) == 0
        found = records_of(directory)
        assert found == records
        assert declarations_of(directory) == declarations
        tally["campaigns"] += 1
        tally["records_compared"] += sum(map(len, found.values()))
    return tally


def _killed(directory: Path, rng: np.random.Generator, tally: dict) -> bool:
    """Start or resume a campaign and kill it; return False if it ended before that."""
    before = stored_trials(directory)
    process = start(directory, LEARNED)
    started = time.monotonic()
    moment = started + rng.uniform(0.3, 7.0)
    recovered = None
    while time.monotonic() < moment and process.poll() is None:
        if recovered is None and stored_trials(directory) > before:
            recovered = time.monotonic() - started
        time.sleep(0.02)
    if recovered is not None and before:
        tally["recovery_s"].append(round(recovered, 2))
    workers = children(process.pid)
    if process.poll() is not None:
        return False
    if workers and rng.random() < 0.4:  # the campaign continues, and is killed later
        os.kill(int(rng.choice(workers)), signal.SIGKILL)
        tally["kills"] += 1
        tally["of_workers"] += 1
        time.sleep(rng.uniform(0.0, 4.0))
    if process.poll() is None:
        known = stored_trials(directory)
        kill(process)
        tally["kills"] += 1
        tally["records_lost"] += max(0, known - stored_trials(directory))
    return True


def children(pid: int) -> list[int]:
    """Return the child processes of a process (Linux)."""
    found = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            found += map(int, path.read_text().split())
        except OSError:
            continue
    return found


@pytest.mark.system
def test_workers_and_their_children_die_with_the_campaign(tmp_path):
    directory = tmp_path / "campaign"
    process = start_slowly(directory, SHORT)
    assert wait_until(lambda: stored_trials(directory) > 0)
    workers = children(process.pid)
    assert workers

    kill(process)

    assert wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in workers))
