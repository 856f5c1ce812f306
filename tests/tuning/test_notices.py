"""What the user must know about records reaches the user, whichever command reads them."""

import json
import shutil
from pathlib import Path

import pytest

import mltune
from mltune.errors import MltuneWarning
from mltune.records.directory import FILE
from mltune.records.store import Store
from mltune.results.summary import summarise_campaign
from mltune.show.report.evidence import read_input
from mltune.show.report.writing import write_winners
from tests.campaign.conftest import placed
from tests.cli.program import command
from tests.conftest import few_rows

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
        mltune.compare("random", str(changed), evaluations=5, seeds=1, jobs=1, output=tmp_path, progress=None)


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
