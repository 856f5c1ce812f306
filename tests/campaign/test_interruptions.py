"""What a campaign survives: every record that was made is there in the end, and no other."""

import datetime
import json
import os
import platform
import signal
import time
from pathlib import Path

import numpy as np
import pytest

from mltune import __version__
from mltune.records.trial import TrialState
from tests.campaign.conftest import (
    PLAN,
    declarations_of,
    events_of,
    kill,
    records_of,
    start,
    stored_trials,
    until,
)

TROUBLES = {
    "a worker is killed": ({"deed": "die", "signal": signal.SIGKILL}, "worker_died"),
    "a worker is killed for want of memory, twice": ({"deed": "die", "signal": signal.SIGKILL}, "worker_died"),
    "a worker alone is told to end": ({"deed": "die", "signal": signal.SIGTERM}, None),
    "a worker faults": ({"deed": "die", "signal": signal.SIGSEGV}, "worker_died"),
    "a worker hangs": ({"deed": "hang"}, "worker_died"),
    "something that nobody foresaw": ({"deed": "fail"}, "worker_died"),
    "the GPU is lost for four seconds": ({"deed": "lose GPU", "for_s": 4.0}, "gpu_lost"),
    "the disk is full for four seconds": ({"deed": "fill disk", "for_s": 4.0}, "disk_full"),
    "the clock is set back by a week": ({"deed": "set clock", "by_s": -604_800.0}, None),
    "the clock is set forward by a week": ({"deed": "set clock", "by_s": 604_800.0}, None),
}


def script(directory: Path, *deeds: dict) -> dict[str, str]:
    """Return the environment of a campaign with deeds."""
    done = directory.with_name(f"{directory.name}-deeds")
    done.mkdir()
    return {"DEEDS": json.dumps(deeds), "DEEDS_DONE": str(done)}


@pytest.mark.parametrize("trouble", TROUBLES)
def test_trouble_changes_no_record(trouble, undisturbed, tmp_path):
    deed, event = TROUBLES[trouble]
    deeds = [deed | {"at": 20}, *([deed | {"at": 3}] if "twice" in trouble else [])]
    directory = tmp_path / "campaign"
    process = start(directory, PLAN, worker="tests.campaign.device_workers:spoiled", **script(directory, *deeds))

    assert process.wait(timeout=120) == 0
    assert records_of(directory) == records_of(undisturbed.directory)
    assert declarations_of(directory) == declarations_of(undisturbed.directory)
    told = [str(one["event"]) for one in events_of(directory)]
    assert (event is None) == (not {"worker_died", "gpu_lost", "disk_full"} & set(told))
    assert event is None or told.count(event) == len(deeds)
    assert len(os.listdir(f"{directory}-deeds")) >= len(deeds)


def test_a_problem_whose_lane_always_dies_is_given_up_and_the_others_are_not(undisturbed, tmp_path):
    """Its first measurement kills the worker, three times."""
    directory = tmp_path / "campaign"
    deeds = [{"deed": "die", "signal": signal.SIGKILL, "at": 1}] * 3
    process = start(directory, PLAN, worker="tests.campaign.device_workers:spoiled", **script(directory, *deeds))

    assert process.wait(timeout=120) == 0
    records = records_of(directory)
    assert len(records["h200-sgemm-nt-4096-random"]) < 64
    for name, expected in records_of(undisturbed.directory).items():
        assert name == "h200-sgemm-nt-4096-random" or records[name][:64] == expected[:64]


@pytest.mark.parametrize("lie", ["nan", "zero", "negative", "infinite", "faster than light"])
def test_a_time_that_is_none_is_no_record_of_a_fast_kernel(lie, tmp_path):
    directory = tmp_path / "campaign"
    process = start(
        directory,
        PLAN.replace("320", "192"),
        worker="tests.campaign.device_workers:spoiled",
        **script(directory, {"deed": "lie", "lie": lie, "at": 5}),
    )

    assert process.wait(timeout=120) == 0
    told = [one for records in records_of(directory).values() for one in records if one.state is TrialState.UNSTABLE]
    liars = [one for one in told if one.median_s is None]
    assert len(liars) == 1
    assert liars[0].measurement.samples_s == ()
    assert liars[0].detail


@pytest.mark.slow
def test_killed_anywhere_any_number_of_times_it_ends_as_if_it_had_not_been(undisturbed, tmp_path, request):
    """Whole nights; the supervisor or a worker is killed at random moments, imports included."""
    kills = request.config.getoption("--kills")
    tally = hammer(tmp_path, kills, records_of(undisturbed.directory), declarations_of(undisturbed.directory))

    assert tally["kills"] >= kills
    assert tally["records_lost"] == 0
    output = request.config.getoption("--faults-output")
    if output:
        told = {
            "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "command": f"pytest tests/campaign -k killed_anywhere --kills {kills} --faults-output FILE",
            "host": f"{os.cpu_count()} cores, Python {platform.python_version()}, mltune {__version__}",
        }
        Path(output).write_text(json.dumps(told | tally) + "\n")


def hammer(folder: Path, kills: int, records: dict, declarations: dict) -> dict[str, float | int | list[float]]:
    """Kill until that was done so many times; every campaign that comes to its end must equal the undisturbed one."""
    rng = np.random.default_rng(267)
    tally: dict = {"kills": 0, "of_lanes": 0, "nights": 0, "records_lost": 0, "records_compared": 0, "recovery_s": []}
    while tally["kills"] < kills:
        directory = folder / f"campaign-{tally['nights']}"
        while _killed(directory, rng, tally) and tally["kills"] < kills:
            pass
        assert start(directory, PLAN).wait(timeout=120) == 0
        found = records_of(directory)
        assert found == records
        assert declarations_of(directory) == declarations
        tally["nights"] += 1
        tally["records_compared"] += sum(map(len, found.values()))
    return tally


def _killed(directory: Path, rng: np.random.Generator, tally: dict) -> bool:
    """Start a campaign, or go on with it, and kill; return False when it ended before that."""
    before = stored_trials(directory)
    process = start(directory, PLAN)
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
    if workers and rng.random() < 0.4:  # the supervisor lives on, and so does the campaign, for a second kill
        os.kill(int(rng.choice(workers)), signal.SIGKILL)
        tally["kills"] += 1
        tally["of_lanes"] += 1
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


def test_lanes_and_their_children_die_with_the_supervisor(tmp_path):
    process = start(tmp_path, PLAN)
    assert until(lambda: stored_trials(tmp_path) > 0)
    workers = children(process.pid)
    assert workers

    kill(process)

    assert until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in workers), timeout_s=10)
