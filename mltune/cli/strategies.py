"""The command that compares search strategies."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mltune.cli.application import AsJson, answer, app


@app.command()
def compare(
    strategies: Annotated[
        str | None,
        typer.Option(
            "--strategies",
            metavar="A,B|all",
            help="What is compared; NAME@N with N seeds.  [default: mltune,tpe,random]",
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
        Path | None, typer.Option("--output", metavar="DIR", help="Where results go; a comparison there is resumed.")
    ] = None,
    share: Annotated[
        str, typer.Option("--share", metavar="I/N", help="Do the I-th of N shares, on one machine of N, say.")
    ] = "1/1",
    as_json: AsJson = False,
) -> None:
    """Compare search strategies on recorded timings.

    Each strategy searches each dataset with each seed; what it proposes is looked up. Our strategies: mltune and its
    ablations mltune-noskip, mltune-nobuild and mltune-raw, tpe, tpe+skip, astra, random. Those of others need the
    extra "peers": hybrid_vndx, adaptive_tabu_greywolf, genetic_algorithm, simulated_annealing, bayes_opt or any
    kernel_tuner:NAME, and gp. Resume, or join the shares of several machines, with the same --output.
    """
    from mltune.compare.comparison import compare as run
    from mltune.compare.request import compare_request
    from mltune.compare.results import write_results
    from mltune.show import tables as render
    from mltune.show.live import ComparisonDisplay

    request = compare_request(
        strategies=strategies,
        datasets=datasets,
        table=table,
        parameters=parameters,
        times=time,
        evaluations=evaluations,
        seeds=seeds,
        processes=jobs,
        output=output,
        share=share,
    )
    with ComparisonDisplay() as progress:
        comparison = run(request, progress)
    typer.echo(f"written: {request.output}", err=True)
    if comparison is None:
        return
    for job, error in comparison.errors.items():
        typer.echo(f"{' '.join(map(str, job))} failed: {error.strip().splitlines()[-1]}", err=True)
    document = write_results(comparison, request.output)
    answer(document, as_json, lambda: render.comparison(document))
