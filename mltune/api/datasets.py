"""Recorded timings as files: list, import, export, verify and merge them."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Unpack

from mltune.api.display import Listing
from mltune.errors import UsageError
from mltune.problem.problem import SHAPE, ShapeOptions

if TYPE_CHECKING:
    from mltune.dataset.dataset import Dataset
    from mltune.dataset.manifest import Manifest
    from mltune.dataset.verification import Verified


class ImportOptions(ShapeOptions, total=False):
    """Further options of :func:`import_dataset`, which describes them; None, as a missing key, for the default."""

    flops: int | None
    arithmetic: str | None
    parameters: str | Sequence[str] | None
    time_column: str | None
    time_unit: str | None
    status: str | None
    aggregate: bool
    section: Mapping[str, str] | None
    partial: bool
    kind: Literal["random", "complete", "search"] | None
    name: str | None
    source: str | None
    licence: str | None


def list_datasets() -> Listing[Manifest]:
    """Return the manifests of the datasets that come with mltune, each of which a run can replay.

    Examples
    --------
    >>> import mltune
    >>> "h200-sgemm-nt-4096-random" in [manifest.name for manifest in mltune.list_datasets()]
    True
    """
    from mltune.dataset import dataset

    return Listing(dataset.list_datasets())


def describe_datasets() -> list[dict[str, Any]]:
    """Return what ``mltune datasets --json`` prints."""
    from mltune.results.summary import describe_dataset

    return [describe_dataset(manifest) for manifest in list_datasets()]


def import_dataset(
    file: str | Path,
    *,
    kernel: str,
    gpu: str,
    out: str | Path,
    problem: str | None = None,
    overwrite: bool = False,
    **options: Unpack[ImportOptions],
) -> tuple[Dataset, tuple[str, ...]]:
    r"""Import timings of others as a dataset: CSV, Parquet, files of Kernel Tuner, T4, KTT, CLBlast, CLTune.

    Parameters
    ----------
    file : str or pathlib.Path
        A table (``.csv``, ``.parquet``) or a ``.json`` file of Kernel Tuner, T4, KTT, CLBlast or CLTune.
    kernel : str
        A built-in kernel, the folder of a bundle, or any name.
    gpu : str
        A known GPU, a file with its facts, ``"cuda:N"`` or ``"unknown"`` (:func:`devices`).
    out : str or pathlib.Path
        Folder of the new dataset; made if missing.
    problem : str, optional
        ``"sgemm"`` and so on, or any name; by default the problem of the kernel.
    overwrite : bool
        Whether to replace a dataset of the same name in the folder.
    flops : int, optional
        Operations of a problem of any name.
    arithmetic : {"fp32", "fp64"}
        Of a problem of any name, ``"fp32"`` by default.
    parameters : str or sequence of str, optional
        Columns of the parameters.
    time_column, status : str, optional
        Columns of the times and of the states.
    time_unit : {"s", "ms", "us", "ns"}, optional
        Unit of the times; by default the end of the column's name. Of a JSON file only where it names no unit.
    aggregate : bool
        Whether to merge rows that differ in columns which are no parameters.
    section : mapping of str to str, optional
        Fields that choose a section of CLBlast's database.
    partial : bool
        Whether to import the whole entries of a file that was cut off.
    kind : {"random", "complete", "search"}
        Choice of the configurations, ``"search"`` by default.
    name : str, optional
        Name of the new dataset; by default that of the file.
    source, licence : str, optional
        Where the timings are from, by default the file; and their licence.
    trans, size, m, n, k, batch, epilogue : optional
        See :func:`tune`.

    Returns
    -------
    Dataset
        As written.
    tuple of str
        What was read, and what the user should know about it.

    Raises
    ------
    DatasetError
        The file is malformed, or is no dataset of the kernel.
    UsageError
        An option is malformed, or the dataset exists.

    Examples
    --------
    >>> import mltune, pathlib, tempfile
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> _ = (folder / "mine.csv").write_text("block,time_ms\n32,1.5\n64,1.25\n")
    >>> found, notices = mltune.import_dataset(
    ...     folder / "mine.csv",
    ...     kernel="mine",
    ...     gpu="a100",
    ...     parameters="block",
    ...     time_column="time_ms",
    ...     out=folder / "data",
    ... )
    >>> found.manifest.best.configuration, notices[0]
    ({'block': 64}, '2 rows, 2 distinct, 0 failed')
    """
    from mltune.dataset.cells import Layout
    from mltune.dataset.importing import Origin, import_table
    from mltune.device.known import find_device
    from mltune.kernel.reader import is_bundle, load_kernel
    from mltune.resolve.options import check_names
    from mltune.resolve.problems import imported_problem

    check_names("an import", options, ImportOptions.__optional_keys__)
    file = Path(file)
    bundle = load_kernel(kernel) if is_bundle(kernel) else kernel
    facts, facts_source = find_device(gpu)
    settings: dict[str, Any] = {option: value for option, value in options.items() if value is not None}
    shape, layout, origin = (
        {option: settings.pop(option) for option in group if option in settings}
        for group in (SHAPE, Layout.__annotations__, Origin.__annotations__)
    )
    if (names := layout.get("parameters")) is not None:
        layout["parameters"] = tuple(name.strip() for name in (names.split(",") if isinstance(names, str) else names))
    source = origin.pop("source", "") or file.name
    imported = import_table(
        file,
        kernel=bundle,
        problem=imported_problem(bundle, problem, shape, **settings),
        device=facts,
        layout=Layout(**layout),
        source=f"{source}{f'; facts of the device: {facts_source}' if facts_source else ''}",
        **origin,
    )
    written = _write(imported.dataset, Path(out), keep=[file], overwrite=overwrite)
    return written, (imported.account, *imported.notices)


def export_dataset(
    dataset: str | Path, file: str | Path, *, format: Literal["kernel-tuner", "t4"], overwrite: bool = False
) -> Dataset:
    """Export a dataset as a cache of Kernel Tuner, or in T4.

    Parameters
    ----------
    dataset : str or pathlib.Path
        Its name or path.
    file : str or pathlib.Path
        The new file.
    format : {"kernel-tuner", "t4"}
        Its format.
    overwrite : bool
        Whether to replace the file if it exists.

    Raises
    ------
    UsageError
        The file exists.

    Examples
    --------
    >>> import mltune, tempfile
    >>> file = tempfile.mkdtemp() + "/cache.json"
    >>> len(mltune.export_dataset("convolution_w6600", file, format="kernel-tuner"))
    4362
    """
    from mltune.dataset import exporting
    from mltune.dataset.dataset import load_dataset
    from mltune.files.atomic import write_file_atomically

    if os.path.lexists(file) and not overwrite:
        raise UsageError(f"{file} exists; choose another name, or --overwrite.")
    loaded = load_dataset(dataset)
    write_file_atomically(Path(file), exporting.FORMATS[format](loaded).encode())
    return loaded


def verify_datasets(datasets: Sequence[str | Path] | None = None) -> list[Verified]:
    """Verify datasets: hashes, columns, values, restrictions.

    Parameters
    ----------
    datasets : sequence of str or pathlib.Path, optional
        Names, paths or folders; by default all that come with mltune.

    Returns
    -------
    list of Verified
        Each has the ``problems`` that were found.

    Examples
    --------
    >>> import mltune
    >>> mltune.verify_datasets(["convolution_w6600"])[0].problems
    ()
    """
    from mltune.dataset.dataset import datasets_in, shipped_datasets, shipped_searches
    from mltune.dataset.verification import verify_dataset

    shipped = shipped_datasets()
    names: list[str | Path] = []
    for name in datasets or [*shipped, *shipped_searches()]:
        is_folder = name not in shipped and Path(name).is_dir()
        names += datasets_in(Path(name)) if is_folder else [name]
    return [verify_dataset(str(name)) for name in names]


def merge_datasets(
    datasets: Sequence[str | Path], *, out: str | Path, name: str | None = None, overwrite: bool = False
) -> tuple[Dataset, tuple[str, ...]]:
    """Merge datasets of one kernel, problem and GPU.

    Parameters
    ----------
    datasets : sequence of str or pathlib.Path
        Names or paths.
    out : str or pathlib.Path
        Folder of the new dataset; made if missing.
    name : str, optional
        Its name; by default that of the first with ``-merged``.
    overwrite : bool
        Whether to replace a dataset of the same name in the folder.

    Returns
    -------
    Dataset
        As written.
    tuple of str
        What the user should know about it.

    Raises
    ------
    UsageError
        They are not of one kernel, problem and GPU, or the dataset exists.

    Examples
    --------
    >>> import mltune, tempfile
    >>> pair = ["h200-sgemm-nt-4096-random", "h200-sgemm-nt-4096-complete"]
    >>> merged, _ = mltune.merge_datasets(pair, out=tempfile.mkdtemp())  # doctest: +SKIP
    >>> merged.manifest.name  # doctest: +SKIP
    'h200-sgemm-nt-4096-random-merged'
    """
    from mltune.dataset import merging
    from mltune.dataset.dataset import load_dataset

    loaded = [load_dataset(path) for path in datasets]
    merged, notices = merging.merge_datasets(loaded, name or f"{loaded[0].manifest.name}-merged")
    return _write(merged, Path(out), keep=[Path(path) for path in datasets], overwrite=overwrite), tuple(notices)


def _write(dataset: Dataset, out: Path, *, keep: Sequence[Path], overwrite: bool) -> Dataset:
    """Write a dataset; the files that it is made of are not replaced."""
    from mltune.dataset.dataset import write_dataset

    for read in keep:
        if read.resolve().with_suffix("") == (out / dataset.manifest.name).resolve():
            raise UsageError(f"--out leads to {read}, which is read and not replaced; choose another folder.")
    return write_dataset(dataset, out, overwrite=overwrite)
