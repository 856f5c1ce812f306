"""The candidates of cuBLASLt's heuristic for linear layers in half precision, by its C API: benchmarks' opponent."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from typing import Any

CANDIDATES = 8
WORKSPACE_BYTES = 64 << 20
EPILOGUES = {"plain": 1, "bias": 4, "gelu": 36}
"""``cublasLtEpilogue_t`` by a name: its GELU is the approximation by tanh."""

TYPES = {"h": 2, "b": 14}
"""``cudaDataType`` by the letter of a precision."""

_COMPUTE_32F, _SCALE_32F, _TRANSPOSED = 68, 0, 1
_TRANS_A, _EPILOGUE, _BIAS_POINTER = 3, 7, 8  # of cublasLtMatmulDescAttributes_t
_MAX_WORKSPACE_BYTES = 1  # of cublasLtMatmulPreferenceAttributes_t


class _Heuristic(ctypes.Structure):
    """``cublasLtMatmulHeuristicResult_t``."""

    _fields_ = (
        ("algorithm", ctypes.c_uint64 * 8),
        ("workspace_bytes", ctypes.c_size_t),
        ("state", ctypes.c_int),
        ("waves", ctypes.c_float),
        ("reserved", ctypes.c_int * 4),
    )


class CublasLt:
    """cuBLASLt on the current GPU; products are of weights by tokens: C = epilogue(A^T B), all stored by columns."""

    def __init__(self) -> None:
        import cupy

        from mltune.measure.compiler import loaded_library
        from mltune.measure.libraries import load_cublas

        load_cublas()
        cupy.cuda.device.get_cublas_handle()  # loads cuBLAS, and what it needs
        self._library = ctypes.CDLL(loaded_library("cublasLt") or "libcublasLt.so.13")
        self._handle = ctypes.c_void_p()
        self._call("cublasLtCreate", ctypes.byref(self._handle))
        self._workspace = cupy.empty(WORKSPACE_BYTES, dtype="uint8")
        self._numbers = ctypes.c_float(1.0), ctypes.c_float(0.0)
        self._library.cublasLtGetVersion.restype = ctypes.c_size_t
        self.version = int(self._library.cublasLtGetVersion())

    def candidates(
        self, precision: str, size: Mapping[str, int], addresses: Mapping[str, int], epilogue: str
    ) -> list[Callable[[], None]]:
        """Return functions that queue the product on the default stream, in the order of the heuristic.

        A is k x m, B k x n and C m x n, without gaps; `addresses` are those of A, B, C and the bias.
        """
        m, n, k, of_type = size["m"], size["n"], size["k"], TYPES[precision]
        operation, preference = ctypes.c_void_p(), ctypes.c_void_p()
        self._call("cublasLtMatmulDescCreate", ctypes.byref(operation), _COMPUTE_32F, _SCALE_32F)
        self._set("cublasLtMatmulDescSetAttribute", operation, _TRANS_A, ctypes.c_int32(_TRANSPOSED))
        self._set("cublasLtMatmulDescSetAttribute", operation, _EPILOGUE, ctypes.c_int32(EPILOGUES[epilogue]))
        if epilogue != "plain":
            pointer = ctypes.c_uint64(addresses["bias"])
            self._set("cublasLtMatmulDescSetAttribute", operation, _BIAS_POINTER, pointer)
        layouts = []
        for rows, columns in ((k, m), (k, n), (m, n)):
            layout = ctypes.c_void_p()
            extents = (ctypes.c_uint64(rows), ctypes.c_uint64(columns), ctypes.c_int64(rows))
            self._call("cublasLtMatrixLayoutCreate", ctypes.byref(layout), of_type, *extents)
            layouts.append(layout)
        self._call("cublasLtMatmulPreferenceCreate", ctypes.byref(preference))
        most = ctypes.c_size_t(WORKSPACE_BYTES)
        self._set("cublasLtMatmulPreferenceSetAttribute", preference, _MAX_WORKSPACE_BYTES, most)
        results, count = (_Heuristic * CANDIDATES)(), ctypes.c_int()
        asked = (*layouts, layouts[2], preference, CANDIDATES, results, ctypes.byref(count))
        self._call("cublasLtMatmulAlgoGetHeuristic", self._handle, operation, *asked)
        a, b, c = (ctypes.c_void_p(addresses[name]) for name in "ABC")
        alpha, beta = map(ctypes.byref, self._numbers)
        workspace = ctypes.c_void_p(self._workspace.data.ptr), most, None
        before = (self._handle, operation, alpha, a, layouts[0], b, layouts[1], beta, c, layouts[2], c, layouts[2])

        def candidate(result: Any) -> Callable[[], None]:
            algorithm = ctypes.byref(result.algorithm)
            return lambda: self._call("cublasLtMatmul", *before, algorithm, *workspace)

        return [candidate(result) for result in results[: count.value] if result.state == 0]

    def _set(self, function: str, subject: Any, attribute: int, value: Any) -> None:
        self._call(function, subject, attribute, ctypes.byref(value), ctypes.c_size_t(ctypes.sizeof(value)))

    def _call(self, function: str, *arguments: Any) -> None:
        status = getattr(self._library, function)(*arguments)
        if status:
            raise RuntimeError(f"{function} must return 0, got {status}.")
