"""The options of the commands: the form of each parameter of the Python interface on the command line."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Annotated, Any, TypeAlias, get_args

import typer

from mltune.cli import completion
from mltune.cli.on_end import runnable
from mltune.errors import UsageError
from mltune.files.text import printable
from mltune.problem.problem import ACCURACIES, DEFAULT_SIZE, DEFAULT_TRANS, LARGEST_BATCH, STRICTEST
from mltune.resolve.options import DECLARED, DEFAULT_KERNEL, Limits, Option, check_choice, options_of, whole_number

MOST_PROBLEMS = 1000
"""Most problems of several values of ``--size``, as of a plan."""

KINDS = ("random", "complete", "search")
FORMATS = ("kernel-tuner", "t4")
"""The names of :data:`mltune.dataset.exporting.FORMATS`; a test compares them."""

UNITS = ("s", "ms", "us", "ns")

_LONGEST_VALUE = 60


@dataclass(frozen=True)
class Convert:
    """The conversion of an option's value to the argument of a function: a part of its annotation."""

    function: Callable[[Any], Any]


def whole(option: str, least: int, most: int | None = None) -> Callable[[str | int], int]:
    """Return the parser of an option whose value is a whole number."""

    def parse(text: str | int) -> int:
        is_number = re.fullmatch(r"[+-]?[0-9]{1,1000}", str(text))
        return whole_number(option, int(text) if is_number else text, least, most)

    return parse


def path(option: str) -> Callable[[str | Path], Path]:
    """Return the parser of an option whose value is a path: an empty one would be the working directory."""

    def parse(text: str | Path) -> Path:
        if text == "":
            raise UsageError(f"{option} is empty, but it is a path; the working directory is '.'.")
        return Path(text)

    return parse


def percentage(option: str, least: float, most: float) -> Callable[[str | float], float]:
    """Return the parser of an option whose value is a percentage, such as 2% or 2: a share from 0 to 1."""

    def parse(text: str | float) -> float:
        is_number = re.fullmatch(r"([0-9]{1,9}\.?[0-9]{0,18}|\.[0-9]{1,18})%?", str(text))
        percent = float(str(text).removesuffix("%")) if is_number else math.nan
        if not least <= percent <= most:
            raise UsageError(
                f"{option} cannot be {printable(repr(text), _LONGEST_VALUE)}: it is a percentage from {least:g}% to "
                f"{most:g}%."
            )
        return percent / 100

    return parse


def is_database(text: str) -> bool:
    """Return whether a text is the URL of a PostgreSQL database."""
    return text.startswith(("postgresql:", "postgres:", "postgresql+"))


def run_directory(text: str | Path) -> Path:
    """Return the directory that RUN names; that of a run in a database is created."""
    if not is_database(str(text)):
        return path("RUN")(text)
    if "#" not in str(text):
        raise UsageError("RUN is a whole database; name a run of it, DATABASE#RUN: `mltune show DATABASE` lists them.")
    from mltune.records.database_runs import directory_of

    return directory_of(str(text))


def sizes(texts: Sequence[str] | None) -> int | dict[str, int] | None:
    """Read the values of ``--size``: one number, or sizes by name."""
    if not texts:
        return None
    if len(texts) == 1 and "=" not in texts[0]:
        return whole("--size", 1)(texts[0])
    if not any("=" in text for text in texts):
        got = printable(", ".join(texts), _LONGEST_VALUE)
        raise UsageError(
            f"--size cannot be {got}: it is one number, or NAME=N once for each name; several are for mltune tune."
        )
    extents: dict[str, int] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name.isidentifier() or name in extents:
            raise UsageError(
                f"--size cannot be {printable(repr(text), _LONGEST_VALUE)} here: it is a number alone, or NAME=N once "
                "for each name; write --size nx=4096."
            )
        extents[name] = whole(f"--size {name}", 0)(value)
    return extents


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
        raise UsageError(f"--size makes {count} problems; at most {MOST_PROBLEMS} are tuned together.")
    return [dict(zip(values, chosen, strict=True)) for chosen in product(*values.values())]


def parameter_values(texts: Iterable[str] | None) -> dict[str, tuple[int, ...]]:
    """Read values of parameters, such as ``BLK_M=64,128``."""
    assigned = _assigned(texts or (), "(,[0-9]{1,9})*", "NAME=V,V; write BLK_M=64,128")
    return {name: tuple(map(int, values.split(","))) for name, values in assigned}


def configuration(texts: Iterable[str] | None) -> dict[str, int] | None:
    """Read parameters of a configuration, such as ``BLK_M=64``."""
    assigned = _assigned(texts or (), "", "NAME=V; write BLK_M=64")
    return None if texts is None else {name: int(value) for name, value in assigned}


def _assigned(texts: Iterable[str], further: str, form: str) -> Iterator[tuple[str, str]]:
    """Yield the name and the text of the value of each parameter."""
    for text in texts:
        if not re.fullmatch(f"[A-Za-z][A-Za-z0-9_]*=[0-9]{{1,9}}{further}", text):
            raise UsageError(f"{printable(repr(text), 100)} is not of the form {form}.")
        name, _, values = text.partition("=")
        yield name, values


def fields(texts: Sequence[str] | None) -> dict[str, str]:
    """Read the values of ``--section``."""
    pairs = dict(text.partition("=")[::2] for text in texts or ())
    if len(pairs) != len(texts or ()) or not all("=" in text for text in texts or ()):
        raise UsageError(f"--section cannot be {', '.join(texts or ())}: it is FIELD=VALUE, once for each field.")
    return pairs


Written: TypeAlias = Callable[[str], Any]
"""What makes the annotation of an option of the words that a user writes for it, such as ``--size``."""


def text(metavar: str, meaning: str, **settings: Any) -> Written:
    """Return an option whose value is a text."""
    return lambda option: Annotated[str | None, _option(option, metavar, meaning, **settings)]


def texts(metavar: str, meaning: str, convert: Callable[[Any], Any] = lambda value: value) -> Written:
    """Return an option that may be given several times, and what its values are converted by."""
    return lambda option: Annotated[list[str] | None, _option(option, metavar, meaning), Convert(convert)]


def number(meaning: str, least: int, most: int | None = None) -> Written:
    """Return an option whose value is a whole number."""
    return lambda option: Annotated[int | None, _option(option, "N", meaning, parser=whole(option, least, most))]


def share(meaning: str, least: float, most: float) -> Written:
    """Return an option whose value is a percentage."""
    return lambda option: Annotated[
        float | None, _option(option, "PERCENT", meaning, parser=percentage(option, least, most))
    ]


def choice(names: Sequence[str], meaning: str) -> Written:
    """Return an option whose value is one of some names."""
    metavar, complete = "|".join(names), completion.one_of(names)
    return lambda option: Annotated[
        str | None,
        _option(option, metavar, meaning, parser=partial(check_choice, option, choices=names), autocompletion=complete),
    ]


def file(metavar: str, meaning: str) -> Written:
    """Return an option whose value is a path."""
    return lambda option: Annotated[Path | None, _option(option, metavar, meaning, parser=path(option))]


def flag(meaning: str, opposite: bool = False) -> Written:
    """Return an option without a value, with or without an opposite: ``--no-NAME``."""
    return lambda option: Annotated[
        bool, typer.Option(f"{option}/--no-{option.strip('-')}" if opposite else option, help=meaning)
    ]


def declared(kind: str, option: Option) -> Written | None:
    """Return an option of runs; None where commands do not offer it."""
    if not option.in_commands:
        return None
    if option.choices:
        return choice(option.choices, option.meaning)
    if option.is_share:
        return share(option.meaning, 1, 100)
    if option.least is not None:
        return number(option.meaning, option.least, option.most)
    return flag(option.meaning, opposite=True) if kind == "bool" else text(option.metavar, option.meaning)


def argument(metavar: str, meaning: str, kind: Any = str, **settings: Any) -> Written:
    """Return an argument."""
    complete = completion.BY_NAME.get(metavar)
    if Path in (kind, *get_args(kind)):
        settings["parser"] = path(metavar.strip("[]."))
    annotation = Annotated[kind, typer.Argument(metavar=metavar, help=meaning, autocompletion=complete, **settings)]
    return lambda option: annotation


def _option(option: str, metavar: str, meaning: str, **settings: Any) -> Any:
    complete = completion.BY_NAME.get(option) or completion.BY_NAME.get(metavar)
    return typer.Option(option, metavar=metavar, help=meaning, **{"autocompletion": complete, **settings})


PROBLEMS = f"{', '.join(completion.GEMMS)}, a built-in kernel or the folder of one"

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
Facts = text("FACTS", "auto, cuda:N, a known GPU, or a file (mltune device).")
AnyKernel = text(
    "KERNEL",
    "A built-in kernel, or the folder of a bundle.  [default: the kernel with the highest upper bound of those that "
    "solve the problem]",
)

SIZES = (
    "N|NAME=N",
    f"m = n = k of a GEMM, or NAME=N for a size of another kernel; may be repeated.  [default: {DEFAULT_SIZE}]",
)

OPTIONS: dict[str, Any] = {
    "problem": argument("PROBLEM", f"{PROBLEMS}."),
    "trans": text("AB", f"op(A) and op(B): two of N, T, C.  [default: {DEFAULT_TRANS}]"),
    "size": texts(*SIZES, sizes),
    "m": number("Rows of C, in place of --size.", 1),
    "n": number("Columns of C, in place of --size.", 1),
    "k": number("Inner dimension, in place of --size.", 1),
    "batch": number("Number of products in one launch.  [default: 1]", 1, LARGEST_BATCH),
    "epilogue": text("TEXT", "For a GEMM: a bias, an activation or both, such as bias_m+gelu.  [default: nothing]"),
    "kernel": text(
        "KERNEL",
        f"A built-in kernel, or the folder of a bundle.  [default: {DEFAULT_KERNEL} if it solves the problem, or the "
        "replayed one]",
    ),
    "accuracy": choice(
        ACCURACIES,
        f"Least strict accuracy class of the kernel.  [default: {STRICTEST}, or that of a named kernel]",
    ),
    "precision": text("P", "Precision of a GEMM, such as d.  [default: the kernel's first]"),
    **{name: declared(*option) for name, option in {**options_of(Limits), **DECLARED}.items()},
    "run": file("DIR", "Directory of the run; an existing run is resumed."),
    "store": text(
        "DATABASE",
        "The PostgreSQL database for the records of a new run, such as postgresql://host/name.  [default: a file in "
        "its directory]",
    ),
    "compile_on": text("CLUSTER", "A Dask cluster whose compile workers help: address or file of its scheduler."),
    "overwrite": flag("Also replace files that mltune did not write."),
    "at_end": text(
        "COMMAND",
        "Run this when the run ends, with MLTUNE_OUTCOME, MLTUNE_RUN and MLTUNE_SUMMARY in its environment.",
        parser=runnable,
    ),
    "as_json": flag("Print one JSON document."),
}
"""The options that several commands share, by the name of the parameter."""
