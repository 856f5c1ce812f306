"""The gate: its test on recorded noise, and two versions on an imaginary GPU."""

import functools
from collections import Counter
from xml.etree import ElementTree

import numpy as np
import pytest
from imaginary_gpu import HOSTILE, PROBLEM, built
from own_bundle import write_bundle

from mltune.dataset.dataset import load_dataset
from mltune.device.known import H200
from mltune.errors import BundleError, UsageError
from mltune.kernel.placed import PlacedKernel
from mltune.kernel.reader import load_kernel
from mltune.measure import runner as runner_module
from mltune.records.trial import Build, TrialState
from mltune.tuning.finals import Interval
from mltune.tuning.gate import GateResult, GateRule, Version, compare_versions, median_of_looks

RECORDED = ("h200-sgemm-nt-1024-random", "h200-sgemm-nt-4096-random", "h200-reduction-67108864-random")
"""GEMMs of .06 and 3 ms, and a kernel that waits for memory: its times have a heavy tail."""


@functools.cache
def recorded_noise(name):
    """Return how far recorded samples are from the median of their configuration, as logarithms."""
    samples = load_dataset(name).table.column("samples_s").to_pylist()
    logs = [np.log(one) for one in samples if one and len(one) >= 3]
    return np.concatenate([one - np.median(one) for one in logs])


class Turns:
    """Pairs of times with recorded noise on a GPU that warms up, drifts, and has dips of its clock and stops."""

    def __init__(self, noise, effect, seed):
        self.noise, self.effect, self.rng = noise, np.log1p(effect), np.random.default_rng(seed)
        self.drift = self.taken = self.dip = 0.0
        self.left = 0

    def run(self):
        rng = self.rng
        self.taken += 1
        self.drift += rng.normal(0, 2e-4)
        if self.left == 0 and rng.random() < 0.02:
            self.left, self.dip = int(rng.integers(1, 12)), rng.uniform(0.01, 0.1)
        self.left = max(self.left - 1, 0)
        stop = abs(rng.standard_t(1.5)) * 0.02 if rng.random() < 0.01 else 0.0
        heat = 0.03 * np.exp(-self.taken / 200)
        return rng.choice(self.noise) + self.drift + heat + stop + (self.dip if self.left else 0.0)

    def take(self, count):
        pairs = []
        for old_first in self.rng.integers(2, size=count):
            first, second = self.run(), self.run()
            old, new = (first, second) if old_first else (second, first)
            pairs.append(new + self.effect - old)
        return pairs if self.taken < 5000 else []


@pytest.mark.parametrize("name", RECORDED)
@pytest.mark.parametrize(("effect", "verdict"), [(0.0, "equal"), (0.02, "slower"), (-0.02, "faster")])
def test_with_recorded_noise_200_verdicts_are_right(name, effect, verdict):
    noise = recorded_noise(name)
    found = Counter()
    for seed in range(200):
        turns = Turns(noise, effect, seed)
        said, ratio = median_of_looks(turns.take, 0.01, 0.99)
        found[said, ratio.low <= 1 + effect <= ratio.high] += 1
    assert {said for said, _ in found} == {verdict}
    assert found[verdict, False] <= 6  # of 200 one or two are expected at 99 %


def test_at_the_edge_it_stays_undecided():
    found = [median_of_looks(Turns(recorded_noise(RECORDED[0]), 0.01, seed).take, 0.01, 0.99)[0] for seed in range(8)]
    assert set(found) == {"undecided"}


def test_a_trend_in_the_times_is_no_difference():
    """Every run is slower than the one before by .5 %: without random order one version would be."""
    rng = np.random.default_rng(0)
    verdict, ratio = median_of_looks(lambda count: (0.005 * rng.choice([-1, 1], count)).tolist(), 0.01, 0.99)
    assert verdict == "equal"
    assert ratio.low < 1 < ratio.high


def test_without_time_nothing_is_said():
    assert median_of_looks(lambda count: [], 0.01, 0.99) == ("undecided", None)


@pytest.fixture
def gate(idle_workers, monkeypatch):
    """Return a function that compares two versions by the behaviour of their builds."""
    monkeypatch.setattr(runner_module, "_PAUSES_S", ())
    worker = {"worker": "imaginary_worker:make", "timeout_s": 2.0}
    monkeypatch.setattr(runner_module, "GpuRunner", functools.partial(runner_module.GpuRunner, **worker))
    kernel = load_kernel(HOSTILE)

    def run(old, new, limit_s=300.0, **options):
        def version(name, behaviour):
            launch = functools.partial(kernel.launch, {"MISDEED": 0, "REPEAT": 1})
            build = behaviour
            if isinstance(behaviour, dict):
                build = built(**{"time_s": 2e-3, "noise": 0.003, **behaviour}).result()
            return Version(name, PROBLEM, launch, build)

        versions = version("<old> & 'it'", old), version('new "\x1b[1m"', new)
        rule = GateRule(limit_s=limit_s, **options)
        return compare_versions(*versions, device=H200, index=0, rule=rule, pool=idle_workers.pool)

    return run


@pytest.mark.parametrize(
    ("time_s", "verdict"), [(2e-3, "equal"), (2.006e-3, "equal"), (2.05e-3, "slower"), (1.95e-3, "faster")]
)
def test_versions_are_compared_in_turns(gate, time_s, verdict):
    found = gate({}, {"time_s": time_s})
    assert found.verdict == verdict
    assert found.ratio.low <= time_s / 2e-3 <= found.ratio.high
    assert found.median_s[1] / found.median_s[0] == pytest.approx(time_s / 2e-3, rel=0.01)
    assert found.passed == (verdict != "slower")
    assert found.summary.startswith(verdict)


def test_an_observation_of_a_short_kernel_is_several_pairs(gate):
    found = gate({"time_s": 5e-6}, {"time_s": 5e-6})
    assert found.verdict == "equal"
    assert found.pairs % 5 == 0


@pytest.mark.parametrize(
    ("new", "verdict", "words"),
    [
        ({"deed": "be wrong"}, "wrong", "wrong_result: all of it"),
        ({"deed": "wrong at full size"}, "wrong", "wrong_result: wrong"),
        ({"deed": "die"}, "failed", "crashed"),
        ({"deed": "hang"}, "failed", "timeout"),
        ({"deed": "die in a race"}, "failed", "crashed"),
        (Build(TrialState.COMPILE_ERROR, "expected a ;"), "failed", "compile_error: expected a ;"),
    ],
)
@pytest.mark.sampled(2, nightly=99)
def test_a_new_version_that_does_not_work_is_no_error_of_the_gate(gate, new, verdict, words):
    found = gate({}, new)
    assert (found.verdict, found.passed) == (verdict, False)
    assert words in found.detail
    assert found.ratio is None


@pytest.mark.parametrize("old", [{"deed": "be wrong"}, {"deed": "die"}, Build(TrialState.TIMEOUT, "the compiler")])
def test_an_old_version_that_does_not_work_is_refused(gate, old):
    with pytest.raises(UsageError, match="a new version is compared with one that works"):
        gate(old, {})


@pytest.mark.parametrize("known", ["old", "new", "bundle"])
@pytest.mark.sampled(1, nightly=3)
def test_an_answer_is_that_of_a_version_that_is_compiled_here(idle_workers, tmp_path, monkeypatch, known):
    """If it cannot be made, that is a fault of the new version only where the answer is its own."""
    source = 'extern "C" __global__ void entry(float* out) { out[threadIdx.x] = WIDTH; }'
    kernel = load_kernel(write_bundle(tmp_path, source, ""))
    launch, problem = functools.partial(kernel.launch, {"WIDTH": 1}), kernel.arrays.problem()
    compiled = {"placed": PlacedKernel(kernel, problem, H200), "configuration": {"WIDTH": 1}}
    names = ("old", "new", "bundle")
    versions = [Version(name, problem, launch, **(compiled if name == known else {})) for name in names]
    monkeypatch.setattr(runner_module, "_PAUSES_S", ())
    worker = {"worker": "imaginary_worker:make", "timeout_s": 2.0}
    monkeypatch.setattr(runner_module, "GpuRunner", functools.partial(runner_module.GpuRunner, **worker))
    build = Build(TrialState.OK, cubin=b"die")
    monkeypatch.setattr(Version, "built", lambda version: build)
    options = {"device": H200, "index": 0, "rule": GateRule(limit_s=300.0)}
    if known == "new":
        assert compare_versions(*versions, **options, pool=idle_workers.pool).verdict == "failed"
    else:
        with pytest.raises(BundleError, match="must give the right answer"):
            compare_versions(*versions, **options, pool=idle_workers.pool)


def test_the_time_is_limited(gate):
    found = gate({}, {}, limit_s=1e-9)
    assert (found.verdict, found.pairs, found.median_s) == ("undecided", 0, ())


def test_the_facts_in_which_versions_differ():
    result = GateResult("equal", "a", "b", "p", "d", 0.01, 0.99, ({"registers": 32, "x": 1}, {"registers": 40, "x": 1}))
    assert result.differences == {"registers": (32, 40)}


@pytest.mark.parametrize(
    ("verdict", "tag", "counts"),
    [("slower", "failure", ("1", "0")), ("wrong", "failure", ("1", "0")), ("undecided", "error", ("0", "1"))],
)
def test_a_report_in_the_form_of_junit_is_xml_whatever_the_names_are(verdict, tag, counts):
    names = ("<old> & 'it'", 'new "\x1b[1m" \ud800 ]]>')
    result = GateResult(verdict, *names, "p", "d", 0.01, 0.99, detail="<&\0>")
    report = ElementTree.fromstring(result.to_junit())  # noqa: S314
    (case,) = report
    assert "<old> & 'it'" in case.get("name")
    assert [one.tag for one in case] == [tag]
    assert case[0].get("type") == verdict
    assert (report.get("failures"), report.get("errors")) == counts
    assert "<&" in case[0].get("message")


def test_a_report_of_a_version_that_passes():
    result = GateResult("equal", "a", "b", "p", "d", 0.01, 0.99, ratio=Interval(1.0, 0.99, 1.01), pairs=64)
    report = ElementTree.fromstring(result.to_junit())  # noqa: S314
    assert [len(case) for case in report] == [0]
    assert report.get("tests") == "1"
