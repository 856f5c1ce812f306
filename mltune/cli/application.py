"""The command-line application: options that several commands share, and the output of documents."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mltune.problem.problem import DEFAULT_SIZE, DEFAULT_TRANS
from mltune.records.versions import __version__
from mltune.tuning.request import DEFAULT_KERNEL

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from rich.console import RenderableType

app = typer.Typer(
    name="mltune",
    help="Find the fastest version of a parametrised GPU kernel while measuring few of its versions.",
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


KernelName = Annotated[
    str | None,
    typer.Option(
        "--kernel",
        help=f"A built-in kernel, or the folder of a bundle.  [default: {DEFAULT_KERNEL}, or the replayed one]",
    ),
]
Trans = Annotated[
    str | None,
    typer.Option("--trans", metavar="AB", help=f"op(A) and op(B): two of N, T, C.  [default: {DEFAULT_TRANS}]"),
]
Size = Annotated[int | None, typer.Option("--size", help=f"m = n = k.  [default: {DEFAULT_SIZE}]")]
M = Annotated[int | None, typer.Option("--m", help="Rows of C, in place of --size.")]
N = Annotated[int | None, typer.Option("--n", help="Columns of C, in place of --size.")]
K = Annotated[int | None, typer.Option("--k", help="Inner dimension, in place of --size.")]
Seed = Annotated[int, typer.Option("--seed", min=0, help="The same seed proposes the same trials.")]
DeviceName = Annotated[str, typer.Option("--device", metavar="DEVICE", help="auto, cuda:N or replay:DATASET.")]
NewRun = Annotated[
    Path | None, typer.Option("--run", metavar="DIR", help="Directory of the run; an existing run is resumed.")
]
Run = Annotated[Path, typer.Argument(metavar="RUN", help="Directory of a run, or of a plan.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"mltune {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


def answer(document: Any, as_json: bool, renderables: Callable[[], Iterable[RenderableType]]) -> None:
    """Print a document as JSON, or else its tables."""
    if as_json:
        typer.echo(json.dumps(document, indent=2, allow_nan=False))
        return
    from mltune.show.tables import console

    out = console()
    for renderable in renderables():
        out.print(renderable)
