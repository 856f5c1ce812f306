"""The commands ``wisdom`` and ``triton``: the best known configurations, and winners carried to other machines."""

from __future__ import annotations

from pathlib import Path

from mltune import api
from mltune.api.inventory import wisdom_file
from mltune.cli.application import Given, again, answer, command, command_group, fail_if
from mltune.cli.options import argument, choice, file, number, text, texts
from mltune.errors import UsageError
from mltune.files.text import did_you_mean, many
from mltune.problem.problem import ACCURACIES
from mltune.show import tables

triton = command_group("triton", "Carry the winners of Triton's kernels to other machines.")
group = command_group("wisdom", "Show, merge, export or check the best known configurations.")

OUT = file("FILE", "A new file, or a wisdom to add to.")
WISDOM = file("FILE", "A wisdom.  [default: the user's file]")


@command(
    None,
    group=group,
    file=argument("[FILE]", "A wisdom. The default is the user's file.", Path | None, show_default=False),
    accuracy=choice(ACCURACIES, "Only kernels of this accuracy class or a stricter one."),
)
def show(file: Path | None = None, accuracy: str | None = None, as_json: bool = False) -> None:
    """Show the best known configuration of each kernel, problem, GPU and driver."""
    place = wisdom_file(file)
    loaded = api.Wisdom.load(place)
    if accuracy is not None:
        loaded = loaded.of_accuracy(accuracy)
    best = [{"label": entry.to_problem().label, "accuracy": entry.accuracy, **entry.to_json()} for entry in loaded.best]
    document = {"wisdom": str(place), "entries": len(loaded), "best": best}
    following = ["wisdom", "check", *([] if file is None else [file])] if len(loaded) else ["tune", "sgemm"]
    answer(document, as_json, lambda: tables.wisdom(document), *following)


@command(None, group=group, files=argument("FILE...", "Wisdoms.", list[Path]), out=OUT)
def merge(files: list[Path], out: Path, as_json: bool = False) -> None:
    """Merge wisdoms into one. An existing file keeps its entries. The order of the files does not matter."""
    merged = api.Wisdom.merge_files([wisdom_file(path) for path in files], out)
    _written(out, len(merged), as_json)


@command(
    None,
    group=group,
    kernel=text("NAME", "The name of a kernel."),
    out=OUT,
    wisdom=WISDOM,
)
def export(kernel: str, out: Path, wisdom: Path | None = None, as_json: bool = False) -> None:
    """Write the entries of one kernel to a file. An existing wisdom there keeps its entries."""
    path = wisdom_file(wisdom)
    loaded = api.Wisdom.load(path)
    part = loaded.of_kernel(kernel)
    if not len(part):
        hint = did_you_mean(kernel, {entry.kernel for entry in loaded}) or "; see `mltune wisdom show`."
        raise UsageError(f"there is no kernel {kernel!r} in the wisdom {path}{hint}")
    _written(out, len(part.add_to(out)), as_json)


@command(
    api.check_wisdom,
    group=group,
    wisdom=argument("[FILE]", "A wisdom.  [default: the user's file]", Path | None),
    kernel=texts("FOLDER", "Folder of a kernel that is not built in; may be given several times."),
    sample=number("The largest number of entries to measure.  [default: all]", 1),
)
def check(options: Given, as_json: bool = False) -> None:
    """Measure the best entries of a wisdom again, each beside the default configuration.

    The output names each entry that is slower than its recorded interval by more than 5 %, is slower than the default,
    fails, or belongs to another source of its kernel. The exit code is then 1. It is also 1 if no entry is of this GPU.
    """
    checked = api.check_wisdom(**options)
    document = checked.to_json()
    kernel = next((entry["kernel"] for entry in document["entries"]), None)
    export = "wisdom", "export", "--kernel", kernel, "--out", "exported.json", *again(options, "wisdom")
    answer(document, as_json, lambda: tables.wisdom_check(document), *(export if checked.passed else ()))
    fail_if(not checked.passed)


def _written(out: Path, count: int, as_json: bool) -> None:
    lines = [f"written: {out} ({many(count, 'entry')})"]
    answer({"wisdom": str(out), "entries": count}, as_json, lambda: lines, "wisdom", "show", out)


@command(
    api.export_triton_winners,
    "export",
    group=triton,
    folder=argument("FOLDER", "A new folder, or one of earlier winners, which stay.", Path),
    gpu=text("FACTS", "Only winners of this GPU: a known one, a file, cuda:N, or its name.  [default: of all GPUs]"),
    wisdom=WISDOM,
)
def export_triton(options: Given, as_json: bool = False) -> None:
    """Write the winners of Triton's kernels into a folder, a file for each GPU, and the calls of programs."""
    folder, (winners, programs) = options["folder"], api.export_triton_winners(**options)
    document = {"folder": str(folder), "winners": winners, "programs": programs}
    lines = [f"written: {folder / name} ({many(count, 'winner')})" for name, count in winners.items()]
    answer(document, as_json, lambda: [*lines, f"calls of {many(programs, 'program')}"], "triton", "import", folder)


@command(
    api.import_triton_winners,
    "import",
    group=triton,
    folder=argument("FOLDER", "A folder that `mltune triton export` wrote.", Path),
    wisdom=file("FILE", "A wisdom, which need not exist.  [default: the user's file]"),
)
def import_triton(options: Given, as_json: bool = False) -> None:
    """Add the winners of a folder to the wisdom: programs on these GPUs tune none of these kernels again.

    On other GPUs, and at other sizes, the kernels of a program whose calls are in the folder are compiled together.
    """
    folder, (path, winners, programs) = options["folder"], api.import_triton_winners(**options)
    document = {"wisdom": str(path), "winners": winners, "programs": programs}
    lines = [f"{folder / name}: {many(count, 'winner')}" for name, count in winners.items()]
    lines.append(f"calls of {many(programs, 'program')}")
    answer(document, as_json, lambda: [*lines, f"written: {path}"], "wisdom", "show", path)
