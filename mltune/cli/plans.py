"""The commands ``run`` and ``plan``: carry out a plan of many problems, or forecast it."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mltune.cli.application import AsJson, CompileOn, StoreUrl, answer, app, path
from mltune.show import terminal

if TYPE_CHECKING:
    from mltune.campaign.cluster.gpu_workers import Cluster
    from mltune.resolve.plan import Plan


@app.command()
def run(
    plan: Annotated[
        str,
        typer.Argument(
            metavar="PLAN", help="A plan (TOML), the name of a built-in one (quick), or the directory of a run of one."
        ),
    ],
    directory: Annotated[
        Path | None,
        typer.Option(
            "--run",
            metavar="DIR",
            parser=path("--run"),
            help="Directory of the run; a run of the same plan there is resumed.",
        ),
    ] = None,
    store: StoreUrl = "",
    compile_on: CompileOn = "",
    cluster: Annotated[
        str,
        typer.Option(
            "--cluster",
            metavar="CLUSTER",
            help="The GPU workers of a Dask cluster are the devices: address or file of its scheduler, or local.",
            show_default=False,
        ),
    ] = "",
    as_json: AsJson = False,
) -> None:
    """Carry out a plan: tune many problems, unattended.

    The time is shared out by expected gain. `mltune run DIR` resumes a run that was interrupted or killed.
    On a cluster (docs/how-to/use-a-cluster.md) the records still come to this host while they are made.
    Ctrl-C and SIGTERM end it within 10 s, with a report; a second one at once. Exits with 1 when a problem has no
    winner or was set aside.
    """
    from mltune.records.directory import PLAN_FILE, is_plan
    from mltune.resolve.plan_file import load_plan

    if is_plan(Path(plan)):
        directory, plan = directory or Path(plan), str(Path(plan) / PLAN_FILE)
    if not cluster:
        return carry_out(load_plan(plan), directory, as_json, store, compile_on)
    from mltune.campaign.cluster.gpu_workers import WAIT_S, Cluster
    from mltune.campaign.cluster.local import named_cluster
    from mltune.resolve.device import find_gpus

    with named_cluster(cluster, len(find_gpus()[0])) as address, contextlib.closing(Cluster(address)) as found:
        found.workers(WAIT_S)
        return carry_out(load_plan(plan), directory, as_json, store, compile_on, found)


def carry_out(
    loaded: Plan,
    directory: Path | None,
    as_json: bool,
    store: str = "",
    compile_on: str = "",
    cluster: Cluster | None = None,
) -> None:
    """Carry out a plan in a directory, by default a new one, and show the result."""
    from mltune.campaign.campaign import run_plan
    from mltune.process.signals import Interrupt
    from mltune.records.directory import new_directory
    from mltune.resolve.device import find_gpus
    from mltune.resolve.placement import notices, place, place_on_workers
    from mltune.show import tables
    from mltune.show.live import RunDisplay

    if cluster is None:
        placed = place(loaded, *find_gpus())
    else:
        placed = place_on_workers(loaded, {name: worker.device for name, worker in cluster.known.items()})
    if placed.replayed and loaded.devices != placed.devices:
        terminal.write("no GPU found: every problem is replayed from recorded timings", stderr=True)
    for notice in notices(placed):
        terminal.write(notice, stderr=True)
    directory = directory or new_directory(loaded.name)
    terminal.write(f"run directory: {directory}; `mltune run {directory}` resumes it", stderr=True)
    with RunDisplay() as progress, Interrupt() as interrupt:
        result = run_plan(
            placed,
            directory,
            progress=progress,
            stop=interrupt,
            store=store,
            compile_on=compile_on,
            cluster=cluster,
        )
    document = result.to_json()
    answer(document, as_json, lambda: tables.campaign_summary(document))
    if result.report is not None:
        terminal.write(f"written: {result.report.html}", stderr=True)
    found = {entry["choice"] or entry["slug"]: entry["best"] for entry in document["problems"] if entry["chosen"]}
    if document["failed"] or len(found) < document["distinct"] or not all(found.values()):
        raise typer.Exit(1)


@app.command()
def plan(
    file: Annotated[str, typer.Argument(metavar="FILE", help="A plan (TOML), or the name of a built-in one: quick.")],
    as_json: AsJson = False,
) -> None:
    """Forecast a plan: devices, order, time and trials of each problem, and files. Nothing is run.

    No GPU is needed.
    """
    from mltune.campaign.forecast import forecast
    from mltune.measure.build import available_cores
    from mltune.resolve.device import find_gpus
    from mltune.resolve.plan_file import load_plan
    from mltune.show import tables

    document = forecast(load_plan(file), *find_gpus(), available_cores())
    answer(document, as_json, lambda: tables.forecast(document))
