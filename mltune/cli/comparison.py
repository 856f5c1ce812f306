"""The command ``compare``."""

from __future__ import annotations

from mltune import api
from mltune.cli.application import Given, answer, command
from mltune.cli.options import AsJson, file, flag, number, text
from mltune.show import terminal

PATIENCE_S = 60.0
"""Seconds after a first signal until the process ends by force: the figures of many datasets take some."""


@command(
    api.compare,
    strategies=text("--strategies", "A,B|all", "Names, or MODULE:CLASS; NAME@N with N seeds."),
    datasets=text("--datasets", "X,Y|DIR|all", "Names, paths or folders of them.  [default: all]"),
    table=file("--table", "FILE", "A bare table (CSV, Parquet, JSON), not datasets."),
    parameters=text("--parameters", "A,B", "Columns of the table that are parameters."),
    time=text("--time", "COLUMN", "Column of the table that holds the times: time_ms."),
    aggregate=flag("--aggregate", "Merge rows of the table that differ in columns that are no parameters."),
    evaluations=number("--evaluations", "Distinct configurations that each run measures.", 2, 60_000),
    seeds=number("--seeds", "Runs of each strategy and dataset.", 1, 60_000),
    jobs=number("--jobs", "Processes.  [default: one per processor]", 1),
    output=file("--output", "DIR", "Directory of the results.  [default: runs/compare-..., from the options]"),
    share=text("--share", "I/N", "Do the I-th of N shares, one on each of N machines, say."),
)
def compare(given: Given, as_json: AsJson = False) -> None:
    """Compare search strategies on recorded timings.

    Each strategy searches each dataset with each seed, and each configuration that it proposes is looked up.
    Strategies of mltune: mltune and its variants mltune-noskip, mltune-nobuild, mltune-raw and mltune-tpe; tpe, astra,
    random. Strategies of other packages, with the extra "peers": hybrid_vndx, adaptive_tabu_greywolf,
    genetic_algorithm, simulated_annealing, bayes_opt or any kernel_tuner:NAME, and gp. MODULE:CLASS is one of your own,
    such as my_module:MyStrategy. Ctrl-C ends the comparison with the runs that have ended; the same command goes on.
    With --output, it also joins the shares of several machines.
    """
    from mltune.process.signals import Interrupt
    from mltune.show import tables
    from mltune.show.live import ComparisonDisplay

    with ComparisonDisplay() as progress, Interrupt(patience_s=PATIENCE_S) as interrupt:
        found = api.compare(**given, progress=progress, interrupt=interrupt)
    terminal.write(f"written: {found.directory}", stderr=True)
    for job, error in found.errors.items():
        terminal.write(f"{' '.join(map(str, job))} failed: {error}", stderr=True)
    if found.missing:
        terminal.write(f"stopped: {found.missing} runs are missing; the same command goes on", stderr=True)
    document = found.to_json()
    answer(document, as_json, lambda: tables.comparison(document) if given["share"] is None else [])
