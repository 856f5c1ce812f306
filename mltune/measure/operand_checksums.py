"""Checksums of read-only buffers on the GPU, which reveal a kernel that writes into them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

_CHECKSUM = r"""
extern "C" __global__ void checksum(const unsigned long long* addresses, const unsigned long long* words,
                                    unsigned long long* sums) {
  const unsigned int* buffer = (const unsigned int*)addresses[blockIdx.y];
  const unsigned long long end = words[blockIdx.y], step = (unsigned long long)gridDim.x * blockDim.x;
  unsigned long long sum = 0;
#pragma unroll 4
  for (unsigned long long i = (unsigned long long)blockIdx.x * blockDim.x + threadIdx.x; i < end; i += step)
    sum += (2 * i + 1) * buffer[i];  // odd weights: every changed bit counts, and so does a changed order
  for (int lanes = 16; lanes > 0; lanes /= 2) sum += __shfl_down_sync(0xffffffffu, sum, lanes);
  if (threadIdx.x % 32 == 0 && sum) atomicAdd(&sums[blockIdx.y], sum);
}
"""
_BLOCKS, _THREADS = 512, 256
_WORD_BYTES = 4


class OperandChecksums:
    """Detect changes of buffers on the GPU.

    One launch reads them all at the speed of the memory: some tens of microseconds for the operands of a GEMM of 4096.

    Parameters
    ----------
    buffers : iterable of (str, cupy.ndarray)
        Read-only buffers, each with a name for messages; contiguous. Bytes after the last multiple of 4 do not count.
    """

    def __init__(self, buffers: Iterable[tuple[str, Any]]) -> None:
        import cupy

        self._names, self._buffers = zip(*buffers, strict=True)
        self._addresses = cupy.asarray(np.array([buffer.data.ptr for buffer in self._buffers], dtype=np.uint64))
        words = [buffer.nbytes // _WORD_BYTES for buffer in self._buffers]
        self._words = cupy.asarray(np.array(words, dtype=np.uint64))
        self._sums = cupy.empty(len(words), dtype=cupy.uint64)
        self._checksum = cupy.RawKernel(_CHECKSUM, "checksum")
        self._initial = self._read()

    def changed(self) -> tuple[str, ...]:
        """Return the names of the buffers that have changed, each once.

        Raises
        ------
        cupy.cuda.runtime.CUDARuntimeError
            An earlier kernel has failed.
        """
        differences = self._read() != self._initial
        return tuple(dict.fromkeys(name for name, differs in zip(self._names, differences, strict=True) if differs))

    def _read(self) -> Any:
        self._sums.data.memset_async(0, self._sums.nbytes)
        arguments = (self._addresses, self._words, self._sums)
        self._checksum((_BLOCKS, len(self._names)), (_THREADS,), arguments)
        return self._sums.get()  # waits for the GPU
