"""The functions of the Python interface: tune a kernel, load a run, compare search strategies.

Names are resolved here as by the commands of the same names, which call these functions. Each is offered by
:mod:`mltune` itself: ``mltune.tune(...)``.
"""

from __future__ import annotations

import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypedDict, Unpack, overload

from mltune.errors import MltuneWarning

if TYPE_CHECKING:
    from mltune.comparison.comparison import Report as ComparisonReport
    from mltune.comparison.results import Comparison, PartialComparison
    from mltune.comparison.strategies import Given as Strategies
    from mltune.problem.problem import Problem
    from mltune.results.kernel_result import KernelResult
    from mltune.results.progress import Report
    from mltune.results.run import TuneResult

Source = str | Path | Callable[[dict[str, Any]], str] | Sequence[Any]
"""A source of :func:`tune_kernel`."""


def tune(
    problem: str | Path | Problem | None = None,
    *,
    trans: str | None = None,
    size: int | Mapping[str, int] | None = None,
    m: int | None = None,
    n: int | None = None,
    k: int | None = None,
    batch: int | None = None,
    kernel: str | Path | Sequence[str | Path] | None = None,
    accuracy: str | None = None,
    device: str = "auto",
    trials: int | None = None,
    time: str | float | None = None,
    seed: int = 0,
    search: str = "model",
    skip: bool = True,
    stop: bool = True,
    enough: float | None = None,
    run: str | Path | None = None,
    store: str = "",
    compilers: int | None = None,
    compile_on: str = "",
    prior: str | Path = "auto",
    wisdom: str | Path | None = None,
    progress: Report | Literal["auto"] | None = "auto",
    interrupt: Callable[[], bool] | None = None,
) -> TuneResult:
    """Find the fastest configuration of a kernel; of several kernels, the fastest of all.

    Without `trials` and `time` the budget is 60 s on a GPU and 300 trials in replay. Without a GPU, timings recorded on
    one are replayed, and a warning says so. The run also ends once no untried configuration can be expected to be
    faster.

    Parameters
    ----------
    problem : str, pathlib.Path or Problem, optional
        ``"sgemm"``, ``"dgemm"``, ``"cgemm"``, ``"zgemm"``, ``"hgemm"``, ``"bgemm"`` or ``"ddgemm"``; a built-in
        kernel of another kind, or the folder of one; or a problem, such as that of a result or a dataset. In replay the
        recorded one by default.
    trans : str, optional
        op(A) and op(B): two of N, T, C. NT by default.
    size : int or mapping of str to int, optional
        m = n = k of a GEMM, 4096 by default; of another kernel its sizes by name.
    m, n, k : int, optional
        Extents, in place of `size`.
    batch : int, optional
        Number of A, of B and of C, which lie behind one another. 1 by default.
    kernel : str, pathlib.Path or sequence of these, optional
        A built-in kernel, or the folder of a bundle, or several that compete. By default the recorded one in replay;
        else all built-in kernels of the accuracy class that solve the problem. Several share `trials` or `time`, and
        the result is that of the fastest, with the others as its ``rivals``.
    accuracy : str, optional
        Accuracy class of the kernel: one of :data:`mltune.problem.accuracy.ACCURACIES`. By default the strictest where
        no kernel is named.
    device : str
        ``"auto"``, ``"cuda:N"`` or ``"replay:DATASET"``, where DATASET is a name or a path; for several kernels also
        ``"replay"``, the recorded timings of each.
    trials : int, optional
        Most trials, skipped ones included.
    time : str or float, optional
        Most time: ``"20s"``, ``"1h30m"``, or seconds. Earlier runs in the same directory count.
    seed : int
        The same seed proposes the same trials.
    search : str
        One of :data:`mltune.records.candidate.SEARCHES`; the others than ``"model"`` are for comparison.
    skip : bool
        Whether to skip configurations that are predicted to be slow.
    stop : bool
        Whether to end before the budget is spent once nothing untried can be expected to be 1 % faster.
    enough : float, optional
        Ends the run once the best reaches this share of the upper bound on the problem (docs/explanation/bound.md).
    run : str or pathlib.Path, optional
        Directory of the run; an existing run is resumed. By default a new one under ``runs/``.
    store : str
        URL of the PostgreSQL database for the records of a new run (docs/how-to/share-a-database.md). By default they
        are in a file in its directory.
    compilers : int, optional
        Compile processes; by default one per core.
    compile_on : str
        Address or scheduler file of a Dask cluster whose compile workers help (docs/how-to/use-a-cluster.md).
    prior : str or pathlib.Path
        The pretrained model that the search starts from: ``"none"``, the name of one that comes with mltune, which is
        that of its kernel, or the file of one (``mltune train``). In replay, those that come with mltune have seen the
        recording.
    wisdom : str or pathlib.Path, optional
        File of the best known configurations (:class:`mltune.Wisdom`): those for this problem are measured first, and
        the winner is added. ``"none"`` for none. By default the user's file on a GPU, and none in replay.
    progress : callable, "auto" or None
        Called with a :class:`mltune.results.progress.Progress` about twice a second, or a ``CampaignProgress`` where
        kernels compete. ``"auto"`` shows a progress bar in
        a notebook or a terminal (on stderr), and nothing elsewhere.
    interrupt : callable, optional
        Called without arguments at least once a second; true ends the run with the best so far. By default Ctrl-C does
        so, and a second Ctrl-C raises KeyboardInterrupt.

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
    >>> result.best.configuration["BLK_M"] in (32, 64, 96, 128, 192, 256)
    True
    """
    from mltune.campaign.competition import tune_choice
    from mltune.resolve.plan import Plan
    from mltune.resolve.resolve import resolve
    from mltune.tuning import tuner

    problem = str(problem) if isinstance(problem, Path) else problem
    shape = {"trans": trans, "size": size, "m": m, "n": n, "k": k, "batch": batch}
    directory = None if run is None else Path(run)
    limits: dict[str, Any] = {"accuracy": accuracy, "device": device, "trials": trials, "time": time, "seed": seed}
    options: dict[str, Any] = {
        "search": search,
        "skip": skip,
        "stop": stop,
        "enough": enough,
        "compilers": compilers,
        "prior": str(prior),
        "wisdom": None if wisdom is None else str(wisdom),
    }
    named = [] if kernel is None else [kernel] if isinstance(kernel, str | Path) else list(kernel)
    resolved, notices = resolve(
        problem, shape, kernels=named, run=directory, store=store, compile_on=compile_on, **limits, **options
    )
    if isinstance(resolved, Plan):
        with _progress_bar(progress, "RunDisplay") as report, _interruptible(interrupt) as interrupted:
            return tune_choice(
                resolved, run=directory, store=store, progress=report, stop=interrupted, compile_on=compile_on
            )
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "IProgress not found")  # Optuna's progress bars, in notebooks, are not used
        import optuna  # noqa: F401 - imported here for the sake of the filter
    for notice in notices:
        warnings.warn(notice, MltuneWarning, stacklevel=2)
    with _progress_bar(progress, "RunDisplay") as report, _interruptible(interrupt) as interrupted:
        return tuner.tune(resolved, progress=report, stop=interrupted)


def tune_kernel(
    kernel_name: str,
    kernel_source: Source,
    problem_size: Any,
    arguments: Sequence[Any],
    tune_params: Mapping[str, Sequence[Any]],
    grid_div_x: Any = None,
    grid_div_y: Any = None,
    grid_div_z: Any = None,
    restrictions: Any = None,
    answer: Any = None,
    atol: float = 1e-6,
    verify: Any = None,
    verbose: bool = False,
    lang: str | None = None,
    device: int | str = 0,
    *,
    smem_args: Mapping[str, Any] | None = None,
    cmem_args: Mapping[str, Any] | None = None,
    compiler_options: Sequence[str] | None = None,
    defines: Mapping[str, Any] | None = None,
    block_size_names: Sequence[str] | None = None,
    quiet: bool = False,
    strategy_options: Mapping[str, Any] | None = None,
    metrics: Mapping[str, Any] | None = None,
    default: Mapping[str, Any] | None = None,
    flops: int = 0,
    bytes: int = 0,
    trials: int | None = None,
    time: str | float | None = None,
    seed: int = 0,
    stop: bool = True,
    run: str | Path | None = None,
    wisdom: str | Path | None = None,
    progress: Report | Literal["auto"] | None = "auto",
    interrupt: Callable[[], bool] | None = None,
    **others: Any,
) -> KernelResult:
    """Find the fastest configuration of a CUDA kernel, given as a source, arguments and values of its parameters.

    The names and the order of the arguments are those of Kernel Tuner's function of the same name, so that a call of it
    runs with another import. A part of the configurations is measured, those that the search chooses. The kernel runs
    in a process of its own, on copies of the arguments: these are never changed.

    Parameters
    ----------
    kernel_name : str
        The kernel function. A template with its arguments, such as ``"sum<float, block_size_x>"``, may name parameters.
    kernel_source : str, pathlib.Path, callable or list
        CUDA source, or the name of its file; a function that returns the source for a dict of parameters; or a list of
        these, of which the first is the source, and the others are files that it includes. Every parameter is a macro.
    problem_size : int, tuple, str or callable
        Elements along x, y and z; a text is an expression over the parameters, a function gets them as a dict.
    arguments : sequence of array or NumPy scalar
        Arrays of NumPy, CuPy or PyTorch, and scalars such as ``numpy.int32(n)``.
    tune_params : mapping of str to sequence
        Values of every parameter: integers, floats, booleans or texts. ``block_size_x``, ``block_size_y`` and
        ``block_size_z`` are the threads of a block.
    grid_div_x, grid_div_y, grid_div_z : sequence of str or callable, optional
        What the problem size is divided by for the number of blocks; by default the threads of a block.
    restrictions : sequence of str or callable, optional
        Conditions that every configuration satisfies.
    answer : sequence of array or None, or callable, optional
        The right content of each argument after a run, None for inputs; or a function that returns it for the
        arguments. Without it, outputs must agree with those of the default configuration.
    atol : float
        Absolute error that an output may have, added to what rounding of its type explains.
    device : int or str
        The number of the GPU, or ``"cuda:N"``.
    smem_args : mapping, optional
        ``size``: bytes of dynamic shared memory of a block, a number or a function of the parameters.
    cmem_args : mapping of str to array, optional
        Content of ``__constant__`` memory by symbol.
    defines : mapping, optional
        Further macros.
    block_size_names : sequence of str, optional
        Names in place of ``block_size_x`` and so on.
    strategy_options : mapping, optional
        ``max_fevals`` and ``time_limit`` (seconds) limit the run.
    metrics : mapping of str to callable or str, optional
        Figures that are computed from each result, as Kernel Tuner does.
    default : mapping, optional
        The default configuration: measured first. By default the first value of each parameter, if that is valid.
    flops, bytes : int
        Operations and least memory traffic of a run, for rates in TFLOPS or GB/s.
    trials, time, seed, stop, run, wisdom, progress, interrupt
        See :func:`tune`. Without a limit the run ends after 60 s, once everything is measured, or once nothing faster
        can be expected.
    verify : callable, optional
        ``verify(answer, outputs, atol=atol)`` decides whether a kernel is right, in place of a comparison: `answer` as
        it is given, `outputs` a list of arrays, with None for arguments whose answer is None. It runs in the process of
        the kernel.
    compiler_options : sequence of str, optional
        ``-I`` with a folder of headers, ``-D`` with a macro, and the options of NVRTC that kernel.toml may have.
    verbose, lang, quiet, **others
        Further arguments of Kernel Tuner: what mltune cannot do is refused, what changes no result is ignored.

    Returns
    -------
    KernelResult
        A :class:`TuneResult` that also unpacks as Kernel Tuner's ``results, env``.

    Raises
    ------
    UsageError
        Something is given that mltune cannot use.
    RunError
        The run failed; everything recorded before is kept.

    Warns
    -----
    MltuneWarning
        Neither `answer` nor `verify` is given, and most configurations disagree with the default configuration.

    Examples
    --------
    >>> import mltune, numpy
    >>> source = '''
    ... __global__ void add(float *c, const float *a, const float *b, int n) {
    ...   int i = blockIdx.x * block_size_x + threadIdx.x;
    ...   if (i < n) c[i] = a[i] + b[i];
    ... }'''
    >>> a, n = numpy.ones(1_000_000, numpy.float32), numpy.int32(1_000_000)
    >>> values = {"block_size_x": [64, 128, 256]}
    >>> result = mltune.tune_kernel("add", source, 1_000_000, [a, a, a, n], values)  # doctest: +SKIP
    >>> result.best_config, result.best_time_s  # doctest: +SKIP
    ({'block_size_x': 128}, 4.1e-06)
    """
    from mltune.kernel.kernel_tuner_call import check_call, kernel_of_call
    from mltune.resolve.device import choose, parse_device
    from mltune.resolve.request import GPU_TIME_S, TuneRequest, parse_duration
    from mltune.results.kernel_result import KernelResult, disagreement
    from mltune.tuning import tuner

    call = check_call(
        {
            "lang": lang,
            "compiler_options": compiler_options,
            "smem_args": smem_args,
            "metrics": metrics,
            **others,
        },
        strategy_options,
    )
    with kernel_of_call(
        call,
        kernel_name,
        kernel_source,
        problem_size,
        arguments,
        tune_params,
        smem_args=smem_args,
        defines=defines,
        grid_divisors=(grid_div_x, grid_div_y, grid_div_z),
        restrictions=restrictions,
        answer=answer,
        verify=verify,
        absolute=atol,
        constants=cmem_args,
        block_names=block_size_names,
        default=default,
        flops=flops,
        bytes=bytes,
    ) as kernel:
        assert kernel.arrays is not None  # noqa: S101 - it has arguments
        trials = call.trials if trials is None else trials
        time_s = call.time_s if time is None else parse_duration(str(time))
        problem = kernel.arrays.problem()
        target = parse_device(device if isinstance(device, str) else f"cuda:{device}")
        request = TuneRequest(
            problem,
            kernel,
            target or choose(kernel, problem),
            trials=trials,
            time_s=GPU_TIME_S if trials is None and time_s is None else time_s,
            seed=seed,
            stop=stop,
            run=None if run is None else Path(run),
            wisdom=wisdom,
        )
        shown = None if quiet else progress
        with _progress_bar(shown, "RunDisplay") as report, _interruptible(interrupt) as interrupted:
            result = tuner.tune(request, progress=report, stop=interrupted)
    if answer is None and verify is None and (notice := disagreement(result)):
        warnings.warn(notice, MltuneWarning, stacklevel=2)
    return KernelResult.of(result, metrics or {})


def run_kernel(
    kernel_name: str,
    kernel_source: Source,
    problem_size: Any,
    arguments: Sequence[Any],
    params: Mapping[str, Any],
    grid_div_x: Any = None,
    grid_div_y: Any = None,
    grid_div_z: Any = None,
    lang: str | None = None,
    device: int | str = 0,
    *,
    smem_args: Mapping[str, Any] | None = None,
    cmem_args: Mapping[str, Any] | None = None,
    compiler_options: Sequence[str] | None = None,
    defines: Mapping[str, Any] | None = None,
    block_size_names: Sequence[str] | None = None,
    quiet: bool = False,
    **others: Any,
) -> list[Any]:
    """Run a CUDA kernel once, in a process of its own, and return its arguments as they are afterwards.

    The names and the order of the arguments are those of Kernel Tuner's function of the same name. It computes the
    right answer with another kernel, say.

    Parameters
    ----------
    params : mapping of str to value
        The value of every parameter.
    kernel_name, kernel_source, problem_size, arguments, grid_div_x, grid_div_y, grid_div_z, lang, device, smem_args,
    cmem_args, compiler_options, defines, block_size_names, quiet, **others
        See :func:`tune_kernel`.

    Returns
    -------
    list of ndarray or scalar
        In the order of `arguments`, which are not changed.

    Raises
    ------
    UsageError
        Something is given that mltune cannot use.
    RunError
        The kernel cannot be compiled or launched, or fails.

    Examples
    --------
    >>> import mltune, numpy
    >>> source = "__global__ void twice(float *a) { a[threadIdx.x] *= 2; }"
    >>> array = numpy.ones(4, numpy.float32)
    >>> mltune.run_kernel("twice", source, 4, [array], {"block_size_x": 4})  # doctest: +SKIP
    [array([2., 2., 2., 2.], dtype=float32)]
    """
    from mltune.kernel.kernel_tuner_call import check_call, kernel_of_call
    from mltune.resolve.device import parse_device
    from mltune.tuning.session import run_once

    call = check_call({"lang": lang, "compiler_options": compiler_options, "smem_args": smem_args, **others}, None)
    target = parse_device(device if isinstance(device, str) else f"cuda:{device}")
    with kernel_of_call(
        call,
        kernel_name,
        kernel_source,
        problem_size,
        arguments,
        {name: [value] for name, value in params.items()},
        smem_args=smem_args,
        defines=defines,
        grid_divisors=(grid_div_x, grid_div_y, grid_div_z),
        constants=cmem_args,
        block_names=block_size_names,
    ) as kernel:
        arrays = run_once(kernel, target.cuda or 0 if target is not None else 0)
    return [arrays.get(f"argument_{position}", value) for position, value in enumerate(arguments)]


def load_run(directory: str | Path) -> TuneResult:
    """Load the result of a run, which may have ended or not; of one with competing kernels, that of the fastest.

    Parameters
    ----------
    directory : str or pathlib.Path
        The directory of the run: the parameter `run` of :func:`tune`.

    Raises
    ------
    RunDirectoryError
        The directory holds no run.

    Examples
    --------
    >>> import mltune, tempfile
    >>> run = tempfile.mkdtemp() + "/run"
    >>> tuned = mltune.tune(trials=20, device="replay:h200-sgemm-nt-4096-random", run=run)
    >>> mltune.load_run(run).best == tuned.best
    True
    """
    from mltune.campaign.competition import fastest
    from mltune.records.directory import is_plan
    from mltune.results.reader import read_run

    return fastest(Path(directory)) if is_plan(Path(directory)) else read_run(Path(directory))


class CompareOptions(TypedDict, total=False):
    """Further options of :func:`compare`, which describes them."""

    table: str | Path | None
    parameters: str | Sequence[str] | None
    time: str | None
    aggregate: bool
    evaluations: int
    seeds: int
    jobs: int | None
    output: str | Path | None
    progress: ComparisonReport | Literal["auto"] | None
    interrupt: Callable[[], bool] | None


@overload
def compare(
    strategies: Strategies | Sequence[Strategies] = ...,
    datasets: str | Sequence[str] | None = None,
    *,
    share: None = None,
    **options: Unpack[CompareOptions],
) -> Comparison: ...


@overload
def compare(
    strategies: Strategies | Sequence[Strategies] = ...,
    datasets: str | Sequence[str] | None = None,
    *,
    share: str,
    **options: Unpack[CompareOptions],
) -> Comparison | PartialComparison: ...


def compare(
    strategies: Strategies | Sequence[Strategies] = ("mltune", "tpe", "random"),
    datasets: str | Sequence[str] | None = None,
    *,
    table: str | Path | None = None,
    parameters: str | Sequence[str] | None = None,
    time: str | None = None,
    aggregate: bool = False,
    evaluations: int = 400,
    seeds: int = 50,
    jobs: int | None = None,
    output: str | Path | None = None,
    share: str | None = None,
    progress: ComparisonReport | Literal["auto"] | None = "auto",
    interrupt: Callable[[], bool] | None = None,
) -> Comparison | PartialComparison:
    """Compare search strategies on recorded timings.

    Each strategy searches each dataset with each seed, and each configuration that it proposes is looked up. The
    comparison is written to `output`: every run as it ends, then the summary, a table and figures.

    Parameters
    ----------
    strategies : str, Strategy, class, or sequence of these
        Names, in one text separated by commas, or ``"all"``; ``"NAME@SEEDS"`` gives a strategy fewer seeds. A strategy
        of your own is an object, a class, or ``"module:Class"`` (docs/developers/add-a-strategy.md).
    datasets : str or sequence of str, optional
        Names or paths of datasets, or folders that hold some. By default all that come with mltune.
    table : str or pathlib.Path, optional
        A table of configurations and times (CSV, Parquet or JSON) in place of datasets.
    parameters : str or sequence of str, optional
        The columns of the table that are parameters.
    time : str, optional
        The column of the table that holds the times; its name ends with the unit: ``time_ms``.
    aggregate : bool
        Whether to merge rows of the table that differ in columns which are no parameters: the median counts.
    evaluations : int
        Distinct configurations that each run measures.
    seeds : int
        Runs of each strategy on each dataset.
    jobs : int, optional
        Processes. By default one per processor.
    output : str or pathlib.Path, optional
        Directory of the comparison; an existing one is resumed. By default one under ``runs/`` that belongs to these
        arguments: the same call goes on.
    share : str, optional
        ``"I/N"`` does the I-th of N shares of the work, one on each of N machines, say. A call without `share` and with
        the same `output` joins them.
    progress : callable, "auto" or None
        Called with a :class:`mltune.comparison.comparison.Progress` after each run. ``"auto"`` shows a progress bar in
        a notebook or a terminal (on stderr), and nothing elsewhere.
    interrupt : callable, optional
        Called without arguments several times a second; true ends the comparison with the runs that have ended. By
        default Ctrl-C does so, and a second Ctrl-C raises KeyboardInterrupt.

    Returns
    -------
    Comparison or PartialComparison
        The latter for one share of several.

    Raises
    ------
    UsageError
        A strategy, dataset or option is malformed or does not exist.
    RunError
        No strategy has run on every dataset.

    Warns
    -----
    MltuneWarning
        A table or a dataset is not as it should be, and there is no `progress` to tell.

    Examples
    --------
    >>> import mltune, tempfile
    >>> class FirstToLast:
    ...     name = "first_to_last"
    ...
    ...     def search(self, simulation, seed):
    ...         for index in range(simulation.space.count):
    ...             simulation.evaluate(index)
    >>> compared = mltune.compare(
    ...     ["random", FirstToLast], "h200-dgemm-nt-4096-random", evaluations=20, seeds=2, output=tempfile.mkdtemp()
    ... )
    >>> compared.strategies, compared.fraction("random", "h200-dgemm-nt-4096-random").shape
    (('random', 'first_to_last'), (2, 20))
    """
    from mltune.comparison.comparison import compare as run
    from mltune.comparison.comparison import compare_request
    from mltune.comparison.results import PartialComparison, write_results

    request = compare_request(
        strategies=strategies,
        datasets=_joined(datasets),
        table=None if table is None else Path(table),
        parameters=_joined(parameters),
        time=time,
        aggregate=aggregate,
        evaluations=evaluations,
        seeds=seeds,
        processes=jobs,
        output=None if output is None else Path(output),
        share=share,
    )
    with _progress_bar(progress, "ComparisonDisplay") as report, _interruptible(interrupt) as interrupted:
        comparison = run(request, report, interrupted)
    if isinstance(comparison, PartialComparison):
        return comparison
    if report is None:
        for name, recording in comparison.recordings.items():
            for notice in recording.notices:
                warnings.warn(f"{name}: {notice}", MltuneWarning, stacklevel=2)
    write_results(comparison, request.output)
    return comparison


def _joined(names: str | Sequence[str] | None) -> str | None:
    return names if names is None or isinstance(names, str) else ",".join(names)


@contextmanager
def _progress_bar(progress: Any, display: str) -> Iterator[Any]:
    """Return the callable that receives the progress: for ``"auto"`` a display on a terminal or in a notebook."""
    from mltune.show import live

    if progress != "auto":
        yield progress
    elif sys.stderr.isatty() or live.in_notebook():
        with getattr(live, display)() as shown:
            yield shown
    else:
        yield None


@contextmanager
def _interruptible(interrupt: Callable[[], bool] | None) -> Iterator[Callable[[], bool]]:
    """Return the callable that ends a run: by default true after a first Ctrl-C; a second one acts as usual."""
    pressed = threading.Event()
    if interrupt is not None or threading.current_thread() is not threading.main_thread():
        yield interrupt or pressed.is_set
        return

    def note(number: int, frame: object) -> None:
        signal.signal(signal.SIGINT, usual)
        pressed.set()

    usual = signal.getsignal(signal.SIGINT) or signal.default_int_handler
    signal.signal(signal.SIGINT, note)
    try:
        yield pressed.is_set
    finally:
        signal.signal(signal.SIGINT, usual)
