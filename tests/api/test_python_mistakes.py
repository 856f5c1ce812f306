"""Mistakes that a person makes in Python: each is a UsageError that says what to write, before anything runs."""

import pytest

import mltune
from mltune import UsageError

PREAMBLE = """
import mltune
import numpy as np
n = np.int32(64)
c = np.zeros(64, np.float32)
source = 'extern "C" __global__ void add(float *c, int n) {}'
replay = "replay:h200-sgemm-nt-4096-random"
search = mltune.Search({"x": [1, 2, 3]})
"""


MISTAKES = [
    ("mltune.tune(['sgemm'])", "one name, such as 'sgemm'", "['sgemm']"),
    ("mltune.tune(4096)", "one name, such as 'sgemm'", "4096"),
    ("mltune.tune('sgem')", "'sgem'", "did you mean 'sgemm'?"),
    ("mltune.tune('sgemm', n_trials=5, device=replay)", "n_trials", "did you mean 'trials'?"),
    ("mltune.tune('sgemm', trails=5, device=replay)", "trails", "did you mean 'trials'?"),
    ("mltune.tune('sgemm', trials=0, device=replay)", "trials", "at least 1"),
    ("mltune.tune('sgemm', time='soon', device=replay)", "time", "'soon'"),
    ("mltune.tune('sgemm', device='gpu')", "auto, cuda:N or replay:NAME", "'gpu'"),
    ("mltune.tune('sgemm', search='modle', device=replay)", "did you mean 'model'?"),
    ("mltune.tune('sgemm', size={'M': 512}, device=replay)", "{'M': 512}", "--m 512"),
    (
        "mltune.tune_kernel('add', source, n, [c, n], {'block_size_x': [32, 64]}, n_trials=5)",
        "n_trials",
        "did you mean 'trials'?",
    ),
    ("mltune.tune_kernel('add', source, n, [c, n], {'block_size_x': 64})", "no list of values", "block_size_x=64"),
    ("mltune.tune_kernel('add', source, n, [c, n], {'block_size_x': '64'})", "no list of values", "block_size_x"),
    ("mltune.Search({'x': 64})", "no list of values", "x=64"),
    ("mltune.Search({'x': 'abc'})", "no list of values", "x='abc'"),
    ("mltune.Search({'x': [1, 2]}, restrictions='x>1')", "write ['x>1']"),
    ("mltune.Search({'x': [1, 2]}, restrictions=['y > 1'])", "y"),
    ("mltune.Search({'x': [1]}, scale='linear')", "'linear'", "'symlog'"),
    ("search.tell(search.ask(), -1.0)", "positive", "-1.0", "symlog"),
    ("search.tell(search.ask(), 'fast')", "fast"),
    ("mltune.compare('random', n_seeds=3)", "'n_seeds'", "did you mean 'seeds'?"),
    ("mltune.compare('random', evaluation=3)", "'evaluation'", "did you mean 'evaluations'?"),
    ("mltune.compare('randm')", "'randm'", "did you mean 'random'?"),
    ("mltune.compare('random', 'convolution_w660')", "did you mean 'convolution_w6600'?"),
    ("mltune.check('gemm_simd')", "did you mean 'gemm_simt'?"),
    ("mltune.space('gemm_simd')", "did you mean 'gemm_simt'?"),
    ("mltune.predict('sgemm', gpu='mi250x')", "did you mean 'mi250x_gcd'?"),
    ("mltune.plan('quik')", "did you mean 'quick'?"),
]


@pytest.mark.parametrize(("mistake", "words"), [(mistake, words) for mistake, *words in MISTAKES])
def test_a_mistake_is_answered_before_anything_runs(mistake, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {}
    exec(PREAMBLE, names)  # noqa: S102
    with pytest.raises(UsageError) as error:
        eval(mistake, names)  # noqa: S307
    for word in words:
        assert word in str(error.value)
    assert ", got " not in str(error.value)  # the mistake comes before the law
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("make", [lambda: mltune.check("gemm_shared", time="1s"), lambda: mltune.list_datasets()[0]])
def test_a_notebook_shows_a_table(make):
    html = make()._repr_html_()
    assert html.startswith("<table><tr><th>")
    assert len(html) < 2000
