"""The commands ``datasets``, ``datasets import`` and so on: recorded timings, and those of others."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from mltune import api
from mltune.api.datasets import describe_datasets
from mltune.cli.application import Given, answer, app, command, fail_if
from mltune.cli.options import (
    FORMATS,
    KINDS,
    UNITS,
    AsJson,
    argument,
    choice,
    fields,
    file,
    flag,
    number,
    path,
    text,
    texts,
)
from mltune.show import terminal

if TYPE_CHECKING:
    from mltune.api import Dataset

group = typer.Typer(invoke_without_command=True, rich_markup_mode=None, add_completion=False)
app.add_typer(group, name="datasets")

OUT = file("--out", "DIR", "Folder of the new dataset; made if missing.")
OVERWRITE = flag("--overwrite", "Replace a dataset of the same name in the folder.")


@group.callback()
def datasets(context: typer.Context, as_json: AsJson = False) -> None:
    """List the recorded timings, or import, export, verify and merge them.

    Each can be searched without a GPU: mltune tune --device replay:DATASET.
    """
    if context.invoked_subcommand is not None:
        return
    from mltune.show import tables

    documents = describe_datasets()
    answer(documents, as_json, lambda: [tables.datasets(documents)])


@command(
    api.import_dataset,
    "import",
    group=group,
    file=argument(
        "FILE", "A table (.csv, .parquet) or a .json file of Kernel Tuner, T4 or CLBlast.", Path, parser=path("FILE")
    ),
    kernel=text("--kernel", "NAME", "A built-in kernel, the folder of a bundle, or any name."),
    device=text("--device", "FACTS", "A known GPU, a file, cuda:N or unknown; see mltune device."),
    out=OUT,
    problem=text("--problem", "NAME", "sgemm, dgemm, ..., or any name.  [default: the kernel's]"),
    flops=number("--flops", "Operations of a problem of any name.", 1),
    arithmetic=choice("--arithmetic", ("fp32", "fp64"), "Of a problem of any name."),
    parameters=text("--parameters", "A,B", "Columns of the parameters."),
    time=text("--time", "COLUMN", "Column of the times: time_ms."),
    time_unit=choice("--time-unit", UNITS, "Unit of the times.  [default: the end of the column's name]"),
    status=text("--status", "COLUMN", "Column of the states.  [default: status]"),
    aggregate=flag("--aggregate", "Merge rows that differ in columns that are no parameters."),
    section=texts("--section", "FIELD=VALUE", "Of CLBlast's database; may be given several times.", fields),
    kind=choice("--kind", KINDS, "Choice of the configurations."),
    name=text("--name", "NAME", "Name of the new dataset.  [default: that of the file]"),
    source=text("--source", "TEXT", "Where the timings are from.  [default: the file]"),
    licence=text("--licence", "TEXT", "Their licence."),
    overwrite=OVERWRITE,
)
def import_(given: Given, as_json: AsJson = False) -> None:
    """Import timings of others as a dataset: CSV, Parquet, caches of Kernel Tuner, T4, results of CLBlast."""
    found, notices = api.import_dataset(**given)
    _answer(found, given["out"], as_json)
    for notice in notices:
        terminal.write(f"{given['file']}: {notice}", stderr=True)


@command(
    api.export_dataset,
    "export",
    group=group,
    dataset=argument("NAME", "The name or the path of a dataset."),
    file=argument("FILE", "The new file.", Path, parser=path("FILE")),
    form=choice("--format", FORMATS, "The format of the file."),
    overwrite=flag("--overwrite", "Replace the file if it exists."),
)
def export(given: Given, as_json: AsJson = False) -> None:
    """Export a dataset as a cache of Kernel Tuner, or in T4."""
    found = api.export_dataset(**given)
    written = str(given["file"])
    answer({"file": written, "rows": len(found)}, as_json, lambda: [written])


@command(
    api.verify_datasets,
    "verify",
    group=group,
    datasets=argument("[NAME|DIR]...", "Names, paths or folders.  [default: all that are shipped]", list[str] | None),
)
def verify(given: Given, as_json: AsJson = False) -> None:
    """Verify datasets: hashes, columns, values, restrictions. Exits with 1 when something is wrong."""
    found = api.verify_datasets(**given)
    wrong = [one for one in found if one.problems]
    lines = [
        *(f"{one.name}: {problem}" for one in wrong for problem in one.problems),
        *(f"{one.name}: note: {notice}" for one in found for notice in one.notices),
        f"{len(found)} datasets, {len(wrong)} with problems",
    ]
    answer([asdict(one) for one in found], as_json, lambda: lines)
    fail_if(wrong)


@command(
    api.merge_datasets,
    "merge",
    group=group,
    datasets=argument("A B...", "Names or paths of datasets.", list[str]),
    out=OUT,
    name=text("--name", "NAME", "Name of the new dataset.  [default: that of A with -merged]"),
    overwrite=OVERWRITE,
)
def merge(given: Given, as_json: AsJson = False) -> None:
    """Merge datasets of one kernel, problem and GPU."""
    merged, notices = api.merge_datasets(**given)
    _answer(merged, given["out"], as_json)
    for notice in notices:
        terminal.write(f"{merged.manifest.name}: {notice}", stderr=True)


def _answer(dataset: Dataset, out: Path, as_json: bool) -> None:
    """Print what was written."""
    manifest = dataset.manifest
    written = str(out / f"{manifest.name}.parquet")
    answer({"dataset": written, "rows": manifest.rows, "counts": manifest.counts}, as_json, lambda: [written])
