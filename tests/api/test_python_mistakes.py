"""Mistakes that a person makes in Python: each is a UsageError that says what to write, before anything runs."""

import numpy as np
import pytest

import mltune
from mltune import UsageError

SOURCE = 'extern "C" __global__ void add(float *c, int n) {}'
REPLAY = "replay:h200-sgemm-nt-4096-random"
TABLE = {"block_size_x": [32, 64]}


def tune_kernel(parameters=TABLE, **options):
    n = np.int32(64)
    return mltune.tune_kernel("add", SOURCE, n, [np.zeros(64, np.float32), n], parameters, **options)


def told(result, **options):
    search = mltune.Search({"x": [1, 2, 3]}, **options)
    search.tell(search.ask(), result)


MISTAKES = {
    "a list of problems": (lambda: mltune.tune(["sgemm"]), "one name, such as 'sgemm'", "['sgemm']"),
    "a number as the problem": (lambda: mltune.tune(4096), "one name, such as 'sgemm'", "4096"),
    "a wrong problem": (lambda: mltune.tune("sgem"), "'sgem'", "did you mean 'sgemm'?"),
    "n_trials": (lambda: mltune.tune("sgemm", n_trials=5, device=REPLAY), "n_trials", "did you mean 'trials'?"),
    "trails": (lambda: mltune.tune("sgemm", trails=5, device=REPLAY), "trails", "did you mean 'trials'?"),
    "no trials": (lambda: mltune.tune("sgemm", trials=0, device=REPLAY), "trials", "at least 1"),
    "no time": (lambda: mltune.tune("sgemm", time="soon", device=REPLAY), "time", "'soon'"),
    "a device": (lambda: mltune.tune("sgemm", device="gpu"), "auto, cuda:N or replay:NAME", "'gpu'"),
    "a search": (lambda: mltune.tune("sgemm", search="modle", device=REPLAY), "did you mean 'model'?"),
    "sizes with names": (lambda: mltune.tune("sgemm", size={"M": 512}, device=REPLAY), "{'M': 512}", "--m 512"),
    "n_trials of a kernel": (lambda: tune_kernel(n_trials=5), "n_trials", "did you mean 'trials'?"),
    "a value of a kernel": (lambda: tune_kernel({"block_size_x": 64}), "a list of values", "block_size_x=64"),
    "a text as values": (lambda: tune_kernel({"block_size_x": "64"}), "a list of values", "block_size_x"),
    "a value of a search": (lambda: mltune.Search({"x": 64}), "a list of values", "x=64"),
    "a text as values of a search": (lambda: mltune.Search({"x": "abc"}), "a list of values", "x='abc'"),
    "a text as restrictions": (lambda: mltune.Search({"x": [1, 2]}, restrictions="x>1"), "write ['x>1']"),
    "an unknown restriction": (lambda: mltune.Search({"x": [1, 2]}, restrictions=["y > 1"]), "y"),
    "a linear scale": (lambda: mltune.Search({"x": [1]}, scale="linear"), "'linear'", "'symlog'"),
    "a negative time": (lambda: told(-1.0), "positive", "-1.0", "symlog"),
    "a text as a result": (lambda: told("fast"), "fast"),
    "n_seeds": (lambda: mltune.compare("random", n_seeds=3), "'n_seeds'", "did you mean 'seeds'?"),
    "output": (lambda: mltune.compare("random", evaluation=3), "'evaluation'", "did you mean 'evaluations'?"),
    "a strategy": (lambda: mltune.compare("randm"), "'randm'", "did you mean 'random'?"),
    "a dataset": (lambda: mltune.compare("random", "convolution_w660"), "did you mean 'convolution_w6600'?"),
    "a kernel": (lambda: mltune.check("gemm_simd"), "did you mean 'gemm_simt'?"),
    "a kernel of space": (lambda: mltune.space("gemm_simd"), "did you mean 'gemm_simt'?"),
    "facts": (lambda: mltune.predict("sgemm", gpu="mi250x"), "did you mean 'mi250x_gcd'?"),
    "a plan": (lambda: mltune.plan("quik"), "did you mean 'quick'?"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_answered_before_anything_runs(mistake, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    call, *words = MISTAKES[mistake]
    with pytest.raises(UsageError) as error:
        call()
    for word in words:
        assert word in str(error.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("make", [lambda: mltune.check("gemm_shared", time="1s"), lambda: mltune.list_datasets()[0]])
def test_a_notebook_shows_a_table(make):
    html = make()._repr_html_()
    assert html.startswith("<table><tr><th>")
    assert len(html) < 2000
