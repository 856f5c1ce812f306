"""Reader of bare tables: the distinct configurations in a CSV, Parquet or JSON file, with their times and states."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mltune.dataset.cells import NOT_MEASURED, Cells, known_times, parameter, states, times
from mltune.dataset.foreign import Outcomes
from mltune.dataset.formats import Layout, RawTable, read_raw
from mltune.dataset.merging import merge
from mltune.dataset.parquet import schema
from mltune.errors import DatasetError
from mltune.files.text import printable
from mltune.kernel.columns import Columns, number_rows
from mltune.process.bounded import BoundsExceededError, call_bounded
from mltune.records.trial import TrialState

SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
"""Units of time, in seconds."""

_SMALL = 1_000_000
"""Largest file of text, bytes, that is read in this process: it does not unfold to much more."""


@dataclass(frozen=True, eq=False)
class Contents:
    """The distinct configurations of a table.

    Attributes
    ----------
    labels : mapping of str to tuple
        For each parameter with values other than integers, the values of the codes 0, 1, ...
    account : str
        What was read: ``"2,000 rows, 21 distinct, 896 failed"``.
    notices : tuple of str
        What the user should know about it, such as contradictory rows.
    """

    columns: Columns
    outcomes: Outcomes
    labels: Mapping[str, tuple[int | float | str, ...]]
    account: str
    notices: tuple[str, ...]


def read_contents(path: Path, layout: Layout) -> Contents:
    """Read what a table holds, with limits on memory and time; see :func:`mltune.dataset.importing.read_table`."""
    if path.suffix.lower() in (".csv", ".json") and path.is_file() and path.stat().st_size <= _SMALL:
        return contents_of(path, layout)
    try:
        contents: Contents = call_bounded(
            f"{__name__}:contents_of", path, layout, imports=("pyarrow.parquet", "pyarrow.csv")
        )
    except BoundsExceededError as error:
        raise DatasetError(f"{path}: the table cannot be read: {printable(error, longest=300)}.") from error
    return contents


def contents_of(path: Path, layout: Layout) -> Contents:
    """Return what a table holds, without limits; see :func:`read_contents`."""
    try:
        return _contents(read_raw(path, layout), layout)
    except DatasetError as error:
        raise DatasetError(f"{path}: {error}.") from error


def _contents(raw: RawTable, layout: Layout) -> Contents:
    rows = len(raw.time.codes)
    state, unknown = states(raw.status or Cells("", np.zeros(rows, dtype=np.int32), ["ok"]))
    failed = state != TrialState.OK
    time_s, timed = times(raw.time, _unit(raw.time, layout.time_unit), failed)
    state = np.where(failed, state, timed)
    compile_s, benchmark_s = (
        np.zeros(rows) if cells is None else known_times(cells, _unit(cells, None))
        for cells in (raw.compile_time, raw.benchmark_time)
    )
    measured = np.flatnonzero(~np.isin(state, list(NOT_MEASURED)))
    if not len(measured):
        raise DatasetError(f"a table must hold at least one measured configuration, but none of {rows:,} rows is one")
    state = state[measured]
    parameters = [parameter(cells[measured]) for cells in raw.parameters]
    others = [cells[measured] for cells in raw.others]
    number, _ = number_rows([one.codes for one in parameters], [len(one.integers) for one in parameters])
    merged = merge(number, state, time_s[measured], () if layout.aggregate else others)
    first = merged.first
    account = f"{rows:,} rows, {len(first):,} distinct, {(state != TrialState.OK).sum():,} failed"
    if len(measured) < rows:
        account += f", {rows - len(measured):,} not measured"
    words = f"the states {', '.join(map(repr, unknown[:20]))} are not known, and count as failures" if unknown else ""
    names = _legal_names([one.name for one in parameters])
    return Contents(
        {name: one.integers[one.codes[first]] for name, one in zip(names, parameters, strict=True)},
        Outcomes(state[first], merged.median_s, compile_s[measured][first], benchmark_s[measured][first]),
        {name: one.values for name, one in zip(names, parameters, strict=True) if one.values is not None},
        account,
        tuple(filter(None, (raw.notice, words, *merged.notices))),
    )


def slug(text: str) -> str:
    """Return a name for a dataset: lower-case letters, digits, ``_`` and ``-``."""
    return re.sub(r"[^a-z0-9_-]+", "-", text.lower()).strip("-_")[:60] or "table"


def _unit(cells: Cells, unit: str | None) -> float:
    """Return the length of a unit in seconds; by default that of the suffix of the column's name."""
    if unit is None:
        suffix = re.search(r"(?:^|[_\s([.-])(s|ms|us|ns)[)\]]?$", cells.name)
        unit = suffix[1] if suffix else None
    if unit is None or unit not in SECONDS:
        raise DatasetError(
            f"a time has a unit ({', '.join(SECONDS)}), but the name of the column {printable(cells.name)!r} does not "
            f"end in one; rename it, for instance to {printable(cells.name)}_ms"
        )
    return SECONDS[unit]


def _legal_names(given: Sequence[str]) -> list[str]:
    """Return a legal parameter name for each column: its own where possible."""
    names: list[str] = []
    taken = {name.lower() for name in schema(()).names}
    for column in given:
        name = re.sub(r"\W", "_", column, flags=re.ASCII).lstrip("_0123456789")[:50] or "parameter"
        while name.lower() in taken:
            name += "_"
        taken.add(name.lower())
        names.append(name)
    return names
