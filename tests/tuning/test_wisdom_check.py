"""Checking a wisdom: every entry that has rotted is found; with an imaginary GPU, and in replay."""

from dataclasses import replace

import pytest
from entries import entry
from imaginary_gpu import HOSTILE, PROBLEM, ImaginaryBuilder, imaginary_runner

from mltune.dataset.dataset import load_dataset
from mltune.device.known import H200
from mltune.kernel.placed import PlacedKernel
from mltune.kernel.reader import load_kernel
from mltune.kernel.space import TableSpace
from mltune.known.wisdom import Wisdom
from mltune.measure import runner as runner_module
from mltune.resolve.device import Target
from mltune.tuning import wisdom_check
from mltune.tuning.session import Session
from mltune.tuning.wisdom_check import Verdict, check_wisdom

KERNEL = load_kernel(HOSTILE)
DATASET = "h200-sgemm-nt-4096-random"
OTHER = {"name": "other", "architecture": "sm_80", "sm_count": 1}


def of_hostile(misdeed, median_s, **facts):
    own = {"kernel": KERNEL.name, "source_hash": KERNEL.source.sha256, "problem": PROBLEM.to_json()}
    return entry(median_s=median_s, configuration={"MISDEED": misdeed, "REPEAT": 1}, **own | facts)


@pytest.fixture
def imagined(idle_workers, monkeypatch):
    """Return a function that checks entries on an imaginary GPU, whose behaviour is given by misdeed."""
    monkeypatch.setattr(runner_module, "_PAUSES_S", ())
    monkeypatch.setattr(wisdom_check, "_device_and_problem", lambda target: (H200, None))

    def check(entries, behaviours, **options):
        def opened(request):
            runner = imaginary_runner(pool=idle_workers.pool)
            space = TableSpace({"MISDEED": list(range(4)), "REPEAT": [1] * 4})
            builder, default = ImaginaryBuilder(behaviours), {"MISDEED": 0, "REPEAT": 1}
            return Session(PlacedKernel(KERNEL, PROBLEM, H200, space), builder, runner, {}, gpu=runner, default=default)

        monkeypatch.setattr(wisdom_check, "open_session", opened)
        return check_wisdom(Wisdom(entries), Target(cuda=0), kernels=[str(HOSTILE)], **options)

    return check


BEHAVIOURS = {0: {"time_s": 2.5e-3}, 1: {"time_s": 2e-3}, 2: {"time_s": 2.2e-3}, 3: {"time_s": 3e-3}}


def test_an_entry_that_holds(imagined):
    (checked,) = imagined([of_hostile(1, 2e-3)], BEHAVIOURS)
    assert (checked.verdict, checked.detail) == (Verdict.HOLDS, "")
    assert (checked.median_s, checked.default_s) == (2e-3, 2.5e-3)
    assert not checked.verdict.is_miss


def test_a_rotted_entry_is_found(imagined):
    (checked,) = imagined([of_hostile(2, 2e-3)], BEHAVIOURS)
    assert checked.verdict is Verdict.SLOWER
    assert checked.verdict.is_miss
    assert "1.100 of its recorded time" in checked.detail


def test_a_little_more_than_the_interval_is_not_rotten(imagined):
    (checked,) = imagined([of_hostile(2, 2.1e-3)], BEHAVIOURS)
    assert checked.verdict is Verdict.HOLDS


def test_an_entry_that_is_slower_than_the_default_is_found(imagined):
    (checked,) = imagined([of_hostile(3, 3e-3)], BEHAVIOURS)
    assert checked.verdict is Verdict.SLOWER_THAN_DEFAULT
    assert "1.200 of the time of the default" in checked.detail


@pytest.mark.parametrize("deed", ["die", "no build", "retire"])
def test_an_entry_that_fails_is_found(imagined, deed):
    (checked,) = imagined([of_hostile(1, 2e-3)], {**BEHAVIOURS, 1: {"time_s": 2e-3, "deed": deed}})
    assert checked.verdict is Verdict.FAILED
    assert "it ends with" in checked.detail


def test_an_entry_of_another_source_is_found_on_any_gpu(imagined):
    found = imagined(
        [
            of_hostile(1, 2e-3, source_hash="cd" * 32),
            of_hostile(1, 2e-3, source_hash="ef" * 32, device=OTHER),
        ],
        BEHAVIOURS,
    )
    assert [checked.verdict for checked in found] == [Verdict.STALE] * 2
    assert all("source of" in checked.detail for checked in found)


@pytest.mark.parametrize("configuration", [{"MISDEED": 9, "REPEAT": 1}, {"MISDEED": 1}, {"MISDEED": "x", "REPEAT": 1}])
def test_a_configuration_outside_the_space_is_found(imagined, configuration):
    (checked,) = imagined([of_hostile(1, 2e-3).model_copy(update={"configuration": configuration})], BEHAVIOURS)
    assert checked.verdict is Verdict.STALE


def test_every_miss_is_reported_also_after_the_first(imagined):
    found = imagined(
        [of_hostile(2, 2e-3), of_hostile(3, 1e-3, driver="12.0"), of_hostile(1, 2e-3, driver="12.8")],
        BEHAVIOURS,
    )
    assert sorted(checked.verdict for checked in found) == ["holds", "slower", "slower"]


def test_an_unknown_kernel_and_another_gpu_are_not_checked(imagined):
    found = imagined([of_hostile(1, 2e-3, kernel=str(HOSTILE)), of_hostile(1, 2e-3, device=OTHER)], BEHAVIOURS)
    assert {checked.verdict for checked in found} == {Verdict.UNCHECKED}


def test_a_sample_is_measured_and_depends_on_the_seed_only(imagined):
    entries = [of_hostile(1, 2e-3, driver=str(number)) for number in range(6)]
    found = imagined(entries, BEHAVIOURS, sample=2, seed=1)
    again = imagined(entries, BEHAVIOURS, sample=2, seed=1)
    assert sum(checked.median_s is not None for checked in found) == 2
    assert [checked.verdict for checked in found] == [checked.verdict for checked in again]


def test_in_replay():
    recorded = load_dataset(DATASET)
    best, kernel = recorded.manifest.best, load_kernel("gemm_simt")
    facts = {
        "kernel": kernel.name,
        "source_hash": kernel.source.sha256,
        "problem": recorded.manifest.problem.to_json(),
        "configuration": dict(best.configuration),
    }
    good, bad = entry(median_s=best.median_s, **facts), entry(median_s=best.median_s / 2, driver="12.8", **facts)
    found = check_wisdom(Wisdom([good, bad]), Target(dataset=DATASET))
    assert [(checked.entry.driver, checked.verdict) for checked in found] == [("12.8", "slower"), ("13.0", "holds")]
    assert found[0].to_json()["label"] == "sgemm NT 4096"
    other = replace(recorded.manifest.problem, m=64, lda=64, ldc=64)
    (elsewhere,) = check_wisdom(Wisdom([entry(**facts | {"problem": other.to_json()})]), Target(dataset=DATASET))
    assert elsewhere.verdict is Verdict.UNCHECKED


@pytest.mark.parametrize("name", ["transpose", "reduction", "softmax", "stencil", "convolution_cuda"])
def test_the_problem_of_a_kernel_of_any_kind_is_recognised(name):
    kernel = load_kernel(name)
    size = next(iter(kernel.arrays.sizes))
    problem, near = kernel.arrays.problem(), kernel.arrays.problem({size: kernel.arrays.sizes[size] // 2})
    facts = {"kernel": name, "source_hash": kernel.source.sha256}
    found = entry(**facts, problem=problem.to_json())

    assert wisdom_check._today(found, {name: kernel}) == (kernel, problem)
    (same,) = Wisdom([found]).lookup(kernel, problem, H200)
    (other,) = Wisdom([found]).lookup(kernel, near, H200)
    assert (same.relation, same.distance) == ("problem", 0.0)
    assert other.relation == "size"
    assert other.distance == pytest.approx(1, abs=0.2)
