"""The tables of a report, for its page and for its Markdown: a column is declared here once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mltune.records.declaration import drifts
from mltune.results.rating import speed
from mltune.results.run import TuneResult
from mltune.results.wording import MOST, RECORDED_PHASES, configuration, error, percent, spaced_duration
from mltune.show.report.evidence import TIME_USE, Evidence, time_use
from mltune.show.table import Column, Table, number, speeds

FASTEST = 5
"""Trials in the table of a run without finals."""

Entry = Mapping[str, Any]
"""An entry of ``winners`` in ``winners.json``."""

_BESIDE = {"time": "GPU", "compile": "compilers"}
"""Phases that run in parallel with the parts of the run time."""


def winners(entries: Sequence[Entry], reference: str) -> Table:
    """Return the table of the winner of each problem."""
    optimum = number("of optimum", ("optimum", "share"), percent, small=_rank)
    columns = [
        _problem(),
        *speeds(entries),
        number(f"of {reference}", ("reference", "share"), percent, small=_interval_of_reference, look="verdict"),
        number("of peak", "share_of_peak", percent),
        *([optimum] if any(entry["optimum"] for entry in entries) else []),
        number("ties", lambda entry: len(entry["ties"])),
        number("trials", "trials"),
        Column("notes", lambda entry: "; ".join(entry["notes"]), look="notes"),
        Column("configuration", "configuration", configuration, look="folded"),
    ]
    return Table([entry for entry in entries if entry["chosen"]], columns, sortable=True)


def kernels(entries: Sequence[Entry], reference: str) -> Table:
    """Return the table of the kernels that competed."""
    columns = [
        _problem("problem and kernel"),
        Column("accuracy", "accuracy"),
        number("speed", lambda entry: None if entry["median_s"] is None else speed(entry)),
        number(f"of {reference}", ("reference", "share"), percent),
        number("error", "error", error),
        number("trials", "trials"),
        number("time", lambda entry: entry["seconds"].get("total"), spaced_duration),
    ]
    return Table(entries, columns)


def predictions(entries: Sequence[Entry], evidence: Sequence[Evidence]) -> Table:
    """Return the table of predictions and skips by problem."""
    rows = [
        {**entry, "predictions": item.predictions, "audit": item.run.audit}
        for entry, item in zip(entries, evidence, strict=False)
    ]
    faster = number("faster than the winner", ("optimum", "skipped_faster"), small=_best_skipped)
    columns = [
        _problem(),
        number("predictions", lambda row: len(row["predictions"].measured)),
        number("rank correlation", lambda row: row["predictions"].rank_correlation, "{:.2f}".format),
        number("skipped", lambda row: row["audit"].skipped),
        number("measured to check", lambda row: row["audit"].audited),
        number("wrong", lambda row: row["audit"].false if row["audit"].audited else None),
        number("wrong at most", _false_at_most, lambda share: percent(share, 0)),
        *([faster] if any(entry["optimum"] for entry in entries) else []),
    ]
    return Table(rows, columns, sortable=True)


def times(entries: Sequence[Entry], total: Mapping[str, float]) -> Table:
    """Return the table of the seconds of each problem by phase; ``total`` has those of all together."""
    phases = {"total": "total", **{phase: part.split()[0] for phase, part in TIME_USE.items()}, **_BESIDE}
    recorded = RECORDED_PHASES if any(entry["replayed"] for entry in entries) else ()
    phases |= {phase: f"{phases[phase]}, recorded" for phase in recorded}
    unknown = dict.fromkeys(phases)

    def row(slug: str, label: str, seconds: Mapping[str, float]) -> dict[str, Any]:
        return {"slug": slug, "label": label, **unknown, **seconds, **time_use(seconds)}

    columns = [_problem(), *(number(heading, phase, spaced_duration) for phase, heading in phases.items())]
    rows = [row(entry["slug"], entry["label"], entry["seconds"]) for entry in entries if entry["seconds"]]
    return Table(rows, columns, sortable=True, total=row("", "all", total))


def deviations(entries: Sequence[Entry], evidence: Sequence[Evidence]) -> Table:
    """Return the table of the deviations of the reference kernel from its usual time."""
    rows = [
        {**entry, "drift": drift}
        for entry, item in zip(entries, evidence, strict=False)
        for drift in drifts(item.run.references)
    ]
    columns = [
        _problem(),
        Column("trials on record", lambda row: f"{row['drift'].first + 1} to {row['drift'].last}"),
        number("deviation", lambda row: 100 * (row["drift"].ratio - 1), "{:+.2f} %".format),
    ]
    return Table(rows, columns)


def events(listed: Sequence[tuple[str, str]]) -> Table:
    """Return the table of events, each with its day and its message."""
    return Table(listed, [Column("day", (0,), look="when"), Column("event", (1,))])


def finalists(entry: Entry, reference: str) -> Table:
    """Return the table of the finalists of a problem, and of the reference kernel where it was among them."""
    rows = []
    for finalist in entry["finalists"]:
        won, place = finalist["trial"] == entry["trial"], " (tie)" if finalist["tie"] else ""
        rows.append(
            {
                **finalist,
                "name": f"{finalist['trial']}{' (winner)' if won else place}",
                "ratio_interval": None if won else finalist["ratio_interval"],
                "differs": configuration(finalist["differs"]),
            }
        )
    raced = entry["reference"]
    if raced and raced["share_interval"]:
        ratio = {"ratio": raced["share"], "ratio_interval": raced["share_interval"]}
        rows.append({**raced, **ratio, "name": reference, "differs": ""})
    columns = [
        Column("trial", "name"),
        *speeds(rows),
        number("relative time", "ratio", lambda ratio: fixed(ratio, 4), small=_interval_of_ratio),
        Column("differences from the winner", "differs", look="code"),
    ]
    return Table(rows, columns)


def fastest(run: TuneResult) -> Table:
    """Return the table of the fastest trials of a run without finals."""
    rate = run.rate
    columns = [
        Column("trial", lambda record: record.number),
        number(rate.unit.name, lambda record: rate.of(record.median_s), rate.unit.write),
        Column("configuration", lambda record: record.configuration, configuration, look="code"),
    ]
    return Table(run.records.fastest(FASTEST), columns)


def _problem(heading: str = "problem") -> Column:
    """Return the column of problems, each with a link to its details."""
    return Column(heading, "label", link=lambda row: f"#p-{row['slug']}" if row["slug"] else "")


def _interval_of_reference(entry: Entry) -> str:
    return between(entry["reference"]["share_interval"], 100, 1) if entry["reference"] else ""


def _interval_of_ratio(row: Mapping[str, Any]) -> str:
    return between(row["ratio_interval"], 1, 4)


def _rank(entry: Entry) -> str:
    best = entry["optimum"]
    return f"rank {best['rank']:,} of {best['configurations']:,}" if best else ""


def _best_skipped(entry: Entry) -> str:
    ratio = entry["optimum"] and entry["optimum"]["best_skipped_ratio"]
    return f"the fastest in {percent(ratio)} of its time" if ratio else ""


def _false_at_most(row: Mapping[str, Any]) -> float | None:
    return row["audit"].false_share_at_most if row["audit"].audited else None


def between(interval: Sequence[float | None] | None, scale: float = 1.0, digits: int = 2) -> str:
    """Write an interval; nothing if there is none."""
    if interval is None or None in interval:
        return ""
    return "\N{EN DASH}".join(fixed(scale * end, digits) for end in interval if end is not None)


def fixed(value: float, digits: int) -> str:
    """Write a number with a fixed number of decimals, or with a power of ten if it is too large."""
    return f"{value:.{digits}f}" if abs(value) < MOST else f"{value:.{digits + 1}g}"
