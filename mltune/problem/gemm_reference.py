"""The call of cuBLAS that solves a GEMM."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from mltune.errors import DeviceError
from mltune.problem.gemm_operands import HALF_PRECISION
from mltune.problem.problem import LibraryCall

_LARGEST_INT = 2**31 - 1
_OPS = {"N": 0, "T": 1, "C": 2}  # of cublasOperation_t
_TYPES = {"float32": 0, "float16": 2, "bfloat16": 14}  # of cudaDataType
_COMPUTE_32F, _GEMM_DEFAULT = 68, -1  # of cublasComputeType_t and cublasGemmAlgo_t


def reference_call(problem: Any, addresses: Mapping[str, int]) -> LibraryCall | None:
    """Return the call of cuBLAS's GEMM, or that of batches, whose interfaces count rows and columns in 32 bits."""
    if not problem.reference:
        return None
    m, n, k, lda, ldb, ldc = sizes = (problem.m, problem.n, problem.k, problem.lda, problem.ldb, problem.ldc)
    if max(sizes) > _LARGEST_INT:
        raise DeviceError(
            f"{problem.label} is too large for cuBLAS, which counts rows and columns to 2**31 - 1; choose a smaller "
            "size."
        )
    scalars = np.array([problem.alpha, problem.beta], dtype=problem.scalar_dtype)
    alpha = scalars.ctypes.data
    beta = alpha + scalars.itemsize
    types = problem.types
    is_half, is_batched = types.operands[0] in HALF_PRECISION, problem.batch > 1
    # The interfaces for half precision and for batches also take a type and a stride of each matrix.
    operand, result = ([_TYPES[name]] if is_half else [] for name in (types.operands[0], types.result))
    strides = [[stride] if is_batched else [] for stride in problem.strides]
    a, b, c = (
        (addresses[name], *kind, leading, *stride)
        for name, kind, leading, stride in zip("ABC", (operand, operand, result), (lda, ldb, ldc), strides, strict=True)
    )
    last = [*([problem.batch] if is_batched else []), *([_COMPUTE_32F, _GEMM_DEFAULT] if is_half else [])]
    name = "gemm" if is_half else problem.name
    return LibraryCall(
        f"{name}{'StridedBatched' if is_batched else ''}{'Ex' if is_half else ''}",
        (_OPS[problem.trans_a], _OPS[problem.trans_b], m, n, k, alpha, *a, *b, beta, *c, *last),
        keep=scalars,
    )
