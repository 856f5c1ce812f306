"""The call of cuBLAS that solves a GEMM."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from mltune.errors import DeviceError
from mltune.problem.problem import LibraryCall

_LARGEST_INT = 2**31 - 1
_OPS = {"N": 0, "T": 1, "C": 2}  # of cublasOperation_t
_HALVES = {"float16": 2, "bfloat16": 14}  # of cudaDataType
_CUDA_R_32F = 0
_COMPUTE_32F, _GEMM_DEFAULT = 68, -1  # of cublasComputeType_t and cublasGemmAlgo_t


def reference_call(problem: Any, addresses: Mapping[str, int]) -> LibraryCall | None:
    """Return the call of cuBLAS's GEMM, or that of batches, whose interfaces count rows and columns in 32 bits."""
    if not problem.reference:
        return None
    m, n, k, lda, ldb, ldc = sizes = (problem.m, problem.n, problem.k, problem.lda, problem.ldb, problem.ldc)
    if max(sizes) > _LARGEST_INT:
        raise DeviceError(f"cuBLAS counts rows and columns to 2**31 - 1, got {problem.label}; choose a smaller size.")
    scalars = np.array([problem.alpha, problem.beta], dtype=problem.result_dtype)
    alpha = scalars.ctypes.data
    beta = alpha + scalars.itemsize
    half, is_batched = _HALVES.get(problem.types.operand), problem.batch > 1
    # The interfaces for half precision and for batches also take a type and a stride of each matrix.
    kinds = ([], [], []) if half is None else ([half], [half], [_CUDA_R_32F])
    strides = [[stride] if is_batched else [] for stride in problem.strides]
    a, b, c = (
        (addresses[name], *kind, leading, *stride)
        for name, kind, leading, stride in zip("ABC", kinds, (lda, ldb, ldc), strides, strict=True)
    )
    last = [*([problem.batch] if is_batched else []), *([] if half is None else [_COMPUTE_32F, _GEMM_DEFAULT])]
    name = problem.name if half is None else "gemm"
    return LibraryCall(
        f"{name}{'StridedBatched' if is_batched else ''}{'' if half is None else 'Ex'}",
        (_OPS[problem.trans_a], _OPS[problem.trans_b], m, n, k, alpha, *a, *b, beta, *c, *last),
        keep=scalars,
    )
