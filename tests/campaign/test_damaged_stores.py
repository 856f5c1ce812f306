"""A damaged store is set aside with its reason, and everything else goes on."""

import json
import shutil
from pathlib import Path

import pytest

from mltune.campaign.scheduler import Scheduler
from mltune.results.summary import summarise_campaign
from mltune.show.follow import Watch
from mltune.show.report.evidence import read_input
from tests.campaign.conftest import SIMPLE, carry_out, events_of, placed, records_of
from tests.cli.program import command
from tests.conftest import few_rows
from tests.damages import DAMAGES

SPACES = 6
DAMAGED = "space-4"
FEW = ("a time of nothing",)
"""Damages that a normal run of the tests plays through with the whole campaign; the commands meet another."""

PLAN = """
[plan]
title = "Several problems"
budget = "{budget} trials"
minimum = "{each} trials"
maximum = "{each} trials"
produce = ["winners"]
[[problems]]
datasets = {datasets}
"""


@pytest.fixture(scope="module")
def plans(tmp_path_factory) -> tuple[str, str]:
    """Return a plan of several problems, and the same plan with twice the budget."""
    folder = tmp_path_factory.mktemp("spaces")
    datasets = [str(few_rows(folder, rows=40 + number, name=f"space-{number}")) for number in range(SPACES)]
    first, second = (
        SIMPLE + PLAN.format(budget=each * SPACES, each=each, datasets=json.dumps(datasets)) for each in (16, 32)
    )
    return first, second


@pytest.fixture(scope="module")
def half(plans, tmp_path_factory) -> Path:
    """Return a campaign that has spent half of its budget."""
    directory = tmp_path_factory.mktemp("half") / "campaign"
    carry_out(plans[0], directory)
    return directory


@pytest.fixture(scope="module")
def undisturbed(plans, half, tmp_path_factory) -> dict[str, list]:
    """Return the records of the whole campaign without a damage."""
    directory = Path(shutil.copytree(half, tmp_path_factory.mktemp("undisturbed") / "campaign"))
    carry_out(plans[1], directory)
    return records_of(directory)


@pytest.fixture
def campaign(half, tmp_path) -> Path:
    """Return a campaign that has spent half of its budget, to be damaged."""
    return Path(shutil.copytree(half, tmp_path / "campaign"))


def others(directory: Path) -> dict[str, list]:
    """Return the records of all problems but the damaged one."""
    return records_of(directory, without=DAMAGED)


@pytest.mark.parametrize("name", DAMAGES)
@pytest.mark.sampled(3, nightly=5)
def test_every_reader_of_a_campaign_sets_a_damaged_store_aside(name, campaign, plans):
    before = {entry["slug"]: entry for entry in summarise_campaign(campaign)["problems"]}
    DAMAGES[name](campaign / "problems" / DAMAGED)

    after = {entry["slug"]: entry for entry in summarise_campaign(campaign)["problems"]}
    damaged = after.pop(DAMAGED)
    assert damaged["state"] in ("declared", "unreadable", "waiting", "begun")
    assert bool(damaged["detail"]) == (damaged["state"] == "unreadable")
    assert after == {slug: entry for slug, entry in before.items() if slug != DAMAGED}
    source = read_input(campaign)
    assert len(source.runs) + len(source.unread) == SPACES
    assert {unread.slug for unread in source.unread} <= {DAMAGED}
    assert all(unread.reason for unread in source.unread)
    assert Watch(campaign).look().problems == SPACES
    standings = Scheduler(placed(plans[1]), campaign).standings
    assert all(not standing.failed for standing in standings.values()), "only a worker gives a problem up"
    assert {slug for slug, standing in standings.items() if standing.unread} <= {DAMAGED}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in FEW else [pytest.mark.hostile]) for name in DAMAGES]
)
@pytest.mark.slow
def test_the_others_are_as_in_an_undisturbed_campaign(name, campaign, plans, undisturbed):
    DAMAGES[name](campaign / "problems" / DAMAGED)
    messages: list[str | None] = []

    result = carry_out(plans[1], campaign, progress=lambda progress: messages.append(progress.message))

    assert others(campaign) == {slug: records for slug, records in undisturbed.items() if slug != DAMAGED}
    assert {slug: standing.trials for slug, standing in result.standings.items() if slug != DAMAGED} == {
        slug: 32 for slug in undisturbed if slug != DAMAGED
    }
    document = result.to_json()
    aside = [event["detail"] for event in events_of(campaign) if event["event"] == "set_aside"]
    if document["failed"]:
        assert list(document["failed"]) == [DAMAGED]
        reason = document["failed"][DAMAGED]
        assert f"{DAMAGED}: set aside: {reason}" in messages
        assert [detail[:200] for detail in aside] == [reason[:200]]
    else:
        assert records_of(campaign)[DAMAGED] == undisturbed[DAMAGED]
        assert not aside


@pytest.mark.system
@pytest.mark.nightly
def test_the_commands_go_on_and_say_what_failed(campaign, plans, tmp_path):
    plan = tmp_path / "twice.toml"
    plan.write_text(plans[1].replace('maximum = "32', 'maximum = "16').replace('minimum = "32', 'minimum = "16'))
    DAMAGES["half of it cut off"](campaign / "problems" / DAMAGED)

    tuned = command("run", plan, "--run", campaign)
    shown = command("show", campaign, "--dataset", tmp_path / "exported")
    document = json.loads(command("show", campaign, "--json").stdout)
    reported = command("report", campaign, "--json")

    assert (tuned.returncode, shown.returncode, reported.returncode) == (1, 1, 1)
    assert f"{DAMAGED}: set aside: not readable: " in tuned.stderr
    assert f"{DAMAGED}: not readable: " in shown.stderr
    assert len(list((tmp_path / "exported").glob("*.parquet"))) == SPACES - 1
    for text in (" ".join(done.stdout.split()) for done in (tuned, shown)):
        assert f"{DAMAGED}: not readable: " in text
        assert f"{SPACES - 1} of {SPACES} problems have a winner" in text
    states = {entry["slug"]: entry["state"] for entry in document["problems"]}
    assert states.pop(DAMAGED) == "unreadable"
    assert set(states.values()) == {"declared"}
    assert json.loads(reported.stdout)["with_winner"] == SPACES - 1
    for done in (tuned, shown, reported):
        assert "Traceback" not in done.stderr
