"""The shapes of a Triton kernel: what is asked for is checked here, and tuned by the adapter of Triton."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from mltune.errors import UsageError
from mltune.files.owned import FOUND, foreign
from mltune.files.reading import read_text, reason
from mltune.files.sizes import MAX_BYTES, distinct, sizes_of_csv
from mltune.integrations.triton.shapes import tune_in_order
from mltune.known.serving import Export
from mltune.known.shape_winners import WINNERS
from mltune.records.directory import named_directory


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
    keep_default: bool = False,
    progress: Callable[[dict[str, Any]], None] = lambda row: None,
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
    keep_default : bool
        Whether these files have the kernel's first configuration for shapes that failed.
    progress : callable
        Receives the row of each shape.

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
    options = {"trials": trials, "seed": seed, "wisdom": str(wisdom)}
    return tune_in_order(file, name, ordered, folder, options, Export(export or {}, overwrite, keep_default), progress)
