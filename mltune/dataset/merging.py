"""Merge repeated measurements of one configuration: rows of a table, and datasets of one kernel, problem and GPU."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from mltune.dataset.cells import distinct
from mltune.dataset.dataset import Dataset, Kind, make_dataset
from mltune.dataset.parquet import TIME_BITS, rounded
from mltune.errors import DatasetError
from mltune.files.text import printable
from mltune.kernel.coding import Columns, Floats, Indices
from mltune.records.trial import TrialState

if TYPE_CHECKING:
    import pandas as pd

CONTRADICTORY = 2.0
"""Times of one configuration that differ by more than this factor contradict each other."""


@dataclass(frozen=True, eq=False)
class Merged:
    """The distinct configurations of a table, in the order of their first rows.

    `number` is the configuration of each row. `first` has the row that each configuration has its state from: the first
    that succeeded, else the first; `median_s` the median over the rows that succeeded, NaN if none did.
    """

    number: Indices
    first: Indices
    median_s: Floats
    notices: tuple[str, ...]


def merge(
    columns: Columns, states: NDArray[np.object_], time_s: Floats, other_columns: Sequence[pd.Series[Any]] = ()
) -> Merged:
    """Merge the rows of each configuration, given the columns of the parameters.

    A ``DatasetError`` tells that rows to merge differ in another column, which may be a forgotten parameter.
    """
    import pandas as pd

    number = pd.DataFrame(columns).groupby([*columns], sort=False).ngroup()
    _refuse_forgotten(number, other_columns)
    ok = states == TrialState.OK.value
    rows = pd.DataFrame({"ok": ok, "time_s": np.where(ok, time_s, np.nan), "first": np.arange(len(ok))})
    rows["first"] = rows["first"].where(ok | ~rows["ok"].groupby(number).transform("any"), len(ok))
    times = rows.groupby(number)["time_s"]
    groups = rows.groupby(number).agg(rows=("ok", "size"), succeeded=("ok", "sum"), first=("first", "min"))
    spread = (times.max() / times.min()).fillna(1.0)
    notices = tuple(_notices(groups["rows"].to_numpy(), groups["succeeded"].to_numpy(), spread.to_numpy()))
    return Merged(np.asarray(number), np.asarray(groups["first"]), times.median().to_numpy(), notices)


def _refuse_forgotten(number: pd.Series[int], other_columns: Sequence[pd.Series[Any]]) -> None:
    """Refuse to merge rows of one configuration that differ in a column which may be a parameter."""
    import pandas as pd

    varying = []
    for column in other_columns:
        codes, values = distinct(column)
        fractional = any(isinstance(value, float) and value % 1 for value in values)
        measured = fractional and len(values) > len(codes) / 2  # fractions that hardly repeat
        if not measured and (pd.Series(codes).groupby(number).nunique() > 1).any():
            varying.append(column.name)
    if varying:
        names = ", ".join(printable(name, longest=40) for name in varying[:20])
        raise DatasetError(
            f"in rows with the same parameters {names} also "
            f"{'varies: is it a parameter' if len(varying) == 1 else 'vary: are they parameters'}? If so, name "
            f"{'it' if len(varying) == 1 else 'them'} in --parameters; if not, --aggregate takes the median over them"
        )


def _notices(rows: Indices, succeeded: Indices, spread: Floats) -> Iterator[str]:
    merged = rows > 1
    if not merged.any():
        return
    yield (
        f"{rows[merged].sum():,} rows repeat {merged.sum():,} configurations, whose medians are taken; the times of a "
        f"configuration differ by a factor of up to {spread.max():.3g}"
    )
    half, wide = (succeeded > 0) & (succeeded < rows), spread > CONTRADICTORY
    if half.any() or wide.any():
        yield (
            f"repeated rows contradict each other: {half.sum():,} configurations both succeeded and failed, "
            f"{wide.sum():,} have times that differ by more than a factor of {CONTRADICTORY:g}"
        )


def merge_datasets(datasets: Sequence[Dataset], name: str) -> tuple[Dataset, tuple[str, ...]]:
    """Return a dataset with the configurations of several, and notices about those that occur more than once.

    Such a one has succeeded if it did so in one dataset. Its time is the median of its times, its samples are those of
    all; all else about it is that of the first dataset in which it succeeded.
    """
    import pyarrow as pa

    if len(datasets) < 2:
        raise DatasetError(f"{len(datasets)} dataset was named; name two or more to merge them.")
    first = datasets[0].manifest
    for dataset in datasets[1:]:
        _check_same(datasets[0], dataset)
    manifests, columns = [dataset.manifest for dataset in datasets], datasets[0].table.column_names
    parameters = {
        name: tuple(dict.fromkeys(value for manifest in manifests for value in manifest.parameters[name]))
        for name in first.parameters
    }
    table = pa.concat_tables([dataset.table.select(columns) for dataset in datasets]).combine_chunks()
    merged, notices = _merged(table, tuple(parameters))
    references = [manifest.reference_median_s for manifest in manifests if manifest.reference_median_s is not None]
    union = make_dataset(
        merged,
        parameters,
        name=name,
        kind=_kind(datasets),
        **{fact: getattr(first, fact) for fact in ("kernel", "source_hash", "problem", "device", "labels")},
        reference_median_s=statistics.median(references) if references else None,
        created=min(manifest.created for manifest in manifests),
        versions={
            key: value
            for key, value in first.versions.items()
            if all(manifest.versions.get(key) == value for manifest in manifests)
        },
        source="; ".join(dict.fromkeys(manifest.source for manifest in manifests if manifest.source)),
        licence="; ".join(dict.fromkeys(manifest.licence for manifest in manifests if manifest.licence)),
    )
    return union, notices


def _check_same(first: Dataset, other: Dataset) -> None:
    """Refuse to merge datasets that were not measured in the same way."""
    expected, actual = first.manifest, other.manifest
    pairs = {
        "kernel": (expected.kernel, actual.kernel),
        "hash of the source": (expected.source_hash or "unknown", actual.source_hash or "unknown"),
        "problem": (expected.problem.to_json(), actual.problem.to_json()),
        "device": tuple(replace(manifest.device, measured={}).to_json() for manifest in (expected, actual)),
        "parameters": (sorted(expected.parameters), sorted(actual.parameters)),
        "labels": (dict(expected.labels), dict(actual.labels)),
    }
    for fact, (expected_value, actual_value) in pairs.items():
        if expected_value != actual_value:
            if isinstance(expected_value, dict) and isinstance(actual_value, dict):
                sides, keys = (expected_value, actual_value), sorted(expected_value.keys() | actual_value.keys())
                keys = [key for key in keys if expected_value.get(key) != actual_value.get(key)]
                expected_value, actual_value = ({key: side.get(key) for key in keys} for side in sides)
            raise DatasetError(
                f"{expected.name} and {actual.name} cannot be merged, because they differ in their {fact}: "
                f"{printable(expected_value, 300)} and {printable(actual_value, 300)}."
            )


def _kind(datasets: Sequence[Dataset]) -> Kind:
    """Return the kind that all have, if they chose from the same values; else nothing is known of the choice.

    What two pruned sweeps promise, their union does not: each knows only its own measurements.
    """
    first = datasets[0].manifest.parameters
    facts = {
        (dataset.manifest.kind, *(frozenset(dataset.manifest.parameters[parameter]) for parameter in first))
        for dataset in datasets
    }
    kind = datasets[0].manifest.kind
    return kind if len(facts) == 1 and kind != "pruned" else "search"


def _merged(table: Any, names: tuple[str, ...]) -> tuple[Any, tuple[str, ...]]:
    """Return a table in which each configuration occurs once, and notices."""
    import pandas as pd
    import pyarrow as pa

    states = np.asarray(table["state"].to_pylist(), dtype=object)
    median_s = table["median_s"].to_numpy().astype(np.float64)
    merged = merge({name: table[name].to_numpy() for name in names}, states, median_s)
    kept = table.take(pa.array(merged.first))
    ok = states == TrialState.OK.value
    repeated = np.bincount(merged.number) > 1
    times = np.where(repeated & ok[merged.first], rounded(merged.median_s, TIME_BITS), median_s[merged.first])
    every = pd.Series(table["samples_s"].to_pylist())
    joined = every[ok].groupby(merged.number[ok]).sum()
    samples = [joined.get(number, every[row]) for number, row in enumerate(merged.first.tolist())]
    for name, column in (
        ("median_s", pa.array(times, pa.float32(), from_pandas=True)),
        ("samples_s", pa.array(samples, table.schema.field("samples_s").type)),
    ):
        kept = kept.set_column(kept.schema.get_field_index(name), kept.schema.field(name), column)
    return kept, merged.notices
