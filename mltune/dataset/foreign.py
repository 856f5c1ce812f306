"""Timings that others recorded: columns of configurations and times become a dataset."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mltune.dataset.dataset import Dataset, Kind, best_of, counts_of
from mltune.dataset.manifest import Manifest
from mltune.dataset.parquet import BITS, TIME_BITS, check_table, rounded, schema
from mltune.kernel.columns import Columns, length
from mltune.records.trial import TrialState

if TYPE_CHECKING:
    from mltune.device.facts import Device
    from mltune.problem.problem import Problem


@dataclass(frozen=True, slots=True)
class Outcomes:
    """What became of configurations elsewhere, one entry for each.

    Attributes
    ----------
    states : sequence of str
        Values of :class:`~mltune.records.trial.TrialState`; one that did not compile is ``compile_error``.
    median_s : array_like
        Times, seconds; not looked at unless the state is ``ok``.
    compile_s, time_s : array_like
        Seconds that compiling and timing took; 0 where it is not known.
    """

    states: Sequence[str] | NDArray[Any]
    median_s: ArrayLike
    compile_s: ArrayLike = 0.0
    time_s: ArrayLike = 0.0


def foreign_dataset(
    columns: Columns,
    outcomes: Outcomes,
    *,
    name: str,
    kind: Kind,
    kernel: str,
    problem: Problem,
    device: Device,
    parameters: Mapping[str, Sequence[int]] | None = None,
    source: str = "",
    licence: str = "",
    created: str = "",
) -> Dataset:
    """Make a dataset of what others recorded. Single samples, and what a compiler said, are not known.

    Parameters
    ----------
    columns : Columns
        The configurations, distinct.
    outcomes : Outcomes
    name, kind, kernel, problem, device, source, licence, created
        As in :class:`~mltune.dataset.manifest.Manifest`.
    parameters : mapping of str to sequence of int, optional
        The values that the configurations were chosen from: by default those that occur.

    Raises
    ------
    DatasetError
        A configuration comes twice, or an outcome is impossible.
    """
    if parameters is None:
        parameters = {parameter: np.unique(column).tolist() for parameter, column in columns.items()}
    legal = {parameter: tuple(values) for parameter, values in parameters.items()}
    ordered = {parameter: np.asarray(columns[parameter], dtype=np.int64) for parameter in legal}
    table = _arrow(ordered, outcomes)
    check_table(table, legal, name)
    manifest = Manifest(
        name=name,
        kind=kind,
        kernel=kernel,
        source_hash="",
        problem=problem,
        device=device,
        parameters=legal,
        rows=table.num_rows,
        counts=counts_of(table),
        best=best_of(table, legal),
        created=created,
        source=source,
        licence=licence,
    )
    return Dataset(manifest, table)


def _arrow(columns: Columns, outcomes: Outcomes) -> Any:
    """Make the table: a column that others did not record is null, or 0 where a dataset must know it."""
    import pyarrow as pa

    size = length(columns)
    states = np.asarray(outcomes.states, dtype=object)
    ok = states == TrialState.OK.value
    median_s = np.where(ok, np.asarray(outcomes.median_s, dtype=np.float64), np.nan)
    known: dict[str, Any] = {
        **columns,
        "state": states,
        "build_state": np.where(states == TrialState.COMPILE_ERROR.value, states, TrialState.OK.value),
        "detail": np.full(size, "", dtype=object),
        "compile_s": rounded(_seconds(outcomes.compile_s, size), BITS),
        "median_s": rounded(median_s, TIME_BITS),
        "stopped_early": np.zeros(size, dtype=np.bool_),
        "verify_s": np.zeros(size, dtype=np.float32),
        "time_s": rounded(_seconds(outcomes.time_s, size), BITS),
    }
    arrays = []
    for field in schema(tuple(columns)):
        if field.name == "samples_s":
            none = pa.array([], pa.float32())
            arrays.append(pa.ListArray.from_arrays(np.zeros(size + 1, dtype=np.int32), none, type=field.type))
        elif field.name in known:
            arrays.append(pa.array(known[field.name], type=field.type, from_pandas=True))
        else:
            arrays.append(pa.nulls(size, field.type))
    return pa.table(arrays, schema=schema(tuple(columns)))


def _seconds(values: ArrayLike, size: int) -> NDArray[np.float64]:
    """Return seconds that a dataset must know: 0 where nobody does."""
    seconds = np.broadcast_to(np.asarray(values, dtype=np.float64), (size,))
    return np.where(np.isfinite(seconds) & (seconds > 0), seconds, 0.0)
