"""The commands ``wisdom show``, ``merge``, ``export`` and ``check``: the best known configurations."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mltune.cli.application import AsJson, DeviceName, Seed, answer, command_group, one_of, path, whole
from mltune.errors import UsageError
from mltune.problem.accuracy import ACCURACIES

group = command_group("wisdom", "Show, merge, export or check the best known configurations.")

OfWisdom = Annotated[
    Path | None,
    typer.Option("--wisdom", metavar="FILE", parser=path("--wisdom"), help="A wisdom.  [default: the user's file]"),
]
Out = Annotated[Path, typer.Option("--out", metavar="FILE", parser=path("--out"), help="The file that is written.")]


@group.command()
def show(
    file: Annotated[
        Path | None,
        typer.Argument(
            metavar="[FILE]", parser=path("FILE"), help="A wisdom; by default the user's file.", show_default=False
        ),
    ] = None,
    accuracy: Annotated[
        str | None,
        typer.Option(
            "--accuracy",
            metavar="|".join(ACCURACIES),
            parser=one_of("--accuracy", ACCURACIES),
            help="Only of kernels of this accuracy class, or of a stricter one.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show the best known configuration of each kernel, problem, GPU and driver."""
    from mltune.known.wisdom import Wisdom
    from mltune.show import tables

    found = _file() if file is None else _existing(file)
    loaded = Wisdom.load(found)
    if accuracy is not None:
        loaded = loaded.of_accuracy(accuracy)
    best = [
        {"label": entry.to_problem().label, "accuracy": entry.accuracy, **entry.to_json()} for entry in loaded.best()
    ]
    document = {"wisdom": str(found), "entries": len(loaded), "best": best}
    answer(document, as_json, lambda: tables.wisdom(document))


@group.command()
def merge(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", parser=path("FILE"), help="Wisdoms.")],
    out: Out,
    as_json: AsJson = False,
) -> None:
    """Merge wisdoms into one. The order of the files does not matter; the result may be one of them."""
    from mltune.known.wisdom import Wisdom

    merged = Wisdom().merge(*(Wisdom.load(_existing(file)) for file in files))
    merged.save(out)
    _written(out, len(merged), as_json)


@group.command()
def export(
    kernel: Annotated[str, typer.Option("--kernel", metavar="NAME", help="The name of a kernel.")],
    out: Out,
    file: OfWisdom = None,
    as_json: AsJson = False,
) -> None:
    """Write the part of a wisdom that is of one kernel."""
    from mltune.files.text import did_you_mean
    from mltune.known.wisdom import Wisdom

    found = _file() if file is None else _existing(file)
    loaded = Wisdom.load(found)
    part = loaded.of_kernel(kernel)
    if not len(part):
        hint = did_you_mean(kernel, {entry.kernel for entry in loaded}) or "; see `mltune wisdom show`."
        raise UsageError(f"an exported kernel is in the wisdom, but there is no {kernel!r} in {found}{hint}")
    part.save(out)
    _written(out, len(part), as_json)


@group.command()
def check(
    file: OfWisdom = None,
    kernel: Annotated[
        list[str] | None,
        typer.Option(
            "--kernel", metavar="FOLDER", help="Folder of a kernel that is not built in; may be given several times."
        ),
    ] = None,
    sample: Annotated[
        int | None,
        typer.Option(
            "--sample",
            metavar="N",
            parser=whole("--sample", 1),
            help="Most entries that are measured.  [default: all]",
            show_default=False,
        ),
    ] = None,
    seed: Seed = 0,
    device: DeviceName = "auto",
    as_json: AsJson = False,
) -> None:
    """Measure the best entries of a wisdom again, each beside the default configuration.

    Exits with 1, after naming each of them, when an entry is slower than recorded by more than its interval and 5 %,
    slower than the default, fails, or is of another source of its kernel than that of today; and when no entry is of
    this GPU.
    """
    from mltune.known.wisdom import Wisdom
    from mltune.resolve.device import Target, find_gpus, parse_device
    from mltune.show import tables
    from mltune.tuning.wisdom_check import Verdict, check_wisdom

    found = _existing(file or _file())
    loaded, target = Wisdom.load(found), parse_device(device)
    if target is None:
        gpus, reason = find_gpus()
        if not gpus:
            raise UsageError(f"a wisdom is checked on a GPU, but none was found: {reason}.")
        target = Target(cuda=0)
    results = check_wisdom(loaded, target, kernels=kernel or (), sample=sample, seed=seed)
    misses = sum(result.verdict.is_miss for result in results)
    measured = sum(result.median_s is not None for result in results)
    document = {
        "wisdom": str(found),
        "measured": measured,
        "misses": misses,
        "entries": [result.to_json() for result in results],
    }
    answer(document, as_json, lambda: tables.wisdom_check(document))
    if misses or all(result.verdict is Verdict.UNCHECKED for result in results):
        raise typer.Exit(1)


def _file() -> Path:
    """Return the user's file."""
    from mltune.known.wisdom_file import VARIABLE, default_file

    found = default_file()
    if found is None:
        raise UsageError(f"a wisdom is a file, but {VARIABLE} is none; name a file.")
    return found


def _existing(file: Path) -> Path:
    if not file.exists():
        raise UsageError(f"a wisdom is a file, but there is no {file}.")
    return file


def _written(out: Path, count: int, as_json: bool) -> None:
    answer({"wisdom": str(out), "entries": count}, as_json, lambda: [f"written: {out} ({count} entries)"])
