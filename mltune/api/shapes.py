"""Tune a Triton kernel at many shapes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Unpack

from mltune.integrations.triton.shapes import ShapeSearch, tune_in_order
from mltune.known.serving import Export
from mltune.records.directory import named_directory


def tune_shapes(
    kernel: str,
    shapes: str | Path,
    *,
    run: str | Path | None = None,
    export: Mapping[str, str | Path] | None = None,
    overwrite: bool = False,
    keep_default: bool = False,
    progress: Callable[[dict[str, Any]], None] = lambda row: None,
    **search: Unpack[ShapeSearch],
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
    run : str or pathlib.Path, optional
        The directory of the run, by default ``runs/FILE-KERNEL``.
    export : mapping of str to path, optional
        Folders in which files of configurations are written, by format: ``vllm-moe``, ``sglang-moe``, ``vllm-fp8`` or
        ``sglang-fp8``. A file that is there keeps the configurations of numbers of rows M that are not tuned now.
    overwrite : bool
        Whether these files replace others that hold no configurations.
    keep_default : bool
        Whether these files have the kernel's first configuration for shapes that failed.
    progress : callable
        Receives the row of each shape.
    trials : int
        Configurations that are measured at each shape, 25 by default.
    seed : int
    wisdom : str or pathlib.Path
        ``"auto"``, ``"none"`` or a file, as for :func:`tune`: the winner of a shape is added, and one that is known is
        taken without a search. It is not used for several launches.

    Returns
    -------
    dict
        ``shapes`` has a row for each: its ``shape``, ``count``, and the ``configuration`` with ``median_s``,
        ``first_s`` (the time of the kernel's first configuration, None if that fails), ``measured`` and ``seconds``; or
        ``error``. ``written`` has the paths of the files, and ``notices`` what vLLM and SGLang do at shapes that
        failed.

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
    folder = named_directory(f"{Path(path).stem}-{name}") if run is None else Path(run)
    files = Export(export or {}, overwrite, keep_default)
    return tune_in_order(kernel, shapes, folder, files, progress, **search)
