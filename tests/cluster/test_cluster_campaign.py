"""A campaign on a cluster has the records of one on this host, whoever dies meanwhile."""

import contextlib

import pytest

from mltune.cluster.gpu_workers import Cluster
from mltune.plan.campaign import run_plan
from mltune.plan.placement import place_on_workers
from mltune.plan.reader import parse_plan
from tests.campaign.conftest import declarations_of, events_of, placed, records_of

PLAN = """
[plan]
title = "As many trials for each problem, whoever runs them"
budget = "288 trials"
minimum = "96 trials"
maximum = "96 trials"
produce = ["report", "winners"]

[[problems]]
datasets = ["h200-sgemm-nt-4096-random", "convolution_mi250x_gcd", "xgemm_rtx_2080_ti"]
"""


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """Return the directory of the same campaign on this host."""
    return run_plan(placed(PLAN), tmp_path_factory.mktemp("campaign") / "alone").directory


@pytest.fixture
def cluster(start_cluster):
    cluster = start_cluster(OMP_NUM_THREADS="1")
    for name in ("gpu-a", "gpu-b"):
        cluster.start_worker(name, "GPU=1")
    cluster.wait_for_workers(2)
    return cluster


def carry_out(cluster, directory, **options):
    with contextlib.closing(Cluster(cluster.address)) as found:
        workers = {worker.name: worker.device for worker in found.workers()}
        assert workers == {"gpu-a": None, "gpu-b": None}
        plan = place_on_workers(parse_plan(PLAN, "test"), workers)
        return run_plan(plan, directory, cluster=found, **options)


def test_the_records_are_those_of_this_host(cluster, alone, tmp_path):
    directory = tmp_path / "campaign"
    result = carry_out(cluster, directory)
    assert not result.interrupted
    assert records_of(directory) == records_of(alone)
    assert declarations_of(directory) == declarations_of(alone)
    started = [event for event in events_of(directory) if event["event"] == "slice_started"]
    assert len(started) >= 3
