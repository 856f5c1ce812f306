"""A tuned function: a kernel that is launched in the best known configuration for the sizes of each call."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from mltune.api.display import shown

if TYPE_CHECKING:
    from mltune.api.own_kernels import Source
    from mltune.results.progress import Report
    from mltune.tuning.tuned_function import TunedFunction


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
