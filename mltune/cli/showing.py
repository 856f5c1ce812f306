"""The commands that look at what there is: runs, recorded timings, search spaces, GPUs."""

from __future__ import annotations

import contextlib
import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mltune.cli.application import AsJson, Size, Trans, answer, app
from mltune.cli.request import Shape, space_problem
from mltune.errors import UsageError

if TYPE_CHECKING:
    from mltune.device.facts import Device


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
    from mltune.records.directory import is_plan, runs_in
    from mltune.show import tables as render

    if follow and not _followed(run, as_json):
        return
    if export is not None:
        from mltune.dataset.dataset import export_run

        for folder in runs_in(run):
            typer.echo(f"written: {export_run(folder, export)}", err=True)
    if is_plan(run):
        from mltune.results.summary import summarise_campaign

        document = summarise_campaign(run)
        answer(document, as_json, lambda: render.campaign_summary(document))
    else:
        from mltune.results.run import read_run
        from mltune.results.summary import summarise_run

        document = summarise_run(read_run(run), top)
        answer(document, as_json, lambda: render.run_summary(document))


def _followed(run: Path, as_json: bool) -> bool:
    """Follow a run to its end; return False when the user has seen enough."""
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
    from mltune.show.dashboard import served
    from mltune.show.study import Studies

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
    answer(paths.document, as_json, lambda: [str(path) for path in (paths.html, paths.markdown, paths.winners)])


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
    uniform sample of them: "removes" by itself, "only this" what no other restriction removes.
    """
    from mltune.device.known import H200
    from mltune.kernel.bundle import device_variables
    from mltune.kernel.reader import load_kernel
    from mltune.kernel.space import ConstrainedSpace
    from mltune.show import tables as render

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
    answer(document, as_json, lambda: render.space(document))


@app.command()
def device(as_json: AsJson = False) -> None:
    """List the GPUs of this machine."""
    from mltune.show import tables as render
    from mltune.tune.target import find_gpus

    gpus, reason = find_gpus()
    document = {"devices": [_gpu(index, facts) for index, facts in enumerate(gpus)], "reason": reason or None}
    answer(document, as_json, lambda: [render.devices(document)])


@app.command()
def datasets(as_json: AsJson = False) -> None:
    """List the recorded timings.

    Each can be searched without a GPU: mltune tune --device replay:DATASET.
    """
    from mltune.dataset.dataset import list_datasets
    from mltune.results.summary import describe_dataset
    from mltune.show import tables as render

    documents = [describe_dataset(manifest) for manifest in list_datasets()]
    answer(documents, as_json, lambda: [render.datasets(documents)])


def _gpu(index: int, facts: Device) -> dict[str, Any]:
    """Describe one GPU of this machine."""
    from mltune.device.peaks import peak_flops

    return {
        "spec": f"cuda:{index}",
        "architecture": facts.architecture,
        "peak_flops": {arithmetic: peak_flops(facts, arithmetic) for arithmetic in ("fp32", "fp64")},
        "device": facts.to_json(),
    }
