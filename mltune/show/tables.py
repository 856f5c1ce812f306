"""Tables of results for the terminal, made from the JSON documents that the commands print with ``--json``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from mltune.files.text import many, printable
from mltune.results.rating import MS, rating_text, speed, unit_of, units_of
from mltune.results.wording import (
    REFERENCE,
    REPLAYED,
    UNKNOWN,
    configuration,
    duration,
    error,
    kernel_of_class,
    milliseconds,
    of_optimum,
    of_skipped,
    percent,
    phases,
    skip_check,
    spaced_duration,
    states,
    verification,
)
from mltune.show.table import Column, JsonObject, Table, facts, funnel, number, rated

if TYPE_CHECKING:
    from rich.console import RenderableType


def _run_facts(document: JsonObject, winner: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return the facts of a run."""
    skips = document["skips"]
    best = document.get("optimum")
    return [
        ("problem", f"{document['label']} on {document['device']['name']}"),
        ("kernel", kernel_of_class(document["kernel"], document["accuracy"])),
        ("trials", f"{document['trials']}: {states(document['counts'])}"),
        *([("notice", printable(document["notice"]))] if document["notice"] else []),
        *([("ended by itself", printable(document["stopped"]))] if document["stopped"] else []),
        *([("whole space", printable(document["whole"]))] if document.get("whole") and not document["stopped"] else []),
        *winner,
        *([("optimum", of_optimum(best))] if best else []),
        ("seconds", phases(document["seconds"], document["replayed"])),
        *([("skips", skip_check(skips))] if skips["skipped"] or skips["audited"] else []),
        *([("", of_skipped(best))] if best and best["skipped"] else []),
    ]


def tuned(document: JsonObject) -> list[RenderableType]:
    """Show the result of ``mltune tune``: of the fastest kernel, with a table of all that competed."""
    best = document["best"]
    winner = [("best", "none: no trial succeeded")]
    if best is not None:
        checked = verification(best.get("verified", False), document["replayed"])
        text = f"{speed(best)}, {checked}"
        if "interval_s" in best:
            text = _declared(best, document["reference"], checked)
        winner = [("best", text), ("", configuration(best["configuration"]))]
        winner += [("why" if not number else "", line) for number, line in enumerate(document.get("why", ()))]
    shown = facts([*_run_facts(document, winner), ("run", document["run"])])
    passed = funnel(document["funnel"], replayed=document["replayed"])
    return [shown, "", passed, *(["", _kernels(document)] if "kernels" in document else [])]


def _kernels(document: JsonObject) -> RenderableType:
    """Return the table of the competing kernels, the fastest first."""
    entries = document["kernels"]
    columns = [
        Column("kernel", "kernel"),
        Column("accuracy", "accuracy"),
        *rated(map(_best, entries), [document["reference"]], _best),
        number("error", "error", error),
        number("trials", "trials", spare=3),
        number("time", "seconds", duration, spare=2),
    ]
    return Table(entries, columns)


def _best(entry: JsonObject) -> JsonObject:
    """Return the rating of the best trial of a run; empty where there is none."""
    return entry["best"] or {}


def _declared(figures: JsonObject, reference: str, checked: str) -> str:
    """Write the figures of a declared winner with their intervals, whether it was verified, and its ties."""
    unit = unit_of(figures) or MS
    low, high = unit.interval(figures) or (UNKNOWN, UNKNOWN)
    text = f"{speed(figures)} ({low} to {high}, 95 %)"
    if unit is not MS:
        text += f", {milliseconds(figures['median_s'])}"
    if figures["share_of_peak"] is not None:
        text += f", {unit.of_limit(figures['share_of_peak'])}"
    share, interval = figures["share_of_reference"], figures["interval_share_of_reference"]
    if share is not None:
        text += f", {percent(share)} of {reference or REFERENCE}"
    if interval is not None:
        text += f" ({100 * interval[0]:.1f} to {100 * interval[1]:.1f})"
    return f"{text}, {checked}; ties: {', '.join(map(str, figures['ties'])) or 'none'}"


def _winner(document: JsonObject) -> str:
    """Write the declared winner, and the faster trials that failed the last verification."""
    declared, figures = document["declaration"], document["winner"]
    if declared is None:
        return "none declared yet"
    checked = verification(figures["verified"], document["replayed"])
    text = f"trial {declared['number']}: {_declared(figures, document['reference'], checked)}"
    if declared["rejected"]:
        text += f"; faster, but failed the last verification: {', '.join(map(str, declared['rejected']))}"
    later = document["trials"] - declared["as_of"]
    return f"{text}; {many(later, 'trial')} came later" if later else text


def run_summary(document: JsonObject) -> list[RenderableType]:
    """Show the result of ``mltune show``."""
    best = document["best"]
    table = facts([("run", document["run"]), *_run_facts(document, [("winner", _winner(document))])])
    shown: list[RenderableType] = [table, "", funnel(document["funnel"], replayed=document["replayed"]), ""]
    if not best:
        return [*shown, "No trial succeeded yet."]
    columns = [
        number("trial", "trial"),
        *rated(best, [document["reference"]]),
        *([] if MS in units_of(best) else [number("ms", MS.value, MS.write, spare=2)]),
        Column("configuration", "configuration", configuration, wraps=True),
    ]
    return [*shown, Table(best, columns)]


def campaign_summary(document: JsonObject) -> list[RenderableType]:
    """Show the result of ``mltune run``, and of ``mltune show`` on the directory of a campaign."""
    problems = document["problems"]
    several = any(entry["choice"] for entry in problems)
    columns = [
        Column("problem", "slug"),
        Column("state", "state", spare=6),
        *([Column("fastest", lambda entry: "yes" if entry["chosen"] else "")] if several else []),
        *rated(map(_best, problems), [entry["reference"] for entry in problems], _best, spare=(5, 3, 0)),
        *([Column("accuracy", "accuracy"), number("error", "error", error)] if several else []),
        number("trials", "trials", spare=4),
        number("time", lambda entry: entry["seconds"].get("total", 0.0), duration, spare=2),
        Column("by state", "counts", states, wraps=True, spare=1),
    ]
    running = "running" if document["running"] else "not running"
    replayed = any(entry["replayed"] for entry in problems)
    done, count = document["with_winner"], many(document["distinct"], "problem")
    title = f"{document['plan']}: {running}, {done} of {count} {'has' if done == 1 else 'have'} a winner"
    if replayed:
        title += f"; {REPLAYED}"
    details = [f"{entry['slug']}: {printable(entry['detail'])}" for entry in problems if entry["detail"]]
    passed = funnel(document["funnel"], replayed=replayed)
    return [title, "", Table(problems, columns), *(["", *details] if details else []), "", passed]


def pruned(document: JsonObject) -> RenderableType:
    """Show the result of a pruned sweep."""
    pruning = document["pruning"]
    valid, measured = pruning["valid"], pruning["measured"]
    promise = (
        f"nothing within {percent(pruning['within'])} of the best, {percent(pruning['confidence'])} confidence "
        f"({pruning['expected_missed']:.2g} expected by the model)"
    )
    audit = (
        f"{pruning['false']} of {pruning['audited']} fast; at most {percent(pruning['false_share_at_most'], 2)} of "
        "what is left out (95 % confidence)"
    )
    weakest = (
        f"{pruning['weakest_audited']:,} of {pruning['weakest_left_out']:,} audited; at most "
        f"{percent(pruning['weakest_share_at_most'])} of it is fast (95 % confidence); a hidden group of "
        f"{pruning['group']:,} would be met with at least {percent(pruning['confidence'])}, one of "
        f"{pruning['surely_met']:,} with 95 %"
    )
    seconds = (
        f"{duration(pruning['saved_s'])} saved: {duration(pruning['total_s'])} in place of about "
        f"{duration(pruning['complete_s'])} ({percent(pruning['total_s'] / pruning['complete_s'])})"
    )
    if pruning["replayed"]:
        seconds += f"; {duration(pruning['planning_s'])} of it are planning here, all else was recorded"
    return facts(
        [
            ("measured", f"{measured:,} of {valid:,} configurations ({percent(measured / valid)})"),
            ("unmeasured", promise),
            ("audit", audit),
            ("weakest part", weakest),
            ("time", seconds),
        ]
    )


def datasets(documents: Sequence[JsonObject]) -> RenderableType:
    """Show the result of ``mltune datasets``."""
    if not documents:
        return "No datasets."

    def best(entry: JsonObject) -> JsonObject:
        return {name.removeprefix("best_"): value for name, value in entry.items() if name.startswith("best_")}

    columns = [
        Column("dataset", "name"),
        Column("kernel", "kernel", spare=5),
        Column("problem", "label"),
        Column("device", "device", spare=4),
        Column("kind", "kind", spare=2),
        number("rows", "rows", "{:,}".format, spare=3),
        *rated(map(best, documents), [entry["reference"] for entry in documents], best, spare=(6, 7, 8)),
        Column("date", lambda entry: entry["created"][:10], spare=1),
    ]
    return Table(documents, columns)


def stored_runs(documents: Sequence[JsonObject]) -> RenderableType:
    """Show the result of ``mltune show`` on a database."""
    columns = [
        Column("run", lambda entry: entry["run"][:8]),
        Column("kernel", lambda entry: entry["kernel"] or "unreadable", spare=4),
        Column("problem", "label"),
        Column("device", "device", spare=3),
        number("trials", "trials", "{:,}".format),
        number("best", "best_s", milliseconds),
        Column("state", lambda entry: "running" if entry["running"] else ""),
        Column("owner", "owner", spare=5),
        Column("host", "host", spare=2),
        Column("begun", lambda entry: (entry["created"] or "")[:16].replace("T", " "), spare=1),
    ]
    return Table(documents, columns) if documents else "No runs."


def shapes(document: JsonObject) -> list[RenderableType]:
    """Show the result of ``mltune tune`` with ``--shapes``."""
    rows = document["shapes"]
    columns = [
        *(number(name, ("shape", name)) for name in rows[0]["shape"]),
        number("time", lambda row: row.get("median_s"), milliseconds),
        number("first configuration", lambda row: row.get("first_s"), milliseconds, spare=2),
        Column("configuration", lambda row: row.get("error") or configuration(row["configuration"]), wraps=True),
    ]
    summary = f"{sum('error' not in row for row in rows)} of {many(len(rows), 'shape')} tuned on {document['device']}"
    return [Table(rows, columns), summary, *(f"wrote {path}" for path in document["written"]), *document["notices"]]


def in_one_line(document: JsonObject) -> str:
    """Write the result of ``mltune tune`` or ``mltune run`` in one line."""
    if "problems" in document:
        return f"{document['with_winner']} of {many(document['distinct'], 'problem')} with a winner"
    best = document["best"]
    outcome = "no trial succeeded" if best is None else rating_text(best, document["reference"], of_limit=False)
    return f"{document['label']} on {document['device']['name']}: {outcome}"


def local_runs(documents: Sequence[JsonObject]) -> RenderableType:
    """Show the result of ``mltune show`` without a run."""

    def problem(entry: JsonObject) -> str | None:
        labels = entry["problems"]
        return many(len(labels), "problem") if len(labels) > 1 else next(iter(labels), None)

    columns = [
        Column("run", "run"),
        Column("problem", problem, spare=3),
        Column("state", "state"),
        number("trials", "trials", "{:,}".format, spare=2),
        number("best", "best", speed),
        Column("written", lambda entry: entry["written"][:16].replace("T", " "), spare=1),
        *([Column("detail", "detail", wraps=True)] if any(entry["detail"] for entry in documents) else []),
    ]
    return Table(documents, columns) if documents else "No runs in runs/ of this directory."


def training(document: JsonObject, report: bool = False) -> list[RenderableType]:
    """Show the result of ``mltune train``; with ``report`` all that is known of the quality of the model."""
    from mltune.cost.model_file import FEWEST_JUDGED, TOLERATED_LOSS

    scores = document["scores"]
    shown: list[RenderableType] = [f"written: {document['model']}", ""]
    shown += [_model_shares(document, report)] if document["datasets"] else []
    if scores:
        shown += [
            "",
            "Share of the optimum that the first choices reach, learned from other architectures or problems only.",
            f"Mean gain over physics alone: {document['gain']:+.3f}; "
            f"--prior auto uses a model unless it loses more than {TOLERATED_LOSS}.",
        ]
    else:
        shown += [
            "",
            f"Not judged: that takes a dataset of {FEWEST_JUDGED:,} configurations or more, and others of another "
            "architecture (or, where all are of one, of another problem), with CUDA both or neither.",
        ]
    if report and scores:
        quality = [
            Column("dataset", "name"),
            number("Spearman", "spearman", "{:.3f}".format),
            number("bias", "bias", "{:+.3f}".format),
            number("error", "error", "{:.3f}".format),
        ]
        shown += ["", Table([{"name": name, **score} for name, score in scores.items()], quality)]
        shown += ["", "bias, error: measured less predicted log of speed among the 5 % predicted to be the fastest"]
    if report:
        parts = [f"{name} {100 * share:.0f} %" for name, share in list(document["importance"].items())[:10]]
        shown += ["", f"parameters that carry it: {', '.join(parts)}"]
    return shown


def _model_shares(document: JsonObject, report: bool) -> RenderableType:
    """Return the table of the first choices' shares of the optimum, with ``report`` by every source of an order."""
    scores = document["scores"]
    counts = [*dict.fromkeys(count for score in scores.values() for count in score["share_of_optimum"]["model"])]
    rows = []
    for name, origin in document["datasets"].items():
        score = scores.get(name, {})
        shares = score.get("share_of_optimum", {})
        for source in (shares or [""]) if report else [next(reversed(shares), "")]:
            group = score.get("group", "")
            rows.append({"name": name, **origin, "group": group, "source": source, "shares": shares.get(source, {})})
    judged = [Column("left out", "group", spare=2), Column("order by", "source")] if scores else []
    columns = [
        Column("dataset", "name"),
        *(judged if report else [Column("device", "device", spare=3), Column("problem", "problem")]),
        number("rows", "rows", "{:,}".format, spare=1),
        *(number(f"best of {count}", partial(_model_share, count)) for count in counts),
    ]
    return Table(rows, columns)


def _model_share(count: str, row: JsonObject) -> str:
    return f"{row['shares'][count]:.3f}" if row["shares"] else "not judged"


def predicted(document: JsonObject) -> list[RenderableType]:
    """Show the result of ``mltune predict``."""
    choices = [{"rank": rank, **choice} for rank, choice in enumerate(document["choices"], 1)]
    columns = [
        number("", "rank"),
        Column("source", "source"),
        Column("configuration", lambda choice: configuration(choice["configuration"]), wraps=True),
    ]
    expected = document["expected"]
    quality = "how good such choices are has not been measured on recorded spaces"
    if expected:
        count, learned_from, by_model = (expected[name] for name in ("choices", "learned_from", "by_model"))
        source = f"the model, learned from {learned_from}," if learned_from else "physics alone"
        choice = "the first choice" if count == 1 else f"the best of the first {count}"
        quality = (
            f"ranked by {expected['source']}; {choice} by {source} reached {expected['share']:.3f} of the optimum "
            f"on the mean of {many(expected['held_out'], 'recorded space')} "
            f"(lowest to highest: {expected['least']:.3f} to {expected['most']:.3f})"
            f"{'' if by_model is None else f', with the model {by_model:.3f}: it is left out'}"
        )
    title = f"{document['problem']} on {document['device']}, {document['kernel']}, without a measurement"
    notes = (f"note: {notice}" for notice in document["notices"])
    return [title, "", Table(choices, columns), "", quality, _time_of_first(document), *notes]


def _time_of_first(document: JsonObject) -> str:
    """Write the expected time of the first choice, or why it is unknown."""
    prediction = document["time"]
    if prediction is None:
        return f"no time is given for the first choice: {document['no_time']}"
    time, least, most = (f"{1e3 * prediction[name]:.3g} ms" for name in ("time_s", "least_s", "most_s"))
    few = "only " if prediction["sweeps"] < 20 else ""
    return (
        f"expected time of the first choice: {time}, with a probability of "
        f"{percent(prediction['confidence'], 0)} between {least} and {most}; learned from "
        f"{few}{prediction['sweeps']} recorded sweeps of similar size, "
        f"of which {prediction['inside']} lay in the interval from the others"
    )


FEWEST_EVALUATIONS = 25
"""Fewest evaluations with a fraction of the optimum on a terminal; the page has the first ones, too."""


def comparison(document: JsonObject) -> list[RenderableType]:
    """Show the result of ``mltune compare``."""
    strategies = [{"name": name, **figures} for name, figures in document["strategies"].items()]
    first: JsonObject = strategies[0] if strategies else {"at": {}, "to": {}}
    curves = [
        *(number(f"at {at}", ("at", at), "{:.3f}".format) for at in first["at"] if int(at) >= FEWEST_EVALUATIONS),
        *(number(f"to {100 * float(share):.0f} %", partial(_reached, "evaluations", share)) for share in first["to"]),
    ]
    columns = [
        Column("strategy", "name"),
        number("score", "score", "{:.3f}".format),
        *(replace(column, spare=3 + at) for at, column in enumerate(curves)),
        number("own ms", lambda row: 1e3 * row["seconds"]["own_per_evaluation"], "{:.2f}".format, spare=1),
        number("seeds", "seeds", spare=2),
    ]
    spaces = many(len(document["datasets"]), "recorded space")
    legend = (
        "score: 0 is random search, 1 the optimum at once\n"
        "at N: the best after N evaluations, as a fraction of the optimum\n"
        "to N %: evaluations until that fraction, and the share of runs that got there\n"
        "own ms: milliseconds of the strategy's own work per evaluation"
    )
    title = f"{spaces}, at most {document['evaluations']} evaluations a run"
    return [title, "", Table(strategies, columns), "", legend, *_over_time(document)]


def _over_time(document: JsonObject) -> list[RenderableType]:
    """Show the scores over time of ``mltune compare``."""
    named_curves = [(name, strategy["over_time"]) for name, strategy in document["strategies"].items()]
    rows = [
        {"name": name, "cores": cores, **figures} for name, curves in named_curves for cores, figures in curves.items()
    ]
    if not rows:
        return []
    columns = [
        Column("strategy", "name"),
        number("compile cores", "cores"),
        number("score", "score", "{:.3f}".format),
        *(number(f"s to {100 * float(share):.0f} %", partial(_reached, "seconds", share)) for share in rows[0]["to"]),
    ]
    legend = (
        "score: as above, with the best at the time in which random search, one by one, makes N evaluations\n"
        "s to N %: seconds of a simulated clock until that fraction of the optimum"
    )
    return ["", Table(rows, columns), "", legend]


def _reached(unit: str, share: str, strategy: JsonObject) -> str:
    reached = strategy["to"][share]
    return f"{round(reached[unit], 2):g} ({100 * reached['reached']:.0f} %)"


def wisdom(document: JsonObject) -> Iterator[RenderableType]:
    """Show the result of ``mltune wisdom show``."""
    if not document["best"]:
        yield f"No entries in {printable(document['wisdom'])}."
        return
    columns = [
        Column("kernel", "kernel"),
        Column("accuracy", "accuracy", spare=4),
        Column("problem", "label"),
        Column("device", ("device", "name"), spare=3),
        Column("driver", lambda entry: entry["driver"] or None, spare=2),
        number("time", "median_s", milliseconds),
        Column("date", lambda entry: entry["measured_at"][:10], spare=1),
        Column("configuration", "configuration", configuration, wraps=True),
    ]
    yield Table(document["best"], columns)


def wisdom_check(document: JsonObject) -> Iterator[RenderableType]:
    """Show the result of ``mltune wisdom check``."""
    entries = document["entries"]
    columns = [
        Column("kernel", "kernel"),
        Column("problem", "label"),
        Column("verdict", "verdict"),
        number("recorded", "recorded_s", milliseconds, spare=2),
        number("now", "median_s", milliseconds),
        number("default", "default_s", milliseconds, spare=1),
        Column("reason", lambda entry: entry["detail"] or None, wraps=True),
    ]
    if entries:
        yield Table(entries, columns)
        yield ""
    yield f"{many(len(entries), 'entry')}, {document['measured']} measured, {document['misses']} missed"


def forecast(document: JsonObject) -> Iterator[RenderableType]:
    """Show the result of ``mltune plan``."""
    unit, problems = document["unit"], document["problems"]

    def amount(value: float) -> str:
        return many(round(value), "trial") if unit == "trials" else spaced_duration(value)

    count, devices = many(len(problems), "problem"), _devices(document)
    yield f"{document['title']}: {count}, {amount(document['budget'])}, on {devices}"
    if document["obstacle"]:
        replayed = sum(problem["recorded"] is not None for problem in problems)
        yield f"It cannot run here: {document['obstacle']}"
        yield f"Timings of {replayed} of {count} are recorded. The table below is for one GPU."
    yield ""
    columns = [
        Column("problem", "slug"),
        number("priority", "priority", "{:g}".format, spare=2),
        number("minimum", "minimum", amount),
        number("even share", "share", amount, spare=4),
        number("trials in it", lambda row: "unknown" if row["trials"] is None else row["trials"], spare=5),
        number("operands", "operand_bytes", _bytes, spare=1),
        Column("recorded timings", "recorded", spare=3),
    ]
    yield Table(problems, columns)
    yield ""
    yield (
        f"Every problem has its minimum after {amount(document['first_round'])}; the rest of "
        f"{amount(document['budget'])} goes to the problems with the largest expected gain."
    )
    sources = sorted({problem["rate_from"] for problem in problems if problem["rate_from"]})
    if sources:
        yield (
            f"Trials are upper bounds for {many(document['cores'], 'core')}, from the time per trial in the recordings "
            f"{', '.join(sources)}."
        )
    yield f"Written to the run directory: {', '.join(document['writes'])}"


def _devices(document: JsonObject) -> str:
    """Write the devices of a plan."""
    if document["obstacle"]:
        return "a GPU"
    if document["devices"][0]["spec"] == "replay":
        return "recorded timings"
    return ", ".join(f"{device['spec']} ({device['name']})" for device in document["devices"])


def _bytes(count: int) -> str:
    return f"{count / 1e9:.2f} GB" if count >= 1e8 else f"{count / 1e6:.2f} MB"
