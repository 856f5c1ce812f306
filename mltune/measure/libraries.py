"""The CUDA libraries of this Python environment, and the vendor's kernels that tuned ones are compared with."""

from __future__ import annotations

import ctypes
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from mltune.device.packages import (
    cuda_of_cupy,
    cupy_packages,
    extra,
    find_module,
    major,
    mixed_installation,
    package_problems,
)
from mltune.device.query import driver_version
from mltune.errors import DeviceError
from mltune.measure.compiler import check_fits_driver, loaded_library, nvrtc_version
from mltune.problem.problem import RunnableProblem


@dataclass(frozen=True, slots=True)
class CudaLibrary:
    """A library as it was found; version and path are empty where it was not."""

    name: str
    version: str = ""
    path: str = ""


def find_libraries() -> tuple[list[CudaLibrary], list[str]]:
    """Load the libraries of a run; return them and the problems, such as a missing one where there is a driver."""
    cuda, problems = None, [mixed_installation()]
    driver, nvrtc, cublas = CudaLibrary("NVIDIA driver"), CudaLibrary("NVRTC"), CudaLibrary("cuBLAS")
    try:
        cuda = driver_version()
        driver = CudaLibrary(driver.name, f"CUDA {cuda}", loaded_library("cuda"))
    except DeviceError:
        pass
    problems += package_problems(cuda)
    try:
        nvrtc = CudaLibrary(nvrtc.name, nvrtc_version(), loaded_library("nvrtc"))
        if cuda is not None:
            check_fits_driver(cuda)
    except DeviceError as error:
        problems += [str(error)] if cuda is not None else []
    if find_module("cupy") is not None:
        try:
            cublas = _cublas()
        except DeviceError as error:
            problems.append(str(error))
    cupys = [_package(name, "cupy") for name in cupy_packages()] or [_package("CuPy", "cupy")]
    packages = [_package("cuda-bindings", "cuda.bindings"), _package("nvidia-ml-py", "pynvml")]
    return [driver, nvrtc, cublas, *cupys, *packages], [text.removesuffix(".") for text in problems if text]


def _cublas() -> CudaLibrary:
    """Load cuBLAS as the reference does, and ask it for its version, which needs no GPU."""
    with warnings.catch_warnings(action="ignore"):  # CuPy warns of two CuPys
        load_cublas()
    path, number = loaded_library("cublas"), ctypes.c_int()
    library, numbers = ctypes.CDLL(path), []
    for part in range(3):
        library.cublasGetProperty(part, ctypes.byref(number))
        numbers.append(str(number.value))
    return CudaLibrary("cuBLAS", ".".join(numbers), path)


def _package(distribution: str, module: str) -> CudaLibrary:
    """Return a package, with its version if it was installed as a distribution."""
    spec = find_module(module)
    if spec is None:
        return CudaLibrary(distribution)
    try:
        return CudaLibrary(distribution, version(distribution), spec.origin or "")
    except PackageNotFoundError:
        return CudaLibrary(distribution, "unknown", spec.origin or "")


_CUPY_THAT_FINDS_PACKAGES = 14
"""The major version of CuPy from which on it finds the cuBLAS of NVIDIA's packages, not only a toolkit's."""


def bind_reference(problem: RunnableProblem, addresses: Mapping[str, int]) -> Callable[[], None]:
    """Return a function that queues a run of the reference on the default stream; a DeviceError without one."""
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
    """Return CuPy's bindings of cuBLAS; a DeviceError where it is missing, or for another major version of CUDA."""
    try:
        import cupy  # noqa: F401  # CuPy 13 prepares the loading of libraries
        from cupy_backends.cuda.libs import cublas
    except ImportError as error:
        cupys, taken, cause = cupy_packages(), loaded_library("cublas"), " ".join(str(error).split())[:300]
        names = " ".join(cupys) or "CuPy"
        if taken:
            raise DeviceError(
                f"{names} cannot use {taken} ({cause}): CuPy and cuBLAS must be for the same CUDA; run "
                f"`pip uninstall {names}`, then `pip install {extra(major(taken.rpartition('.so.')[2]))}`."
            ) from error
        old = any(major(version) < _CUPY_THAT_FINDS_PACKAGES for version in cupys.values())
        raise DeviceError(
            f"cuBLAS cannot be loaded ({cause}); run `pip install "
            f"{f'--upgrade {names} ' if old else ''}{extra(cuda_of_cupy())}`."
        ) from error
    return cublas
