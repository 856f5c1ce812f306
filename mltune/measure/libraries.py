"""The CUDA libraries that this Python environment takes, with their versions and paths."""

from __future__ import annotations

import ctypes
import warnings
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

from mltune.device.packages import cupy_packages, find_module, mixed_installation, package_problems
from mltune.device.query import driver_version
from mltune.errors import DeviceError
from mltune.measure.compiler import check_fits_driver, loaded_library, nvrtc_version
from mltune.measure.references import load_cublas


@dataclass(frozen=True, slots=True)
class Library:
    """A library as it was found.

    Attributes
    ----------
    version : str
        Empty where the library was not found; ``"unknown"`` for a package without metadata.
    path : str
        The file that was loaded, or the module of a Python package; empty where the library was not found.
    """

    name: str
    version: str = ""
    path: str = ""


def find_libraries() -> tuple[list[Library], list[str]]:
    """Load the libraries as a run does, without a GPU; return them and the problems with them.

    They are the driver, NVRTC, cuBLAS, CuPy, cuda-bindings and NVML. Without a driver, a missing library is no problem.
    """
    cuda, problems = None, [mixed_installation()]
    driver, nvrtc, cublas = Library("NVIDIA driver"), Library("NVRTC"), Library("cuBLAS")
    try:
        cuda = driver_version()
        driver = Library(driver.name, f"CUDA {cuda}", loaded_library("cuda"))
    except DeviceError:
        pass
    problems += package_problems(cuda)
    try:
        nvrtc = Library(nvrtc.name, nvrtc_version(), loaded_library("nvrtc"))
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
    others = [_package("cuda-bindings", "cuda.bindings"), _package("nvidia-ml-py", "pynvml")]
    return [driver, nvrtc, cublas, *cupys, *others], [text.removesuffix(".") for text in problems if text]


def _cublas() -> Library:
    """Load cuBLAS as the reference does, and ask it for its version, which needs no GPU."""
    with warnings.catch_warnings(action="ignore"):  # CuPy warns of two CuPys
        load_cublas()
    path, number = loaded_library("cublas"), ctypes.c_int()
    library, numbers = ctypes.CDLL(path), []
    for part in range(3):
        library.cublasGetProperty(part, ctypes.byref(number))
        numbers.append(str(number.value))
    return Library("cuBLAS", ".".join(numbers), path)


def _package(distribution: str, module: str) -> Library:
    """Return a package, with its version if it was installed as a distribution."""
    spec = find_module(module)
    if spec is None:
        return Library(distribution)
    try:
        return Library(distribution, version(distribution), spec.origin or "")
    except PackageNotFoundError:
        return Library(distribution, "unknown", spec.origin or "")
