"""What a person reads: the JSON documents of the commands as tables, and a run's progress as a bar.

Every table is made from the document that ``--json`` prints, so that both say the same.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.progress import Progress as Bar
    from rich.table import Table

    from mltune.compare.comparison import Progress as ComparisonProgress
    from mltune.run import Progress

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


def configuration(values: Mapping[str, int]) -> str:
    """Write a configuration as ``NAME=VALUE`` pairs."""
    return " ".join(f"{name}={value}" for name, value in values.items())


def percent(share: float | None) -> str:
    """Write a share as a percentage; a dash when it is not known."""
    return "-" if share is None else f"{100 * share:.1f} %"


def _counts(counts: Mapping[str, int]) -> str:
    """Write the states that occur, the most frequent first."""
    some = sorted(((count, state) for state, count in counts.items() if count), reverse=True)
    return ", ".join(f"{count} {state}" for count, state in some) or "none"


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
    from mltune.kernel.problem import problem_from_json

    return problem_from_json(problem).label


def tuned(document: Document) -> Table:
    """Show the result of ``mltune tune``."""
    best = document["best"]
    rows = [
        ("problem", f"{_problem_label(document['problem'])} on {_device_name(document['device'])}"),
        ("kernel", document["kernel"]),
        ("trials", f"{document['trials']}: {_counts(document['counts'])}"),
    ]
    if best is None:
        rows.append(("best", "none: no trial succeeded"))
    else:
        rows.append(("best", _rating(best)))
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


def _rating(entry: Document) -> str:
    """Write the figures of a best configuration."""
    text = (
        f"{entry['tflops']:.2f} TFLOPS, {1e3 * entry['median_s']:.4f} ms, {percent(entry['share_of_peak'])} of the peak"
    )
    share = entry["share_of_cublas"]
    return text if share is None else f"{text}, {percent(share)} of cuBLAS"


def run_summary(document: Document) -> list[RenderableType]:
    """Show the result of ``mltune show``."""
    facts = _facts(
        [
            ("run", document["run"]),
            ("problem", f"{_problem_label(document['problem'])} on {_device_name(document['device'])}"),
            ("kernel", document["kernel"]),
            ("trials", f"{document['trials']}: {_counts(document['counts'])}"),
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
            percent(entry["share_of_cublas"]),
            f"{1e3 * entry['median_s']:.4f}",
            configuration(entry["configuration"]),
        )
        for entry in document["best"]
    )
    return [facts, "", table((">trial", ">TFLOPS", ">of peak", ">of cuBLAS", ">ms", "configuration"), rows)]


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
            percent(entry["best_share_of_cublas"]),
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


class _Bar:
    """A bar on stderr; silent when that is not a terminal. A context manager."""

    def __init__(self) -> None:
        self._bar: Bar | None = None

    def __enter__(self) -> Self:
        if sys.stderr.isatty():
            from rich.progress import BarColumn, TextColumn
            from rich.progress import Progress as Bar

            columns = (BarColumn(bar_width=24), TextColumn("{task.description}", markup=False))
            self._bar = Bar(*columns, console=console(stderr=True), transient=True)
            self._bar.add_task("starting", total=1.0)
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def _update(self, done: float, description: str) -> None:
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], completed=done, description=description)


class ComparisonBar(_Bar):
    """Shows the progress of a comparison."""

    def __call__(self, progress: ComparisonProgress) -> None:
        """Show one state of the comparison."""
        failed = f" · {progress.failed} failed" if progress.failed else ""
        text = f"{progress.done}/{progress.jobs} runs{failed} · {progress.last}"
        self._update(progress.done / max(progress.jobs, 1), text)


class ProgressBar(_Bar):
    """Shows the progress of a run on stderr; silent when that is not a terminal.

    A context manager; the tuner calls it with each state of the run.
    """

    def __call__(self, progress: Progress) -> None:
        """Show one state of the run."""
        if self._bar is None:
            return
        if progress.message:
            self._bar.console.print(progress.message)
        self._update(_share_done(progress), _describe(progress))


def _share_done(progress: Progress) -> float:
    """Return how much of the budget is spent: of trials or of time, whichever is further."""
    trials = progress.trials / progress.trials_limit if progress.trials_limit else 0.0
    seconds = progress.elapsed_s / progress.time_limit_s if progress.time_limit_s else 0.0
    return min(max(trials, seconds), 1.0)


def _describe(progress: Progress) -> str:
    """Write the state of a run in one line."""
    trials = f"{progress.trials}" + (f"/{progress.trials_limit}" if progress.trials_limit else "")
    seconds = f"{progress.elapsed_s:.0f}" + (f"/{progress.time_limit_s:.0f}" if progress.time_limit_s else "")
    parts = [f"{trials} trials", f"{seconds} s", _counts(progress.counts)]
    if progress.best_tflops is not None:
        best = f"best {progress.best_tflops:.2f} TFLOPS"
        if progress.best_share_of_cublas is not None:
            best += f" ({percent(progress.best_share_of_cublas)} of cuBLAS)"
        parts.append(best)
    return " · ".join(parts)
