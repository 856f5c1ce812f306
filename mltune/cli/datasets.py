"""The commands ``datasets``, ``datasets import`` and so on: recorded timings, and those of others."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mltune.cli.application import AsJson, Batch, K, M, N, Size, Trans, answer, app, one_of, path, sizes, whole
from mltune.errors import UsageError
from mltune.show import terminal

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mltune.dataset.dataset import Dataset
    from mltune.kernel.bundle import Kernel
    from mltune.problem.problem import Problem

KINDS = ("random", "complete", "search")
FORMATS = ("kernel-tuner", "t4")
"""Those of :data:`mltune.dataset.exporting.FORMATS`; a test compares them."""

UNITS = ("s", "ms", "us", "ns")

group = typer.Typer(invoke_without_command=True, rich_markup_mode=None, add_completion=False)
app.add_typer(group, name="datasets")

Output = Annotated[
    Path, typer.Option("--out", metavar="DIR", parser=path("--out"), help="Folder of the new dataset; made if missing.")
]
NewName = Annotated[str | None, typer.Option("--name", help="Name of the new dataset.  [default: that of the file]")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace a dataset of the same name in the folder.")]


@group.callback()
def datasets(context: typer.Context, as_json: AsJson = False) -> None:
    """List the recorded timings, or import, export, verify and merge them.

    Each can be searched without a GPU: mltune tune --device replay:DATASET.
    """
    if context.invoked_subcommand is not None:
        return
    from mltune.dataset.dataset import list_datasets
    from mltune.results.summary import describe_dataset
    from mltune.show import tables

    documents = [describe_dataset(manifest) for manifest in list_datasets()]
    answer(documents, as_json, lambda: [tables.datasets(documents)])


@group.command("import")
def import_(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE",
            parser=path("FILE"),
            help="A table (.csv, .parquet) or a .json file of Kernel Tuner, T4 or CLBlast.",
        ),
    ],
    kernel: Annotated[
        str,
        typer.Option("--kernel", metavar="NAME", help="A built-in kernel, the folder of a bundle, or any name."),
    ],
    device: Annotated[
        str,
        typer.Option("--device", metavar="FACTS", help="A known GPU, a file, cuda:N or unknown; see mltune device."),
    ],
    out: Output,
    problem: Annotated[
        str | None,
        typer.Option(
            "--problem",
            metavar="NAME",
            help="sgemm, dgemm, ..., or any name.  [default: the kernel's]",
        ),
    ] = None,
    trans: Trans = None,
    size: Size = None,
    m: M = None,
    n: N = None,
    k: K = None,
    batch: Batch = None,
    flops: Annotated[
        int | None,
        typer.Option("--flops", metavar="N", parser=whole("--flops", 1), help="Operations of a problem of any name."),
    ] = None,
    arithmetic: Annotated[
        str,
        typer.Option(
            "--arithmetic",
            metavar="fp32|fp64",
            parser=one_of("--arithmetic", ("fp32", "fp64")),
            help="Of a problem of any name.",
        ),
    ] = "fp32",
    parameters: Annotated[
        str | None, typer.Option("--parameters", metavar="A,B", help="Columns of the parameters.")
    ] = None,
    time: Annotated[str | None, typer.Option("--time", metavar="COLUMN", help="Column of the times: time_ms.")] = None,
    time_unit: Annotated[
        str | None,
        typer.Option(
            "--time-unit",
            metavar="|".join(UNITS),
            parser=one_of("--time-unit", UNITS),
            help="Unit of the times.  [default: the end of the column's name]",
        ),
    ] = None,
    status: Annotated[
        str | None, typer.Option("--status", metavar="COLUMN", help="Column of the states.  [default: status]")
    ] = None,
    aggregate: Annotated[
        bool, typer.Option("--aggregate", help="Merge rows that differ in columns that are no parameters.")
    ] = False,
    section: Annotated[
        list[str] | None,
        typer.Option("--section", metavar="FIELD=VALUE", help="Of CLBlast's database; may be given several times."),
    ] = None,
    kind: Annotated[
        str,
        typer.Option(
            "--kind", metavar="|".join(KINDS), parser=one_of("--kind", KINDS), help="Choice of the configurations."
        ),
    ] = "search",
    name: NewName = None,
    source: Annotated[
        str, typer.Option("--source", help="Where the timings are from.  [default: the file]", show_default=False)
    ] = "",
    licence: Annotated[str, typer.Option("--licence", help="Their licence.", show_default=False)] = "",
    overwrite: Overwrite = False,
    as_json: AsJson = False,
) -> None:
    """Import timings of others as a dataset: CSV, Parquet, caches of Kernel Tuner, T4, results of CLBlast."""
    from mltune.dataset.formats import Layout
    from mltune.dataset.importing import import_table
    from mltune.device.lookup import find_device
    from mltune.kernel.reader import is_bundle, load_kernel

    bundle = load_kernel(kernel) if is_bundle(kernel) else kernel
    facts, facts_source = find_device(device)
    shape = {"trans": trans, "size": sizes(size), "m": m, "n": n, "k": k, "batch": batch}
    layout = Layout(
        parameters=None if parameters is None else tuple(part.strip() for part in parameters.split(",")),
        time=time,
        status=status,
        time_unit=time_unit,
        aggregate=aggregate,
        section=_fields(section or []),
    )
    imported = import_table(
        file,
        kernel=bundle,
        problem=_problem(bundle, problem, shape, flops, arithmetic),
        device=facts,
        layout=layout,
        name=name,
        kind=kind,  # type: ignore[arg-type]
        source=f"{source or file.name}{f'; facts of the device: {facts_source}' if facts_source else ''}",
        licence=licence,
    )
    _write(imported.dataset, out, as_json, keep=[file], overwrite=overwrite)
    for text in (imported.account, *imported.notices):
        terminal.write(f"{file}: {text}", stderr=True)


@group.command("export")
def export(
    dataset: Annotated[str, typer.Argument(metavar="NAME", help="The name or the path of a dataset.")],
    file: Annotated[Path, typer.Argument(metavar="FILE", parser=path("FILE"), help="The new file.")],
    form: Annotated[
        str,
        typer.Option(
            "--format", metavar="|".join(FORMATS), parser=one_of("--format", FORMATS), help="The format of the file."
        ),
    ],
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the file if it exists.")] = False,
    as_json: AsJson = False,
) -> None:
    """Export a dataset as a cache of Kernel Tuner, or in T4."""
    from mltune.dataset import exporting
    from mltune.dataset.dataset import load_dataset
    from mltune.files.atomic import write_file_atomically

    if file.exists() and not overwrite:
        raise UsageError(f"a file is not replaced, but {file} exists; choose another name, or --overwrite.")
    found = load_dataset(dataset)
    write_file_atomically(file, exporting.FORMATS[form](found).encode())
    answer({"file": str(file), "rows": len(found)}, as_json, lambda: [str(file)])


@group.command("verify")
def verify(
    datasets: Annotated[
        list[str] | None,
        typer.Argument(metavar="[NAME|DIR]...", help="Names, paths or folders.  [default: all that are shipped]"),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Verify datasets: hashes, columns, values, restrictions. Exits with 1 when something is wrong."""
    from dataclasses import asdict

    from mltune.dataset.dataset import datasets_in, shipped_datasets, shipped_searches
    from mltune.dataset.verification import verify_dataset

    shipped = shipped_datasets()
    names: list[str] = []
    for name in datasets or [*shipped, *map(str, shipped_searches())]:
        is_folder = name not in shipped and Path(name).is_dir()
        names += map(str, datasets_in(Path(name))) if is_folder else [name]
    documents = [asdict(verify_dataset(name)) for name in names]
    lines = [
        *(f"{one['name']}: {problem}" for one in documents for problem in one["problems"]),
        *(f"{one['name']}: note: {notice}" for one in documents for notice in one["notices"]),
        f"{len(documents)} datasets, {sum(bool(one['problems']) for one in documents)} with problems",
    ]
    answer(documents, as_json, lambda: lines)
    if any(one["problems"] for one in documents):
        raise typer.Exit(1)


@group.command("merge")
def merge(
    datasets: Annotated[list[str], typer.Argument(metavar="A B...", help="Names or paths of datasets.")],
    out: Output,
    name: Annotated[
        str | None, typer.Option("--name", help="Name of the new dataset.  [default: that of A with -merged]")
    ] = None,
    overwrite: Overwrite = False,
    as_json: AsJson = False,
) -> None:
    """Merge datasets of one kernel, problem and GPU."""
    from mltune.dataset.dataset import load_dataset
    from mltune.dataset.merging import merge_datasets

    found = [load_dataset(dataset) for dataset in datasets]
    merged, notices = merge_datasets(found, name or f"{found[0].manifest.name}-merged")
    _write(merged, out, as_json, keep=[Path(dataset) for dataset in datasets], overwrite=overwrite)
    for notice in notices:
        terminal.write(f"{merged.manifest.name}: {notice}", stderr=True)


def _write(dataset: Dataset, out: Path, as_json: bool, *, keep: Sequence[Path], overwrite: bool) -> None:
    """Write a dataset, and print its path; the files that it is made of are not replaced."""
    from mltune.dataset.dataset import write_dataset

    for read in keep:
        if read.resolve().with_suffix("") == (out / dataset.manifest.name).resolve():
            raise UsageError(f"what is read is not replaced, but --out leads to {read}; choose another folder.")
    manifest = write_dataset(dataset, out, overwrite=overwrite).manifest
    written = str(out / f"{manifest.name}.parquet")
    answer({"dataset": written, "rows": manifest.rows, "counts": manifest.counts}, as_json, lambda: [written])


def _problem(kernel: Kernel | str, name: str | None, shape: dict[str, Any], flops: int | None, fp: str) -> Problem:
    """Return the problem that was measured: one of the kernel's kind, or one with any name."""
    from mltune.dataset.bare_table import slug
    from mltune.problem.kinds import problem_from_name, timed_problem
    from mltune.resolve.problems import is_gemm, named_problem, space_problem

    given = {option: value for option, value in shape.items() if value is not None}
    if not isinstance(kernel, str) and kernel.arrays is not None and name in (None, kernel.name):
        return named_problem(None, given, kernel.folder)[0]
    if not isinstance(kernel, str) and name in (None, kernel.name) and not given and flops is None:
        with contextlib.suppress(UsageError):
            return space_problem(kernel, None, {})
    if name is None:
        name = re.sub("^[^a-z]+", "", slug(kernel if isinstance(kernel, str) else kernel.name)) or "kernel"
    if is_gemm(name):
        return problem_from_name(name, **given)
    if set(given) - {"size"}:
        raise UsageError(f"only a GEMM has --trans, --m, --n and --k, but the problem is {name}; write --size NAME=N.")
    size = given.get("size", {})
    if not isinstance(size, dict):
        raise UsageError(
            f"only a GEMM has one size, but the problem is {name}, got --size {size}; write --size NAME=N."
        )
    text = ", ".join(f"{key}={value}" for key, value in size.items())
    return timed_problem(name, text, flops or 1, fp, size)


def _fields(texts: list[str]) -> dict[str, str]:
    found = dict(text.partition("=")[::2] for text in texts)
    if len(found) != len(texts) or not all("=" in text for text in texts):
        raise UsageError(f"--section is FIELD=VALUE, once for each field, got {', '.join(texts)}.")
    return found
