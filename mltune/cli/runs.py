"""The commands ``run``, ``plan``, ``cluster check``, ``show``, ``dashboard`` and ``report``."""

from __future__ import annotations

import threading
from pathlib import Path

import typer

from mltune import api
from mltune.api.campaigns import export_runs, local_runs, stored_runs
from mltune.api.display import attended
from mltune.cli.application import INTERRUPTED, Given, answer, command, command_group, fail_if, say_resumed_by
from mltune.cli.on_end import Ending, on_end
from mltune.cli.options import argument, file, flag, is_database, number, run_directory, text
from mltune.errors import UsageError
from mltune.records.directory import STUDY
from mltune.show import inventory, table, tables

cluster = command_group("cluster", "Look at a Dask cluster.")


@command(
    api.run,
    plan=argument("PLAN", "A plan (TOML), the name of a built-in one (quick), or the directory of a run of one."),
    run=file("DIR", "Directory of the run; a run of the same plan there is resumed."),
    cluster=text(
        "CLUSTER",
        "The GPU workers of a Dask cluster are the devices: address or file of its scheduler, or local.",
    ),
)
def run(options: Given, at_end: str | None = None, as_json: bool = False) -> None:
    """Carry out a plan: tune many problems, unattended.

    The problems share the time by expected gain. `mltune run DIR` resumes a run that was interrupted or killed.
    The records of a run on a cluster (docs/how-to/use-a-cluster.md) come to this host while they are made.
    Ctrl-C or SIGTERM ends the run within 10 s, with a report. A second signal ends it at once. The exit code is 1 if a
    problem has no winner or was set aside.
    """
    directory = options["run"] or (options["plan"] if Path(options["plan"]).is_dir() else None)
    with on_end(at_end, directory) as ending:
        with attended() as attendance:
            result = api.run(**options, **attendance)
        answer_campaign(result, ending, as_json)


def answer_campaign(result: api.CampaignResult, ending: Ending, as_json: bool) -> None:
    """Print the result of a campaign; exit with 1 where a problem has no winner."""
    document = result.to_json()
    ending.run, ending.interrupted = document["plan"], result.interrupted
    ending.summary = tables.in_one_line(document)
    if result.interrupted:
        say_resumed_by("run", result.directory)
    answer(document, as_json, lambda: tables.campaign_summary(document), "report", result.directory)
    if result.report is not None:
        table.write(f"written: {result.report.html}", stderr=True)
    best = {entry["choice"] or entry["slug"]: entry["best"] for entry in document["problems"] if entry["chosen"]}
    failed = document["failed"] or len(best) < document["distinct"] or not all(best.values())
    fail_if(failed, result.interrupted)


@command(api.plan, plan=argument("NAME|FILE", "A plan (TOML), or the name of a built-in one: quick."))
def plan(options: Given, as_json: bool = False) -> None:
    """Forecast a plan: devices, order, time and trials of each problem, and files. Nothing is run.

    It needs no GPU.
    """
    document = api.plan(**options)
    answer(document, as_json, lambda: tables.forecast(document), "run", options["plan"])


@command(
    api.check_cluster,
    group=cluster,
    cluster=argument("CLUSTER", "Address or file of its scheduler."),
    builds=number("Number of builds to time.", 2),
)
def check(options: Given, as_json: bool = False) -> None:
    """Look at a cluster: latency, versions, devices, and how many configurations it compiles in a second.

    The exit code is 1 if a worker has other versions of mltune or of NVRTC than this host.
    """
    document = api.check_cluster(**options)
    fits = all(worker["fits"] for worker in document["workers"])
    use = ["tune", "sgemm", "--compile-on"] if document["compile"] else []
    if any(worker["device"] for worker in document["workers"]):
        use = ["run", "quick", "--cluster"]
    following = [*use, options["cluster"]] if fits and use else []
    answer(document, as_json, lambda: inventory.cluster(document), *following)
    fail_if(not fits)


RUN = "Directory of a run, or of a plan; or DATABASE#RUN."


@command(
    api.summarise,
    top=number("Number of the best configurations to show.", 0),
    run=argument("RUN", "Directory of a run, or of a plan; DATABASE, or DATABASE#RUN.", str | None, show_default=False),
    dataset=file("FOLDER", "Write the trials there as a dataset (Parquet)."),
    follow=flag("Show its progress until it ends, or until Ctrl-C."),
)
def show(
    options: Given,
    run: str | None = None,
    dataset: Path | None = None,
    follow: bool = False,
    as_json: bool = False,
) -> None:
    """Show the results of a run; without RUN the newest runs below runs/ of the working directory.

    The output has the best configurations, the trials by state, and the seconds by phase. For a plan it has the
    progress of each problem. --follow shows a run of another terminal, and waits for one that has not started.
    The exit code is 1 if a problem of a plan cannot be read. DATABASE is a URL, such as postgresql://host/name. Its
    runs are listed. DATABASE#RUN is one of them, by the first digits of its number.
    """
    if run is None or (is_database(run) and "#" not in run):
        if follow or dataset is not None:
            raise UsageError("no run is named, which --follow and --dataset need; list them: mltune show.")
        if run is not None:
            documents = stored_runs(run)
            return answer(documents, as_json, lambda: [tables.stored_runs(documents)])
        documents = local_runs()
        following = ("show", documents[0]["run"]) if documents else ("tune", "sgemm")
        return answer(documents, as_json, lambda: [tables.local_runs(documents)], *following)
    directory = run_directory(run)
    if follow:
        fail_if(failed=False, interrupted=not _follow(directory, as_json))
    for line in () if dataset is None else export_runs(directory, dataset):
        table.write(line, stderr=True)
    document = api.summarise(directory, **options)
    if "problems" not in document:
        return answer(document, as_json, lambda: tables.run_summary(document), "report", run)
    answer(document, as_json, lambda: tables.campaign_summary(document), "report", run)
    fail_if(any(problem["state"] == "unreadable" for problem in document["problems"]))


def _follow(run: Path, as_json: bool) -> bool:
    """Follow a run; return whether it has ended, or false after a Ctrl-C of the user."""
    from mltune.show.follow import follow
    from mltune.show.live import RunDisplay

    if as_json:
        raise UsageError(
            f"--json does not go with --follow, which is for people; programs read the lines of {run / 'events.jsonl'}."
        )
    try:
        with RunDisplay(stderr=False, announce=False) as display:
            follow(run, display)
    except KeyboardInterrupt:
        return False
    return True


@command(
    api.dashboard,
    run=argument("RUN", RUN),
    port=number("The port; 0 chooses a free one.", 0, 65_535),
    open=flag("Open it in a browser."),
)
def dashboard(options: Given) -> None:
    """Show a run in optuna-dashboard.

    This writes the run, or each problem of a plan, as an Optuna study to RUN/optuna.journal. It serves the dashboard to
    this machine until Ctrl-C. Trials of a run that is under way are added. It needs the extra "dashboard".
    """
    directory = run_directory(options["run"])
    try:
        with api.dashboard(**options | {"run": directory}) as address:
            table.write(f"written: {directory / STUDY}", stderr=True)
            table.write(f"serving {address}; Ctrl-C ends it", stderr=True)
            threading.Event().wait()
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None


@command(
    api.report,
    run=argument("RUN", RUN),
    out=file("FOLDER", "Folder of the files.  [default: RUN]"),
)
def report(options: Given, as_json: bool = False) -> None:
    """Write the report on a run: report.html, report.md and winners.json.

    The run may still be in progress. The report has the results, their uncertainty and the failures, then the evidence.
    --json prints the content of winners.json. The exit code is 1 if the run, or a problem of a plan, cannot be read.
    """
    paths = api.report(**options | {"run": run_directory(options["run"])})
    unreadable = [entry for entry in paths.document["winners"] if entry["state"] == "unreadable"]
    files = [str(path) for path in (paths.html, paths.markdown, paths.winners)]
    answer(paths.document, as_json, lambda: files, *(() if unreadable else ("init", "FOLDER")))
    for entry in unreadable:
        table.write(f"{entry['slug']} cannot be read: {'; '.join(entry['notes'])}", stderr=True)
    fail_if(unreadable)
