"""A table of reference launchers: vendor implementations that tuned kernels are compared with, by problem kind."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from mltune.device.packages import cuda_of_cupy, cupy_packages, extra, major
from mltune.errors import DeviceError
from mltune.measure.compiler import loaded_library

if TYPE_CHECKING:
    from mltune.problem.runnable import RunnableProblem

_CUPY_THAT_FINDS_PACKAGES = 14
"""The major version of CuPy from which on it finds the cuBLAS of NVIDIA's packages, not only a toolkit's."""

_LARGEST_INT = 2**31 - 1
_HALVES = {"float16": 2, "bfloat16": 14}  # of cudaDataType
_CUDA_R_32F = 0
_COMPUTE_32F, _GEMM_DEFAULT = 68, -1  # of cublasComputeType_t and cublasGemmAlgo_t


def bind_reference(problem: RunnableProblem, addresses: Mapping[str, int]) -> Callable[[], None]:
    """Return a function that queues one run of the reference implementation on the default stream.

    The addresses are those of the problem's buffers on the device.

    Raises
    ------
    DeviceError
        The problem has no reference implementation, it is not installed, or it does not support the problem.
    """
    bind = REFERENCES.get(problem.kind)
    if bind is None:
        raise DeviceError(
            f"a reference implementation is known for problems of kind {', '.join(REFERENCES)}, got {problem.kind}."
        )
    if not problem.reference:
        raise DeviceError(f"no reference implementation of {problem.name} is known.")
    return bind(problem, addresses)


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


def _bind_cublas(problem: Any, addresses: Mapping[str, int]) -> Callable[[], None]:
    """Bind cuBLAS's GEMM, or that of batches, whose interfaces count rows and columns in 32 bits."""
    cublas = load_cublas()
    from cupy.cuda import device

    m, n, k, lda, ldb, ldc = sizes = (problem.m, problem.n, problem.k, problem.lda, problem.ldb, problem.ldc)
    if max(sizes) > _LARGEST_INT:
        raise DeviceError(f"cuBLAS counts rows and columns to 2**31 - 1, got {problem.label}; choose a smaller size.")
    handle = device.get_cublas_handle()
    cublas.setPointerMode(handle, cublas.CUBLAS_POINTER_MODE_HOST)
    ops = {"N": cublas.CUBLAS_OP_N, "T": cublas.CUBLAS_OP_T, "C": cublas.CUBLAS_OP_C}
    trans_a, trans_b = ops[problem.trans_a], ops[problem.trans_b]
    scalars = np.array([problem.alpha, problem.beta], dtype=problem.result_dtype)
    alpha = scalars.ctypes.data
    beta = alpha + scalars.itemsize
    half, is_batched = _HALVES.get(problem.types.operand), problem.batch > 1
    # What the interfaces for half precision and for batches have besides: a type, and a stride, of each matrix.
    kinds = ([], [], []) if half is None else ([half], [half], [_CUDA_R_32F])
    strides = [[stride] if is_batched else [] for stride in problem.strides]
    a, b, c = (
        (addresses[name], *kind, leading, *stride)
        for name, kind, leading, stride in zip("ABC", kinds, (lda, ldb, ldc), strides, strict=True)
    )
    last = [*([problem.batch] if is_batched else []), *([] if half is None else [_COMPUTE_32F, _GEMM_DEFAULT])]
    arguments = (handle, trans_a, trans_b, m, n, k, alpha, *a, *b, beta, *c, *last)
    name = problem.name if half is None else "gemm"
    gemm = getattr(cublas, f"{name}{'StridedBatched' if is_batched else ''}{'' if half is None else 'Ex'}")

    def launch(keep: Any = scalars) -> None:  # alpha and beta point into them
        gemm(*arguments)

    return launch


REFERENCES: Mapping[str, Callable[[Any, Mapping[str, int]], Callable[[], None]]] = {"gemm": _bind_cublas}
"""The reference implementations by problem kind: functions like :func:`bind_reference` for the problems of one kind."""
