"""The commands ``triton export`` and ``import``: winners of Triton's kernels, carried to other machines."""

from __future__ import annotations

from pathlib import Path

from mltune.api.inventory import export_winners, import_winners
from mltune.cli.application import answer, command, command_group
from mltune.cli.options import argument, file, text
from mltune.files.text import many

group = command_group("triton", "Carry the winners of Triton's kernels to other machines.")

WISDOM = file("FILE", "A wisdom.  [default: the user's file]")


@command(
    None,
    group=group,
    folder=argument("FOLDER", "A new folder, or one of earlier winners, which stay.", Path),
    gpu=text("NAME", "Only winners of the GPU of this name, such as 'NVIDIA H200'.  [default: of all GPUs]"),
    wisdom=WISDOM,
)
def export(folder: Path, gpu: str | None = None, wisdom: Path | None = None, as_json: bool = False) -> None:
    """Write the winners of Triton's kernels into a folder, a file for each GPU."""
    counts = export_winners(folder, gpu, wisdom)
    document = {"folder": str(folder), "winners": counts}
    lines = [f"written: {folder / name} ({many(count, 'winner')})" for name, count in counts.items()]
    answer(document, as_json, lambda: lines, "triton", "import", folder)


@command(
    None,
    "import",
    group=group,
    folder=argument("FOLDER", "A folder that `mltune triton export` wrote.", Path),
    wisdom=file("FILE", "A wisdom, which need not exist.  [default: the user's file]"),
)
def import_(folder: Path, wisdom: Path | None = None, as_json: bool = False) -> None:
    """Add the winners of a folder to the wisdom: programs on these GPUs tune none of these kernels again."""
    path, counts = import_winners(folder, wisdom)
    document = {"wisdom": str(path), "winners": counts}
    lines = [f"{folder / name}: {many(count, 'winner')}" for name, count in counts.items()]
    answer(document, as_json, lambda: [*lines, f"written: {path}"], "wisdom", "show", path)
