"""A directory belongs to the problems and the seed of the plan that began its campaign, whatever its plan.toml says."""

import json
import shutil
from pathlib import Path

import pytest

from mltune.errors import RunDirectoryError
from mltune.records.directory import IDENTITY_FILE
from tests.campaign.conftest import SIMPLE, carry_out, records_of
from tests.cli.program import command
from tests.conftest import few_rows

PLAN = """
[plan]
title = "Two problems"
budget = "32 trials"
minimum = "16 trials"
produce = []
[[problems]]
datasets = ["{0}", "{1}"]
"""


@pytest.fixture(scope="module")
def begun(tmp_path_factory) -> tuple[Path, str]:
    """Return the directory of a campaign and its plan."""
    folder = tmp_path_factory.mktemp("identity")
    text = SIMPLE + PLAN.format(*(few_rows(folder, rows=40 + number, name=f"space-{number}") for number in range(3)))
    carry_out(text, folder / "campaign")
    return folder / "campaign", text


@pytest.fixture
def campaign(begun, tmp_path) -> Path:
    """Return the directory of the campaign, to be changed."""
    return Path(shutil.copytree(begun[0], tmp_path / "campaign"))


EDITS = {
    "another seed": (lambda text: text.replace("budget", "seed = 5\nbudget"), "the seed is 5, not 0"),
    "a problem less": (lambda text: text[: text.index(', "')] + "]\n", "space-1 is missing"),
    "another problem": (lambda text: text.replace("space-1", "space-2"), "space-1 is missing; space-2 is new"),
}


@pytest.mark.parametrize("name", EDITS)
@pytest.mark.sampled(1)
def test_an_edited_plan_is_refused_with_what_differs(name, campaign):
    """The copy in the directory is edited, and the directory is resumed."""
    edit, difference = EDITS[name]
    before = records_of(campaign)
    plan = campaign / "plan.toml"
    plan.write_text(edit(plan.read_text()))

    done = command("run", campaign)

    assert done.returncode == 2
    assert f"is the directory of another plan: in this plan {difference}. Undo the change, or" in done.stderr
    assert "Traceback" not in done.stderr
    assert records_of(campaign) == before


def test_a_larger_budget_is_allowed_in_the_directory_too(campaign, begun):
    larger = begun[1].replace("32 trials", "48 trials")
    (campaign / "plan.toml").write_text(larger)

    result = carry_out(larger, campaign)

    assert sum(standing.trials for standing in result.standings.values()) == 48
    assert (campaign / "plan.toml").read_text() == larger


def test_the_problem_of_another_size_is_another_problem(campaign, begun):
    identity = json.loads((campaign / IDENTITY_FILE).read_text())
    identity["problems"]["space-0"]["problem"]["size"] = "8x8"
    (campaign / IDENTITY_FILE).write_text(json.dumps(identity))

    with pytest.raises(RunDirectoryError, match="space-0 has another kernel or problem"):
        carry_out(begun[1], campaign)


@pytest.mark.parametrize("content", ["", "{", "[]", '{"seed": 0}', '{"seed": 0, "problems": 3}', "[" * 100_000])
def test_an_identity_that_cannot_be_read_is_named(content, campaign, begun):
    (campaign / IDENTITY_FILE).write_text(content)

    with pytest.raises(
        RunDirectoryError, match=rf"{IDENTITY_FILE}, the problems and the seed .* delete .*{IDENTITY_FILE}"
    ):
        carry_out(begun[1], campaign)


def test_a_campaign_of_an_earlier_version_is_told_by_its_plan(campaign, begun):
    (campaign / IDENTITY_FILE).unlink()
    with pytest.raises(RunDirectoryError, match="the seed is 5, not 0"):
        carry_out(begun[1].replace("budget", "seed = 5\nbudget"), campaign)

    carry_out(begun[1], campaign)

    assert json.loads((campaign / IDENTITY_FILE).read_text())["seed"] == 0
