"""Reader of CLBlast's tuning results: the output of a tuner, and the database that collects many of them.

The formats are those that `PrintTimingsToFileAsJSON` of CLBlast's tuners writes, and `compress_database` of its
database scripts. Both hold only configurations that ran and were right; times are in milliseconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mltune.dataset.cells import typed
from mltune.errors import DatasetError
from mltune.files.text import printable

Outcome = tuple[object, str, object, object]
"""Time, state, compile time and benchmark time of a configuration, milliseconds; None where unknown."""

_PRECISION = "PRECISION"
_MOST_SHOWN = 20


def is_clblast(document: Mapping[str, Any]) -> bool:
    """Return whether a JSON document is CLBlast's database or the output of one of its tuners."""
    results = document.get("results")
    return "sections" in document or (
        isinstance(results, list) and bool(results) and isinstance(results[0], dict) and "parameters" in results[0]
    )


def read_clblast(
    document: Mapping[str, Any], section: Mapping[str, str]
) -> tuple[list[str], list[dict[str, Any]], list[Outcome]]:
    """Return the parameters of one section, its configurations and their outcomes.

    The parameter PRECISION, which is the same in all rows, is left out.
    """
    if "sections" not in document:
        rows = document["results"]
        entries = [{name: value for name, value in one["parameters"].items() if name != _PRECISION} for one in rows]
        times = [one["time"] for one in rows]
    else:
        chosen = _chosen(document["sections"], section)
        names = [str(name) for name in chosen["parameter_names"]]
        texts = [str(values).split(",") for values, _ in chosen["results"]]
        columns = [typed(column) for column in zip(*texts, strict=True)]
        entries = [dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True)]
        times = [time for _, time in chosen["results"]]
    return [*entries[0]] if entries else [], entries, [(time, "ok", None, None) for time in times]


def _chosen(sections: list[dict[str, Any]], fields: Mapping[str, str]) -> dict[str, Any]:
    """Return the one section that has some fields."""
    found = [one for one in sections if all(str(one.get(name)) == value for name, value in fields.items())]
    if len(found) == 1:
        return found[0]
    among = found or sections
    texts = [name for name in among[0] if name not in ("results", "parameter_names")] if among else []
    values = {name: sorted({str(one.get(name)) for one in among}) for name in texts}
    differing = "; ".join(
        f"{name}: {', '.join(printable(value, 60) for value in known[:_MOST_SHOWN])}"
        for name, known in values.items()
        if len(known) > 1 or not found
    )
    wanted = ", ".join(f"{name}={value}" for name, value in fields.items())
    facts = f"{len(found)} of {len(sections)} have {printable(wanted, 300)}" if fields else f"there are {len(sections)}"
    raise DatasetError(
        f"one section of the database is imported, chosen with --section NAME=VALUE, but {facts}; "
        f"{printable(differing, longest=2000)}"
    )
