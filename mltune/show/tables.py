"""Tables of results for the terminal, made from the JSON documents that the commands print with ``--json``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from mltune.device.facts import Device
from mltune.files.text import printable
from mltune.problem.accuracy import STRICTEST
from mltune.problem.kinds import problem_from_json
from mltune.records.declaration import Declaration
from mltune.results.rating import MS, Unit, declared_rating, speed, unit_of, units_of
from mltune.results.wording import (
    REFERENCE,
    REPLAYED,
    UNKNOWN,
    configuration,
    duration,
    error,
    milliseconds,
    of_optimum,
    percent,
    spaced_duration,
    states,
    verification,
)
from mltune.show.fitting_table import FittingTable
from mltune.show.measured import measured

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

Document = Mapping[str, Any]


def of_reference(names: Iterable[str]) -> str:
    """Return the heading of a column with shares of reference kernels, from the names of these."""
    known = set(filter(None, names))
    return f">of {known.pop() if len(known) == 1 else 'reference'}"


def _facts(rows: Iterable[tuple[str, str]]) -> Table:
    """Return a table of names and values without a header."""
    from rich.table import Table

    made = Table.grid(padding=(0, 2, 0, 0))
    made.add_column(no_wrap=True)
    made.add_column(overflow="fold")
    for name, value in rows:
        made.add_row(name, value)
    return made


def _problem(document: Document) -> Any:
    """Return the problem of a document."""
    return problem_from_json(document["problem"])


def _run_facts(document: Document, winner: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return the facts of a run."""
    skips = document["skips"]
    skipped = f"{skips['before_compile']} before compiling, {skips['after_compile']} after"
    if skips["audited"]:
        bound = percent(skips["false_share_at_most"])
        skipped += f"; wrong: {skips['false']} of {skips['audited']} audited (at most {bound}, 95 % confidence)"
    if skips["skipped"]:
        skipped += f"; saved {skips['saved_time_s']:.1f} s, less {skips['search_s']:.1f} s of searching"
    strictest = document["accuracy"] == STRICTEST
    return [
        ("problem", f"{_problem(document).label} on {document['device']['name']}"),
        ("kernel", document["kernel"] + ("" if strictest else f" ({document['accuracy']})")),
        ("trials", f"{document['trials']}: {states(document['counts'])}"),
        *([("notice", printable(document["notice"]))] if document["notice"] else []),
        *([("ended by itself", printable(document["stopped"]))] if document["stopped"] else []),
        *winner,
        *([("optimum", of_optimum(document["optimum"]))] if document.get("optimum") else []),
        ("seconds", ", ".join(f"{phase} {value:.1f}" for phase, value in document["seconds"].items())),
        ("skipped", skipped),
    ]


def tuned(document: Document) -> list[RenderableType]:
    """Show the result of ``mltune tune``: of the fastest kernel, and where several compete a table of all."""
    best = document["best"]
    winner = [("best", "none: no trial succeeded")]
    if best is not None:
        reference = _problem(document).reference
        checked = verification(best.get("verified", False), document["replayed"])
        text = _declared(best, reference, checked) if "interval_s" in best else f"{speed(best)}, {checked}"
        winner = [("best", text), ("", configuration(best["configuration"]))]
    facts = _facts([*_run_facts(document, winner), ("run", document["run"])])
    return [facts, "", _kernels(document)] if "kernels" in document else [facts]


def _kernels(document: Document) -> RenderableType:
    """Return the table of the kernels that competed, the fastest first."""
    entries, reference = document["kernels"], of_reference([_problem(document).reference])
    units = units_of(entry["best"] or {} for entry in entries)
    rows = [
        {
            "kernel": entry["kernel"],
            "accuracy": entry["accuracy"],
            **rated(entry["best"] or {}, units, reference),
            ">error": error(entry["error"]),
            ">trials": str(entry["trials"]),
            ">time": duration(entry["seconds"]),
        }
        for entry in entries
    ]
    return FittingTable(rows, spare=[">of peak", ">time", ">trials"])


def _declared(figures: Document, reference: str, checked: str) -> str:
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


def _winner(document: Document) -> str:
    """Write the declared winner, and the faster trials that failed the last verification."""
    if document["declaration"] is None:
        return "none declared yet"
    declared, problem = Declaration.from_json(document["declaration"]), _problem(document)
    figures = declared_rating(problem, Device.from_json(document["device"]), declared, None)
    checked = verification(declared.verified, document["replayed"])
    text = f"trial {declared.number}: {_declared(figures, problem.reference, checked)}"
    if declared.rejected:
        text += f"; faster, but failed the last verification: {', '.join(map(str, declared.rejected))}"
    later = document["trials"] - declared.as_of
    return f"{text}; {later} trials came later" if later else text


def run_summary(document: Document) -> list[RenderableType]:
    """Show the result of ``mltune show``."""
    facts = _facts([("run", document["run"]), *_run_facts(document, [("winner", _winner(document))])])
    if not document["best"]:
        return [facts, "", "No trial succeeded yet."]
    reference, units = of_reference([_problem(document).reference]), units_of(document["best"])
    rows = [
        {
            ">trial": str(entry["trial"]),
            **rated(entry, units, reference),
            ">ms": MS.text(entry),
            "configuration": configuration(entry["configuration"]),
        }
        for entry in document["best"]
    ]
    return [
        facts,
        "",
        FittingTable(rows, texts=["configuration"], spare=[">of peak", *([] if MS in units else [">ms"])]),
    ]


def campaign_summary(document: Document) -> list[RenderableType]:
    """Show the result of ``mltune run``, and of ``mltune show`` on the directory of a campaign."""
    reference = of_reference(_problem(entry).reference for entry in document["problems"] if entry["problem"])
    units = units_of(entry["best"] or {} for entry in document["problems"])
    several = any(entry["choice"] for entry in document["problems"])
    rows = [
        {
            "problem": entry["slug"],
            "state": entry["state"],
            **({"fastest": "yes" if entry["chosen"] else ""} if several else {}),
            **rated(entry["best"] or {}, units, reference),
            **({"accuracy": entry["accuracy"] or UNKNOWN, ">error": error(entry["error"])} if several else {}),
            ">trials": f"{entry['trials']}",
            ">time": duration(entry["seconds"].get("total", 0.0)),
            "by state": states(entry["counts"]),
        }
        for entry in document["problems"]
    ]
    running = "running" if document["running"] else "not running"
    done, count = document["with_winner"], document["distinct"]
    facts = f"{document['plan']}: {running}, {done} of {count} problems have a winner"
    if any(entry["replayed"] for entry in document["problems"]):
        facts += f"; {REPLAYED}"
    details = [f"{entry['slug']}: {printable(entry['detail'])}" for entry in document["problems"] if entry["detail"]]
    spare = ["by state", ">time", ">of peak", ">trials", reference, "state"]
    return [facts, "", FittingTable(rows, texts=["by state"], spare=spare), *(["", *details] if details else [])]


def rated(figures: Document, units: Sequence[Unit], reference: str) -> dict[str, str]:
    """Write a rating as columns of a table: one for each unit of its ratings, then the shares of reference and limit.

    Parameters
    ----------
    figures : mapping
        See :func:`mltune.results.rating.rating`; empty where nothing is known.
    units : sequence of Unit
        See :func:`mltune.results.rating.units_of`; without any, the column is called speed.
    reference : str
        See :func:`of_reference`.
    """
    own = unit_of(figures)
    speeds = {f">{unit.name}": unit.text(figures) if unit == own else UNKNOWN for unit in units}
    return {
        **(speeds or {">speed": UNKNOWN}),
        reference: percent(figures.get("share_of_reference")),
        ">of peak": percent(figures.get("share_of_peak")),
    }


def pruned(document: Document) -> Table:
    """Return the result of a pruned sweep as a table."""
    found = document["pruning"]
    valid, measured = found["valid"], found["measured"]
    promise = (
        f"nothing within {percent(found['within'])} of the best, {percent(found['confidence'])} confidence "
        f"({found['expected_missed']:.2g} expected by the model)"
    )
    audit = (
        f"{found['false']} of {found['audited']} fast; at most {percent(found['false_share_at_most'], 2)} of what is "
        "left out (95 % confidence)"
    )
    seconds = (
        f"{duration(found['saved_s'])} saved: {duration(found['total_s'])} in place of about "
        f"{duration(found['complete_s'])} ({percent(found['total_s'] / found['complete_s'])})"
    )
    return _facts(
        [
            ("measured", f"{measured:,} of {valid:,} configurations ({percent(measured / valid)})"),
            ("unmeasured", promise),
            ("audit", audit),
            ("time", seconds),
        ]
    )


def space(document: Document) -> list[RenderableType]:
    """Show the result of ``mltune space``."""
    facts = _facts(
        [
            ("kernel", f"{document['kernel']} for {_problem(document).label} on {document['device']['name']}"),
            ("source", "in the bundle" if document["has_source"] else "none: it can be replayed, but not built"),
            ("combinations", f"{document['combinations']:,}"),
            ("valid", f"{document['valid']:,}"),
        ]
    )
    parameters = [
        {"parameter": name, ">values": str(len(values)), "": " ".join(map(str, values))}
        for name, values in document["parameters"].items()
    ]
    restrictions = [
        {
            ">removes": percent(entry["removes"]),
            ">only this": percent(entry["removes_alone"]),
            "restriction": entry["restriction"],
            "reason": entry["reason"],
        }
        for entry in document["restrictions"]
    ]
    columns = (">removes", ">only this", "restriction", "reason")
    explained = FittingTable(restrictions, texts=columns[2:], spare=columns[1:2], empty=columns)
    faults = [f"wrong: {fault}" for fault in document["faults"]]
    return [facts, *faults, "", FittingTable(parameters, texts=[""]), "", explained]


def datasets(documents: Sequence[Document]) -> RenderableType:
    """Show the result of ``mltune datasets``."""
    if not documents:
        return "No datasets."
    reference = of_reference(_problem(entry).reference for entry in documents)
    best = [{name.removeprefix("best_"): value for name, value in entry.items()} for entry in documents]
    units = units_of(best)
    rows = [
        {
            "dataset": entry["name"],
            "kernel": entry["kernel"],
            "problem": entry["label"],
            "device": entry["device"],
            "kind": entry["kind"],
            ">rows": f"{entry['rows']:,}",
            **rated(figures, units, reference),
            "date": entry["created"][:10],
        }
        for entry, figures in zip(documents, best, strict=True)
    ]
    spare = [
        "date",
        "kind",
        ">rows",
        "device",
        "kernel",
        reference,
        ">of peak",
        *(f">{unit.name}" for unit in units[:0:-1]),
    ]
    return FittingTable(rows, spare=spare)


def stored_runs(documents: Sequence[Document]) -> RenderableType:
    """Show the result of ``mltune show`` on a database."""
    rows = [
        {
            "run": entry["run"][:8],
            "kernel": entry["kernel"] or "unreadable",
            "problem": entry["label"] or "",
            "device": entry["device"] or "",
            ">trials": f"{entry['trials']:,}",
            ">best": UNKNOWN if entry["best_s"] is None else milliseconds(entry["best_s"]),
            "state": "running" if entry["running"] else "",
            "owner": entry["owner"],
            "host": entry["host"],
            "begun": entry["created"][:16].replace("T", " "),
        }
        for entry in documents
    ]
    return FittingTable(rows, spare=["begun", "host", "device", "kernel", "owner"]) if rows else "No runs."


def training(document: Document, report: bool = False) -> list[RenderableType]:
    """Show the result of ``mltune train``; with ``report`` all that is known of the quality of the model."""
    from mltune.cost.model_choice import TOLERATED_LOSS
    from mltune.cost.training import FEWEST_JUDGED

    scores = document["scores"]
    counts = [*dict.fromkeys(count for one in scores.values() for count in one["share_of_optimum"]["model"])]
    rows = []
    for name, origin in document["datasets"].items():
        score = scores.get(name, {})
        shares = score.get("share_of_optimum", {})
        for source in (shares or [""]) if report else [next(reversed(shares), "")]:
            rows.append(
                {
                    "dataset": name,
                    **({"left out": score.get("group", ""), "order by": source} if report and scores else {}),
                    **({} if report else {"device": origin["device"], "problem": origin["problem"]}),
                    ">rows": f"{origin['rows']:,}",
                    **{
                        f">best of {count}": f"{shares[source][count]:.3f}" if source else "not judged"
                        for count in counts
                    },
                }
            )
    shown: list[RenderableType] = [f"written: {document['model']}", ""]
    shown += [FittingTable(rows, spare=[">rows", "left out", "device"])] if rows else []
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
            {
                "dataset": name,
                ">Spearman": f"{score['spearman']:.3f}",
                ">bias": f"{score['bias']:+.3f}",
                ">error": f"{score['error']:.3f}",
            }
            for name, score in scores.items()
        ]
        shown += ["", FittingTable(quality)]
        shown += ["", "bias, error: measured less predicted log of speed among the 5 % predicted to be the fastest"]
    if report:
        parts = [f"{name} {share:.0%}" for name, share in list(document["importance"].items())[:10]]
        shown += ["", f"parameters that carry it: {', '.join(parts)}"]
    return shown


def predicted(document: Document) -> list[RenderableType]:
    """Show the result of ``mltune predict``."""
    rows = [
        {">": str(rank), "source": one["source"], **{f">{name}": str(v) for name, v in one["configuration"].items()}}
        for rank, one in enumerate(document["choices"], 1)
    ]
    expected = document["expected"]
    quality = "how good such choices are has not been measured on recorded spaces"
    if expected:
        count, of_model = expected["choices"], expected["source"] == "model"
        quality = (
            f"{'' if of_model else 'no model is used; by physics alone, '}"
            f"{'the first choice' if count == 1 else f'the best of the first {count} choices'} reached "
            f"{expected['share']:.3f} of the optimum on the mean of {expected['held_out']} "
            f"{'spaces that the model had not seen' if of_model else 'recorded spaces'} "
            f"(lowest to highest: {expected['least']:.3f} to {expected['most']:.3f})"
        )
    title = f"{document['problem']} on {document['device']}, {document['kernel']}, without a measurement"
    return [title, "", FittingTable(rows), "", quality, *(f"note: {notice}" for notice in document["notices"])]


def comparison(document: Document) -> list[RenderableType]:
    """Show the result of ``mltune compare``."""
    rows = [
        {
            "strategy": name,
            ">score": f"{found['score']:.3f}",
            **{f">at {at}": f"{value:.3f}" for at, value in found["at"].items()},
            **{
                f">to {100 * float(share):.0f} %": f"{to['evaluations']:.0f} ({to['reached']:.0%})"
                for share, to in found["to"].items()
            },
            ">own ms": f"{1e3 * found['seconds']['own_per_evaluation']:.2f}",
            ">seeds": str(found["seeds"]),
        }
        for name, found in document["strategies"].items()
    ]
    count = len(document["datasets"])
    spaces = f"{count} recorded space{'s'[: count != 1]}, at most {document['evaluations']} evaluations a run"
    legend = (
        "score: 0 is random search, 1 the optimum at once\n"
        "at N: the best after N evaluations, as a fraction of the optimum\n"
        "to N %: evaluations until that fraction, and the share of runs that got there\n"
        "own ms: milliseconds of the strategy's own work per evaluation"
    )
    spare = [">own ms", ">seeds", *(name for name in next(iter(rows), ()) if name.startswith((">to", ">at")))]
    return [spaces, "", FittingTable(rows, spare=spare), "", legend]


def devices(document: Document) -> Iterator[RenderableType]:
    """Show the result of ``mltune device``."""
    if document["devices"]:
        rows = [
            {
                "device": entry["spec"],
                "name": entry["device"]["name"],
                "architecture": entry["architecture"],
                ">SMs": str(entry["device"]["sm_count"]),
                ">clock": f"{entry['device']['clock_hz'] / 1e6:.0f} MHz",
                ">memory": f"{entry['device']['memory_bytes'] / 2**30:.0f} GiB",
                ">FP32 TFLOPS": f"{entry['peak_flops']['fp32'] / 1e12:.1f}",
                ">FP64 TFLOPS": f"{entry['peak_flops']['fp64'] / 1e12:.1f}",
            }
            for entry in document["devices"]
        ]
        yield FittingTable(rows, spare=[">clock", ">SMs", "architecture", ">FP64 TFLOPS", ">memory"])
    else:
        yield f"no GPU found: {document['reason']}"
    for entry in document["devices"]:
        if entry["device"].get("measured"):
            yield ""
            yield from measured(entry, document.get("unmeasured", {}))
    if not document["libraries"]:
        return
    yield ""
    libraries = [
        {"library": entry["name"], "version": entry["version"] or "not found", "path": entry["path"] or UNKNOWN}
        for entry in document["libraries"]
    ]
    yield FittingTable(libraries, texts=["path"])
    problems = [problem for problem in document["problems"] if problem != document["reason"]]
    yield from ["", *(f"problem: {problem}" for problem in problems)] if problems else ()


def cluster(document: Document) -> Iterator[RenderableType]:
    """Show the result of ``mltune cluster check``."""
    rows = [
        {
            "worker": entry["name"],
            "address": entry["address"],
            "resources": ", ".join(f"{name} {count:g}" for name, count in entry["resources"].items()),
            "versions": ", ".join(f"{name} {value}" for name, value in entry["versions"].items()),
            "as here": "yes" if entry["fits"] else "no",
            "device": entry["device"] or "",
        }
        for entry in document["workers"]
    ]
    yield f"scheduler {printable(document['scheduler'])}, {len(rows)} workers with a GPU or that compile"
    if document["latency_s"] is not None:
        yield f"latency {document['latency_s'] * 1e3:.1f} ms"
    if rows:
        yield FittingTable(rows, texts=["address", "versions"])
    rate = document["compile"]
    if rate is None:
        yield "no worker compiles with the versions of this host"
    else:
        yield (
            f"{rate['per_second']:.1f} configurations/s on {rate['cores']} cores "
            f"({rate['builds']} builds of gemm_simt in {rate['seconds']:.1f} s)"
        )


def wisdom(document: Document) -> Iterator[RenderableType]:
    """Show the result of ``mltune wisdom show``."""
    if not document["best"]:
        yield f"No entries in {printable(document['wisdom'])}."
        return
    rows = [
        {
            "kernel": entry["kernel"],
            "accuracy": entry["accuracy"],
            "problem": entry["label"],
            "device": entry["device"]["name"],
            "driver": entry["driver"] or UNKNOWN,
            ">time": milliseconds(entry["median_s"]),
            "date": entry["measured_at"][:10],
            "configuration": configuration(entry["configuration"]),
        }
        for entry in document["best"]
    ]
    yield FittingTable(rows, texts=["configuration"], spare=["date", "driver", "device", "accuracy"])


def wisdom_check(document: Document) -> Iterator[RenderableType]:
    """Show the result of ``mltune wisdom check``."""
    rows = [
        {
            "kernel": entry["kernel"],
            "problem": entry["label"],
            "verdict": entry["verdict"],
            ">recorded": milliseconds(entry["recorded_s"]),
            ">now": milliseconds(entry["median_s"]),
            ">default": milliseconds(entry["default_s"]),
            "reason": entry["detail"] or UNKNOWN,
        }
        for entry in document["entries"]
    ]
    if rows:
        yield FittingTable(rows, texts=["reason"], spare=[">default", ">recorded"])
        yield ""
    yield f"{len(rows)} entries, {document['measured']} measured, {document['misses']} missed"


def forecast(document: Document) -> Iterator[RenderableType]:
    """Show the result of ``mltune plan``."""
    unit, problems = document["unit"], document["problems"]
    yield f"{document['title']}: {len(problems)} problems, {_amount(document['budget'], unit)}, on {_devices(document)}"
    if document["obstacle"]:
        replayed = sum(problem["recorded"] is not None for problem in problems)
        yield f"It cannot run here: {document['obstacle']}"
        yield f"Timings of {replayed} of {len(problems)} problems are recorded. The table below is for one GPU."
    yield ""
    rows = [
        {
            "problem": problem["slug"],
            ">priority": f"{problem['priority']:g}",
            ">minimum": _amount(problem["minimum"], unit),
            ">even share": _amount(problem["share"], unit),
            ">trials at most": "unknown" if problem["trials"] is None else str(problem["trials"]),
            ">operands": UNKNOWN if problem["operand_bytes"] is None else _bytes(problem["operand_bytes"]),
            "recorded timings": problem["recorded"] or UNKNOWN,
        }
        for problem in problems
    ]
    spare = [">operands", ">priority", "recorded timings", ">even share", ">trials at most"]
    yield FittingTable(rows, spare=spare)
    yield ""
    yield (
        f"Every problem has its minimum after {_amount(document['first_round'], unit)}; the rest of "
        f"{_amount(document['budget'], unit)} goes to the problems with the largest expected gain."
    )
    sources = sorted({problem["rate_from"] for problem in problems if problem["rate_from"]})
    if sources:
        yield (
            f"Trials are upper bounds for {document['cores']} cores, from the time per trial in the recordings "
            f"{', '.join(sources)}."
        )
    yield f"Written to the run directory: {', '.join(document['writes'])}"


def _amount(value: float, unit: str) -> str:
    """Write an amount of a budget: ``"8 h 30 min"``, ``"300 trials"``."""
    return f"{value:.0f} trials" if unit == "trials" else spaced_duration(value)


def _devices(document: Document) -> str:
    """Write the devices of a plan."""
    if document["obstacle"]:
        return "a GPU"
    if document["devices"][0]["spec"] == "replay":
        return "recorded timings"
    return ", ".join(f"{device['spec']} ({device['name']})" for device in document["devices"])


def _bytes(count: int) -> str:
    return f"{count / 1e9:.2f} GB" if count >= 1e8 else f"{count / 1e6:.2f} MB"
