"""The commands that measure, and the plan of what would be measured."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from mltune.cli.application import (
    AsJson,
    DeviceSpec,
    K,
    KernelName,
    M,
    N,
    ProblemName,
    RunDirectory,
    Search,
    Seed,
    Size,
    Trans,
    answer,
    app,
)
from mltune.cli.request import Shape, parse_values, sweep_request, tune_request
from mltune.tune.request import DEFAULT_KERNEL


@app.command()
def tune(
    problem: Annotated[
        str | None,
        typer.Argument(
            metavar="[PROBLEM]", help="sgemm, dgemm, cgemm or zgemm; in replay the recorded one.", show_default=False
        ),
    ] = None,
    trans: Trans = None,
    size: Size = None,
    m: M = None,
    n: N = None,
    k: K = None,
    kernel: Annotated[
        str | None,
        typer.Option(
            "--kernel",
            help=f"A built-in kernel, or the folder of a bundle.  [default: {DEFAULT_KERNEL}, or the replayed one]",
        ),
    ] = None,
    trials: Annotated[int | None, typer.Option("--trials", min=1, help="Most trials, skipped ones included.")] = None,
    time: Annotated[str | None, typer.Option("--time", metavar="TIME", help="Most time: 20s, 30m, 1h30m.")] = None,
    seed: Seed = 0,
    search: Annotated[
        Search, typer.Option("--search", help="Who proposes: the model, or what it is compared with.")
    ] = Search.MODEL,
    skip: Annotated[bool, typer.Option("--skip/--no-skip", help="Skip what is predicted to be slow.")] = True,
    stop: Annotated[
        bool, typer.Option("--stop/--no-stop", help="End once nothing untried can be expected to be 1 % faster.")
    ] = True,
    run: RunDirectory = None,
    device: DeviceSpec = "auto",
    as_json: AsJson = False,
) -> None:
    """Find the fastest configuration of a kernel.

    Without --trials and --time the budget is 60 s on a GPU and 300 trials in replay. Without a GPU, timings recorded
    on one are replayed. Ctrl-C ends the run with the best so far. The run also ends by itself, and says so, once
    nothing untried can be expected to be faster. Exits with 1 when no trial succeeded.
    """
    from mltune.process.signals import Interrupt
    from mltune.show import tables as render
    from mltune.show.live import RunDisplay
    from mltune.tune import tuner

    request, notice = tune_request(
        problem,
        Shape(trans, size, m, n, k),
        kernel=kernel,
        device=device,
        trials=trials,
        time=time,
        seed=seed,
        run=run,
    )
    request = replace(request, search=search.value, skip=skip, stop=stop)
    if notice:
        typer.echo(notice, err=True)
    with RunDisplay() as progress, Interrupt() as interrupt:
        result = tuner.tune(request, progress=progress, stop=interrupt)
    for number, reason in (result.declaration.rejected if result.declaration else {}).items():
        typer.echo(f"trial {number} was faster, but failed the last verification: {reason}", err=True)
    document = result.to_json()
    answer(document, as_json, lambda: [render.tuned(document)])
    if document["best"] is None:
        raise typer.Exit(1)


@app.command()
def run(
    plan: Annotated[
        str,
        typer.Argument(metavar="PLAN", help="A plan (TOML), one of ours (quick), or the directory of a run of one."),
    ],
    directory: Annotated[
        Path | None,
        typer.Option("--run", metavar="DIR", help="Directory of the run; a run of the same plan there is resumed."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Carry out a plan: tune many problems, unattended.

    The time is shared out by expected gain. A run that was interrupted, or killed, goes on with `mltune run DIR`.
    Ctrl-C and SIGTERM end it within 10 s, with a report; a second one at once. Exits with 1 when a problem has no
    winner.
    """
    from mltune.plan.campaign import run_plan
    from mltune.plan.placement import place
    from mltune.plan.reader import load_plan
    from mltune.process.signals import Interrupt
    from mltune.records.directory import PLAN_FILE, is_plan, new_directory
    from mltune.show import tables as render
    from mltune.show.live import RunDisplay
    from mltune.tune.target import find_gpus

    if is_plan(Path(plan)):
        directory, plan = directory or Path(plan), str(Path(plan) / PLAN_FILE)
    asked = load_plan(plan)
    placed = place(asked, *find_gpus())
    if placed.replayed and asked.devices != placed.devices:
        typer.echo("no GPU found: every problem is replayed from recorded timings", err=True)
    directory = directory or new_directory(asked.name)
    typer.echo(f"the run lies in {directory}; `mltune run {directory}` goes on with it", err=True)
    with RunDisplay() as progress, Interrupt() as interrupt:
        result = run_plan(placed, directory, progress=progress, stop=interrupt)
    document = result.to_json()
    answer(document, as_json, lambda: render.campaign_summary(document))
    if result.report is not None:
        typer.echo(f"written: {result.report.html}", err=True)
    if not all(problem["best"] for problem in document["problems"]):
        raise typer.Exit(1)


@app.command()
def plan(
    file: Annotated[str, typer.Argument(metavar="FILE", help="A plan (TOML), or the name of one of ours: quick.")],
    as_json: AsJson = False,
) -> None:
    """Say what a plan would do, and for how long; nothing is run.

    On which devices, in which order, how much each problem gets at least and on an even share, how many trials that
    allows, and what is written. No GPU is needed.
    """
    from mltune.measure.build import available_cores
    from mltune.plan.forecast import forecast
    from mltune.plan.reader import load_plan
    from mltune.show import plan_tables as render_plan
    from mltune.tune.target import find_gpus

    document = forecast(load_plan(file), *find_gpus(), available_cores())
    answer(document, as_json, lambda: render_plan.forecast(document))


@app.command()
def sweep(
    problem: ProblemName,
    count: Annotated[int, typer.Option("--count", min=1, help="How many configurations to time.")] = 1000,
    complete: Annotated[bool, typer.Option("--complete", help="Time all configurations, not --count.")] = False,
    only: Annotated[
        list[str] | None,
        typer.Option("--only", metavar="NAME=V,V", help="Values of a parameter to sweep; may be given several times."),
    ] = None,
    trans: Trans = None,
    size: Size = None,
    m: M = None,
    n: N = None,
    k: K = None,
    kernel: KernelName = DEFAULT_KERNEL,
    seed: Seed = 0,
    run: RunDirectory = None,
    device: DeviceSpec = "auto",
    as_json: AsJson = False,
) -> None:
    """Record a dataset of timings on a GPU.

    The configurations are a uniform random sample of the search space, or all of it; failures are recorded too. With
    --only it is a sub-space. An existing run is resumed.
    """
    from mltune.show.live import RunDisplay
    from mltune.tune.sweep import sweep as record_sweep

    request = sweep_request(problem, Shape(trans, size, m, n, k), kernel=kernel, device=device, seed=seed, run=run)
    with RunDisplay() as progress:
        path = record_sweep(request, None if complete else count, values=parse_values(only or []), progress=progress)
    answer({"dataset": str(path)}, as_json, lambda: [str(path)])
