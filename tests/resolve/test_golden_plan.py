"""Plans and campaigns of earlier versions stay readable, and can be continued."""

import shutil
from pathlib import Path

import pytest

from mltune.campaign.campaign import run_plan
from mltune.campaign.scheduler import Scheduler
from mltune.resolve.placement import place
from mltune.resolve.plan_file import load_plan

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "campaign"


def test_the_plan_of_a_campaign_is_read():
    plan = place(load_plan(GOLDEN / "plan.toml"), ())
    assert (plan.unit, plan.budget, plan.seed) == ("trials", 80, 3)
    assert [task.slug for task in plan.tasks] == ["h200-sgemm-nt-4096-random", "convolution-mi250x-gcd"]


@pytest.mark.parametrize("slug", ["h200-sgemm-nt-4096-random", "convolution-mi250x-gcd"])
def test_the_standing_of_a_problem_is_read(slug, tmp_path):
    directory = Path(shutil.copytree(GOLDEN, tmp_path / "campaign"))
    standing = Scheduler(load_plan(directory / "plan.toml"), directory).standings[slug]
    assert (standing.spent, standing.limit, standing.trials) == (40, None, 40)
    assert (standing.failed, standing.unread, standing.declared) == ("", "", True)
    assert standing.curve


def test_a_campaign_that_has_ended_is_resumed_without_new_trials(tmp_path):
    directory = Path(shutil.copytree(GOLDEN, tmp_path / "campaign"))
    before = {path: path.read_bytes() for path in directory.glob("problems/*/run.sqlite")}
    result = run_plan(place(load_plan(directory / "plan.toml"), ()), directory)
    assert [standing.trials for standing in result.standings.values()] == [40, 40]
    assert {path: path.read_bytes() for path in directory.glob("problems/*/run.sqlite")} == before
    assert result.report.html.is_file()
