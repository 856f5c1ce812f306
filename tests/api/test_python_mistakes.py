"""Mistakes that a person makes in Python: each is a UsageError that says what to write, before anything runs."""

import re

import pytest

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
    ("mltune.tune('sgemm', size={'M': 512}, device=replay)", "{'M': 512}", "m=512"),
    (
        "mltune.tune_kernel('add', source, n, [c, n], {'block_size_x': [32, 64]}, n_trials=5)",
        "n_trials",
        "did you mean 'trials'?",
    ),
    ("mltune.tune_kernel('add', source, n, [c, n], {'block_size_x': 64})", "no list of values", "block_size_x=64"),
    ("mltune.tune_kernel('add', source, n, [c, n], {'block_size_x': '64'})", "no list of values", "block_size_x"),
    ("mltune.tune_kernel('add', source, n, [c, n], {})", "no parameters", "{'block_size_x': [64, 128]}"),
    (
        "mltune.tune_kernel('add', source, n, [c, n], {'block_size_x': [32, 64]}, restrictions='x>1')",
        "the call: restrictions",
        "`x` is not known",
        "`x>1`",
    ),
    ("mltune.tune_kernel('add', source, n, [c, n], {'block_size_x': [32]}, restrictions=5)", "5 is no restriction"),
    ("mltune.tune_kernel('add', source, n, [c, n], {'block_size_x': [32]}, answer=5)", "answer cannot be 5"),
    ("mltune.tune_kernel('add', source, n, c.size, {'block_size_x': [32]})", "arguments cannot be 64"),
    ("mltune.tune_kernel('add', 5, n, [c, n], {'block_size_x': [32]})", "kernel_source cannot be 5", "CUDA text"),
    ("mltune.tune_kernel('add', source, n, [c, n], {'block_size_x': [32]}, run=5)", "run cannot be 5"),
    ("mltune.tune('sgemm', device=0)", "'0' is no device", "auto, cuda:N or replay:NAME"),
    ("mltune.tune('sgemm', kernel=3)", "kernel cannot be 3"),
    ("mltune.tune('sgemm', run=3)", "run cannot be 3: it is a text or a path", "help(mltune.tune)"),
    ("mltune.tune('sgemm', skip='no', device=replay)", "skip cannot be 'no'", "True or False"),
    ("mltune.tune('sgemm', enough='85%', device=replay)", "enough cannot be '85%'", "at most 1"),
    ("mltune.tune_sizes('sgemm', 512)", "sizes cannot be 512: it is a list", "help(mltune.tune_sizes)"),
    ("mltune.tune_sizes('sgemm', [])", "sizes cannot be []: it has at least one entry"),
    ("mltune.tune_sizes('sgemm', [512], run=5)", "run cannot be 5: it is a text or a path"),
    ("mltune.tune_sizes('sgemm', [512], skip='no')", "skip cannot be 'no': it is True or False"),
    ("mltune.tune_sizes('sgemm', [4096], device=replay)", "a list of 1 size", "device='replay' takes"),
    ("mltune.tune_sizes('sgemm', [512], trails=4)", "'trails'", "did you mean 'trials'?"),
    ("mltune.sweep('sgemm', device=0)", "'0' is no device", "auto, cuda:N or replay:NAME"),
    ("mltune.bound('sgemm', gpu=5)", "gpu cannot be 5: it is a text", "help(mltune.bound)"),
    ("mltune.load_run(5)", "directory cannot be 5: it is a text or a path", "help(mltune.load_run)"),
    ("mltune.load_plan(None)", "cannot be None: it is a text or a path"),
    ("mltune.report(b'runs')", "run cannot be b'runs': it is a text or a path"),
    ("mltune.run(5)", "plan cannot be 5: it is a text or a path or a Plan"),
    ("mltune.check('gemm_simt', trans=5)", "trans cannot be 5: it is a text"),
    ("mltune.tune('sgemm', trans=5)", "trans cannot be 5: it is a text"),
    ("mltune.compare('random', out=[])", "out cannot be []: it is a text or a path", "help(mltune.compare)"),
    ("mltune.report('runs', overwrite='no')", "overwrite cannot be 'no': it is True or False"),
    ("mltune.train([], 'model')", "datasets cannot be []: it has at least one entry"),
    ("mltune.merge_datasets('a', out='b')", "datasets cannot be 'a': it is a list"),
    ("mltune.sweep('sgemm', prune=True)", "prune=True was given without complete=True; write complete=True"),
    ("mltune.sweep('sgemm', within=0.1)", "within was given without prune=True"),
    ("mltune.check('stencil', size=5)", "5 is no size of stencil", "size={'nx': 1024}"),
    (
        "mltune.compare('random', parameters='x')",
        "table is missing, to which parameters,",
        "and aggregate=True",
    ),
    ("mltune.check('gemm_simt', precision='x')", "precision cannot be 'x'"),
    ("mltune.devices(out='x.txt')", "out cannot be x.txt", "`mltune device cuda:0 --out my-gpu.json`"),
    ("mltune.tune('convolution')", "name recorded timings with device='replay:NAME'"),
    ("mltune.Wisdom.load(5)", "path cannot be 5: it is a path or a text", "help(mltune.Wisdom.load)"),
    ("mltune.Wisdom().save(5)", "path cannot be 5: it is a path or a text"),
    (
        "mltune.import_dataset('t.csv', kernel='k', gpu='a100', out='data', tme_column='t')",
        "an import has no argument 'tme_column'",
        "did you mean 'time_column'?",
    ),
    ("mltune.Search({'x': 64})", "no list of values", "x=64"),
    ("mltune.Search({})", "cannot be the parameters"),
    ("mltune.Search([1, 2])", "[1, 2] cannot be the parameters", "{'x': [1, 2]}"),
    ("mltune.Search({'x': [1, 2]}, restrictions=5)", "restrictions cannot be 5", "a sequence"),
    ("mltune.Search({'x': [1, 2]}, seed='a')", "seed cannot be 'a'"),
    ("search.ask('a')", "count cannot be 'a'"),
    ("search.ask(-1)", "count cannot be -1"),
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
    assert "--" not in re.sub("`[^`]*`", "", str(error.value)), "an option, outside of a command"
    assert list(tmp_path.iterdir()) == []
