"""The launch of a kernel, and what its compiler is asked: processes import it without what reads bundles."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from mltune.errors import DeviceError

APPLY = "--ptxas-options=--apply-controls="
"""The option of the assembler that names a file of controls."""

ELEMENT_KINDS = {1: 0, 2: 1, 4: 2, 8: 4}
"""The driver's number of unsigned integers of some bytes, as which elements are copied."""

_INVALID_VALUE = 1  # a status of the driver


def plain_entry(entry: str) -> str:
    """Return the name of a kernel without its namespaces and its template arguments.

    >>> plain_entry("math::fill<TILE>")
    'fill'
    """
    return entry.partition("<")[0].rpartition(":")[2]


class TensorMap(NamedTuple):
    """A matrix as the copy engine of a GPU is told about it: lines of contiguous elements.

    `place` is that of its address among the arguments, `inner` the elements of a line, `stride` the elements from one
    line to the next, and `box` the lines of a copy, each of 128 bytes, which are swizzled.
    """

    place: int
    element_bytes: int
    inner: int
    lines: int
    stride: int
    box: int

    def encoded(self, address: int) -> bytes:
        """Return the 128 bytes that a kernel takes, of a matrix in memory of a GPU.

        They are zero where the copy engine cannot copy, such as where the address, or the bytes of a stride, is no
        multiple of 16, or the matrix has no elements: a kernel does without them there.
        """
        return _encoded(self, address)


@lru_cache(256)
def _encoded(matrix: TensorMap, address: int) -> bytes:
    _, element_bytes, inner, lines, stride, box = matrix
    if element_bytes not in ELEMENT_KINDS:
        return bytes(128)
    room = (ctypes.c_uint64 * 24)()
    begin = -ctypes.addressof(room) % 64
    status = ctypes.CDLL("libcuda.so.1").cuTensorMapEncodeTiled(
        ctypes.c_void_p(ctypes.addressof(room) + begin),
        ELEMENT_KINDS[element_bytes],
        2,
        ctypes.c_void_p(address),
        (ctypes.c_uint64 * 2)(inner, lines),
        (ctypes.c_uint64 * 1)(stride * element_bytes),
        (ctypes.c_uint32 * 2)(128 // element_bytes, box),
        (ctypes.c_uint32 * 2)(1, 1),
        *(0, 3, 2, 0),  # not interleaved, swizzled by 128 bytes, 128 bytes to L2, zeros outside of the matrix
    )
    if status not in (0, _INVALID_VALUE):
        raise DeviceError(f"a tensor map cannot be made: the driver's cuTensorMapEncodeTiled failed with {status}.")
    return bytes(128) if status else bytes(room)[begin : begin + 128]


@dataclass(frozen=True, slots=True)
class Launch:
    """The launch of one configuration.

    `arguments` follow the problem's, then comes the workspace, unless None, and last the tensor maps.
    """

    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared_bytes: int
    arguments: tuple[int, ...]
    workspace_bytes: int | None = None
    tensor_maps: tuple[TensorMap, ...] = ()
