"""The command ``compare``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from mltune.cli.application import AsJson, answer, app, path, whole
from mltune.show import terminal

PATIENCE_S = 60.0
"""Seconds after a first signal until the process ends by force: the figures of many datasets take some."""


@app.command()
def compare(
    strategies: Annotated[
        str,
        typer.Option("--strategies", metavar="A,B|all", help="Names, or MODULE:CLASS; NAME@N with N seeds."),
    ] = "mltune,tpe,random",
    datasets: Annotated[
        str | None,
        typer.Option("--datasets", metavar="X,Y|DIR|all", help="Names, paths or folders of them.  [default: all]"),
    ] = None,
    table: Annotated[
        Path | None,
        typer.Option(
            "--table",
            metavar="FILE",
            parser=path("--table"),
            help="A bare table (CSV, Parquet, JSON), not datasets.",
        ),
    ] = None,
    parameters: Annotated[
        str | None, typer.Option("--parameters", metavar="A,B", help="Columns of the table that are parameters.")
    ] = None,
    time: Annotated[
        str | None, typer.Option("--time", metavar="COLUMN", help="Column of the table that holds the times: time_ms.")
    ] = None,
    aggregate: Annotated[
        bool, typer.Option("--aggregate", help="Merge rows of the table that differ in columns that are no parameters.")
    ] = False,
    evaluations: Annotated[
        int,
        typer.Option(
            "--evaluations",
            metavar="N",
            parser=whole("--evaluations", 2, 60_000),
            help="Distinct configurations that each run measures.",
        ),
    ] = 400,
    seeds: Annotated[
        int,
        typer.Option(
            "--seeds", metavar="N", parser=whole("--seeds", 1, 60_000), help="Runs of each strategy and dataset."
        ),
    ] = 50,
    jobs: Annotated[
        int | None,
        typer.Option(
            "--jobs",
            metavar="N",
            parser=whole("--jobs", 1),
            help="Processes.  [default: one per processor]",
            show_default=False,
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            metavar="DIR",
            parser=path("--output"),
            help="Directory of the results.  [default: runs/compare-..., from the options]",
        ),
    ] = None,
    share: Annotated[
        str | None,
        typer.Option("--share", metavar="I/N", help="Do the I-th of N shares, one on each of N machines, say."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Compare search strategies on recorded timings.

    Each strategy searches each dataset with each seed, and each configuration that it proposes is looked up.
    Strategies of mltune: mltune and its variants mltune-noskip, mltune-nobuild, mltune-raw and mltune-tpe; tpe, astra,
    random. Strategies of other packages, with the extra "peers": hybrid_vndx, adaptive_tabu_greywolf,
    genetic_algorithm, simulated_annealing, bayes_opt or any kernel_tuner:NAME, and gp. Ctrl-C ends the comparison with
    the runs that have ended; the same command goes on. With --output, it also joins the shares of several machines.
    """
    from mltune import api
    from mltune.process.signals import Interrupt
    from mltune.show import tables
    from mltune.show.live import ComparisonDisplay

    with ComparisonDisplay() as progress, Interrupt(patience_s=PATIENCE_S) as interrupt:
        options: dict[str, Any] = {
            "table": table,
            "parameters": parameters,
            "time": time,
            "aggregate": aggregate,
            "evaluations": evaluations,
            "seeds": seeds,
            "jobs": jobs,
            "output": output,
            "share": share,
        }
        comparison = api.compare(strategies, datasets, **options, progress=progress, interrupt=interrupt)
    terminal.write(f"written: {comparison.directory}", stderr=True)
    for job, error in comparison.errors.items():
        terminal.write(f"{' '.join(map(str, job))} failed: {error}", stderr=True)
    if comparison.missing:
        terminal.write(f"stopped: {comparison.missing} runs are missing; the same command goes on", stderr=True)
    document = comparison.to_json()
    answer(document, as_json, lambda: tables.comparison(document) if share is None else [])
