"""What the user must know about records reaches the user, whichever command reads them."""

import json
import shutil
from pathlib import Path

import pytest
from imaginary_gpu import ImaginaryBuilder, built, imaginary_runner

import mltune
from mltune.device.known import H200
from mltune.errors import MltuneWarning
from mltune.kernel.placed import PlacedKernel
from mltune.kernel.reader import load_kernel
from mltune.records.directory import FILE
from mltune.records.store import Store
from mltune.resolve.device import Target
from mltune.resolve.request import TuneRequest
from mltune.results.summary import summarise_campaign
from mltune.show.report.evidence import read_input
from mltune.show.report.writing import write_winners
from mltune.tuning import tuner
from mltune.tuning.session import Session
from tests.campaign.conftest import placed
from tests.cli.program import command
from tests.conftest import few_rows
from tests.gpu.test_competing_kernels_on_this_gpu import PROBLEMS

NOTICE = "dataset few was recorded with another version of the source of gemm_simt"
PLAIN = {"search": "random", "skip": False, "stop": False, "progress": None}
PLAN = """
[plan]
title = "One problem"
budget = "16 trials"
minimum = "16 trials"
produce = []
[[problems]]
datasets = ["{0}"]
"""


@pytest.fixture(scope="module")
def changed(tmp_path_factory) -> Path:
    """Return a dataset of another version of the source."""
    folder = tmp_path_factory.mktemp("changed")
    return few_rows(folder, "h200-sgemm-nt-4096-random", rows=40, source_hash="cd" * 32)


def test_tune_says_that_the_source_has_changed(changed, tmp_path):
    with pytest.warns(MltuneWarning, match=NOTICE):
        mltune.tune(trials=8, device=f"replay:{changed}", run=tmp_path / "run", **PLAIN)

    done = command(
        "tune", "--device", f"replay:{changed}", "--trials", 8, "--run", tmp_path / "run", "--search", "random"
    )
    assert NOTICE in done.stderr


@pytest.mark.system
def test_run_says_that_the_source_has_changed(changed, tmp_path):
    (tmp_path / "one.toml").write_text(PLAN.format(changed))

    done = command("run", tmp_path / "one.toml", "--run", tmp_path / "run")

    assert done.returncode == 0
    assert NOTICE in done.stderr


def test_compare_says_that_the_source_has_changed(changed, tmp_path):
    with pytest.warns(MltuneWarning, match=NOTICE):
        mltune.compare("random", str(changed), evaluations=5, seeds=1, jobs=1, out=tmp_path, progress=None)


def test_of_the_source_of_today_nothing_is_said(tmp_path):
    dataset = few_rows(tmp_path, "h200-sgemm-nt-4096-random", rows=40)
    mltune.tune(trials=8, device=f"replay:{dataset}", run=tmp_path / "run", **PLAIN)


def lose(run: Path, aside: Path) -> None:
    """Let a run be killed, and remove the file with its last trials."""
    with Store.open(run):
        shutil.copy(run / FILE, aside / FILE)
    shutil.copy(aside / FILE, run / FILE)


@pytest.fixture
def lossy(tmp_path) -> tuple[Path, Path]:
    """Return a campaign, killed, and its problem: the file with its last trials was removed."""
    from mltune.campaign.campaign import run_plan

    plan = PLAN.format(few_rows(tmp_path, "h200-sgemm-nt-4096-random", rows=40))
    run_plan(placed(plan), tmp_path / "campaign")
    problem = tmp_path / "campaign/problems/few"
    lose(problem, tmp_path)
    return tmp_path / "campaign", problem


@pytest.mark.system
def test_trials_that_may_be_lost_are_spoken_of_by_every_reader(lossy):
    campaign, problem = lossy
    lost = "the trials that it held are lost"

    assert lost in mltune.load_run(problem).notice
    assert lost in command("show", problem).stdout
    assert lost in json.loads(command("show", problem, "--json").stdout)["notice"]
    (entry,) = summarise_campaign(campaign)["problems"]
    assert lost in entry["detail"]
    assert lost in read_input(campaign).runs[0].notice
    winners = json.loads(write_winners(campaign).read_text())
    assert any(lost in note for note in winners["winners"][0]["notes"])


@pytest.mark.system
def test_a_campaign_that_goes_on_speaks_of_them(lossy):
    campaign, _ = lossy
    assert "the trials that it held are lost" in command("run", campaign).stderr


def test_a_run_that_goes_on_speaks_of_them(tmp_path):
    device = f"replay:{few_rows(tmp_path, 'h200-sgemm-nt-4096-random', rows=40)}"
    mltune.tune(trials=8, device=device, run=tmp_path / "run", **PLAIN)
    lose(tmp_path / "run", tmp_path)

    with pytest.warns(MltuneWarning, match="the trials that it held are lost"):
        mltune.tune(trials=8, device=device, run=tmp_path / "run", **PLAIN)


class Builder(ImaginaryBuilder):
    """A builder of kernels that all take the same time."""

    def submit(self, configuration):
        return built(time_s=2e-3, noise=0.0)


@pytest.fixture
def tune_imagined(tmp_path, monkeypatch, idle_workers):
    """Return a function that tunes `gemm_mma64` at a problem on an imaginary H200."""

    def tuned(problem, prior):
        kernel = load_kernel("gemm_mma64")
        runner = imaginary_runner(kernel=kernel, problem=problem, pool=idle_workers.pool)
        versions = {"driver": "13.0", "nvrtc": "13.0"}
        session = Session(PlacedKernel(kernel, problem, H200), Builder({}), runner, versions, gpu=runner)
        monkeypatch.setattr(tuner, "open_session", lambda *_, **__: session)
        request = TuneRequest(
            problem, kernel, Target(cuda=0), trials=4, run=tmp_path / "run", prior=prior, wisdom="none", stop=False
        )
        result = tuner.tune(request)
        events = (tmp_path / "run" / "events.jsonl").read_text().splitlines()
        return result, [event["detail"] for event in map(json.loads, events) if event["event"] == "model"]

    return tuned


@pytest.mark.parametrize("problem", PROBLEMS.values(), ids=PROBLEMS)
@pytest.mark.sampled(1, nightly=99)
def test_a_model_that_mltune_chose_and_left_out_is_an_event(tune_imagined, problem):
    """The search is then what it is without a model: there is nothing for the user to do."""
    result, (detail,) = tune_imagined(problem, "auto")
    assert result.model == ""
    assert detail.startswith("the model gemm_mma64 was trained on 6.9e+10 to 5.5e+11 operations, and this problem has")


def test_a_model_that_the_user_named_and_that_is_left_out_is_a_warning(tune_imagined):
    with pytest.warns(MltuneWarning, match="the model gemm_mma64 was trained on"):
        tune_imagined(PROBLEMS["complex"], "gemm_mma64")
