"""Reference implementations of the vendor, which tuned kernels are compared with: calls of cuBLAS through CuPy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from mltune.device.packages import cuda_of_cupy, cupy_packages, extra, major
from mltune.errors import DeviceError
from mltune.measure.compiler import loaded_library

if TYPE_CHECKING:
    from mltune.problem.runnable import RunnableProblem

_CUPY_THAT_FINDS_PACKAGES = 14
"""The major version of CuPy from which on it finds the cuBLAS of NVIDIA's packages, not only a toolkit's."""


def bind_reference(problem: RunnableProblem, addresses: Mapping[str, int]) -> Callable[[], None]:
    """Return a function that queues one run of the reference implementation on the default stream.

    The addresses are those of the problem's buffers on the device.

    Raises
    ------
    DeviceError
        The problem has no reference implementation, it is not installed, or it does not support the problem.
    """
    call = problem.reference_call(addresses)
    if call is None:
        raise DeviceError(f"no reference implementation of {problem.name} is known.")
    cublas = load_cublas()
    from cupy.cuda import device

    handle = device.get_cublas_handle()
    cublas.setPointerMode(handle, cublas.CUBLAS_POINTER_MODE_HOST)
    function, arguments = getattr(cublas, call.function), call.arguments

    def launch(keep: Any = call.keep) -> None:
        function(handle, *arguments)

    return launch


def load_cublas() -> Any:
    """Return CuPy's bindings of cuBLAS. CuPy loads the library: from packages of NVIDIA, else a toolkit's.

    Raises
    ------
    DeviceError
        CuPy or cuBLAS is not installed, or cuBLAS is of another major version of CUDA than CuPy.
    """
    try:
        import cupy  # noqa: F401  # CuPy 13 prepares the loading of libraries
        from cupy_backends.cuda.libs import cublas
    except ImportError as error:
        cupys, taken, cause = cupy_packages(), loaded_library("cublas"), " ".join(str(error).split())[:300]
        names = " ".join(cupys) or "CuPy"
        if taken:
            raise DeviceError(
                f"CuPy and cuBLAS must be for the same CUDA, but {names} cannot use {taken} ({cause}); run "
                f"`pip uninstall {names}`, then `pip install {extra(major(taken.rpartition('.so.')[2]))}`."
            ) from error
        old = any(major(version) < _CUPY_THAT_FINDS_PACKAGES for version in cupys.values())
        raise DeviceError(
            f"cuBLAS must be installed, but it cannot be loaded ({cause}); run `pip install "
            f"{f'--upgrade {names} ' if old else ''}{extra(cuda_of_cupy())}`."
        ) from error
    return cublas
