"""Tune a Triton kernel at many shapes, in a process that may fail; winners stay in a file."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from mltune.errors import UsageError
from mltune.files.atomic import append_line, write_file_atomically
from mltune.files.owned import FOUND, foreign
from mltune.files.reading import check_folder, parse_json, read_file, read_text, reason
from mltune.files.sizes import MAX_BYTES, distinct, sizes_of_csv
from mltune.known.serving import configuration_files, path_of, with_kept
from mltune.process.child import Child, ChildDiedError, ChildTimeoutError
from mltune.records.directory import named_directory

WINNERS = "winners.jsonl"
"""The file in the directory of a run with a line for each shape that was tuned."""

SHAPE_S = 900.0
"""Seconds that a shape may take: a kernel that never ends costs that shape alone."""

Row = dict[str, Any]


def tune_shapes(
    kernel: str,
    shapes: str | Path,
    *,
    trials: int = 25,
    seed: int = 0,
    run: str | Path | None = None,
    wisdom: str | Path = "auto",
    export: Mapping[str, str | Path] | None = None,
    overwrite: bool = False,
    progress: Callable[[Row], None] = lambda row: None,
) -> dict[str, Any]:
    """Tune a Triton kernel at many shapes.

    The file of the kernel has a function ``arguments``, whose parameters are the sizes of a shape. It returns what
    stands in ``kernel[grid](*arguments)``: a tuple of the grid and the arguments, or a list of such tuples where one
    configuration serves several launches, whose times are added. The kernel is decorated with an ``autotune``, of
    Triton or of mltune, which has its configurations and its key (docs/how-to/tune-triton-shapes.md).

    A shape that fails costs that shape alone. Winners stay in the directory of the run, and a call with the same one
    tunes what it lacks.

    Parameters
    ----------
    kernel : str
        ``"FILE.py:KERNEL"``.
    shapes : str or pathlib.Path
        A CSV file with a column for each size, and perhaps a column ``count``: how often a shape is used. The most used
        ones are tuned first.
    trials : int
        Configurations that are measured at each shape.
    seed : int
    run : str or pathlib.Path, optional
        The directory of the run, by default ``runs/FILE-KERNEL``.
    wisdom : str or pathlib.Path
        ``"auto"``, ``"none"`` or a file, as for :func:`tune`: the winner of a shape is added, and one that is known is
        taken without a search. It is not used for several launches.
    export : mapping of str to path, optional
        Folders in which files of configurations are written, by format: ``vllm-moe``, ``sglang-moe``, ``vllm-fp8`` or
        ``sglang-fp8``. A file that is there keeps the configurations of numbers of rows M that are not tuned now.
    overwrite : bool
        Whether these files replace others that hold no configurations.
    progress : callable
        Receives the row of each shape.

    Returns
    -------
    dict
        ``shapes`` has a row for each: its ``shape``, ``count``, and the ``configuration`` with ``median_s``,
        ``first_s`` (the time of the kernel's first configuration, None if that fails), ``measured`` and ``seconds``; or
        ``error``. ``written`` has the paths of the files.

    Raises
    ------
    UsageError
        The file, the kernel or the shapes cannot be used, the winners do not fit a format, or something that mltune did
        not write is in the place of a file.
    OSError
        A file cannot be written.

    Examples
    --------
    >>> import mltune
    >>> found = mltune.tune_shapes("matmul.py:matmul", "shapes.csv")  # doctest: +SKIP
    >>> found["shapes"][0]["configuration"]["BLOCK_M"]  # doctest: +SKIP
    64
    """
    path, _, name = kernel.rpartition(":")
    file = Path(path).resolve()
    if file.suffix != ".py" or not file.is_file():
        raise UsageError(f"a Triton kernel is FILE.py:KERNEL, of a file that is there, got {kernel!r:.200}.")
    try:
        counted = distinct(sizes_of_csv(read_text(shapes, MAX_BYTES), least=0))
    except (OSError, ValueError) as error:
        raise UsageError(f"shapes are sizes in a CSV file, got {shapes!s:.300}: {reason(error):.400}.") from error
    ordered = sorted(((dict(shape), count) for shape, count in counted.items()), key=lambda pair: -pair[1])
    folder = named_directory(f"{file.stem}-{name}") if run is None else Path(run)
    if fact := foreign(folder / WINNERS, FOUND):
        raise UsageError(
            f"winners of shapes are added to a file of mltune, but {fact}; name another directory (--run)."
        )
    names, options = tuple(ordered[0][0]), {"trials": trials, "seed": seed, "wisdom": str(wisdom)}
    child = Child("mltune.integrations.triton.shape_tuner:make_tuner", (str(file), name, names, options))
    rows: list[Row] = []
    try:
        facts = _asked(child, None)
        if "error" in facts:
            raise UsageError(f"{file}:{name} cannot be tuned at sizes {', '.join(names)}: {facts['error']}")
        check_folder(folder, inside=folder, create=True)
        for form, out in (export or {}).items():
            for at in {Path(out, path_of(form, shape, facts)) for shape, _ in ordered}:
                _with_kept(at, b"{}", overwrite)
        winners, written = _winners(folder / WINNERS, facts), list[str]()
        for shape, count in ordered:
            winner = winners.get(tuple(sorted(shape.items())))
            if winner is None and "error" not in (winner := _asked(child, shape)):
                append_line(folder / WINNERS, json.dumps({"facts": facts, "shape": shape, "found": winner}).encode())
            rows.append({"shape": shape, "count": count, **(winner or {})})
            progress(rows[-1])
            written = _export(export or {}, rows, facts, overwrite)
    finally:
        child.kill()
    return {**facts, "run": str(folder), "shapes": rows, "written": written}


def _export(export: Mapping[str, str | Path], rows: Sequence[Row], facts: Row, overwrite: bool) -> list[str]:
    """Write the files of configurations for the shapes that have winners; return their paths."""
    won = [row for row in rows if "error" not in row]
    forms = [(Path(out), configuration_files(form, won, facts)) for form, out in export.items()]
    for out, path, data in (files := [(out, *file) for out, content in forms for file in content.items()]):
        write_file_atomically(out / path, _with_kept(out / path, data, overwrite), inside=out)
    return [str(out / path) for out, path, _ in files]


def _with_kept(path: Path, tuned: bytes, overwrite: bool) -> bytes:
    """Return the content of a file of configurations with what an existing one has for other numbers of rows."""
    try:
        return with_kept(read_file(path, MAX_BYTES, inside=path.parent), tuned) if os.path.lexists(path) else tuned
    except (OSError, ValueError) as error:
        if overwrite:
            return tuned
        raise UsageError(
            f"configurations are added to those of a file, but {path}: {reason(error):.300}; move it, name another "
            "folder, or give --overwrite."
        ) from error


def _asked(child: Child, shape: Row | None, again: int = 3) -> Row:
    """Ask the process for its facts, or to tune; one that failed is replaced: the GPU may have failed with it.

    A configuration with which the GPU was lost is known from then on, and the others are tried again.
    """
    try:
        row: Row = child.call(shape, SHAPE_S)
    except (ChildDiedError, ChildTimeoutError) as error:
        row = {"error": str(error)}
    if "error" in row:
        child.kill()
    is_known = row.pop("is_known", False)
    return _asked(child, shape, again - 1) if is_known and again else row


def _winners(path: Path, facts: Row) -> dict[tuple[tuple[str, int], ...], Row]:
    """Return the winners of a file that were found with the same facts, by shape; of several the last."""
    winners = {}
    for line in read_text(path, MAX_BYTES, inside=path.parent).splitlines() if path.exists() else ():
        try:
            row = parse_json(line)
            winner = {**row["found"], "configuration": {**row["found"]["configuration"]}}
            numbers = [winner["measured"], winner["seconds"], winner["first_s"] or 0.0]
            if row["facts"] == facts and 0 < winner["median_s"] <= winner["median_s"] + sum(numbers) < 1e9:
                winners[tuple(sorted(row["shape"].items()))] = winner
        except (ValueError, TypeError, LookupError, AttributeError):
            continue  # a line that a kill cut off, or another program wrote
    return winners
