"""The distance of a replayed run from the optimum of its dataset."""

from dataclasses import replace

import numpy as np
import pytest

from mltune.dataset.dataset import load_dataset
from mltune.kernel.reader import load_kernel
from mltune.records.trial import TrialState
from mltune.resolve.device import Target
from mltune.resolve.request import TuneRequest
from mltune.results.reader import read_run
from mltune.results.summary import optimum
from mltune.tuning.tuner import tune

DATASET = "convolution_rtx_a4000"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    manifest = load_dataset(DATASET).manifest
    directory = tmp_path_factory.mktemp("runs") / "run"
    return tune(
        TuneRequest(manifest.problem, load_kernel(manifest.kernel), Target(dataset=DATASET), trials=16, run=directory)
    )


def test_it_is_that_of_the_whole_table(run):
    dataset, found = load_dataset(DATASET), optimum(run)
    times = np.sort(dataset.numbers("median_s")[dataset.states == str(TrialState.OK)])
    assert found.dataset == DATASET
    assert (found.median_s, found.configurations) == (times[0], len(times))
    assert times[found.rank - 1] == pytest.approx(run.best.median_s)
    assert found.share == pytest.approx(times[0] / run.best.median_s)


@pytest.mark.parametrize("target", ["cuda:0", "replay:none_of_ours", "replay:/etc/passwd"])
def test_nothing_is_said_of_another_target(run, target):
    other = replace(run, header=replace(run.header, settings={"target": target}))
    assert optimum(other) is None


def test_nothing_is_said_where_nothing_was_found(make_run, tmp_path):
    assert optimum(read_run(make_run(tmp_path / "run"))) is None
