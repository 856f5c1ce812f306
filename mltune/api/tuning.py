"""Tune one problem, or several sizes of one; a Triton kernel at many shapes; sweep a search space."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, Literal, Unpack

from mltune.api.campaigns import run as carry_out
from mltune.api.display import interruptible, shown, warn
from mltune.errors import UsageError
from mltune.files.arguments import checked
from mltune.integrations.triton.shapes import ShapeSearch, tune_in_order
from mltune.known.serving import Export
from mltune.problem.problem import Problem, ShapeOptions
from mltune.records.directory import named_directory
from mltune.resolve.options import USUAL, Limits, RunOptions, check_names, directory_of, kernels_of, run_options

if TYPE_CHECKING:
    from mltune.campaign.products import CampaignResult
    from mltune.results.progress import Report
    from mltune.results.run import TuneResult
    from mltune.tuning.sweep import Swept


def tune(
    problem: str | Path | Problem | None = None,
    *,
    kernel: str | Path | Sequence[str | Path] | None = None,
    accuracy: str | None = None,
    trials: int | None = None,
    time: str | float | None = None,
    seed: int = 0,
    search: str = RunOptions.search,
    skip: bool = RunOptions.skip,
    stop: bool = RunOptions.stop,
    variants: bool = RunOptions.variants,
    enough: float | None = RunOptions.enough,
    prior: str | Path = RunOptions.prior,
    run: str | Path | None = None,
    store: str | None = None,
    device: str = "auto",
    wisdom: str | Path = RunOptions.wisdom,
    compilers: int | None = RunOptions.compilers,
    compile_on: str | None = None,
    progress: Report | Literal["auto"] | None = "auto",
    interrupt: Callable[[], bool] | None = None,
    **shape: Unpack[ShapeOptions],
) -> TuneResult:
    """Find the fastest configuration of a kernel; of several kernels, the fastest of all.

    Without `trials` and `time` the budget is 60 s on a GPU and 300 trials in replay. Without a GPU, timings recorded on
    one are replayed, and a warning says so. The run also ends once no untried configuration can be expected to be
    faster.

    Parameters
    ----------
    problem : str, pathlib.Path or Problem, optional
        A product: ``"sgemm"``, ``"dgemm"``, ``"cgemm"``, ``"zgemm"``, ``"hgemm"``, ``"bgemm"``, ``"hsgemm"``,
        ``"bsgemm"`` or ``"ddgemm"``. It may also be a built-in kernel with sizes of its own, the folder of a kernel, or
        the problem of a result or a dataset. The default in replay is the recorded problem.
    kernel : str, pathlib.Path or sequence of these, optional
        A built-in kernel, or the folder of a bundle, or several that compete. By default the recorded one in replay;
        else all built-in kernels of the accuracy class that solve the problem. Several share `trials` or `time`, and
        the result is that of the fastest, with the others as its ``rivals``.
    accuracy : str, optional
        Accuracy class of the kernel: one of :data:`mltune.problem.problem.ACCURACIES`. By default the strictest where
        no kernel is named.
    trials : int, optional
        Most configurations that are compiled.
    time : str or float, optional
        Most time: ``"20s"``, ``"1h30m"``, or seconds. Earlier runs in the same directory count.
    seed : int
        The same seed proposes the same trials from the same results.
    search : str
        One of :data:`mltune.records.trial.SEARCHES`; the others than ``"model"`` are for comparison.
    skip : bool
        Whether to skip configurations that are predicted to be slow.
    stop : bool
        Whether to end before the budget is spent when half of the measurements, at least 100 to 250, gained less than
        1 % (docs/explanation/search.md#stopping).
    variants : bool
        Whether to try the fastest configurations with other options of the compiler, too
        (docs/explanation/compiler.md).
    enough : float, optional
        Ends the run once the best reaches this share of the upper bound on the problem (docs/explanation/bound.md).
    prior : str or pathlib.Path
        The pretrained model that the search starts from: a file (:func:`train`), the name of a model that comes with
        mltune, or ``"none"``. ``"auto"`` is the model of the kernel. In replay it is none, because the models that come
        with mltune have seen the recordings.
    run : str or pathlib.Path, optional
        Directory of the run; an existing run is resumed. By default a new one under ``runs/``.
    store : str, optional
        URL of the PostgreSQL database for the records of a new run (docs/how-to/share-a-database.md). By default they
        are in a file in its directory.
    device : str
        ``"auto"``, ``"cuda:N"`` or ``"replay:DATASET"``, where DATASET is a name or a path; for several kernels also
        ``"replay"``, the recorded timings of each.
    wisdom : str or pathlib.Path
        File of the best known configurations (:class:`mltune.Wisdom`): those for this problem are measured first, and
        the winner is added. ``"auto"`` is the user's file on a GPU, and none in replay; ``"none"`` for none.
    compilers : int, optional
        Compile processes; by default one per core.
    compile_on : str, optional
        Address or scheduler file of a Dask cluster whose compile workers help (docs/how-to/use-a-cluster.md).
    progress : callable, "auto" or None
        Called with a :class:`mltune.results.progress.Progress` about twice a second, or a ``CampaignProgress`` where
        kernels compete. ``"auto"`` shows a progress bar in a notebook or a terminal (on stderr), and nothing elsewhere.
    interrupt : callable, optional
        Called without arguments at least once a second; true ends the run with the best so far. By default Ctrl-C does
        so, and a second Ctrl-C raises KeyboardInterrupt.
    trans : str, optional
        op(A) and op(B): two of N, T, C. NT by default.
    size : int or mapping of str to int, optional
        m = n = k of a GEMM, 4096 by default; of another kernel its sizes by name.
    m, n, k : int, optional
        Extents, in place of `size`.
    batch : int, optional
        Number of A, of B and of C, which lie behind one another. 1 by default.
    epilogue : str, optional
        What is done with a result before it is stored: ``"bias_m"`` or ``"bias_n"``, an activation (``"relu"``,
        ``"gelu"``, ``"gelu_tanh"``, ``"silu"``), or both, joined by ``+``. Nothing by default; a residual is beta C.

    Raises
    ------
    UsageError
        The request cannot be met.
    RunError
        The run failed; everything recorded before is kept.

    Warns
    -----
    MltuneWarning
        There is no GPU: recorded timings are replayed.

    Examples
    --------
    >>> import mltune
    >>> result = mltune.tune("sgemm", trans="NT", size=4096, trials=40, device="replay:h200-sgemm-nt-4096-random")
    >>> len(result.records)
    40
    >>> result.best_config["BLK_M"] in (32, 64, 96, 128, 192, 256)
    True
    """
    options = run_options(locals())
    from mltune.resolve.plan import Plan
    from mltune.resolve.resolve import resolve

    begun, directory = perf_counter(), directory_of(run)
    resolved, notices = resolve(
        problem,
        shape,
        kernels=kernels_of(kernel),
        accuracy=accuracy,
        limits=Limits(device=device, trials=trials, time=time, seed=seed),
        run=directory,
        **options,
    )
    records: dict[str, Any] = {"store": store or "", "compile_on": compile_on or ""}
    warn(notices)
    with shown(progress, "RunDisplay") as report, interruptible(interrupt) as interrupted:
        if isinstance(resolved, Plan):
            from mltune.campaign.campaign import CampaignSettings, tune_choice

            settings = CampaignSettings(**records)
            return tune_choice(
                resolved, run=directory, settings=settings, progress=report, stop=interrupted, begun=begun
            )
        from mltune.tuning.ahead import pool_for

        with pool_for(resolved.target.cuda) as pool:
            from mltune.tuning import tuner

            request = replace(resolved, **records)
            return tuner.tune(request, progress=report, stop=interrupted, begun=begun, pool=pool)


def tune_sizes(
    problem: str | Path | Problem,
    sizes: Sequence[int | Mapping[str, int]],
    *,
    kernel: str | Path | Sequence[str | Path] | None = None,
    trials: int | None = None,
    time: str | float | None = None,
    seed: int = 0,
    device: str = "auto",
    **options: Any,
) -> CampaignResult:
    """Tune several sizes of a problem within one budget.

    Each size starts from what the others have found, and time goes where it is expected to pay, as in a plan.

    Parameters
    ----------
    sizes : sequence of int or mapping of str to int
        m = n = k of GEMMs; of another kernel its sizes by name.
    problem, kernel, seed
        See :func:`tune`.
    trials, time : int, str or float, optional
        The budget of all sizes together, one of both. By default 60 s or in replay 300 trials for each.
    device : str
        ``"auto"``, ``"all"``, ``"cuda:N"``, or ``"replay"``: the recorded timings of each size.
    **options
        ``trans``, ``batch``, ``epilogue`` and ``accuracy`` of :func:`tune`; the options of every run
        (docs/reference/plans.md); ``run``, ``store``, ``compile_on``, ``progress`` and ``interrupt`` of
        :func:`mltune.run`.

    Raises
    ------
    UsageError
        There is no such problem, sizes are equal, or the budget cannot be shared out.

    Examples
    --------
    >>> import mltune, tempfile
    >>> found = mltune.tune_sizes(
    ...     "sgemm", [1024, 4096], trials=32, device="replay", kernel="gemm_simt", run=tempfile.mkdtemp()
    ... )
    >>> [one["slug"] for one in found.to_json()["problems"]]
    ['sgemm-nt-1024', 'sgemm-nt-4096']
    """
    from mltune.resolve.plan import Plan
    from mltune.resolve.resolve import resolve

    names = (*_OF_PROBLEMS, "accuracy", *USUAL, *_OF_RUNS, "kernel", *Limits.__dataclass_fields__)
    check_names("tune_sizes", options, names)
    for_run = {name: options.pop(name) for name in _OF_RUNS if name in options}
    resolved, _ = resolve(
        problem,
        {name: options.pop(name, None) for name in _OF_PROBLEMS},
        sizes=sizes,
        as_plan=True,
        kernels=kernels_of(kernel),
        limits=Limits(device=device, trials=trials, time=time, seed=seed),
        **options,
    )
    assert isinstance(resolved, Plan)  # noqa: S101
    return checked(carry_out, UsageError)(resolved, **for_run)


_OF_PROBLEMS = ("trans", "batch", "epilogue")
_OF_RUNS = ("run", "store", "compile_on", "progress", "interrupt")


def sweep(
    problem: str | Path | Problem,
    *,
    count: int = 1000,
    complete: bool = False,
    prune: bool = False,
    within: float | None = None,
    confidence: float | None = None,
    prior: str | None = None,
    only: Mapping[str, Sequence[int]] | None = None,
    kernel: str | Path | None = None,
    seed: int = 0,
    run: str | Path | None = None,
    store: str | None = None,
    device: str = "auto",
    progress: Report | Literal["auto"] | None = "auto",
    **shape: Unpack[ShapeOptions],
) -> Swept:
    """Record a dataset of timings on a GPU.

    The configurations are a uniform random sample of the search space, or all of it; failures are recorded too. An
    existing run is resumed.

    Parameters
    ----------
    count : int
        Number of configurations of a sample.
    complete : bool
        Time all configurations, not `count`.
    prune : bool
        Of all configurations, leave out what is surely slow, and audit that. This also replays a complete dataset.
    within, confidence : float, optional
        Of a pruned sweep: how much slower than the best still counts as fast, 0.01 by default; and the confidence that
        nothing fast is left out, 0.95 by default.
    prior : str, optional
        Of a pruned sweep: the pretrained model that it starts from; none by default.
    only : mapping of str to sequence of int, optional
        Values of some parameters: a sub-space.
    problem, kernel, seed, run, store, device, progress, **shape
        See :func:`tune`.

    Returns
    -------
    Swept
        The dataset, and of a pruned sweep what it promises.

    Raises
    ------
    UsageError
        The request cannot be met, such as where there is no GPU.

    Examples
    --------
    >>> import mltune, tempfile
    >>> swept = mltune.sweep(
    ...     "sgemm",
    ...     complete=True,
    ...     prune=True,
    ...     only={"BLK_M": [64], "BLK_N": [64]},
    ...     device="replay:h200-sgemm-nt-4096-complete",
    ...     run=tempfile.mkdtemp(),
    ... )  # doctest: +SKIP
    >>> swept.pruned.saved_s > 0  # doctest: +SKIP
    True
    """
    from mltune.resolve.problems import given_options
    from mltune.resolve.resolve import resolve_sweep
    from mltune.search.pruning import Promise
    from mltune.tuning import sweep as sweeps
    from mltune.tuning.sweep import Swept

    promise = given_options({"within": within, "confidence": confidence})
    if prune and not complete:
        raise UsageError("--prune was given without --complete; write --complete --prune.")
    if not prune and (promise or prior is not None):
        named = next(iter(promise), "prior")
        raise UsageError(f"--{named} was given without --prune; write --complete --prune --{named} ...")
    request = resolve_sweep(
        problem,
        shape,
        kernel=kernel,
        device=device,
        seed=seed,
        run=directory_of(run),
        store=store or "",
        prior=prior or "none",
    )
    with shown(progress, "RunDisplay") as report:
        if not prune:
            return Swept(sweeps.sweep(request, None if complete else count, values=only, progress=report))
        pruned = sweeps.pruned_sweep(request, Promise(**promise), values=only, progress=report)
    assert pruned.dataset is not None  # noqa: S101
    return Swept(pruned.dataset, pruned)


def tune_shapes(
    kernel: str,
    shapes: str | Path,
    *,
    run: str | Path | None = None,
    export: Mapping[str, str | Path] | None = None,
    overwrite: bool = False,
    keep_default: bool = False,
    progress: Callable[[dict[str, Any]], None] = lambda row: None,
    **search: Unpack[ShapeSearch],
) -> dict[str, Any]:
    """Tune a Triton kernel at many shapes.

    The file of the kernel has a function ``arguments``, whose parameters are the sizes of a shape. It returns what
    stands in ``kernel[grid](*arguments)``: a tuple of the grid and the arguments, or a list of such tuples where one
    configuration serves several launches, whose times are added. The kernel is decorated with an ``autotune``, of
    Triton or of mltune, which has its configurations and its key (docs/how-to/tune-triton-shapes.md).

    A shape that fails costs that shape alone. Winners stay in the directory of the run, and a call with the same one
    tunes what it lacks.

    Parameters
    ----------
    kernel : str
        ``"FILE.py:KERNEL"``.
    shapes : str or pathlib.Path
        A CSV file with a column for each size, and perhaps a column ``count``: how often a shape is used. The most used
        ones are tuned first.
    run : str or pathlib.Path, optional
        The directory of the run, by default ``runs/FILE-KERNEL``.
    export : mapping of str to path, optional
        Folders in which files of configurations are written, by format: ``vllm-moe``, ``sglang-moe``, ``vllm-fp8`` or
        ``sglang-fp8``. A file that is there keeps the configurations of numbers of rows M that are not tuned now.
    overwrite : bool
        Whether these files replace others that hold no configurations.
    keep_default : bool
        Whether these files have the kernel's first configuration for shapes that failed.
    progress : callable
        Receives the row of each shape.
    trials : int
        Configurations that are measured at each shape, 25 by default.
    seed : int
    wisdom : str or pathlib.Path
        ``"auto"``, ``"none"`` or a file, as for :func:`tune`: the winner of a shape is added, and one that is known is
        taken without a search. It is not used for several launches.

    Returns
    -------
    dict
        ``shapes`` has a row for each: its ``shape``, ``count``, and the ``configuration`` with ``median_s``,
        ``first_s`` (the time of the kernel's first configuration, None if that fails), ``measured`` and ``seconds``; or
        ``error``. ``written`` has the paths of the files, and ``notices`` what vLLM and SGLang do at shapes that
        failed.

    Raises
    ------
    UsageError
        The file, the kernel or the shapes cannot be used, the winners do not fit a format, or something that mltune did
        not write is in the place of a file.
    OSError
        A file cannot be written.

    Examples
    --------
    >>> import mltune
    >>> found = mltune.tune_shapes("matmul.py:matmul", "shapes.csv")  # doctest: +SKIP
    >>> found["shapes"][0]["configuration"]["BLOCK_M"]  # doctest: +SKIP
    64
    """
    path, _, name = kernel.rpartition(":")
    folder = named_directory(f"{Path(path).stem}-{name}") if run is None else Path(run)
    files = Export(export or {}, overwrite, keep_default)
    return tune_in_order(kernel, shapes, folder, files, progress, **search)
