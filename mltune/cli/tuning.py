"""The commands ``tune``, ``sweep``, ``bound``, ``predict``, ``train``, ``gate``, ``compare`` and ``scoreboard``."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import typer

from mltune import api
from mltune.api.comparing import USUAL
from mltune.api.display import attended
from mltune.api.models import card_of
from mltune.cli.application import INTERRUPTED, Given, again, answer, command, fail_if, say_resumed_by
from mltune.cli.on_end import Ending, on_end
from mltune.cli.options import (
    OPTIONS,
    PROBLEMS,
    SIZES,
    AnyKernel,
    Facts,
    argument,
    configuration,
    file,
    flag,
    number,
    parameter_values,
    path,
    several_sizes,
    share,
    sizes,
    text,
    texts,
)
from mltune.cli.runs import answer_campaign
from mltune.errors import UsageError
from mltune.files.text import many
from mltune.problem.problem import SHAPE
from mltune.records.header import REPLAY
from mltune.resolve.options import LARGEST_SEED
from mltune.show import inventory, table, tables


@command(
    api.tune,
    problem=argument(
        "PROBLEM", f"{PROBLEMS}. The default in replay is the recorded one.", str | None, show_default=False
    ),
    size=texts(*SIZES),
    kernel=texts(
        "KERNEL",
        "A built-in kernel, or the folder of a bundle. Several kernels compete.  [default: the built-in kernels of the "
        "accuracy class, or the replayed kernel]",
    ),
    shapes=file("CSV", "A CSV file of shapes, to tune the Triton kernel FILE.py:KERNEL."),
    export=texts("FORMAT=FOLDER", "With --shapes: write configuration files of vLLM or SGLang."),
    overwrite=flag("With --export: also replace files that hold no configurations."),
    keep_default=flag("With --export: write the kernel's first configuration for a shape that failed."),
)
def tune(
    options: Given,
    shapes: Path | None = None,
    export: list[str] | None = None,
    overwrite: bool = False,
    keep_default: bool = False,
    at_end: str | None = None,
    as_json: bool = False,
) -> None:
    """Find the fastest configuration of a kernel, or of several kernels.

    Without --kernel, all built-in kernels that solve the problem with the requested accuracy share the budget. Most of
    it goes to the kernels that are expected to gain most.

    Without --trials and --time the budget is 60 s on a GPU and 300 trials in replay. Without a GPU, recorded timings
    are replayed. Ctrl-C ends the run with the best so far. The run also ends when further measurements gain little,
    and says so. The exit code is 1 if no trial succeeded.

    Several sizes, such as --size 512 --size 4096, are several problems. They share the budget, start from the results
    of the others, and run like the problems of `mltune run`. --device may then also be all or replay.

    With --shapes a Triton kernel is tuned at each row of a CSV file. The columns are the parameters of the function
    `arguments` in the file of the kernel (docs/how-to/tune-triton-shapes.md). --trials is then the number for each
    shape, 25 by default. Winners stay in --run, and the same command continues. The exit code is 1 if a shape failed.
    """
    with on_end(at_end, options["run"]) as ending:
        of_files = {"overwrite": overwrite, "keep_default": keep_default}
        if shapes is None and not export and not any(of_files.values()):
            return _tune(options, ending, as_json)
        _tune_shapes(options, shapes, export or (), of_files, ending, as_json)


def _say(row: Given) -> None:
    table.write(f"{row['shape']}: {row.get('error') or row['configuration']}", stderr=True)


def _tune_shapes(
    options: Given, shapes: Path | None, export: Iterable[str], of_files: Given, ending: Ending, as_json: bool
) -> None:
    own = {name: value for name in ("trials", "seed", "run", "wisdom") if (value := options.pop(name)) is not None}
    own |= of_files
    usual = {**(api.tune.__kwdefaults__ or {}), "problem": options["problem"]}
    excess = [name for name in options if options[name] not in (None, [], usual.get(name))]
    if shapes is None or excess:
        alone = "--export" if export else "--overwrite" if of_files["overwrite"] else "--keep-default"
        fact = f"--{excess[0]} was given beside --shapes" if excess else f"{alone} was given without --shapes"
        law = "--shapes goes with --trials, --seed, --run, --wisdom, --export, --overwrite and --keep-default"
        raise UsageError(f"{fact}; {law}.")
    folders = {form: path(f"--export {form}=")(folder) for form, _, folder in (text.partition("=") for text in export)}
    try:
        document = api.tune_shapes(options["problem"] or "", shapes, **own, export=folders, progress=_say)
    except KeyboardInterrupt:
        ending.interrupted = True
        say_resumed_by(*sys.argv[1:])
        raise typer.Exit(INTERRUPTED) from None
    failed = sum("error" in row for row in document["shapes"])
    ending.run, ending.summary = document["run"], f"{many(failed, 'shape')} of {len(document['shapes'])} failed"
    answer(document, as_json, lambda: tables.shapes(document))
    fail_if(failed)


def _tune(options: Given, ending: Ending, as_json: bool) -> None:
    several = several_sizes(options["size"])
    if len(several) > 1:
        extents = {name: options.pop(name) for name in ("m", "n", "k")}
        if both := [f"--{name}" for name, value in extents.items() if value is not None]:
            raise UsageError(f"{', '.join(both)} cannot be given beside several sizes (--size); leave one out.")
        del options["size"]
        with attended() as attendance:
            campaign = api.tune_sizes(sizes=several, **options, **attendance)
        return answer_campaign(campaign, ending, as_json)
    options["size"] = sizes(options["size"])
    with attended() as attendance:
        result = api.tune(**options, **attendance)
    for trial, reason in (result.declaration.rejected if result.declaration else {}).items():
        table.write(f"trial {trial} was faster, but failed the last verification: {reason}", stderr=True)
    document = api.summarise(result)
    ending.run, ending.interrupted = document["run"], result.interrupted
    ending.summary = tables.in_one_line(document)
    if result.interrupted:
        say_resumed_by(*sys.argv[1:], *(() if options["run"] else ("--run", document["run"])))
    elif not result.stopped:
        step = f"the same command with --run {document['run']} and more --trials or --time goes on"
        table.write(f"the budget is spent; {step}", stderr=True)
    answer(document, as_json, lambda: tables.tuned(document), "report", document["run"])
    fail_if(document["best"] is None, result.interrupted)


@command(
    api.sweep,
    count=number("Number of configurations to time.", 1),
    complete=flag("Time all configurations, not --count."),
    prune=flag("With --complete: leave out what is surely slow, and check a sample of it."),
    within=share("With --prune: how much slower than the best still counts as fast.  [default: 1%]", 0, 50),
    confidence=share("With --prune: confidence that nothing fast is left out.  [default: 95%]", 50, 99.9),
    prior=text("auto|none|NAME|FILE", "With --prune: the pretrained model to start from.  [default: none]"),
    only=texts("NAME=V,V", "Values of a parameter to sweep; may be given several times.", parameter_values),
)
def sweep(options: Given, as_json: bool = False) -> None:
    """Record a dataset of timings on a GPU.

    The configurations are a uniform random sample of the search space, or all of it. Failures are recorded too. --only
    limits the values of parameters. --complete --prune measures every configuration that may be fast, and reports the
    confidence of that. This also works on a complete dataset in replay. An existing run is resumed.
    """
    from mltune.show.live import RunDisplay

    try:
        with RunDisplay() as progress:
            swept = api.sweep(**options, progress=progress)
    except KeyboardInterrupt as interrupt:
        if not interrupt.args:
            raise
        say_resumed_by(*sys.argv[1:], *(() if options["run"] else ("--run", *interrupt.args)))
        raise typer.Exit(INTERRUPTED) from None
    document = swept.to_json()
    pruned = [] if swept.pruned is None else [tables.pruned(document)]
    answer(document, as_json, lambda: [*pruned, str(swept.dataset)], "train", swept.dataset, "--out", "MODEL")


@command(
    api.bound,
    kernel=AnyKernel,
    gpu=Facts,
    config=texts("NAME=V", "A parameter of a configuration; may be repeated.", configuration),
    code=flag("Compile the configuration, and count the instructions of its main loop."),
)
def bound(options: Given, as_json: bool = False) -> None:
    """Compute how fast a problem can be at best, without measuring it, and what limits it.

    The output has the limit of the hardware and that of the best configuration of each kernel. --config adds the limit
    of the best configuration with these values. The measured facts of a GPU (mltune device --measure) make the bound
    tighter.
    """
    upper_bound = api.bound(**options)
    document = upper_bound.to_json()
    following = "predict", options["problem"], *again(options, *SHAPE, "kernel", "accuracy", "gpu")
    answer(document, as_json, lambda: inventory.bounded(document, upper_bound.rate), *following)


@command(
    api.predict,
    kernel=AnyKernel,
    gpu=Facts,
    top=number("Number of configurations, at most 8.", 1, 8),
    wisdom=text("auto|none|FILE", "The file of the best known configurations. auto is the user's file."),
)
def predict(options: Given, as_json: bool = False) -> None:
    """Choose configurations without measuring any, also for a GPU that is not here.

    A run would measure these configurations first: the best known ones, then those that the pretrained and the physical
    model expect to be fast. The output has the share of the optimum, mean and range, that such choices reached on
    recorded timings that the model had not seen. If the physical model alone did better there, it ranks the choices.
    The first choice has a time with an interval if enough recorded sweeps are similar.
    """
    document = api.predict(**options).to_json()
    here = ("device",) if options["gpu"].startswith("cuda:") else ()
    if options["prior"] not in ("auto", "none"):  # a model is of one kernel
        options = {**options, "kernel": options["kernel"] or document["kernel"]}
    following = "tune", options["problem"], *again(options, *SHAPE, "kernel", "accuracy", "prior", "wisdom", *here)
    answer(document, as_json, lambda: tables.predicted(document), *following)


@command(
    api.train,
    datasets=argument(
        "DATASET...",
        "Datasets: names (mltune datasets), files, folders, directories of runs and campaigns.",
        list[str],
    ),
    kernel=text("NAME", "The kernel, if the datasets have several."),
    out=file("PATH", "Write PATH.npy and its card PATH.json."),
    overwrite=flag("Replace files of that name."),
    seed=number("Seed of the regressors.", 0),
    report=flag("Show the quality of the model on held-out data, and its most important parameters."),
)
def train(options: Given, report: bool = False, as_json: bool = False) -> None:
    """Train a model on recorded timings. Runs of the kernel start from it: mltune tune --prior PATH.

    The score on each dataset uses what was learned from other architectures, or from other problems if there is one
    architecture.
    """
    model = api.train(**options)
    document = {"kernel": model.kernel, "model": str(card_of(options["out"])), **model.facts}
    following = "tune", "PROBLEM", "--kernel", model.kernel, "--prior", options["out"]
    answer(document, as_json, lambda: tables.training(document, report), *following)


EXIT_CODES = {"slower": 3, "wrong": 4, "failed": 4, "undecided": 5}
"""Exit codes of ``mltune gate`` by verdict."""


@command(
    api.gate,
    old=argument(
        "OLD", "A winner, library or bundle, a built-in kernel, a .cu file, or REVISION:PATH of a bundle in git."
    ),
    new=argument("NEW", "The new version, in the same forms."),
    problem=text("PROBLEM", "A GEMM, such as sgemm.  [default: that of a winner or a library]"),
    kernel=text("KERNEL", "The bundle of a source, or of a winner that is no GEMM.  [default: beside it]"),
    config=texts(
        "NAME=V",
        "A parameter of bundles and sources; may be repeated. Others have their default values.",
        configuration,
    ),
    within=share("Times that differ by less are equal.  [default: 1%]", 0.01, 50),
    confidence=share("Confidence of the verdict.  [default: 99%]", 50, 99.99),
    time=text("TIME", "The time limit of the timing, such as 20s or 5m."),
    device=text("DEVICE", "auto or cuda:N."),
    seed=number("Seed of the order of runs.", 0, LARGEST_SEED),
    explain=flag("Show what differs: registers, spills, occupancy, instructions."),
    junit=file("FILE", "Also write the verdict as a JUnit file."),
)
def gate(options: Given, as_json: bool = False) -> None:
    """Compare two versions of a kernel: verify both, and time them in turns until it is certain which is faster.

    The exit code is 0 if the new version is as fast or faster, and 3 if it is slower. It is 4 if the new version gives
    a wrong answer, does not compile, crashes or hangs, and 5 if the time was up before the answer was certain.
    """
    result = api.gate(**options)
    lines = [result.summary, *(f"  {name}: {old} -> {new}" for name, (old, new) in result.differences.items())]
    answer(result.to_json(), as_json, lambda: lines)
    if not result.passed:
        raise typer.Exit(EXIT_CODES[result.verdict])


PATIENCE_S = 60.0
"""Seconds after a first signal until the process ends by force: the figures of many datasets take time."""


COMPARED: Given = {
    "strategies": text("A,B|all", "Names, or MODULE:CLASS. NAME@N runs with N seeds."),
    "evaluations": number("Distinct configurations that each run measures.", 2, 60_000),
    "seeds": number("Runs of each strategy and dataset.", 1, 60_000),
    "compile_cores": text("N,M", "Numbers of compile cores for the score over time."),
    "jobs": number("Number of processes.  [default: one per processor]", 1),
    "out": file("FOLDER", "Folder of the results.  [default: runs/compare-..., from the options]"),
    "share": text("I/N", "Do the I-th of N shares, for example on N machines."),
    "overwrite": OPTIONS["overwrite"],
}
"""The options of comparisons."""


@command(
    api.compare,
    defaults=USUAL,
    datasets=text("X,Y|DIR|all", "Names, paths or folders of datasets.  [default: all]"),
    table=file("FILE", "A bare table (CSV, Parquet, JSON) in place of datasets."),
    parameters=text("A,B", "Columns of the table that are parameters."),
    time_column=text("COLUMN", "Column of the table that holds the times: time_ms."),
    aggregate=flag("Merge rows of the table that differ in columns that are no parameters."),
    **COMPARED,
)
def compare(options: Given, as_json: bool = False) -> None:
    """Compare search strategies on recorded timings.

    Each strategy searches each dataset with each seed. The time of each proposal is looked up.
    Strategies of mltune: mltune and its variants mltune-noskip, mltune-nobuild, mltune-raw and mltune-tpe; tpe, astra,
    random. Strategies of other packages, with the extra "peers": hybrid_vndx, adaptive_tabu_greywolf,
    genetic_algorithm, simulated_annealing, bayes_opt or any kernel_tuner:NAME, and gp. MODULE:CLASS is one of your own,
    such as my_module:MyStrategy. Ctrl-C ends the comparison with the results so far, and the same command continues.
    With --out it also joins the shares of several machines.
    """
    _compare(api.compare, options, as_json)


@command(
    api.scoreboard,
    defaults=USUAL,
    datasets=text("X,Y|DIR", "Names, paths or folders of datasets.  [default: those with a licence]"),
    **COMPARED,
)
def scoreboard(options: Given, as_json: bool = False) -> None:
    """Compare search strategies on all recorded timings with a licence: a page, and a table in Markdown.

    The files are scoreboard.html and table.md in the directory. It needs the extra "peers", or --strategies. Your own
    strategy, MODULE:CLASS, may take part. This is mltune compare with other defaults: Ctrl-C ends it with the results
    so far, and the same command continues.
    """
    _compare(api.scoreboard, options, as_json)


def _compare(function: Callable[..., Any], options: Given, as_json: bool) -> None:
    with attended("ComparisonDisplay", patience_s=PATIENCE_S) as attendance:
        comparison = function(**options, **attendance)
    table.write(f"written: {comparison.directory}", stderr=True)
    if comparison.missing:
        table.write(f"stopped: {many(comparison.missing, 'run')} missing; the same command goes on", stderr=True)
    document = comparison.to_json()
    following = () if comparison.missing or options["share"] is not None else _after_comparison(options, document)
    answer(document, as_json, lambda: tables.comparison(document) if options["share"] is None else [], *following)
    fail_if(comparison.errors, interrupted=comparison.missing)


def _after_comparison(options: Given, document: Given) -> Iterable[object]:
    """Return the command that imports the searched table, or that searches the first dataset."""
    if options.get("table") is not None:
        table = "--kernel", options["table"].stem, "--gpu", "unknown", "--out", "datasets"
        return "datasets", "import", options["table"], *table, *again(options, "parameters", "time_column", "aggregate")
    first, *_ = (options["datasets"] or "all").split(",")
    first = next(iter(document["datasets"])) if first == "all" else first
    return () if Path(first).is_dir() else ("tune", "--device", f"{REPLAY}{first}")
