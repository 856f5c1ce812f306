"""The commands ``init``, ``space``, ``check``, ``device`` and ``datasets``."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path

import typer

from mltune import api
from mltune.api.datasets import describe_datasets
from mltune.cli.application import Given, again, answer, app, command, fail_if
from mltune.cli.options import (
    FORMATS,
    KINDS,
    OPTIONS,
    UNITS,
    AsJson,
    argument,
    choice,
    fields,
    file,
    flag,
    number,
    text,
    texts,
)
from mltune.errors import BundleError
from mltune.files import folders
from mltune.files.text import many
from mltune.problem.problem import SHAPE
from mltune.records.header import REPLAY
from mltune.show import inventory, table, tables

KERNEL = argument("KERNEL", "A built-in kernel, or the folder of a bundle.")


@command(
    api.new_kernel,
    "init",
    folder=argument("FOLDER", "A folder that is empty or does not exist.", Path),
    from_source=file("KERNEL.CU", "A CUDA source: read its parameters and arguments.  [default: an example]"),
    entry=text("NAME", "The function to tune, if the source has several."),
)
def init(options: Given, as_json: bool = False) -> None:
    """Write a new kernel bundle: kernel.toml and kernel.cu, a small example to be edited.

    With --from the bundle is a draft for a CUDA source with a __global__ function. Its parameters are the whole numbers
    that the source defines as macros. The command names the lines that you must fill in.
    """
    folder, name = options["folder"], api.new_kernel(**options)
    is_plain = re.fullmatch(r"\w[\w./-]*", str(folder)) and not (folders.assets("kernels") / folder).exists()
    named = shlex.quote(str(folder) if is_plain or folder.is_absolute() else f"./{folder}")
    files, following = sorted(map(str, folder.iterdir())), [f"mltune check {named}", f"mltune tune {named}"]
    try:
        api.load_kernel(folder)
        notes = []
    except BundleError as error:
        notes = [str(error)]
    document = {"kernel": name, "files": files, "notes": notes, "next": following}
    answer(document, as_json, lambda: [f"wrote {' and '.join(files)}", *notes, "then:", *following])


@command(api.space, kernel=KERNEL)
def space(options: Given, as_json: bool = False) -> None:
    """Show the size and the restrictions of a kernel's search space.

    The device is an NVIDIA H200. The share of the raw combinations that each restriction removes is estimated on a
    uniform sample: "removes" by itself, "only this" what no other restriction removes.

    Launches are computed for a sample of configurations. Nothing is compiled: mltune check does that.
    """
    document = api.space(**options)
    following = "check", options["kernel"], *again(options, "trans", "size", "precision")
    answer(document, as_json, lambda: inventory.space(document), *following)


@command(
    api.check,
    kernel=KERNEL,
    time=text("TIME", "The time limit of all builds together, such as 8s or 1m."),
    gpu=text("FACTS", "A known GPU, a file, or cuda:N; see mltune device."),
)
def check(options: Given, as_json: bool = False) -> None:
    """Check a kernel bundle: its files, the launches of a sample of configurations, and the builds of some.

    The reference is checked too, and the parameters of the source are compared with the arguments. It needs no GPU. The
    exit code is 1 if something is wrong or nothing could be compiled, for example without NVRTC. A build that has not
    ended in time does not count.
    """
    checked = api.check(**options)
    document = checked.to_json()
    following = ["tune", options["kernel"], *again(options, "size")]
    if "trans_a" in (problem := document["problem"]):
        trans = f"{problem['trans_a']}{problem['trans_b']}"
        following = [
            "tune",
            f"{problem['precision']}gemm",
            *again({**options, "trans": trans}, "trans", "size", "kernel"),
        ]
    following = following if checked.passed and document["not_built"] is None else []
    answer(document, as_json, lambda: inventory.check(document), *following)
    fail_if(not checked.passed)


@command(
    api.devices,
    "device",
    facts=argument("[FACTS]", "cuda:N, a known GPU, or a file (JSON, TOML): show its facts.", str | None),
    known=flag("List the known GPUs, with values from data sheets."),
    measure=flag("Measure the rates of a GPU, cuda:0 if none is named. It takes about twenty seconds."),
    out=file("FILE", "Write the facts of one GPU to a .json file, for FACTS."),
)
def device(options: Given, as_json: bool = False) -> None:
    """List the GPUs of this machine, and the CUDA libraries that are used; or show the facts of one GPU.

    With --measure small kernels measure its rates: arithmetic, tensor cores, memories, launches, and arithmetic mixed
    with loads.
    """
    document = api.devices(**options)
    written = [] if options["out"] is None else [f"written: {options['out']}"]
    shown = options["out"] or next((device_document["spec"] for device_document in document["devices"]), None)
    following = ("device", "--known") if shown is None else ("bound", "sgemm", "--gpu", shown)
    answer(document, as_json, lambda: [*inventory.devices(document), *written], *following)


group = typer.Typer(invoke_without_command=True, rich_markup_mode=None, add_completion=False)
app.add_typer(group, name="datasets")

OUT = file("FOLDER", "Folder of the new dataset; made if missing.")
OVERWRITE = flag("Replace a dataset of the same name in the folder.")


@group.callback()
def datasets(context: typer.Context, as_json: AsJson = False) -> None:
    """List the recorded timings, or import, export, verify and merge them.

    Each can be searched without a GPU: mltune tune --device replay:DATASET.
    """
    if context.invoked_subcommand is not None:
        return
    documents = describe_datasets()
    following = _replaying(documents[0]["name"]) if documents else ()
    answer(documents, as_json, lambda: [tables.datasets(documents)], *following)


@command(
    api.import_dataset,
    "import",
    group=group,
    file=argument("FILE", "A table (.csv, .parquet) or a .json file of Kernel Tuner, T4, KTT, ...", Path),
    kernel=text("NAME", "A built-in kernel, the folder of a bundle, or any name."),
    gpu=text("FACTS", "A known GPU, a file, cuda:N or unknown; see mltune device."),
    out=OUT,
    **{name: OPTIONS[name] for name in SHAPE},
    problem=text("NAME", "sgemm, dgemm, ..., or any name.  [default: the kernel's]"),
    flops=number("Floating-point operations of a problem that is no GEMM.", 1),
    arithmetic=choice(("fp32", "fp64"), "Arithmetic of a problem that is no GEMM.  [default: fp32]"),
    parameters=text("A,B", "Columns of the parameters."),
    time_column=text("COLUMN", "Column of the times: time_ms."),
    time_unit=choice(UNITS, "Unit of the times.  [default: the end of the column's name]"),
    status=text("COLUMN", "Column of the states.  [default: status]"),
    aggregate=flag("Merge rows that differ in columns that are no parameters."),
    section=texts("FIELD=VALUE", "Section of CLBlast's database; may be given several times.", fields),
    partial=flag("Import the whole entries of a file that was cut off."),
    kind=choice(KINDS, "How the configurations were chosen.  [default: search]"),
    name=text("NAME", "Name of the new dataset.  [default: that of the file]"),
    source=text("TEXT", "Where the timings are from.  [default: the file]"),
    licence=text("TEXT", "Licence of the timings."),
    overwrite=OVERWRITE,
)
def import_(options: Given, as_json: bool = False) -> None:
    """Import timings of others as a dataset: CSV, Parquet, files of Kernel Tuner, T4, KTT, CLBlast, CLTune."""
    imported, notices = api.import_dataset(**options)
    _answer(imported, options["out"], as_json, str(options["file"]), notices)


@command(
    api.export_dataset,
    "export",
    group=group,
    dataset=argument("NAME", "The name or the path of a dataset."),
    file=argument("FILE", "The new file.", Path),
    format=choice(FORMATS, "The format of the file."),
    overwrite=flag("Replace the file if it exists."),
)
def export(options: Given, as_json: bool = False) -> None:
    """Export a dataset as a cache of Kernel Tuner, or in T4."""
    exported = api.export_dataset(**options)
    written = str(options["file"])
    document = {"file": written, "rows": len(exported)}
    answer(document, as_json, lambda: [written], "compare", "--seeds", 10, "--table", written)


@command(
    api.verify_datasets,
    "verify",
    group=group,
    datasets=argument("[NAME|DIR]...", "Names, paths or folders.  [default: all that are shipped]", list[str] | None),
)
def verify(options: Given, as_json: bool = False) -> None:
    """Verify datasets: hashes, columns, values, restrictions. Exits with 1 when something is wrong."""
    verified = api.verify_datasets(**options)
    wrong = [dataset for dataset in verified if dataset.problems]
    lines = [
        *(f"{dataset.name}: {problem}" for dataset in wrong for problem in dataset.problems),
        *(f"{dataset.name}: note: {notice}" for dataset in verified for notice in dataset.notices),
        f"{many(len(verified), 'dataset')}, {len(wrong)} with problems",
    ]
    names = [] if wrong else options["datasets"] or [dataset.name for dataset in verified[:1]]
    following = ["compare", "--seeds", 10, "--datasets", ",".join(names)] if names else []
    answer([asdict(dataset) for dataset in verified], as_json, lambda: lines, *following)
    fail_if(wrong)


@command(
    api.merge_datasets,
    "merge",
    group=group,
    datasets=argument("A B...", "Names or paths of datasets.", list[str]),
    out=OUT,
    name=text("NAME", "Name of the new dataset.  [default: that of A with -merged]"),
    overwrite=OVERWRITE,
)
def merge(options: Given, as_json: bool = False) -> None:
    """Merge datasets of one kernel, problem and GPU."""
    merged, notices = api.merge_datasets(**options)
    _answer(merged, options["out"], as_json, merged.manifest.name, notices)


def _answer(dataset: api.Dataset, out: Path, as_json: bool, subject: str, notices: Iterable[str]) -> None:
    """Print what was written, and the notices about what it was made of."""
    manifest = dataset.manifest
    written = str(out / f"{manifest.name}.parquet")
    for notice in notices:
        table.write(f"{subject}: {notice}", stderr=True)
    document = {"dataset": written, "rows": manifest.rows, "counts": manifest.counts}
    answer(document, as_json, lambda: [written], *_replaying(written))


def _replaying(dataset: str) -> tuple[str, ...]:
    return "tune", "--device", f"{REPLAY}{dataset}"
