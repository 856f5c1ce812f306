"""Kernels given in Python: tune one, run one, or make a function that launches the best known configuration.

The arguments are those of Kernel Tuner's functions.
"""

from __future__ import annotations

import functools
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, Literal

from mltune.api.display import interruptible, shown
from mltune.errors import DeviceError, MltuneWarning
from mltune.resolve.options import RunOptions, directory_of

if TYPE_CHECKING:
    from mltune.kernel.bundle import Kernel
    from mltune.results.progress import Report
    from mltune.results.run import KernelResult
    from mltune.tuning.tuned_function import TunedFunction

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
                run=directory_of(run),
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
    arguments_of_call = {**locals(), "tune_params": {name: [value] for name, value in params.items()}}
    from mltune.kernel.kernel_tuner_call import kernel_of_call, read_call
    from mltune.resolve.device import parse_device
    from mltune.tuning.session import run_once

    call, _ = read_call(arguments_of_call, ignored)
    target = parse_device(device if isinstance(device, str) else f"cuda:{device}")
    with kernel_of_call(call) as kernel:
        arrays = run_once(kernel, target.cuda or 0 if target is not None else 0)
    return [arrays.get(f"argument_{position}", value) for position, value in enumerate(arguments)]


_OF_KERNELS = {
    *("grid_div_x", "grid_div_y", "grid_div_z", "restrictions", "answer", "atol", "verify", "cmem_args", "defines"),
    *("block_size_names", "default", "compiler", "smem_args", "compiler_options", "lang", "metrics"),
}
"""Options that say what a kernel is; others are refused or change nothing."""


def tuned_kernel(
    kernel_name: str,
    kernel_source: Source,
    problem_size: Any,
    tune_params: Mapping[str, Sequence[Any]],
    *,
    file: str | Path | None = None,
    effort: Literal["none", "quick", "full"] | None = None,
    seed: int = 0,
    progress: Report | Literal["auto"] | None = "auto",
    **options: Any,
) -> TunedFunction:
    """Make a function that launches a CUDA kernel in the best known configuration for the sizes of each call.

    The first call with new sizes takes what the file knows, or tunes as :func:`tune_kernel` does and adds the winner to
    the file; later calls only launch. Of several processes that call for the same sizes one tunes, while the others
    wait and read: all run the same configuration. After some seconds a warning says for whom they wait, and after a
    deadline they run what is known or the default. Arrays are never changed by tuning.

    The sizes of a call are the problem size, the types and shapes of the arrays, and the types of the scalars. Values
    of scalars are none: if they decide what is fast, let the problem size follow from them.

    Parameters
    ----------
    problem_size : int, tuple, str or callable
        As that of :func:`tune_kernel`; but a function gets the arguments of the call, and returns a number, a tuple or
        a text, which is an expression over the parameters.
    kernel_name, kernel_source, tune_params, seed, progress
        See :func:`tune_kernel`.
    file : str or pathlib.Path, optional
        The wisdom in which choices are kept; it can be checked in. By default that of the user (docs/how-to/
        carry-wisdom.md). Tuning begins with what this file and the user's know of other sizes.
    effort : {"none", "quick", "full"}, optional
        ``"none"`` never tunes: what the file knows of these sizes is taken, else of the nearest, else the default
        configuration. ``"quick"`` tunes 5 s at most, ``"full"`` 120 s, which also tunes again what was found by
        ``"quick"``. By default the environment variable ``MLTUNE_EFFORT``, else ``"quick"``.
    **options
        Others of :func:`tune_kernel` that say what the kernel is and when it is right: ``grid_div_x``, ``_y`` and
        ``_z``, ``restrictions``, ``answer``, ``atol``, ``verify``, ``smem_args``, ``cmem_args``, ``compiler_options``,
        ``defines``, ``block_size_names``, ``default``, ``compiler``. ``answer`` should be a function of the arguments,
        because each size has its own. Texts of ``restrictions`` may use ``problem_size_x``, ``_y`` and ``_z``, and
        ``argument_0`` and so on, the number of elements of an array. Further arguments of Kernel Tuner are refused or
        change nothing, as there.

    Returns
    -------
    TunedFunction
        Called with the arguments of the kernel: arrays of CuPy, PyTorch or anything with ``__cuda_array_interface__``,
        on the current GPU, and NumPy scalars.

    Raises
    ------
    UsageError
        Something is given that mltune cannot use.

    Warns
    -----
    MltuneWarning
        The file knows the kernel, but of another source or GPU, and nothing is tuned; or another process holds a lock.

    Examples
    --------
    >>> import mltune, numpy
    >>> source = '''
    ... __global__ void add(float *c, const float *a, const float *b, int n) {
    ...   int i = blockIdx.x * block_size_x + threadIdx.x;
    ...   if (i < n) c[i] = a[i] + b[i];
    ... }'''
    >>> values = {"block_size_x": [64, 128, 256]}
    >>> add = mltune.tuned_kernel("add", source, lambda c, a, b, n: c.size, values, file="add.json")
    >>> add(c, a, b, numpy.int32(c.size))  # doctest: +SKIP
    >>> print(add.explain(c, a, b, numpy.int32(c.size)))  # doctest: +SKIP
    add 1000000x1000000x1000000x1000000: block_size_x=128 ...: tuned by this process; measured there: 6.21 us, ...
    """
    from mltune.kernel.kernel_tuner_call import read_call
    from mltune.known.effort import effort as checked
    from mltune.known.wisdom_file import AUTO, file_of_run
    from mltune.tuning.tuned_function import TunedFunction, TunedKernel

    arguments = {"kernel_name": kernel_name, "kernel_source": kernel_source, "problem_size": problem_size}
    arguments |= {"tune_params": tune_params, "arguments": (), "atol": 1e-6}
    arguments |= {name: options.pop(name) for name in [*options] if name in _OF_KERNELS}
    call, _ = read_call(arguments, options)
    kernel = TunedKernel(
        call, checked(effort) if effort else "", seed, functools.partial(shown, progress, "RunDisplay")
    )
    return TunedFunction(kernel, file_of_run(AUTO, replayed=False) if file is None else Path(os.path.realpath(file)))


def tuned(
    kernel_name: str, kernel_source: Source, tune_params: Mapping[str, Sequence[Any]], **options: Any
) -> Callable[[Callable[..., Any]], TunedFunction]:
    """Decorate a function whose parameters are the arguments of a kernel, and which returns the problem size of a call.

    Parameters
    ----------
    kernel_name, kernel_source, tune_params, **options
        See :func:`tuned_kernel`.

    Returns
    -------
    callable
        Makes the :class:`TunedFunction` of a function, with its name and documentation.

    Examples
    --------
    >>> import mltune
    >>> @mltune.tuned("scale", "scale.cu", {"block_size_x": [64, 128, 256]}, file="scale.json")
    ... def scale(out, values, factor, n):
    ...     '''Multiply values by a factor.'''
    ...     return out.size
    >>> scale.__doc__
    'Multiply values by a factor.'
    """

    def decorate(function: Callable[..., Any]) -> TunedFunction:
        decorated = tuned_kernel(kernel_name, kernel_source, function, tune_params, **options)
        functools.update_wrapper(decorated, function)
        return decorated

    return decorate
