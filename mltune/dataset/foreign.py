"""Datasets from columns of configurations and times that third parties recorded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mltune.dataset.dataset import Dataset, make_dataset
from mltune.dataset.parquet import BITS, TIME_BITS, rounded, schema
from mltune.kernel.columns import Columns, length
from mltune.records.trial import TrialState


@dataclass(frozen=True, slots=True)
class Outcomes:
    """Outcomes of configurations, one entry for each.

    Attributes
    ----------
    states : sequence of str
        Values of :class:`~mltune.records.trial.TrialState`.
    median_s : array_like
        Times in seconds; ignored unless the state is ``ok``.
    compile_s, time_s : array_like
        Seconds of compiling and timing; 0 where unknown.
    """

    states: Sequence[str] | NDArray[Any]
    median_s: ArrayLike
    compile_s: ArrayLike = 0.0
    time_s: ArrayLike = 0.0


def foreign_dataset(
    columns: Columns,
    outcomes: Outcomes,
    *,
    parameters: Mapping[str, Sequence[int]] | None = None,
    **facts: Any,
) -> Dataset:
    """Create a dataset from recorded outcomes and fields of its manifest. Single samples and resources are unknown.

    ``parameters`` are the values that the configurations were chosen from; by default those that occur.
    """
    if parameters is None:
        parameters = {parameter: np.unique(column).tolist() for parameter, column in columns.items()}
    legal = {parameter: tuple(values) for parameter, values in parameters.items()}
    ordered = {parameter: np.asarray(columns[parameter], dtype=np.int64) for parameter in legal}
    return make_dataset(_arrow(ordered, outcomes), legal, source_hash="", **facts)


def _arrow(columns: Columns, outcomes: Outcomes) -> Any:
    """Return the table; an unknown column is null, or 0 where null is not allowed."""
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
        "compile_s": _seconds(outcomes.compile_s, size),
        "median_s": rounded(median_s, TIME_BITS),
        "stopped_early": np.zeros(size, dtype=np.bool_),
        "verify_s": np.zeros(size, dtype=np.float32),
        "time_s": _seconds(outcomes.time_s, size),
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


def _seconds(values: ArrayLike, size: int) -> NDArray[np.float32]:
    """Return a rounded column of seconds, 0 where unknown."""
    seconds = np.broadcast_to(np.asarray(values, dtype=np.float64), (size,))
    return rounded(np.where(np.isfinite(seconds) & (seconds > 0), seconds, 0.0), BITS)
