"""Import tables of third parties as datasets, or read the distinct configurations of a bare table."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict, Unpack

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mltune.dataset.cells import NOT_MEASURED, Layout, known_times, parameter, states, times
from mltune.dataset.dataset import Dataset, Kind, make_dataset
from mltune.dataset.formats import RawTable, read_raw
from mltune.dataset.merging import merge
from mltune.dataset.parquet import arrow_table, schema
from mltune.dataset.units import required_seconds, seconds_of_column
from mltune.device.facts import Device
from mltune.device.known import UNKNOWN
from mltune.errors import DatasetError
from mltune.files.reading import raising
from mltune.files.text import printable
from mltune.kernel.bundle import Kernel
from mltune.kernel.coding import Columns, Floats, length, row
from mltune.kernel.placed import PlacedKernel
from mltune.problem.kinds import timed_problem
from mltune.problem.problem import Problem
from mltune.process.bounded import BoundsExceededError, call_bounded
from mltune.records.trial import TrialState


@dataclass(frozen=True, slots=True)
class Outcomes:
    """States and seconds of configurations, one entry for each; unknown seconds are 0.

    `states` are of :class:`~mltune.records.trial.TrialState`; `median_s` is ignored unless the state is ``ok``.
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
    """Create a dataset from recorded outcomes and fields of its manifest; samples and resources are unknown.

    `parameters` are the values that the configurations were chosen from; by default those that occur.
    """
    if parameters is None:
        parameters = {parameter: np.unique(column).tolist() for parameter, column in columns.items()}
    legal = {parameter: tuple(values) for parameter, values in parameters.items()}
    ordered = {parameter: np.asarray(columns[parameter], dtype=np.int64) for parameter in legal}
    states = np.asarray(outcomes.states, dtype=object)
    device_facts = {
        **ordered,
        "state": states,
        "build_state": np.where(states == TrialState.COMPILE_ERROR.value, states, TrialState.OK.value),
        "detail": [""] * len(states),
        "compile_s": _seconds(outcomes.compile_s, len(states)),
        "samples_s": [[]] * len(states),
        "median_s": np.where(states == TrialState.OK.value, np.asarray(outcomes.median_s, dtype=np.float64), np.nan),
        "stopped_early": np.zeros(len(states), dtype=np.bool_),
        "verify_s": np.zeros(len(states)),
        "time_s": _seconds(outcomes.time_s, len(states)),
    }
    return make_dataset(arrow_table(device_facts, tuple(legal)), legal, source_hash="", **facts)


def _seconds(values: ArrayLike, size: int) -> Floats:
    """Return a column of seconds, 0 where unknown."""
    seconds = np.broadcast_to(np.asarray(values, dtype=np.float64), (size,))
    return np.where(np.isfinite(seconds) & (seconds > 0), seconds, 0.0)


_SMALL = 1_000_000
"""Largest file of text, bytes, that is read in this process: it does not unfold to much more."""


@dataclass(frozen=True, eq=False)
class Contents:
    """The distinct configurations of a table, and what :class:`Imported` says of them.

    `labels` has the values of the codes 0, 1, ... for each parameter with values other than integers.
    """

    columns: Columns
    outcomes: Outcomes
    labels: Mapping[str, tuple[int | float | str, ...]]
    account: str
    notices: tuple[str, ...]


def read_contents(path: Path, layout: Layout) -> Contents:
    """Read what a table holds, with limits on memory and time; see :func:`mltune.dataset.importing.read_table`."""
    is_text = path.suffix.lower() in (".csv", ".json")
    if not path.is_file() or (is_text and path.stat().st_size <= _SMALL):  # what is no regular file is refused
        return contents_of(path, layout)
    with raising(DatasetError, f"{path}: the table cannot be read", BoundsExceededError):
        contents: Contents = call_bounded(
            f"{__name__}:contents_of", path, layout, imports=("pyarrow.parquet", "pyarrow.csv", "pandas")
        )
    return contents


def contents_of(path: Path, layout: Layout) -> Contents:
    """Return what a table holds, without limits; see :func:`read_contents`."""
    with raising(DatasetError, str(path), DatasetError):
        return _contents(read_raw(path, layout), layout)


def _contents(raw: RawTable, layout: Layout) -> Contents:
    rows = len(raw.time)
    state, unknown = (np.full(rows, "ok", dtype=object), ()) if raw.status is None else states(raw.status)
    failed = state != TrialState.OK
    unit_s = required_seconds(raw.time_unit, "--time-unit") if raw.time_unit else seconds_of_column(str(raw.time.name))
    time_s, timed = times(raw.time, unit_s, failed)
    state = np.where(failed, state, timed)
    compile_s, benchmark_s = (
        np.zeros(rows) if column is None else known_times(column, seconds_of_column(str(column.name)))
        for column in (raw.compile_time, raw.benchmark_time)
    )
    measured = np.flatnonzero(~np.isin(state, list(NOT_MEASURED)))
    if not len(measured):
        raise DatasetError(f"none of {rows:,} rows is a measured configuration; a table has at least one")
    state = state[measured]
    names = _legal_names([str(column.name) for column in raw.parameters])
    parameters = {name: parameter(column.iloc[measured]) for name, column in zip(names, raw.parameters, strict=True)}
    columns = {name: column for name, (column, _) in parameters.items()}
    other_columns = () if layout.aggregate else [column.iloc[measured] for column in raw.further]
    merged = merge(columns, state, time_s[measured], other_columns)
    first = merged.first
    account = f"{rows:,} rows, {len(first):,} distinct, {(state != TrialState.OK).sum():,} failed"
    if len(measured) < rows:
        account += f", {rows - len(measured):,} not measured"
    shown = ", ".join(map(repr, unknown[:20]))
    words = f"the states {shown} are not known, and do not count as failures" if unknown else ""
    return Contents(
        {name: column[first] for name, column in columns.items()},
        Outcomes(state[first], merged.median_s, compile_s[measured][first], benchmark_s[measured][first]),
        {name: labels for name, (_, labels) in parameters.items() if labels is not None},
        account,
        tuple(filter(None, (*raw.notices, words, *merged.notices))),
    )


def slug(text: str) -> str:
    """Return a name for a dataset: lower-case letters, digits, ``_`` and ``-``."""
    return re.sub(r"[^a-z0-9_-]+", "-", text.lower()).strip("-_")[:60] or "table"


def _legal_names(headings: Sequence[str]) -> list[str]:
    """Return a legal parameter name for each column: its own where possible."""
    names: list[str] = []
    taken = {name.lower() for name in schema(()).names}
    for column in headings:
        name = re.sub(r"\W", "_", column, flags=re.ASCII).lstrip("_0123456789")[:50] or "parameter"
        while name.lower() in taken:
            name += "_"
        taken.add(name.lower())
        names.append(name)
    return names


_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")


@dataclass(frozen=True, eq=False)
class Imported:
    """A dataset in memory from a table, and what was read: ``"2,000 rows, 21 distinct, 896 failed"``, and notices."""

    dataset: Dataset
    account: str
    notices: tuple[str, ...]


def read_table(
    path: str | Path, parameters: Sequence[str] | None = None, time: str | None = None, *, aggregate: bool = False
) -> Imported:
    """Read a table of configurations and their times for replay and comparison.

    `path` is a ``.csv`` or ``.parquet`` file with columns `parameters`, `time` and perhaps ``status``, or a ``.json``
    file, which defines its own: a cache of Kernel Tuner, results in T4 (the exchange format of the autotuning
    community), or of a tuner of CLBlast. Parameters that are not integers become codes in sorted order. The unit of
    times is the suffix of the column's name, as in ``time_ms``. `aggregate` merges rows that differ in other
    columns.

    A configuration has failed if its status says so, or if there is no time or the name of an error in its place. Rows
    that were not measured are left out. Several rows of one configuration are repeated measurements: it is ``ok`` if
    any of them is, and its time is their median. Kernel, problem and device have no facts, so times are compared only
    with each other. What cannot be right, or a parameter that seems to be forgotten, raises a DatasetError.
    """
    named = None if parameters is None else tuple(parameters)
    layout = Layout(named, time, aggregate=aggregate)
    path = Path(path)
    name = slug(path.stem)
    problem = timed_problem(re.sub(r"^[^a-z]+", "", name) or "table")
    facts = {"name": name, "kind": "search", "kernel": name, "problem": problem, "device": UNKNOWN}
    return _imported(read_contents(path, layout), source=str(path), **facts)


class Origin(TypedDict, total=False):
    """Where timings are from, as :func:`import_table` describes it."""

    name: str | None
    kind: Kind
    source: str
    licence: str


def import_table(
    path: str | Path,
    *,
    kernel: Kernel | str,
    problem: Problem,
    device: Device,
    layout: Layout | None = None,
    **origin: Unpack[Origin],
) -> Imported:
    """Make a dataset of a table; :func:`read_table` says what a table is.

    The kernel is one whose parameters and restrictions the table must have, or the name of one without a bundle. Name
    and source are by default those of the file.
    """
    path, layout = Path(path), layout or Layout()
    parameters = None
    if isinstance(kernel, Kernel):
        kernel.check_problem(problem)
        kernel = kernel.recorded_with(layout.parameters or ())
        layout = dataclasses.replace(layout, parameters=layout.parameters or tuple(kernel.all_parameters))
        contents = _fitted(read_contents(path, layout), PlacedKernel(kernel, problem, device), path)
        parameters = {
            name: [value for value in values if (contents.columns[name] == value).any()]
            for name, values in kernel.all_parameters.items()
        }
    elif _NAME.fullmatch(kernel):
        contents = read_contents(path, layout)
    else:
        raise DatasetError(f"{printable(kernel, 100)!r} cannot name a kernel: its name matches {_NAME.pattern}.")
    return _imported(
        contents,
        parameters=parameters,
        name=origin.get("name") or slug(path.stem),
        kind=origin.get("kind", "search"),
        kernel=kernel.name if isinstance(kernel, Kernel) else kernel,
        problem=problem,
        device=device,
        source=origin.get("source") or path.name,
        licence=origin.get("licence", ""),
    )


def _imported(contents: Contents, **facts: Any) -> Imported:
    dataset = foreign_dataset(contents.columns, contents.outcomes, labels=contents.labels, **facts)
    return Imported(dataset, contents.account, contents.notices)


def _fitted(contents: Contents, placed: PlacedKernel, path: Path) -> Contents:
    """Return a table with the values of a kernel, without the failed rows that its restrictions exclude."""
    kernel = placed.kernel
    if set(contents.columns) != set(kernel.all_parameters):
        raise DatasetError(
            f"{path} has the parameters {printable(', '.join(contents.columns), 500)}; {kernel.name} has "
            f"{', '.join(kernel.all_parameters)}."
        )
    columns = {name: _positions(name, contents, kernel, path) for name in kernel.all_parameters}
    broken = dict(broken_restrictions(placed, columns))
    excluded = np.any([np.zeros(length(columns), dtype=bool), *(~holds for holds in broken.values())], axis=0)
    ran = excluded & (np.asarray(contents.outcomes.states) == TrialState.OK.value)
    if ran.any():
        first = int(np.argmax(ran))
        text = next(text for text, holds in broken.items() if not holds[first])
        raise DatasetError(
            f"{path}: {ran.sum():,} configurations that ran break the restrictions of {kernel.name}, such as "
            f"{kernel.space.labelled(row(columns, first))}: `{text}` does not hold."
        )
    kept = np.flatnonzero(~excluded)
    notice = f"{excluded.sum():,} failed configurations that the restrictions exclude were left out"
    outcomes = [np.asarray(getattr(contents.outcomes, field.name))[kept] for field in dataclasses.fields(Outcomes)]
    return dataclasses.replace(
        contents,
        columns={name: column[kept] for name, column in columns.items()},
        outcomes=Outcomes(*outcomes),
        labels=kernel.space.labels,
        notices=(*contents.notices, notice) if excluded.any() else contents.notices,
    )


def _positions(name: str, contents: Contents, kernel: Kernel, path: Path) -> NDArray[np.int64]:
    """Return the column of a parameter, with the positions of the kernel's labels in place of those of the table."""
    column = contents.columns[name]
    legal: Sequence[object] = kernel.space.labels[name] if name in kernel.space.labels else kernel.all_parameters[name]
    values: Sequence[object] = contents.labels[name] if name in contents.labels else np.unique(column).tolist()
    strange = [value for value in values if value not in legal]
    if strange:
        raise DatasetError(
            f"{path}: {name} has the values {printable(strange[:20], 300)}; its values in {kernel.name} are "
            f"{printable(list(legal), 500)}."
        )
    if name not in kernel.space.labels:
        return column
    places = np.array([legal.index(value) for value in values], dtype=np.int64)
    return places[column if name in contents.labels else np.unique(column, return_inverse=True)[1]]


def broken_restrictions(placed: PlacedKernel, columns: Columns) -> Iterator[tuple[str, NDArray[np.bool_]]]:
    """Yield the restrictions of a kernel that do not hold for all configurations, and for which they hold."""
    space = placed.kernel.space
    expressions = {restriction.text: restriction.expression for restriction in space.restrictions}
    for text, holds in space.evaluate(columns, placed.variables, expressions).items():
        if not holds.all():
            yield text, holds.astype(bool)
