"""The command ``compare``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mltune.cli.application import AsJson, answer, app
from mltune.show import terminal


@app.command()
def compare(
    strategies: Annotated[
        str | None,
        typer.Option(
            "--strategies",
            metavar="A,B|all",
            help="Names; NAME@N with N seeds.  [default: mltune,tpe,random]",
        ),
    ] = None,
    datasets: Annotated[
        str | None, typer.Option("--datasets", metavar="X,Y|all", help="Recorded timings.  [default: all]")
    ] = None,
    table: Annotated[
        Path | None, typer.Option("--table", metavar="FILE", help="A bare table (CSV, Parquet, JSON), not datasets.")
    ] = None,
    parameters: Annotated[
        str | None, typer.Option("--parameters", metavar="A,B", help="Columns of the table that are parameters.")
    ] = None,
    time: Annotated[
        str | None, typer.Option("--time", metavar="COLUMN", help="Column of the table that holds the times: time_ms.")
    ] = None,
    evaluations: Annotated[
        int, typer.Option("--evaluations", min=2, max=60_000, help="Distinct configurations that each run measures.")
    ] = 400,
    seeds: Annotated[int, typer.Option("--seeds", min=1, max=60_000, help="Runs of each strategy and dataset.")] = 50,
    jobs: Annotated[
        int | None, typer.Option("--jobs", min=1, help="Processes.  [default: one per processor]", show_default=False)
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", metavar="DIR", help="Directory of the results; a comparison there is resumed."),
    ] = None,
    share: Annotated[
        str, typer.Option("--share", metavar="I/N", help="Do the I-th of N shares, one on each of N machines, say.")
    ] = "1/1",
    as_json: AsJson = False,
) -> None:
    """Compare search strategies on recorded timings.

    Each strategy searches each dataset with each seed, and each configuration that it proposes is looked up.
    Strategies of mltune: mltune and its ablations mltune-noskip, mltune-nobuild and mltune-raw, tpe, tpe+skip, astra,
    random. Strategies of other packages, with the extra "peers": hybrid_vndx, adaptive_tabu_greywolf,
    genetic_algorithm, simulated_annealing, bayes_opt or any kernel_tuner:NAME, and gp. The same --output resumes a
    comparison, or joins the shares of several machines.
    """
    from mltune import api
    from mltune.comparison.request import default_output
    from mltune.show import tables
    from mltune.show.live import ComparisonDisplay

    output = output or default_output()
    with ComparisonDisplay() as progress:
        comparison = api.compare(
            strategies,
            datasets,
            table=table,
            parameters=parameters,
            time=time,
            evaluations=evaluations,
            seeds=seeds,
            processes=jobs,
            output=output,
            share=share,
            progress=progress,
        )
    terminal.write(f"written: {output}", stderr=True)
    if comparison is None:
        return
    for job, error in comparison.errors.items():
        terminal.write(f"{' '.join(map(str, job))} failed: {error.strip().splitlines()[-1]}", stderr=True)
    answer(comparison.summary, as_json, lambda: tables.comparison(comparison.summary))
