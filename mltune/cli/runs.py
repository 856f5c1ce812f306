"""The commands ``show``, ``dashboard`` and ``report``: read the records of a run or of a plan."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Annotated

import typer

from mltune.cli.application import AsJson, Run, answer, app, is_database, path, run_directory, whole
from mltune.errors import DamagedRunError, UsageError
from mltune.show import terminal


@app.command()
def show(
    run: Annotated[
        str,
        typer.Argument(metavar="RUN", help="Directory of a run, or of a plan; DATABASE, or DATABASE#RUN."),
    ],
    top: Annotated[
        int, typer.Option("--top", metavar="N", parser=whole("--top", 0), help="How many of the best configurations.")
    ] = 10,
    export: Annotated[
        Path | None,
        typer.Option(
            "--export",
            metavar="FOLDER",
            parser=path("--export"),
            help="Write the trials there as a dataset (Parquet).",
        ),
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", help="Show its progress until it ends, or until Ctrl-C.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show the results of a run.

    Its best configurations, its trials by state, and its seconds by phase; of a plan, the progress of each problem.
    --follow shows a run that is under way in another terminal, and waits for one that has not started. Exits with 1
    when a problem of a plan cannot be read. DATABASE is the URL of one, such as postgresql://host/name, whose runs are
    listed; DATABASE#RUN is one of them, by the first digits of its number.
    """
    from mltune.records.directory import is_plan, runs_in
    from mltune.show import tables

    if is_database(run) and "#" not in run:
        from mltune.records.database_runs import list_runs
        from mltune.results.summary import describe_stored_run

        documents = [describe_stored_run(one) for one in list_runs(run)]
        answer(documents, as_json, lambda: [tables.stored_runs(documents)])
        return
    directory = run_directory(run)
    if follow and not _follow(directory, as_json):
        return
    folders = runs_in(directory)
    if export is not None:
        from mltune.dataset.dataset import export_run

        for folder in folders:
            try:
                terminal.write(f"written: {export_run(folder, export)}", stderr=True)
            except DamagedRunError as error:
                if not is_plan(directory):
                    raise
                terminal.write(f"{folder.name}: not readable: {error}", stderr=True)
    if is_plan(directory):
        from mltune.results.summary import summarise_campaign

        document = summarise_campaign(directory)
        answer(document, as_json, lambda: tables.campaign_summary(document))
        if any(problem["state"] == "unreadable" for problem in document["problems"]):
            raise typer.Exit(1)
    else:
        from mltune.results.reader import read_run
        from mltune.results.summary import summarise_run

        document = summarise_run(read_run(directory), top)
        answer(document, as_json, lambda: tables.run_summary(document))


def _follow(run: Path, as_json: bool) -> bool:
    """Follow a run; return whether it has ended, as opposed to a Ctrl-C of the user."""
    from mltune.show.follow import follow
    from mltune.show.live import RunDisplay

    if as_json:
        raise UsageError(
            f"--follow is for people and has no --json; programs read the lines of {run / 'events.jsonl'}."
        )
    try:
        with RunDisplay(stderr=False, announce=False) as display:
            follow(run, display)
    except KeyboardInterrupt:
        return False
    return True


@app.command()
def dashboard(
    run: Run,
    port: Annotated[
        int,
        typer.Option("--port", metavar="N", parser=whole("--port", 0, 65_535), help="The port; 0 takes a free one."),
    ] = 8080,
    browser: Annotated[bool, typer.Option("--open", help="Open it in a browser.")] = False,
) -> None:
    """Show a run in optuna-dashboard.

    Writes the run, or each problem of a plan, as an Optuna study to RUN/optuna.journal, and serves the dashboard to
    this machine until Ctrl-C; trials of a run that is under way are added. Needs the extra "dashboard".
    """
    from mltune.show.dashboard import served
    from mltune.show.study import Studies

    studies = Studies(run)
    terminal.write(f"written: {studies.path}", stderr=True)
    with contextlib.suppress(KeyboardInterrupt), served(studies, port) as address:
        terminal.write(f"serving {address}; Ctrl-C ends it", stderr=True)
        if browser:
            typer.launch(address)
        studies.keep_up_to_date()


@app.command()
def report(
    run: Run,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            metavar="FOLDER",
            parser=path("--output"),
            help="Directory of the files.  [default: RUN]",
            show_default=False,
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Write the report on a run: report.html, report.md and winners.json.

    The run may still go on. The report gives the results, their uncertainty and the failures, then the evidence.
    --json prints the content of winners.json. Exits with 1 when the run, or a problem of a plan, cannot be read.
    """
    from mltune.show.report.writing import write_report

    paths = write_report(run, output)
    answer(paths.document, as_json, lambda: [str(path) for path in (paths.html, paths.markdown, paths.winners)])
    if any(entry["state"] == "unreadable" for entry in paths.document["winners"]):
        raise typer.Exit(1)
