"""Datasets: a Parquet table of configurations and outcomes, and a manifest that describes it."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from mltune.dataset.manifest import Best, Manifest, read_manifest
from mltune.dataset.parquet import (
    MAX_FILE_BYTES,
    arrow_table,
    check_table,
    read_parquet,
    read_strangers_parquet,
    trial_columns,
    values_of,
    write_parquet,
)
from mltune.device.facts import Device
from mltune.errors import DatasetError
from mltune.files import folders
from mltune.files.atomic import described_file, write_described
from mltune.files.owned import sha256_of
from mltune.files.reading import raising
from mltune.files.text import no_such
from mltune.kernel.coding import Columns
from mltune.kernel.space import TableSpace
from mltune.problem.kinds import problem_from_json
from mltune.problem.problem import Problem
from mltune.records.header import RunHeader
from mltune.records.store import Store
from mltune.records.trial import Build, Measurement, TrialRecord, TrialState

if TYPE_CHECKING:
    import pandas as pd

Kind = Literal["random", "complete", "pruned", "search"]


@dataclass(frozen=True, eq=False)
class Dataset:
    """Recorded outcomes of the configurations of one kernel, for one problem, on one GPU.

    Attributes
    ----------
    manifest : Manifest
        Its description.
    table : pyarrow.Table
        One row per configuration; see :func:`mltune.dataset.parquet.schema`.

    Examples
    --------
    >>> dataset = load_dataset("h200-sgemm-nt-4096-random")
    >>> dataset.manifest.problem.label, len(dataset)
    ('sgemm NT 4096', 5000)
    """

    manifest: Manifest
    table: Any

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def __repr__(self) -> str:
        return repr(self.manifest).replace("Manifest", "Dataset", 1)

    def _repr_html_(self) -> str:
        return self.manifest._repr_html_()

    @cached_property
    def columns(self) -> Columns:
        """The configurations: one int64 column of shape (n_rows,) per parameter."""
        return {name: values_of(self.table[name]) for name in self.manifest.parameters}

    @cached_property
    def states(self) -> NDArray[np.str_]:
        """The final state of each configuration, of shape (n_rows,)."""
        return np.asarray(self.table["state"].to_pylist(), dtype=np.str_)

    def numbers(self, name: str) -> NDArray[np.float64]:
        """Return a column of outcomes, such as ``"median_s"``, of shape (n_rows,); NaN where unknown."""
        return np.asarray(values_of(self.table[name]), dtype=np.float64)

    @cached_property
    def space(self) -> TableSpace:
        """The configurations as a search space."""
        return TableSpace(self.columns)

    def builds(self, start: int = 0, count: int | None = None) -> list[Build]:
        """Return the build of each configuration, or of some consecutive ones, without cubins."""
        names = ("registers", "spill_bytes", "stack_bytes", "shared_bytes", "code_bytes", "compile_s")
        table = self.table.slice(start, count)
        columns = [table[name].to_pylist() for name in ("build_state", "detail", *names)]

        return [
            Build(TrialState(state), "" if state == TrialState.OK else detail, b"", *values)
            for state, detail, *values in zip(*columns, strict=True)
        ]

    def measurements(self, start: int = 0, count: int | None = None) -> list[Measurement | None]:
        """Return the measurement of each configuration, or of some; None for one that did not compile."""
        names = [field.name for field in dataclasses.fields(Measurement) if field.name in self.table.column_names]
        table = self.table.slice(start, count)
        columns = [table[name].to_pylist() for name in ("build_state", *names)]
        return [
            Measurement(TrialState(state), detail, tuple(samples), *values) if build == TrialState.OK else None
            for build, state, detail, samples, *values in zip(*columns, strict=True)
        ]

    def to_dataframe(self) -> pd.DataFrame:
        """Return the table as a data frame.

        The time of the kernel is ``median_s``. What it took to measure it is in ``compile_s``, ``verify_s`` and
        ``timing_s``; the last is the column ``time_s`` of the file.
        """
        frame: pd.DataFrame = self.table.to_pandas().rename(columns={"time_s": "timing_s"})
        return frame


def dataset_from_records(
    records: Iterable[TrialRecord],
    header: RunHeader,
    *,
    name: str,
    kind: Kind,
    reference_median_s: float | None = None,
    pruning: Mapping[str, int | float] | None = None,
) -> Dataset:
    """Create a dataset from records, without skipped ones; floats have the precision of measurement."""
    measured = [record for record in records if record.build is not None and record.state != TrialState.SKIPPED]
    if not measured:
        raise DatasetError(f"{name!r} has no measured configurations, and a dataset holds some.")
    parameters = {parameter: tuple(values) for parameter, values in header.parameters.items()}
    with raising(DatasetError, f"the problem or the device of {name!r} is none", ValueError):
        problem, device = problem_from_json(dict(header.problem)), Device.from_json(dict(header.device))
    return make_dataset(
        arrow_table(trial_columns(measured), tuple(parameters)),
        parameters,
        name=name,
        kind=kind,
        problem=problem,
        device=device,
        reference_median_s=reference_median_s,
        created=datetime.fromtimestamp(header.created_at, UTC).isoformat(timespec="seconds"),
        pruning=pruning or {},
        **{name: getattr(header, name) for name in ("kernel", "source_hash", "versions", "seed", "labels")},
    )


def make_dataset(table: Any, parameters: Mapping[str, tuple[int, ...]], **facts: Any) -> Dataset:
    """Check a table, and complete a manifest that is otherwise given by ``facts``."""
    check_table(table, parameters, facts["name"])
    counts, best = _counts(table), _best(table, parameters)
    return Dataset(Manifest(parameters=parameters, rows=table.num_rows, counts=counts, best=best, **facts), table)


def export_run(directory: Path, folder: Path) -> Path:
    """Write the records of a run as a dataset, named after the run's directory; return the Parquet file."""
    name = re.sub(r"[^a-z0-9_-]+", "-", directory.resolve().name.lower()).strip("-_") or "run"
    with Store.read_only(directory) as store:
        records, header, reference_s = store.records(), store.header, store.facts().reference_median_s
        dataset = dataset_from_records(records, header, name=name, kind="search", reference_median_s=reference_s)
        write_dataset(dataset, folder)
    return folder / f"{name}.parquet"


def write_dataset(dataset: Dataset, folder: Path, *, overwrite: bool = False) -> Dataset:
    """Write ``NAME.parquet`` and ``NAME.json``, each atomically; return the dataset with the hash of its file."""
    data = write_parquet(dataset.table)
    manifest = dataclasses.replace(dataset.manifest, sha256=hashlib.sha256(data).hexdigest())
    table, described = (Path(folder) / f"{manifest.name}.{suffix}" for suffix in ("parquet", "json"))
    existing = [path for path in (described, table) if os.path.lexists(path)]
    if existing and not overwrite:
        raise DatasetError(f"{existing[0]} exists; choose another name or folder for the dataset.")
    with raising(DatasetError, f"the folder {folder} of the dataset cannot be written"):
        table.parent.mkdir(parents=True, exist_ok=True)
        write_described(table, data, described, (json.dumps(manifest.to_json(), indent=1) + "\n").encode())
    return Dataset(manifest, dataset.table)


def check_own(name: str, folder: Path) -> None:
    """Raise a DatasetError unless mltune wrote the two files of a dataset in a folder, or they are missing."""
    table, described = (folder / f"{name}.{suffix}" for suffix in ("parquet", "json"))
    if not any(map(os.path.lexists, (table, described))):
        return
    try:
        manifest = read_manifest(described, inside=folder)
        place = described_file(table, manifest.sha256, MAX_FILE_BYTES)
        is_own = sha256_of(place, inside=folder) == manifest.sha256
    except (DatasetError, OSError):
        is_own = False
    if not is_own:
        raise DatasetError(
            f"{described} and {table.name} are no dataset that mltune wrote, and only such are replaced; move them, or "
            "choose another directory."
        )


def load_dataset(name_or_path: str | Path) -> Dataset:
    """Read a dataset and check it.

    Parameters
    ----------
    name_or_path : str or pathlib.Path
        The name of a shipped dataset, or the path of one of the two files of another. Neither may be a link: the folder
        may come from somebody else.

    Raises
    ------
    DatasetError
        It does not exist or is malformed: another hash, unknown columns, impossible values.

    Examples
    --------
    >>> data = load_dataset("h200-sgemm-nt-4096-random")
    >>> data.manifest.problem.label, data.manifest.device.name
    ('sgemm NT 4096', 'NVIDIA H200')
    """
    path = _located(name_or_path)
    manifest = load_manifest(path)
    table_path = described_file(path.with_suffix(".parquet"), manifest.sha256, MAX_FILE_BYTES)
    read = read_parquet if _is_shipped(path) else read_strangers_parquet
    table = read(table_path, manifest.sha256, manifest.rows, tuple(manifest.parameters))
    check_table(table, manifest.parameters, str(table_path))
    counts, best = _counts(table), _best(table, manifest.parameters)
    if (dict(manifest.counts), manifest.best) != (counts, best):
        raise DatasetError(f"the counts or the best of {path} are not those of its table; record the dataset anew.")
    return Dataset(manifest, table)


def load_manifest(name_or_path: str | Path) -> Manifest:
    """Read only the manifest of a dataset; see :func:`load_dataset`."""
    path = _located(name_or_path)
    return read_manifest(path, inside=None if _is_shipped(path) else path.parent)


def _is_shipped(path: Path) -> bool:
    return path.is_relative_to(folders.assets("datasets"))


def shipped_datasets() -> dict[str, Path]:
    """Return the manifest files of the shipped datasets by name."""
    return {path.stem: path for path in sorted(folders.assets("datasets").glob("*/*.json"))}


def shipped_searches() -> list[Path]:
    """Return the manifest files of the datasets that only models are trained on."""
    return sorted(folders.assets("datasets").glob("*/searches/*.json"))


def list_datasets(folder: Path | None = None) -> list[Manifest]:
    """Return the manifests of all datasets in ``folder/*/`` (by default the shipped ones), by kernel and name."""
    paths = sorted((folders.assets("datasets") if folder is None else folder).glob("*/*.json"))
    return sorted((read_manifest(path) for path in paths), key=lambda manifest: (manifest.kernel, manifest.name))


def datasets_in(folder: Path) -> list[Path]:
    """Return the manifest files of the datasets in a folder and in its folders: JSON files beside a Parquet file."""
    paths = [path for pattern in ("*.json", "*/*.json") for path in sorted(Path(folder).glob(pattern))]
    paths = [path for path in paths if path.with_suffix(".parquet").exists()]
    if not paths:
        raise DatasetError(f"{folder} has no datasets; a dataset is NAME.json with NAME.parquet.")
    return paths


def find_datasets(kernel: str, problem: Problem, folder: Path | None = None) -> list[Manifest]:
    """Return the manifests of the datasets of one kernel and problem, those with most rows first."""
    datasets = [dataset for dataset in list_datasets(folder) if dataset.kernel == kernel and dataset.problem == problem]
    return sorted(datasets, key=lambda manifest: -manifest.rows)


def _located(name_or_path: str | Path) -> Path:
    """Return the path of a manifest."""
    path = Path(name_or_path)
    if path.suffix in (".json", ".parquet"):
        return path.with_suffix(".json")
    if len(path.parts) != 1:
        return path.with_name(f"{path.name}.json")
    shipped = shipped_datasets()
    if path.name not in shipped:
        law = "A dataset is a built-in one (`mltune datasets`) or the path of its .parquet file"
        raise DatasetError(no_such("dataset", path.name, shipped, law))
    return shipped[path.name]


def _counts(table: Any) -> dict[str, int]:
    """Return the number of rows by state."""
    return dict(sorted(Counter(table["state"].to_pylist()).items()))


def _best(table: Any, parameters: Mapping[str, tuple[int, ...]]) -> Best | None:
    """Return the fastest row with state ``ok``."""
    ok = np.asarray(table["state"].to_pylist(), dtype=object) == TrialState.OK.value
    if not ok.any():
        return None
    times = np.where(ok, values_of(table["median_s"]), math.inf)
    row = int(np.argmin(times))
    return Best({name: int(table[name][row].as_py()) for name in parameters}, float(times[row]))
