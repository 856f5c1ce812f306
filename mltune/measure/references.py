"""The vendor's GEMM, for the same problem and operands: what a tuned kernel is measured against."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from mltune.errors import DeviceError

if TYPE_CHECKING:
    from mltune.problem.gemm import GemmProblem
    from mltune.problem.gemm_operands import GemmOperands

_LARGEST_INT = 2**31 - 1
_INSTALL = "install it with `pip install 'mltune[cuda13]'`"


def bind_cublas(problem: GemmProblem, operands: GemmOperands) -> Callable[[], None]:
    """Return a function that queues cuBLAS's GEMM on the default stream.

    Parameters
    ----------
    problem : GemmProblem
    operands : GemmOperands
        Device addresses, as integers.

    Raises
    ------
    DeviceError
        cuBLAS is not installed, or the problem has more rows or columns than its 32-bit interface counts.
    """
    try:
        from cupy.cuda import device
        from cupy_backends.cuda.libs import cublas
    except ImportError as error:
        raise DeviceError(f"cuBLAS must be installed, but it cannot be loaded ({error}); {_INSTALL}.") from error

    sizes = (problem.m, problem.n, problem.k, problem.lda, problem.ldb, problem.ldc)
    if max(sizes) > _LARGEST_INT:
        raise DeviceError(f"cuBLAS counts rows and columns to 2**31 - 1, got {problem.label}; choose a smaller size.")
    handle = device.get_cublas_handle()
    cublas.setPointerMode(handle, cublas.CUBLAS_POINTER_MODE_HOST)
    gemm = getattr(cublas, problem.name)
    ops = {"N": cublas.CUBLAS_OP_N, "T": cublas.CUBLAS_OP_T, "C": cublas.CUBLAS_OP_C}
    trans_a, trans_b = ops[problem.trans_a], ops[problem.trans_b]
    scalars = np.array([problem.alpha, problem.beta], dtype=problem.dtype)
    alpha = scalars.ctypes.data
    beta = alpha + problem.element_bytes
    m, n, k, lda, ldb, ldc = sizes
    A, B, C = operands.A, operands.B, operands.C

    def launch(keep: Any = scalars) -> None:  # alpha and beta point into them
        gemm(handle, trans_a, trans_b, m, n, k, alpha, A, lda, B, ldb, beta, C, ldc)

    return launch
