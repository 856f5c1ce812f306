"""The process that fits the models of a search over launches."""

import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from mltune.integrations.triton.predictor import Predictor
from mltune.search.launch_search import predict

RNG = np.random.default_rng(0)
X = RNG.random((40, 3))
Y = -X[:, 0] + X[:, 1] ** 2

ALONE = """
import sys, numpy as np
from mltune.integrations.triton.predictor import Predictor
X = np.random.default_rng(0).random((9, 3))
assert Predictor().predict(0, X, X[:, 0], X)[0].shape == (9,)
print({"sklearn", "scipy", "pandas"} & sys.modules.keys())
"""


@pytest.fixture
def process():
    """Return a process that ends after a second without work."""
    made = Predictor(1.0)
    yield made
    made._served.thread.submit(made._served.child.kill).result()


def same(found, expected):
    return all(np.array_equal(one, other) for one, other in zip(found, expected, strict=True))


def test_it_predicts_what_this_process_would(process):
    for seed, count in ((0, 10), (1, 10), (0, 20)):
        found = process.predict(seed, X[:count], Y[:count], X)
        assert same(found, predict(seed, X[:count], Y[:count], X))
        assert np.corrcoef(found[0], Y)[0, 1] > 0.5


def test_the_process_that_asks_does_not_import_what_fits(tmp_path):
    done = subprocess.run([sys.executable, "-c", ALONE], capture_output=True, text=True, cwd=tmp_path, check=True)
    assert done.stdout.strip() == "set()"


@pytest.mark.nightly
def test_it_ends_when_it_is_not_used_and_starts_again(process):
    first = process.predict(0, X[:10], Y[:10], X)
    child, pid = process._served.child, process._served.child.pid
    end = time.monotonic() + 300.0
    while child._process.poll() is None and time.monotonic() < end:
        time.sleep(0.1)
    assert child._process.poll() == 0
    assert same(process.predict(0, X[:10], Y[:10], X), first)
    assert child.pid not in (None, pid)


def test_without_it_this_process_predicts(process, monkeypatch):
    monkeypatch.setattr(process._served.child, "target", "mltune.integrations.triton.compilers:missing")
    assert same(process.predict(0, X[:10], Y[:10], X), predict(0, X[:10], Y[:10], X))


def test_a_process_that_is_killed_costs_no_prediction(process):
    expected = process.predict(0, X[:10], Y[:10], X)
    os.kill(process._served.child.pid, signal.SIGKILL)
    assert same(process.predict(0, X[:10], Y[:10], X), expected)


def test_who_does_not_want_to_wait_is_told_nothing_while_it_starts(process):
    request = 0, X[:10], Y[:10], X
    assert process.begin().predict_if_started(*request) is None
    assert same(process.predict(*request), process.predict_if_started(*request))
