"""The command-line application: options that several commands share, and the output of documents."""

from __future__ import annotations

import json
import math
import re
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mltune.errors import UsageError
from mltune.files.text import did_you_mean, printable
from mltune.problem.accuracy import ACCURACIES, STRICTEST
from mltune.problem.problem import DEFAULT_SIZE, DEFAULT_TRANS, LARGEST_BATCH
from mltune.records.versions import __version__
from mltune.resolve.kernels import DEFAULT_KERNEL
from mltune.resolve.request import LARGEST_SEED, whole_number
from mltune.show import terminal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from rich.console import RenderableType

    from mltune.device.facts import Device

MOST_PROBLEMS = 1000
"""Most problems of several values of ``--size``: those of a plan."""

_LONGEST_VALUE = 60

app = typer.Typer(
    name="mltune",
    help="Find the fastest version of a parametrised GPU kernel while measuring few of its versions.",
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    invoke_without_command=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def whole(option: str, least: int, most: int | None = None) -> Callable[[str | int], int]:
    """Return the parser of an option whose value is a whole number."""

    def parse(text: str | int) -> int:
        is_number = re.fullmatch(r"[+-]?[0-9]{1,1000}", str(text))
        return whole_number(option, int(text) if is_number else text, least, most)

    return parse


def one_of(option: str, names: Sequence[str]) -> Callable[[str], str]:
    """Return the parser of an option whose value is one of some names."""

    def parse(text: str) -> str:
        if text not in names:
            got = printable(repr(text), _LONGEST_VALUE)
            raise UsageError(f"{option} is one of {', '.join(names)}, got {got}{did_you_mean(text, names) or '.'}")
        return text

    return parse


def path(option: str) -> Callable[[str | Path], Path]:
    """Return the parser of an option whose value is a path: an empty one would be the working directory."""

    def parse(text: str | Path) -> Path:
        if text == "":
            raise UsageError(f"{option} is a path, got an empty text; the working directory is '.'.")
        return Path(text)

    return parse


def run_directory(text: str | Path) -> Path:
    """Return the directory that RUN names: that of a run in a database is made."""
    if not is_database(str(text)):
        return path("RUN")(text)
    from mltune.records.database_runs import directory_of

    if "#" not in str(text):
        raise UsageError("RUN is one run of a database, DATABASE#RUN; list them: mltune show DATABASE.")
    return directory_of(str(text))


def is_database(text: str) -> bool:
    """Return whether a text is meant as the URL of a PostgreSQL database."""
    return text.startswith(("postgresql:", "postgres:", "postgresql+"))


def share(option: str, least: float, most: float) -> Callable[[str | float], float]:
    """Return the parser of an option whose value is a percentage, such as 2% or 2: a share from 0 to 1."""

    def parse(text: str | float) -> float:
        try:
            percent = float(str(text).removesuffix("%"))
        except ValueError:
            percent = math.nan
        if not least <= percent <= most:
            raise UsageError(
                f"{option} is a percentage from {least:g}% to {most:g}%, got {printable(repr(text), _LONGEST_VALUE)}."
            )
        return percent / 100

    return parse


def device_of(facts: str) -> Device:
    """Return the device that ``--device FACTS`` names: ``auto`` is the first GPU of this machine."""
    from mltune.device.lookup import find_device
    from mltune.resolve.device import find_gpus

    if facts != "auto":
        return find_device(facts)[0]
    gpus, reason = find_gpus()
    if not gpus:
        raise UsageError(f"no GPU was found: {reason}; name one with --device (`mltune device --known`).")
    return gpus[0]


def sizes(texts: Sequence[str] | None) -> int | dict[str, int] | None:
    """Read the values of ``--size``: one number, or sizes by name."""
    if not texts:
        return None
    if len(texts) == 1 and "=" not in texts[0]:
        return whole("--size", 1)(texts[0])
    if not any("=" in text for text in texts):
        given = printable(", ".join(texts), _LONGEST_VALUE)
        raise UsageError(
            f"--size is one number, or NAME=N once for each name, got {given}; several are for mltune tune."
        )
    found: dict[str, int] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name.isidentifier() or name in found:
            raise UsageError(
                f"--size is a number, or NAME=N once for each name, got {printable(repr(text), _LONGEST_VALUE)}; write "
                "--size nx=4096."
            )
        found[name] = whole(f"--size {name}", 0)(value)
    return found


def several_sizes(texts: Sequence[str] | None) -> list[int] | list[dict[str, int]]:
    """Read the values of ``--size`` of several problems: numbers, or every combination of the sizes of each name."""
    texts = texts or ()
    if not any("=" in text for text in texts):
        return [whole("--size", 1)(text) for text in texts]
    values: dict[str, list[int]] = {}
    for text in texts:
        named = sizes([text, *([] if "=" in text else ["n=1"])])  # a number among names is refused
        assert isinstance(named, dict)  # noqa: S101
        for name, value in named.items():
            values.setdefault(name, []).append(value)
    count = math.prod(map(len, values.values()))
    if count > MOST_PROBLEMS:
        raise UsageError(f"--size makes at most {MOST_PROBLEMS} problems, got {count}.")
    return [dict(zip(values, chosen, strict=True)) for chosen in product(*values.values())]


ProblemName = Annotated[
    str,
    typer.Argument(
        metavar="PROBLEM",
        help="sgemm, dgemm, cgemm, zgemm, hgemm, bgemm, ddgemm, a built-in kernel or the folder of one.",
    ),
]
Prior = Annotated[
    str,
    typer.Option(
        "--prior",
        metavar="auto|none|NAME|FILE",
        help="The pretrained model to start from. auto is that of the kernel, unless it lost against physics where it "
        "was judged; in replay none.",
    ),
]
KernelName = Annotated[
    str | None,
    typer.Option(
        "--kernel",
        help=f"A built-in kernel, or the folder of a bundle.  [default: {DEFAULT_KERNEL} if it solves the problem, or "
        "the replayed one]",
        show_default=False,
    ),
]
AnyKernelName = Annotated[
    str | None,
    typer.Option(
        "--kernel",
        help="A built-in kernel, or the folder of a bundle.  [default: of all that solve the problem the one with the "
        "highest upper bound]",
        show_default=False,
    ),
]
Accuracy = Annotated[
    str | None,
    typer.Option(
        "--accuracy",
        metavar="|".join(ACCURACIES),
        parser=one_of("--accuracy", ACCURACIES),
        help=f"Accuracy class of the kernel, or a stricter one.  [default: {STRICTEST}, or that of a named kernel]",
        show_default=False,
    ),
]
Trans = Annotated[
    str | None,
    typer.Option("--trans", metavar="AB", help=f"op(A) and op(B): two of N, T, C.  [default: {DEFAULT_TRANS}]"),
]
Size = Annotated[
    list[str] | None,
    typer.Option(
        "--size",
        metavar="N|NAME=N",
        help=f"m = n = k of a GEMM; of another kernel a size by its name, may be repeated.  [default: {DEFAULT_SIZE}]",
    ),
]
M = Annotated[
    int | None, typer.Option("--m", metavar="N", parser=whole("--m", 1), help="Rows of C, in place of --size.")
]
N = Annotated[
    int | None, typer.Option("--n", metavar="N", parser=whole("--n", 1), help="Columns of C, in place of --size.")
]
K = Annotated[
    int | None, typer.Option("--k", metavar="N", parser=whole("--k", 1), help="Inner dimension, in place of --size.")
]
Batch = Annotated[
    int | None,
    typer.Option(
        "--batch",
        metavar="N",
        parser=whole("--batch", 1, LARGEST_BATCH),
        help="Number of A, of B and of C.  [default: 1]",
    ),
]
Seed = Annotated[
    int,
    typer.Option(
        "--seed",
        metavar="N",
        parser=whole("--seed", 0, LARGEST_SEED),
        help="The same seed proposes the same trials.",
    ),
]
Facts = Annotated[
    str, typer.Option("--device", metavar="FACTS", help="auto, cuda:N, a known GPU, or a file (mltune device).")
]
CompileOn = Annotated[
    str,
    typer.Option(
        "--compile-on",
        metavar="CLUSTER",
        help="A Dask cluster whose compile workers help: address or file of its scheduler.",
        show_default=False,
    ),
]
DeviceName = Annotated[str, typer.Option("--device", metavar="DEVICE", help="auto, cuda:N or replay:DATASET.")]
NewRun = Annotated[
    Path | None,
    typer.Option(
        "--run", metavar="DIR", parser=path("--run"), help="Directory of the run; an existing run is resumed."
    ),
]
Run = Annotated[
    Path,
    typer.Argument(metavar="RUN", parser=run_directory, help="Directory of a run, or of a plan; or DATABASE#RUN."),
]
StoreUrl = Annotated[
    str,
    typer.Option(
        "--store",
        metavar="DATABASE",
        help="The PostgreSQL database for the records of a new run, such as postgresql://host/name.  [default: a file "
        "in its directory]",
        show_default=False,
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]


def command_group(name: str, summary: str) -> typer.Typer:
    """Return a group of commands, such as ``mltune wisdom``, which shows its help where no command is named."""
    group = typer.Typer(invoke_without_command=True, rich_markup_mode=None, add_completion=False)

    @group.callback(help=summary)
    def _help(context: typer.Context) -> None:
        if context.invoked_subcommand is None:
            terminal.write(context.get_help(), stderr=True)
            raise typer.Exit(2)

    app.add_typer(group, name=name)
    return group


def _print_version(wanted: bool) -> None:
    if wanted:
        terminal.write(f"mltune {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    if context.invoked_subcommand is None:
        terminal.write(context.get_help(), stderr=True)
        raise typer.Exit(2)


def answer(document: Any, as_json: bool, renderables: Callable[[], Iterable[RenderableType]]) -> None:
    """Print a document as JSON, or else its tables."""
    if as_json:
        terminal.write(json.dumps(document, indent=2, allow_nan=False))
    else:
        terminal.show(renderables())
