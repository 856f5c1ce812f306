"""What a person reads: the JSON documents of the commands as tables.

Every table is made from the document that ``--json`` prints, so that both say the same.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from mltune.results.wording import configuration, duration, percent, states

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table

Document = Mapping[str, Any]

_PIPE_WIDTH = 400


def console(*, stderr: bool = False) -> Console:
    """Return a console that shows text as it is, and never wraps for a reader that is not a terminal."""
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    return Console(
        stderr=stderr, markup=False, highlight=False, emoji=False, width=None if stream.isatty() else _PIPE_WIDTH
    )


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    """Return a table without lines; a column whose name starts with ``>`` is aligned to the right."""
    from rich.table import Table

    made = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for name in columns:
        made.add_column(name.removeprefix(">"), justify="right" if name.startswith(">") else "left", overflow="fold")
    for row in rows:
        made.add_row(*row)
    return made


def _seconds(seconds: Mapping[str, float]) -> str:
    """Write where the seconds went."""
    return ", ".join(f"{phase} {value:.1f}" for phase, value in seconds.items())


def _skips(skips: Mapping[str, Any]) -> str:
    """Write what was skipped, how often that was wrong, and what it saved."""
    text = f"{skips['before_compile']} before compiling, {skips['after_compile']} after"
    if skips["audited"]:
        bound = percent(skips["false_share_at_most"])
        text += f"; wrong: {skips['false']} of {skips['audited']} audited (at most {bound}, 95 % confidence)"
    if skips["skipped"]:
        text += f"; saved {skips['saved_time_s']:.1f} s, less {skips['search_s']:.1f} s of searching"
    return text


def _device_name(device: Any) -> str:
    """Return the name in a device document, or the text that stands for it."""
    return str(device["name"]) if isinstance(device, Mapping) else str(device)


def _problem_label(problem: Any) -> str:
    """Return the label of a problem document, such as ``"sgemm NT 4096"``."""
    from mltune.problem.kinds import problem_from_json

    return problem_from_json(problem).label


def tuned(document: Document) -> Table:
    """Show the result of ``mltune tune``."""
    best = document["best"]
    rows = [
        ("problem", f"{_problem_label(document['problem'])} on {_device_name(document['device'])}"),
        ("kernel", document["kernel"]),
        ("trials", f"{document['trials']}: {states(document['counts'])}"),
    ]
    if best is None:
        rows.append(("best", "none: no trial succeeded"))
    else:
        rows.append(("best", _declared(best)))
        rows.append(("", configuration(best["configuration"])))
    rows.append(("seconds", _seconds(document["seconds"])))
    rows.append(("skipped", _skips(document["skips"])))
    if document["run"] is not None:
        rows.append(("run", str(document["run"])))
    return _facts(rows)


def _facts(rows: Iterable[tuple[str, str]]) -> Table:
    """Return a table of names and values without a header."""
    from rich.table import Table

    made = Table.grid(padding=(0, 2, 0, 0))
    made.add_column()
    made.add_column(overflow="fold")
    for name, value in rows:
        made.add_row(name, value)
    return made


def _declared(figures: Document) -> str:
    """Write the figures of a declared winner, how sure they are, and what cannot be told from it."""
    rate, median_s = figures["tflops"], figures["median_s"]
    low, high = sorted(rate * median_s / end_s for end_s in figures["interval_s"])
    text = f"{rate:.2f} TFLOPS ({low:.2f} to {high:.2f}, 95 %), {1e3 * median_s:.4f} ms"
    text += f", {percent(figures['share_of_peak'])} of the peak"
    share, interval = figures["share_of_reference"], figures["interval_share_of_reference"]
    if share is not None:
        text += f", {percent(share)} of cuBLAS"
    if interval is not None:
        text += f" ({100 * interval[0]:.1f} to {100 * interval[1]:.1f})"
    verified = "verified" if figures["verified"] else "not verified"
    return f"{text}, {verified}; ties: {', '.join(map(str, figures['ties'])) or 'none'}"


def _winner(document: Document) -> str:
    """Write who won, and who would have but for the last verification."""
    from mltune.device.facts import Device
    from mltune.problem.kinds import problem_from_json
    from mltune.records.declaration import Declaration
    from mltune.results.rating import declared_rating

    if document["declaration"] is None:
        return "none declared yet"
    declared = Declaration.from_json(document["declaration"])
    problem, device = problem_from_json(document["problem"]), Device.from_json(document["device"])
    text = f"trial {declared.number}: {_declared(declared_rating(problem, device, declared, None))}"
    if declared.rejected:
        text += f"; faster, but failed the last verification: {', '.join(map(str, declared.rejected))}"
    later = document["trials"] - declared.as_of
    return f"{text}; {later} trials came later" if later else text


def run_summary(document: Document) -> list[RenderableType]:
    """Show the result of ``mltune show``."""
    facts = _facts(
        [
            ("run", document["run"]),
            ("problem", f"{_problem_label(document['problem'])} on {_device_name(document['device'])}"),
            ("kernel", document["kernel"]),
            ("trials", f"{document['trials']}: {states(document['counts'])}"),
            ("winner", _winner(document)),
            ("seconds", _seconds(document["seconds"])),
            ("skipped", _skips(document["skips"])),
        ]
    )
    if not document["best"]:
        return [facts, "", "No trial succeeded yet."]
    rows = (
        (
            str(entry["trial"]),
            f"{entry['tflops']:.2f}",
            percent(entry["share_of_peak"]),
            percent(entry["share_of_reference"]),
            f"{1e3 * entry['median_s']:.4f}",
            configuration(entry["configuration"]),
        )
        for entry in document["best"]
    )
    return [facts, "", table((">trial", ">TFLOPS", ">of peak", ">of cuBLAS", ">ms", "configuration"), rows)]


def overview(document: Document) -> list[RenderableType]:
    """Show the result of ``mltune show`` on the directory of a plan."""
    rows = (
        (
            entry["slug"],
            entry["state"],
            *_best_of(entry["best"]),
            f"{entry['trials']}",
            duration(entry["seconds"].get("total", 0.0)),
            states(entry["counts"]),
        )
        for entry in document["problems"]
    )
    columns = ("problem", "state", ">TFLOPS", ">of cuBLAS", ">of peak", ">trials", ">time", "by state")
    running = "running" if document["running"] else "not running"
    done = sum(entry["state"] in ("declared", "finished") for entry in document["problems"])
    facts = f"{document['plan']}: {running}, {done} of {len(document['problems'])} problems have a winner"
    return [facts, "", table(columns, rows)]


def _best_of(figures: Document | None) -> tuple[str, str, str]:
    """Write TFLOPS and the shares of cuBLAS and of the peak."""
    if figures is None:
        return "-", "-", "-"
    return f"{figures['tflops']:.2f}", percent(figures["share_of_reference"]), percent(figures["share_of_peak"])


def space(document: Document) -> list[RenderableType]:
    """Show the result of ``mltune space``."""
    facts = _facts(
        [
            (
                "kernel",
                f"{document['kernel']} for {_problem_label(document['problem'])} on {document['device']['name']}",
            ),
            ("source", "in the bundle" if document["has_source"] else "none: it can be replayed, but not built"),
            ("combinations", f"{document['combinations']:,}"),
            ("valid", f"{document['valid']:,}"),
        ]
    )
    parameters = (
        (name, str(len(values)), " ".join(str(value) for value in values))
        for name, values in document["parameters"].items()
    )
    restrictions = (
        (percent(entry["removes"]), percent(entry["removes_alone"]), entry["restriction"], entry["reason"])
        for entry in document["restrictions"]
    )
    return [
        facts,
        "",
        table(("parameter", ">values", ""), parameters),
        "",
        table((">removes", ">only it does", "restriction", "reason"), restrictions),
    ]


def datasets(documents: Sequence[Document]) -> RenderableType:
    """Show the result of ``mltune datasets``."""
    if not documents:
        return "No datasets."
    rows = (
        (
            entry["name"],
            entry["kernel"],
            entry["label"],
            entry["device"],
            entry["kind"],
            f"{entry['rows']:,}",
            "-" if entry["best_tflops"] is None else f"{entry['best_tflops']:.2f}",
            percent(entry["best_share_of_peak"]),
            percent(entry["best_share_of_reference"]),
            entry["created"][:10],
        )
        for entry in documents
    )
    columns = (
        "dataset",
        "kernel",
        "problem",
        "device",
        "kind",
        ">rows",
        ">best TFLOPS",
        ">of peak",
        ">of cuBLAS",
        "date",
    )
    return table(columns, rows)


def comparison(document: Document) -> list[RenderableType]:
    """Show the result of ``mltune compare``."""
    strategies = document["strategies"]
    first = next(iter(strategies.values()))
    rows = (
        (
            name,
            f"{found['score']:.3f}",
            *(f"{value:.3f}" for value in found["at"].values()),
            *(f"{to['evaluations']:.0f} ({to['reached']:.0%})" for to in found["to"].values()),
            f"{1e3 * found['seconds']['own_per_evaluation']:.2f}",
            str(found["seeds"]),
        )
        for name, found in strategies.items()
    )
    columns = (
        "strategy",
        ">score",
        *(f">at {at}" for at in first["at"]),
        *(f">to {100 * float(to):.0f} %" for to in first["to"]),
        ">own ms",
        ">seeds",
    )
    spaces = f"{len(document['datasets'])} recorded spaces, at most {document['evaluations']} evaluations a run"
    return [spaces, "", table(columns, rows)]


def devices(document: Document) -> RenderableType:
    """Show the result of ``mltune device``."""
    if not document["devices"]:
        return f"no GPU found: {document['reason']}"
    rows = (
        (
            entry["spec"],
            entry["device"]["name"],
            entry["architecture"],
            str(entry["device"]["sm_count"]),
            f"{entry['device']['clock_hz'] / 1e6:.0f} MHz",
            f"{entry['device']['memory_bytes'] / 2**30:.0f} GiB",
            f"{entry['peak_flops']['fp32'] / 1e12:.1f}",
            f"{entry['peak_flops']['fp64'] / 1e12:.1f}",
        )
        for entry in document["devices"]
    )
    columns = ("device", "name", "architecture", ">SMs", ">clock", ">memory", ">FP32 peak TFLOPS", ">FP64 peak TFLOPS")
    return table(columns, rows)
