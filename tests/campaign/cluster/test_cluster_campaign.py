"""A campaign on a cluster has the records of one on this host, whoever dies meanwhile."""

import contextlib
import functools
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from mltune.campaign.campaign import run_plan
from mltune.campaign.cluster.gpu_workers import Cluster
from mltune.resolve.placement import place_on_workers
from mltune.resolve.plan_file import parse_plan
from tests.campaign.cluster.conftest import RESOURCES, WORKERS
from tests.campaign.conftest import (
    SIMPLE,
    declarations_of,
    events_of,
    placed,
    records_of,
    stored_trials,
    wait_until,
)
from tests.cli import program

pytestmark = pytest.mark.system

PLAN = """
[plan]
title = "As many trials for each problem, whoever runs them"
budget = "96 trials"
minimum = "32 trials"
maximum = "32 trials"
produce = ["winners"]

[[problems]]
datasets = ["h200-sgemm-nt-4096-random", "convolution_mi250x_gcd", "xgemm_rtx_2080_ti"]
"""


@pytest.fixture(scope="module")
def carried_out_here(tmp_path_factory):
    """Return a function that returns the directory of a campaign on this host."""

    @functools.cache
    def carried_out(plan):
        return run_plan(placed(plan), tmp_path_factory.mktemp("campaign") / "alone").directory

    return carried_out


@pytest.fixture
def alone(carried_out_here):
    """Return the directory of the same campaign on this host."""
    return carried_out_here(PLAN)


def carry_out(cluster, directory, **options):
    with contextlib.closing(Cluster(cluster.address)) as found:
        workers = {worker.name: worker.device for worker in found.workers()}
        assert workers == {"gpu-a": None, "gpu-b": None}
        plan = place_on_workers(parse_plan(PLAN, "test"), workers)
        return run_plan(plan, directory, cluster=found, **options)


@pytest.mark.slow
def test_the_records_are_those_of_this_host(cluster, alone, tmp_path):
    directory = tmp_path / "campaign"
    result = carry_out(cluster, directory)
    assert not result.interrupted
    assert records_of(directory) == records_of(alone)
    assert declarations_of(directory) == declarations_of(alone)
    started = [event for event in events_of(directory) if event["event"] == "slice_started"]
    assert len(started) >= 3


def test_the_command_line_starts_a_cluster_on_this_machine(alone, tmp_path, database_url):
    plan = tmp_path / "plan.toml"
    plan.write_text(PLAN)
    document = program.answer(
        "run", plan, "--cluster", "local", "--run", tmp_path / "campaign", "--store", database_url
    )
    assert document["failed"] == {}
    assert records_of(tmp_path / "campaign") == records_of(alone)


CARRY_OUT = """
import contextlib, sys
from pathlib import Path
from mltune.campaign.cluster.gpu_workers import Cluster
from mltune.campaign.campaign import CampaignSettings, run_plan
from mltune.resolve.placement import place_on_workers
from mltune.resolve.plan_file import parse_plan
from mltune.process.signals import Interrupt

with contextlib.closing(Cluster(sys.argv[1])) as cluster, Interrupt(300.0) as stop:
    workers = {worker.name: worker.device for worker in cluster.workers(60.0)}
    plan = place_on_workers(parse_plan(sys.argv[3], "test"), workers)
    run_plan(plan, Path(sys.argv[2]), cluster=cluster, stop=stop, settings=CampaignSettings(store=sys.argv[4]))
"""


class Killer:
    """Kills what belongs to a campaign on a cluster, and starts it again as a supervisor does."""

    def __init__(self, cluster, directory, database="", plan=PLAN):
        self.cluster, self.directory, self.database, self.plan = cluster, directory, database, plan
        self.process, self.errors = None, directory.with_suffix(".err")
        self.pids = {}
        for name in WORKERS:  # asking takes longer than a time slice
            with contextlib.suppress(StopIteration):  # of a worker that was killed
                self.pids[name] = cluster.worker_pid(name)
        self.start()

    def start(self):
        arguments = [self.cluster.address, str(self.directory), self.plan, self.database]
        command = [sys.executable, "-P", "-c", CARRY_OUT, *arguments]
        with self.errors.open("ab") as errors:
            self.process = subprocess.Popen(command, cwd=Path(__file__).resolve().parents[3], stderr=errors)

    def worker(self, name):
        """Kill a worker; its nanny starts it again."""
        os.kill(self.pids.pop(name, None) or self.cluster.worker_pid(name), signal.SIGKILL)

    def nanny(self, name):
        """Kill a worker with its nanny, and start both again."""
        self.pids.pop(name, None)
        self.cluster.kill(name)
        self.cluster.start_worker(name, RESOURCES)

    def host(self):
        """Kill the process of the campaign, and start it again."""
        self.process.kill()
        self.process.wait()
        self.start()

    def scheduler(self):
        """Kill the scheduler, and start it and the workers again."""
        self.pids.clear()
        for name in ("scheduler", *WORKERS):
            self.cluster.kill(name)
        self.cluster.start_scheduler()
        for name in WORKERS:
            self.cluster.start_worker(name, RESOURCES)

    def connections(self):
        """End all connections to the database."""
        import psycopg

        with psycopg.connect(self.database, autocommit=True) as connection:
            connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )

    def partition(self, name, seconds):
        """Stop the process of a worker for a while: nobody hears of it, and it goes on then."""
        pid = self.cluster.worker_pid(name)
        os.kill(pid, signal.SIGSTOP)
        time.sleep(seconds)
        os.kill(pid, signal.SIGCONT)


def check(killer, alone):
    assert killer.process.wait(timeout=300) == 0, killer.errors.read_text()[-3000:]
    assert records_of(killer.directory) == records_of(alone)
    assert declarations_of(killer.directory) == declarations_of(alone)


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(lambda killer: killer.worker("gpu-a"), marks=pytest.mark.nightly),
        pytest.param(lambda killer: killer.nanny("gpu-b"), marks=pytest.mark.slow),
        lambda killer: killer.host(),
        pytest.param(lambda killer: killer.scheduler(), marks=pytest.mark.slow),
        pytest.param(lambda killer: killer.partition("gpu-a", 5.0), marks=pytest.mark.slow),
        pytest.param(lambda killer: killer.partition("gpu-a", 30.0), marks=pytest.mark.slow),
    ],
    ids=["worker", "nanny", "host", "scheduler", "partition of 5 s", "partition of 30 s"],
)
@pytest.mark.parametrize(
    "plan", [PLAN + SIMPLE, pytest.param(PLAN, marks=pytest.mark.nightly)], ids=["random", "learned"]
)
def test_a_fault_changes_no_record(fault, plan, cluster, carried_out_here, tmp_path):
    killer = Killer(cluster, tmp_path / "campaign", plan=plan)
    wait_until(lambda: stored_trials(killer.directory) > 0)
    assert killer.process.poll() is None, "two problems are left"
    fault(killer)
    check(killer, carried_out_here(plan))


def test_an_interrupt_ends_a_campaign_also_with_a_worker_that_does_not_answer(cluster, tmp_path):
    killer = Killer(cluster, tmp_path / "campaign")
    wait_until(lambda: stored_trials(killer.directory) > 0)
    stopped = killer.pids["gpu-a"]
    os.kill(stopped, signal.SIGSTOP)
    killer.process.send_signal(signal.SIGINT)
    assert killer.process.wait(timeout=300) == 0
    os.kill(stopped, signal.SIGCONT)
    events = [one["event"] for one in events_of(killer.directory)]
    assert [one for one in events if one != "progress"][-1] == "plan_ended"  # progress is logged once a minute


@pytest.mark.slow
def test_sixty_kills_change_no_record(cluster, alone, database_url, record_property, tmp_path):
    """Of workers, nannies, schedulers, connections to the database and the process of the campaign, at random moments.

    A campaign that ends is followed by another.
    """
    rng, campaigns, kills = np.random.default_rng(0), 0, Counter()
    while kills.total() < 60:
        campaigns += 1
        killer = Killer(cluster, tmp_path / f"campaign-{campaigns}", database_url)
        while killer.process.poll() is None and kills.total() < 60:
            time.sleep(rng.uniform(0.5, 4.0))
            if killer.process.poll() is None:
                kill = str(rng.choice(["worker", "nanny", "host", "scheduler", "connections"]))
                names = [rng.choice(WORKERS)] if kill in ("worker", "nanny") else []
                with contextlib.suppress(StopIteration, ProcessLookupError):  # of a worker that is starting
                    getattr(killer, kill)(*names)
                    kills[kill] += 1
        check(killer, alone)
    record_property("kills", {**kills, "campaigns": campaigns})
