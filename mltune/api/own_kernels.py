"""Kernels given in Python: tune one, or run one, with the arguments of Kernel Tuner's functions of these names."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, Literal

from mltune.api.display import interruptible, shown
from mltune.errors import DeviceError, MltuneWarning, UsageError
from mltune.resolve.options import RunOptions

if TYPE_CHECKING:
    from mltune.kernel.bundle import Kernel
    from mltune.results.progress import Report
    from mltune.results.run import KernelResult

Source = str | Path | Callable[[dict[str, Any]], str] | Sequence[Any]
"""A source of :func:`tune_kernel`."""


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
    stop: bool = RunOptions.stop,
    variants: bool = RunOptions.variants,
    compiler: Mapping[str, Sequence[Any]] | str | None = None,
    run: str | Path | None = None,
    wisdom: str | Path = RunOptions.wisdom,
    progress: Report | Literal["auto"] | None = "auto",
    interrupt: Callable[[], bool] | None = None,
    **ignored: Any,
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
        CUDA source, the name of its file, or a function that returns the source for a dict of parameters. In a list of
        these the first is the source, and the others are files that it includes. Every parameter is a macro.
    problem_size : int, tuple, str or callable
        Elements along x, y and z; a text is an expression over the parameters, a function gets them as a dict.
    arguments : sequence of array or NumPy scalar
        Arrays of NumPy, CuPy or PyTorch, and scalars such as ``numpy.int32(n)``.
    tune_params : mapping of str to sequence
        Values of every parameter: integers, floats, booleans or texts. ``block_size_x``, ``block_size_y`` and
        ``block_size_z`` are the threads of a block.
    grid_div_x, grid_div_y, grid_div_z : str, int, callable or sequence of these, optional
        What the problem size is divided by for the number of blocks, all of a sequence; by default the threads of a
        block.
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
    compiler : mapping of str to sequence, optional
        Further compiler parameters, or other values of the built-in ones: options by the name of a parameter, such as
        ``{"math": ["", "--use_fast_math"], "entry_name": [""]}`` (docs/reference/kernel-toml.md#compiler). Values of
        ``apply_controls`` are paths of files of controls. Kernel Tuner's name of a compiler is ignored.
    trials, time, seed, stop, variants, run, wisdom, progress, interrupt
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
    ({'block_size_x': 128, 'entry_name': '', 'register_usage_level': 5}, 4.1e-06)
    """
    begun, arguments_of_call = perf_counter(), locals()
    from mltune.tuning.ahead import pool_for

    with pool_for(device) as pool:
        from mltune.kernel.kernel_tuner_call import kernel_of_call, read_call
        from mltune.resolve.device import choose, find_gpus, parse_device
        from mltune.resolve.request import GPU_TIME_S, TuneRequest, parse_duration
        from mltune.results.run import KernelResult, disagreement
        from mltune.tuning import tuner

        call, options = read_call(arguments_of_call, ignored)
        with kernel_of_call(call) as kernel:
            trials = options.trials if trials is None else trials
            limit_s = options.time_s if time is None else time
            time_s = None if limit_s is None else parse_duration(str(limit_s))
            problem = kernel.own_problem()
            target = parse_device(device if isinstance(device, str) else f"cuda:{device}")
            request = TuneRequest(
                problem,
                kernel,
                target or choose(kernel, problem),
                trials=trials,
                time_s=GPU_TIME_S if trials is None and time_s is None else time_s,
                seed=seed,
                stop=stop,
                variants=variants,
                run=None if run is None else Path(run),
                wisdom=str(wisdom),
            )
            if request.target.cuda is not None and (reason := find_gpus()[1]):
                raise DeviceError(_checked_without_gpu(kernel, reason))
            with shown(None if quiet else progress, "RunDisplay") as report, interruptible(interrupt) as interrupted:
                result = tuner.tune(request, progress=report, stop=interrupted, begun=begun, pool=pool)
    if answer is None and verify is None and (notice := disagreement(result)):
        warnings.warn(notice, MltuneWarning, stacklevel=2)
    return KernelResult.of(result, options.metrics)


def _checked_without_gpu(kernel: Kernel, reason: str) -> str:
    """Check a kernel as ``mltune check`` does; say that there is no GPU, what was found, and what to do."""
    from mltune.device.known import H200
    from mltune.kernel.placed import PlacedKernel
    from mltune.measure.bundle_check import check_bundle

    checked = check_bundle(PlacedKernel(kernel, kernel.own_problem(), H200))
    wrong = [fault.reason for fault in checked.faults] + [error.partition("; ")[0] for error in checked.errors]
    if wrong:
        return f"{wrong[0].removesuffix('.')}. Correct this, then call tune_kernel on a machine with a GPU: {reason}."
    start = f"tune_kernel found no GPU: {reason}."
    if checked.not_built:
        return f"{start} Nothing could be compiled, either: {checked.not_built}"
    return (
        f"{start} The check without a GPU found no mistake: the arguments fit {kernel.source.entry}, and "
        f"{checked.compiled} of {len(checked.builds)} configurations that were tried compile for an {H200.name}. "
        "Make the same call on a machine with a GPU."
    )


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
    **ignored: Any,
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
    if not isinstance(params, Mapping):
        raise UsageError(f"params cannot be {params!r:.100}: it is a dict of values, such as {{'TILE': 2}}.")
    arguments_of_call = {**locals(), "tune_params": {name: [value] for name, value in params.items()}}
    from mltune.kernel.kernel_tuner_call import kernel_of_call, read_call
    from mltune.resolve.device import parse_device
    from mltune.tuning.session import run_once

    call, _ = read_call(arguments_of_call, ignored)
    target = parse_device(device if isinstance(device, str) else f"cuda:{device}")
    with kernel_of_call(call) as kernel:
        arrays = run_once(kernel, target.cuda or 0 if target is not None else 0)
    return [arrays.get(f"argument_{position}", value) for position, value in enumerate(arguments)]
