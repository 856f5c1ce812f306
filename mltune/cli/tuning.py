"""The commands ``tune`` and ``sweep``."""

from __future__ import annotations

import re
from typing import Annotated, Any

import typer

from mltune.cli.application import (
    Accuracy,
    AsJson,
    Batch,
    CompileOn,
    DeviceName,
    K,
    KernelName,
    M,
    N,
    NewRun,
    Prior,
    ProblemName,
    Seed,
    Size,
    StoreUrl,
    Trans,
    answer,
    app,
    one_of,
    several_sizes,
    share,
    sizes,
    whole,
)
from mltune.cli.plans import carry_out
from mltune.errors import UsageError
from mltune.resolve.plan import Plan
from mltune.resolve.problems import Shape
from mltune.resolve.request import SEARCHES
from mltune.resolve.resolve import resolve, resolve_sweep
from mltune.show import terminal


@app.command()
def tune(
    problem: Annotated[
        str | None,
        typer.Argument(
            metavar="[PROBLEM]",
            help="sgemm, dgemm, cgemm, zgemm, hgemm, bgemm, ddgemm, a built-in kernel or the folder of one; in replay "
            "the recorded one.",
            show_default=False,
        ),
    ] = None,
    trans: Trans = None,
    size: Size = None,
    m: M = None,
    n: N = None,
    k: K = None,
    batch: Batch = None,
    kernel: Annotated[
        list[str] | None,
        typer.Option(
            "--kernel",
            help="A built-in kernel, or the folder of a bundle; several compete.  [default: the built-in ones of the "
            "accuracy class, or the replayed one]",
            show_default=False,
        ),
    ] = None,
    accuracy: Accuracy = None,
    trials: Annotated[
        int | None,
        typer.Option("--trials", metavar="N", parser=whole("--trials", 1), help="Most trials, skipped ones included."),
    ] = None,
    time: Annotated[str | None, typer.Option("--time", metavar="TIME", help="Most time: 20s, 30m, 1h30m.")] = None,
    seed: Seed = 0,
    search: Annotated[
        str,
        typer.Option(
            "--search",
            metavar="|".join(SEARCHES),
            parser=one_of("--search", SEARCHES),
            help="The search strategy; the others than model are for comparison.",
        ),
    ] = SEARCHES[0],
    skip: Annotated[bool, typer.Option("--skip/--no-skip", help="Skip what is predicted to be slow.")] = True,
    stop: Annotated[
        bool, typer.Option("--stop/--no-stop", help="End once nothing untried can be expected to be 1 % faster.")
    ] = True,
    enough: Annotated[
        float | None,
        typer.Option(
            "--enough",
            metavar="PERCENT",
            parser=share("--enough", 1, 100),
            help="End once the best reaches this share of the upper bound (mltune bound).",
        ),
    ] = None,
    prior: Prior = "auto",
    run: NewRun = None,
    store: StoreUrl = "",
    device: DeviceName = "auto",
    wisdom: Annotated[
        str | None,
        typer.Option(
            "--wisdom",
            metavar="FILE|none",
            help="The best known configurations: measured first, and the winner is added.  [default: the user's file "
            "on a GPU, none in replay]",
            show_default=False,
        ),
    ] = None,
    compile_on: CompileOn = "",
    as_json: AsJson = False,
) -> None:
    """Find the fastest configuration of a kernel; of several kernels, the fastest of all.

    Where no kernel is named, all built-in kernels that solve the problem at the accuracy that is asked for share the
    budget, which goes where it is expected to pay.

    Without --trials and --time the budget is 60 s on a GPU and 300 trials in replay. Without a GPU, timings recorded
    on one are replayed. Ctrl-C ends the run with the best so far. The run also ends once no untried configuration can
    be expected to be faster, and says so. Exits with 1 when no trial succeeded.

    Several sizes, such as --size 512 --size 4096, are several problems: they share the budget, start from what the
    others have found, and are carried out as by `mltune run`. --device may then also be all or replay.
    """
    from mltune import api
    from mltune.process.signals import Interrupt
    from mltune.results.summary import summarise_tuning
    from mltune.show import tables
    from mltune.show.live import RunDisplay

    several = several_sizes(size)
    if len(several) > 1:
        if given := [name for name, value in (("--m", m), ("--n", n), ("--k", k)) if value is not None]:
            raise UsageError(f"several sizes are given by --size, but there is {', '.join(given)} too; leave one out.")
        options: dict[str, Any] = {
            "search": search,
            "skip": skip,
            "stop": stop,
            "enough": enough,
            "prior": prior,
            "wisdom": wisdom,
        }
        plan, _ = resolve(
            problem,
            {"trans": trans, "batch": batch},
            sizes=several,
            kernels=kernel or [],
            accuracy=accuracy,
            device=device,
            trials=trials,
            time=time,
            seed=seed,
            **options,
        )
        assert isinstance(plan, Plan)  # noqa: S101 - several sizes are always a plan
        return carry_out(plan, run, as_json, store, compile_on)
    with RunDisplay() as progress, Interrupt() as interrupt:
        result = api.tune(
            problem,
            trans=trans,
            size=sizes(size),
            m=m,
            n=n,
            k=k,
            batch=batch,
            kernel=kernel,
            accuracy=accuracy,
            device=device,
            trials=trials,
            time=time,
            seed=seed,
            search=search,
            skip=skip,
            stop=stop,
            enough=enough,
            run=run,
            store=store,
            compile_on=compile_on,
            prior=prior,
            wisdom=wisdom,
            progress=progress,
            interrupt=interrupt,
        )
    for number, reason in (result.declaration.rejected if result.declaration else {}).items():
        terminal.write(f"trial {number} was faster, but failed the last verification: {reason}", stderr=True)
    document = summarise_tuning(result)
    answer(document, as_json, lambda: tables.tuned(document))
    if document["best"] is None:
        raise typer.Exit(1)


@app.command()
def sweep(
    problem: ProblemName,
    count: Annotated[
        int,
        typer.Option("--count", metavar="N", parser=whole("--count", 1), help="How many configurations to time."),
    ] = 1000,
    complete: Annotated[bool, typer.Option("--complete", help="Time all configurations, not --count.")] = False,
    prune: Annotated[
        bool, typer.Option("--prune", help="With --complete: leave out what is surely slow, and audit that.")
    ] = False,
    within: Annotated[
        float | None,
        typer.Option(
            "--within",
            metavar="PERCENT",
            parser=share("--within", 0, 50),
            help="With --prune: how much slower than the best still counts as fast.  [default: 1%]",
        ),
    ] = None,
    confidence: Annotated[
        float | None,
        typer.Option(
            "--confidence",
            metavar="PERCENT",
            parser=share("--confidence", 50, 99.9),
            help="With --prune: confidence that nothing fast is left out.  [default: 95%]",
        ),
    ] = None,
    prior: Annotated[
        str | None,
        typer.Option(
            "--prior",
            metavar="auto|none|NAME|FILE",
            help="With --prune: the pretrained model to start from.  [default: none]",
        ),
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option("--only", metavar="NAME=V,V", help="Values of a parameter to sweep; may be given several times."),
    ] = None,
    trans: Trans = None,
    size: Size = None,
    m: M = None,
    n: N = None,
    k: K = None,
    batch: Batch = None,
    kernel: KernelName = None,
    seed: Seed = 0,
    run: NewRun = None,
    store: StoreUrl = "",
    device: DeviceName = "auto",
    as_json: AsJson = False,
) -> None:
    """Record a dataset of timings on a GPU.

    The configurations are a uniform random sample of the search space, or all of it; failures are recorded too. With
    --only it is a sub-space. With --complete --prune it is all of it that may be fast, and the answer says how sure
    that is; this also replays a complete dataset. An existing run is resumed.
    """
    from mltune.show.live import RunDisplay
    from mltune.tuning.sweep import sweep as record_sweep

    shape = {"trans": trans, "size": sizes(size), "m": m, "n": n, "k": k, "batch": batch}
    chosen = _values(only or [])
    if prune:
        if not complete:
            raise UsageError("--prune leaves out a part of all configurations: write --complete --prune.")
        options = {"within": within, "confidence": confidence}
        promise = {name: value for name, value in options.items() if value is not None}
        target = {
            "kernel": kernel,
            "device": device,
            "seed": seed,
            "run": run,
            "store": store,
            "prior": prior or "none",
        }
        _prune(problem, shape, promise, target, chosen, as_json)
        return
    for name, value in (("--within", within), ("--confidence", confidence), ("--prior", prior)):
        if value is not None:
            raise UsageError(f"{name} is an option of a pruned sweep: write --complete --prune {name} ...")
    request = resolve_sweep(problem, shape, kernel=kernel, device=device, seed=seed, run=run, store=store)
    with RunDisplay() as progress:
        path = record_sweep(request, None if complete else count, values=chosen, progress=progress)
    answer({"dataset": str(path)}, as_json, lambda: [str(path)])


def _prune(
    problem: str,
    shape: Shape,
    promise: dict[str, float],
    target: dict[str, Any],
    values: dict[str, tuple[int, ...]],
    as_json: bool,
) -> None:
    """Make a pruned sweep, and print its result."""
    from mltune.search.pruning import Promise
    from mltune.show import tables
    from mltune.show.live import RunDisplay
    from mltune.tuning.sweep import pruned_sweep

    request = resolve_sweep(problem, shape, **target)
    with RunDisplay() as progress:
        pruned = pruned_sweep(request, Promise(**promise), values=values, progress=progress)
    document = {"dataset": str(pruned.dataset), "pruning": pruned.to_json()}
    answer(document, as_json, lambda: [tables.pruned(document), str(pruned.dataset)])


def _values(options: list[str]) -> dict[str, tuple[int, ...]]:
    """Read values of parameters, such as ``BLK_M=64,128``."""
    chosen: dict[str, tuple[int, ...]] = {}
    for option in options:
        if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*=\d{1,9}(,\d{1,9})*", option):
            raise UsageError(f"chosen values are given as NAME=V,V, got {option!r}; write BLK_M=64,128.")
        name, _, values = option.partition("=")
        chosen[name] = tuple(map(int, values.split(",")))
    return chosen
