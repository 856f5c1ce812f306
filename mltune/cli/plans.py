"""The commands ``run`` and ``plan``: carry out a plan of many problems, or forecast it; and ``cluster check``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mltune import api
from mltune.cli.application import Given, answer, command, command_group, fail_if
from mltune.cli.options import AsJson, argument, file, number, text
from mltune.show import terminal

if TYPE_CHECKING:
    from mltune.api import CampaignResult

cluster = command_group("cluster", "Look at a Dask cluster.")


@command(
    api.run,
    plan=argument("PLAN", "A plan (TOML), the name of a built-in one (quick), or the directory of a run of one."),
    run=file("--run", "DIR", "Directory of the run; a run of the same plan there is resumed."),
    cluster=text(
        "--cluster",
        "CLUSTER",
        "The GPU workers of a Dask cluster are the devices: address or file of its scheduler, or local.",
    ),
)
def run(given: Given, as_json: AsJson = False) -> None:
    """Carry out a plan: tune many problems, unattended.

    The time is shared out by expected gain. `mltune run DIR` resumes a run that was interrupted or killed.
    On a cluster (docs/how-to/use-a-cluster.md) the records still come to this host while they are made.
    Ctrl-C and SIGTERM end it within 10 s, with a report; a second one at once. Exits with 1 when a problem has no
    winner or was set aside.
    """
    from mltune.process.signals import Interrupt
    from mltune.show.live import RunDisplay

    with RunDisplay() as progress, Interrupt() as interrupt:
        result = api.run(**given, progress=progress, interrupt=interrupt)
    answer_campaign(result, as_json)


def answer_campaign(result: CampaignResult, as_json: bool) -> None:
    """Print the result of a campaign; exit with 1 where a problem has no winner."""
    from mltune.show import tables

    document = result.to_json()
    answer(document, as_json, lambda: tables.campaign_summary(document))
    if result.report is not None:
        terminal.write(f"written: {result.report.html}", stderr=True)
    found = {entry["choice"] or entry["slug"]: entry["best"] for entry in document["problems"] if entry["chosen"]}
    fail_if(document["failed"] or len(found) < document["distinct"] or not all(found.values()))


@command(api.plan, plan=argument("FILE", "A plan (TOML), or the name of a built-in one: quick."))
def plan(given: Given, as_json: AsJson = False) -> None:
    """Forecast a plan: devices, order, time and trials of each problem, and files. Nothing is run.

    No GPU is needed.
    """
    from mltune.show import tables

    document = api.plan(**given)
    answer(document, as_json, lambda: tables.forecast(document))


@command(
    api.check_cluster,
    group=cluster,
    cluster=argument("CLUSTER", "Address or file of its scheduler."),
    builds=number("--builds", "Builds that are timed.", 2),
)
def check(given: Given, as_json: AsJson = False) -> None:
    """Look at a cluster: latency, versions, devices, and how many configurations it compiles in a second.

    Exits with 1 where a worker has other versions of mltune or of NVRTC than this host.
    """
    from mltune.show import inventory

    document = api.check_cluster(**given)
    answer(document, as_json, lambda: inventory.cluster(document))
    fail_if(not all(worker["fits"] for worker in document["workers"]))
