"""The command ``mltune``: reads what is asked, drives the tuner, and prints. Nothing else in the package prints."""

from __future__ import annotations

import contextlib
import json
import math
import signal
import sys
from dataclasses import replace
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mltune import __version__
from mltune.errors import MltuneError, UsageError
from mltune.request import (
    DEFAULT_KERNEL,
    DEFAULT_SIZE,
    DEFAULT_TRANS,
    Shape,
    parse_values,
    space_problem,
    sweep_request,
    tune_request,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from rich.console import RenderableType

    from mltune.device.facts import Device

app = typer.Typer(
    name="mltune",
    help="Find the fastest version of a parametrised GPU kernel while measuring few of its versions.",
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

ProblemName = Annotated[str, typer.Argument(metavar="PROBLEM", help="sgemm, dgemm, cgemm or zgemm.")]
KernelName = Annotated[str, typer.Option("--kernel", help="A built-in kernel, or the folder of a kernel bundle.")]
Trans = Annotated[
    str | None,
    typer.Option("--trans", metavar="AB", help=f"op(A) and op(B): two of N, T, C.  [default: {DEFAULT_TRANS}]"),
]
Size = Annotated[int | None, typer.Option("--size", help=f"m = n = k.  [default: {DEFAULT_SIZE}]")]
M = Annotated[int | None, typer.Option("--m", help="Rows of C, in place of --size.")]
N = Annotated[int | None, typer.Option("--n", help="Columns of C, in place of --size.")]
K = Annotated[int | None, typer.Option("--k", help="Inner dimension, in place of --size.")]


class Search(Enum):
    """Those of :data:`mltune.learn.search.SEARCHES`, which would be slow to import here; a test compares them."""

    MODEL = "model"
    TPE = "tpe"
    RANDOM = "random"
    ASTRA = "astra"


Seed = Annotated[int, typer.Option("--seed", min=0, help="The same seed proposes the same trials.")]
DeviceSpec = Annotated[str, typer.Option("--device", metavar="DEVICE", help="auto, cuda:N or replay:DATASET.")]
RunDirectory = Annotated[
    Path | None, typer.Option("--run", metavar="DIR", help="Directory of the run; an existing run is resumed.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]


def _print_version(asked: bool) -> None:
    """Print the version and end."""
    if asked:
        typer.echo(f"mltune {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


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
    from mltune import render, tuner
    from mltune.interrupt import Interrupt
    from mltune.progress import RunDisplay

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
    _show(document, as_json, lambda: [render.tuned(document)])
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
    from mltune import render
    from mltune.interrupt import Interrupt
    from mltune.night import run_plan
    from mltune.plan.placement import place
    from mltune.plan.reader import load_plan
    from mltune.progress import RunDisplay
    from mltune.records.folder import PLAN_FILE, is_plan
    from mltune.run import new_directory
    from mltune.target import find_gpus

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
    _show(document, as_json, lambda: render.overview(document))
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
    from mltune import render_plan
    from mltune.measure.build import available_cores
    from mltune.plan.forecast import forecast
    from mltune.plan.reader import load_plan
    from mltune.target import find_gpus

    document = forecast(load_plan(file), *find_gpus(), available_cores())
    _show(document, as_json, lambda: render_plan.forecast(document))


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
    from mltune.progress import RunDisplay
    from mltune.sweep import sweep as record_sweep

    request = sweep_request(problem, Shape(trans, size, m, n, k), kernel=kernel, device=device, seed=seed, run=run)
    with RunDisplay() as progress:
        path = record_sweep(request, None if complete else count, values=parse_values(only or []), progress=progress)
    _show({"dataset": str(path)}, as_json, lambda: [str(path)])


@app.command()
def show(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Directory of a run, or of a plan.")],
    top: Annotated[int, typer.Option("--top", min=0, help="How many of the best configurations.")] = 10,
    export: Annotated[
        Path | None, typer.Option("--export", metavar="FOLDER", help="Write the trials there as a dataset (Parquet).")
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", help="Watch it until it ends; Ctrl-C ends the watching alone.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show what a run has found.

    Its best configurations, its trials by state, and where its seconds went; of a plan, how far each problem is. With
    --follow also while it goes on, from another terminal, and before it has begun.
    """
    from mltune import render
    from mltune.records.folder import is_plan, runs_in

    if follow and not _followed(run, as_json):
        return
    if export is not None:
        from mltune.records.dataset import export_run

        for folder in runs_in(run):
            typer.echo(f"written: {export_run(folder, export)}", err=True)
    if is_plan(run):
        from mltune.overview import overview

        document = overview(run)
        _show(document, as_json, lambda: render.overview(document))
    else:
        from mltune.summary import summarise

        document = summarise(run, top)
        _show(document, as_json, lambda: render.run_summary(document))


def _followed(run: Path, as_json: bool) -> bool:
    """Follow a run to its end; return False when the user has seen enough."""
    from mltune.progress import RunDisplay
    from mltune.watching import follow

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
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Directory of a run, or of a plan.")],
    port: Annotated[
        int, typer.Option("--port", min=0, max=65535, help="Where it is served; 0 takes a free one.")
    ] = 8080,
    browser: Annotated[bool, typer.Option("--open", help="Open it in a browser.")] = False,
) -> None:
    """Show a run in optuna-dashboard.

    Writes the run, or each problem of a plan, as an Optuna study to RUN/optuna.journal, and serves the dashboard to
    this machine until Ctrl-C; trials of a run that goes on are added. Needs the extra "dashboard".
    """
    from mltune.dashboard import Studies, served

    studies = Studies(run)
    typer.echo(f"written: {studies.path}", err=True)
    with contextlib.suppress(KeyboardInterrupt), served(studies, port) as address:
        typer.echo(f"serving {address}; Ctrl-C ends it", err=True)
        if browser:
            typer.launch(address)
        studies.keep_up_to_date()


@app.command()
def report(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Directory of a run, or of a plan.")],
    output: Annotated[
        Path | None,
        typer.Option("--output", metavar="FOLDER", help="Where it goes.  [default: RUN]", show_default=False),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Write the report on a run: report.html, report.md and winners.json.

    Also while the run goes on. What was found, how sure that is and what went wrong, then the evidence. With --json
    prints what winners.json holds.
    """
    from mltune.report.writing import write_report

    paths = write_report(run, output)
    _show(paths.document, as_json, lambda: [str(path) for path in (paths.html, paths.markdown, paths.winners)])


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
    from mltune import render
    from mltune.compare.comparison import compare as run
    from mltune.compare.request import compare_request
    from mltune.compare.results import write_results
    from mltune.progress import ComparisonDisplay

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
    _show(document, as_json, lambda: render.comparison(document))


@app.command()
def space(
    kernel: Annotated[str, typer.Argument(metavar="KERNEL", help="A built-in kernel, or the folder of a bundle.")],
    trans: Trans = None,
    size: Size = None,
    precision: Annotated[str, typer.Option("--precision", help="s, d, c or z.")] = "s",
    as_json: AsJson = False,
) -> None:
    """Show how large a kernel's search space is.

    It is counted for an NVIDIA H200. What each restriction removes is a share of the raw combinations, estimated on a
    uniform sample of them: "removes" by itself, "only it does" what no other restriction removes.
    """
    from mltune import render
    from mltune.device.known import H200
    from mltune.kernel.bundle import device_variables, load_kernel
    from mltune.kernel.space import ConstrainedSpace

    bundle = load_kernel(kernel)
    problem = space_problem(bundle, precision, Shape(trans, size))
    bundle.check_problem(problem)
    found = ConstrainedSpace(bundle, {**problem.variables(), **device_variables(H200)})
    document = {
        "kernel": bundle.name,
        "has_source": bundle.source is not None,
        "problem": problem.to_json(),
        "device": H200.to_json(),
        "combinations": math.prod(len(values) for values in bundle.all_parameters.values()),
        "valid": found.count,
        "parameters": {name: list(values) for name, values in bundle.all_parameters.items()},
        "restrictions": [
            {"restriction": text, "reason": reason, "removes": removes, "removes_alone": alone}
            for text, reason, removes, alone in found.explain()
        ],
    }
    _show(document, as_json, lambda: render.space(document))


@app.command()
def device(as_json: AsJson = False) -> None:
    """List the GPUs of this machine."""
    from mltune import render
    from mltune.target import find_gpus

    gpus, reason = find_gpus()
    document = {"devices": [_gpu(index, facts) for index, facts in enumerate(gpus)], "reason": reason or None}
    _show(document, as_json, lambda: [render.devices(document)])


@app.command()
def datasets(as_json: AsJson = False) -> None:
    """List the recorded timings.

    Each can be searched without a GPU: mltune tune --device replay:DATASET.
    """
    from mltune import render
    from mltune.records.dataset import list_datasets
    from mltune.summary import describe_dataset

    documents = [describe_dataset(manifest) for manifest in list_datasets()]
    _show(documents, as_json, lambda: [render.datasets(documents)])


def _gpu(index: int, facts: Device) -> dict[str, Any]:
    """Describe one GPU of this machine."""
    from mltune.device.peaks import peak_flops

    return {
        "spec": f"cuda:{index}",
        "architecture": facts.architecture,
        "peak_flops": {arithmetic: peak_flops(facts, arithmetic) for arithmetic in ("fp32", "fp64")},
        "device": facts.to_json(),
    }


def _show(document: Any, as_json: bool, renderables: Callable[[], Iterable[RenderableType]]) -> None:
    """Print a document as JSON, or what a person reads instead."""
    if as_json:
        typer.echo(json.dumps(document, indent=2, allow_nan=False))
        return
    from mltune.render import console

    out = console()
    for renderable in renderables():
        out.print(renderable)


def main() -> None:
    """Run the command; an error of the user is one line on stderr and exit code 2, a failed run exit code 1."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        app(prog_name="mltune")
    except MltuneError as error:
        typer.echo(f"mltune: {error}", err=True)
        sys.exit(2 if isinstance(error, UsageError) else 1)


if __name__ == "__main__":
    main()
