"""Arrays on a GPU of CuPy, of PyTorch, and of packages with ``__cuda_array_interface__`` or DLPack."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import math
import operator
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from mltune.errors import UsageError

_DLPACK_KINDS = "iufVucb"
"""NumPy's kinds by the codes of DLPack: integers, floats, opaque, bfloat16 (stored as its bits), complex, bool."""

_DLPACK_GPU = (2, 13)

_AS_BITS = {
    name: np.dtype(bits, metadata={"name": name})
    for name, bits in {"bfloat16": "uint16", "float8_e4m3fn": "uint8", "float8_e5m2": "uint8"}.items()
}
"""NumPy's types for the bits of those that it lacks, with their names: :func:`name_of`."""


class Array(NamedTuple):
    """An array on a GPU: its address, and shape and strides in elements."""

    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def transposed(self) -> Array:
        """The same memory with its dimensions in the opposite order."""
        return Array(self.address, self.shape[::-1], self.strides[::-1])

    @property
    def is_packed(self) -> bool:
        """Whether the elements lie side by side, those of the last dimension next to each other."""
        strides = zip(self.shape, self.strides, _by_rows(self.shape), strict=True)
        return all(extent == 1 or stride == usual for extent, stride, usual in strides)

    def leading(self, trans: bool) -> int | None:
        """Return the leading dimension by columns or transposed; None if the array is stored in another way."""
        (rows, columns), (down, across) = (self.shape, self.strides) if not trans else self.transposed[1:]
        if rows > 1 and down != 1:
            return None
        if columns > 1:
            return across if across >= max(rows, 1) else None
        return max(rows, 1)


class GradientError(Exception):
    """A tensor requires a gradient, which a call cannot compute."""


class Package(NamedTuple):
    """Functions that read the arrays of a package at little cost.

    ``facts`` of three arrays are all that decides how they are passed, except their addresses; ``kinds`` of any number
    are their types and whether they may be written.
    """

    facts: Callable[[Any, Any, Any], tuple[Any, ...]]
    kinds: Callable[[Sequence[Any]], list[Any]]
    address: Callable[[Any], int]
    device: Callable[[Any], int]
    stream: Callable[[int], int]
    zeros: Callable[[int, int], Any]
    read: Callable[[Any], tuple[Array, Any]]


_PACKAGES: dict[type, Package | None] = {}


def package_of(of_type: type) -> Package | None:
    """Return the functions for arrays of a type; None where only their interfaces are known."""
    if of_type not in _PACKAGES:
        _PACKAGES[of_type] = _package(of_type)
    return _PACKAGES[of_type]


def _package(of_type: type) -> Package | None:
    module = sys.modules.get(of_type.__module__.partition(".")[0])
    if module is not None and module.__name__ == "cupy" and of_type is module.ndarray:
        return _cupy(module)
    if module is not None and module.__name__ == "torch" and of_type in (module.Tensor, module.nn.Parameter):
        return _torch(module)
    return None


@functools.cache
def _cupy(cupy: Any) -> Package:
    current, dtype_of = cupy.cuda.get_current_stream, operator.attrgetter("dtype")

    def zeros(count: int, device: int) -> Any:
        with cupy.cuda.Device(device):
            return cupy.zeros(count, dtype="uint8")

    def read(array: Any) -> tuple[Array, Any]:
        strides = tuple(stride // array.itemsize for stride in array.strides)
        return Array(array.data.ptr, array.shape, strides), array.dtype

    return Package(
        lambda a, b, c: (
            *(a.shape, a.strides, a.dtype, b.shape, b.strides, b.dtype),
            *(c.shape, c.strides, c.dtype, c.data.device_id),
        ),
        lambda arrays: [*map(dtype_of, arrays)],
        operator.attrgetter("data.ptr"),
        operator.attrgetter("data.device_id"),
        lambda device: int(current(device).ptr),
        zeros,
        read,
    )


@functools.cache
def _torch(torch: Any) -> Package:
    has_gradients, device_of, strides = torch.is_grad_enabled, torch.Tensor.get_device, torch.Tensor.stride

    def is_other(tensor: Any) -> Any:
        """Return whether the memory lacks a conjugation or a sign that PyTorch has not applied yet."""
        return tensor.is_conj() or tensor.is_neg()

    def kinds(arrays: Sequence[Any]) -> list[Any]:
        return [
            (array.dtype, device_of(array), array.requires_grad and has_gradients(), is_other(array))
            for array in arrays
        ]

    def read(tensor: Any) -> tuple[Array, Any]:
        if tensor.requires_grad and has_gradients():
            raise GradientError
        if not tensor.is_cuda or is_other(tensor):
            raise AttributeError
        return Array(tensor.data_ptr(), tuple(tensor.shape), tensor.stride()), _dtype_of_torch(str(tensor.dtype))

    return Package(
        lambda a, b, c: (a.shape, strides(a), b.shape, strides(b), c.shape, strides(c), *kinds((a, b, c))),
        kinds,
        torch.Tensor.data_ptr,
        device_of,
        getattr(torch._C, "_cuda_getCurrentRawStream", lambda device: torch.cuda.current_stream(device).cuda_stream),
        lambda count, device: torch.zeros(count, dtype=torch.uint8, device=f"cuda:{device}"),
        read,
    )


def _dtype_of_torch(name: str) -> np.dtype[Any]:
    """Return NumPy's type of the elements; an opaque one without a size for a type that NumPy lacks."""
    try:
        return np.dtype(_AS_BITS.get(name := name.removeprefix("torch."), name))
    except TypeError:
        return np.dtype("V")


def name_of(dtype: np.dtype[Any]) -> str:
    """Return the name of a type of elements, also of one that NumPy lacks."""
    metadata: Mapping[str, Any] = dtype.metadata or {}
    return str(metadata.get("name", dtype.str))


def read_array(value: Any, stream: int = 0) -> tuple[Array, np.dtype[Any]]:
    """Return an array on a GPU and the type of its elements; AttributeError for any other value."""
    if (package := package_of(type(value))) is not None:
        return package.read(value)
    if hasattr(value, "__cuda_array_interface__"):
        return _of_interface(value.__cuda_array_interface__)
    return _of_dlpack(value, stream)


def on_host(value: Any) -> Any:
    """Return an array of CuPy or PyTorch as one of NumPy; everything else as it is."""
    if hasattr(value, "__cuda_array_interface__") and hasattr(value, "get"):
        return value.get()
    if hasattr(value, "detach") and hasattr(value, "cpu"):
        return value.detach().cpu().numpy()
    return value


def cupy_array(value: Any) -> Any:
    """Return an array of another package as one of CuPy, of the same memory; other values as they are."""
    value = value.detach() if hasattr(value, "detach") else value
    if not hasattr(value, "__cuda_array_interface__"):
        return value
    import cupy

    return cupy.asarray(value)


def stand_in(position: int, value: Any) -> Any:
    """Return a scalar, or an array without memory on the host with the type and shape of one on a GPU."""
    if isinstance(value, np.generic):
        return value
    interface = dict[str, Any]()
    with contextlib.suppress(AttributeError, RuntimeError, TypeError):  # such as of a tensor on the host
        interface = (value.detach() if hasattr(value, "detach") else value).__cuda_array_interface__
        element, strides = np.zeros((), interface["typestr"]), interface.get("strides")
        if strides is None or np.lib.stride_tricks.as_strided(element, interface["shape"], strides).flags.c_contiguous:
            return np.broadcast_to(element, interface["shape"])
    kind = f"strides of {interface['strides']} bytes" if interface.get("strides") else type(value).__name__
    raise UsageError(
        f"argument {position} is {kind}; an argument is a NumPy scalar, such as numpy.int32(n), or an array on a GPU, "
        "stored by rows without gaps."
    )


def is_of_cupy(kind: type) -> bool:
    """Return whether values of a type are CuPy's."""
    return kind.__module__.partition(".")[0] == "cupy"


@functools.cache
def layout_of(kind: type) -> Callable[[Any], Any]:
    """Return the function that returns what distinguishes calls: the layout of an array, the type of a scalar."""
    if issubclass(kind, np.generic):
        return type
    if is_of_cupy(kind):
        return operator.attrgetter("shape", "strides", "dtype", "data.device_id")
    if hasattr(kind, "stride"):  # of PyTorch
        return lambda tensor: (tensor.shape, tensor.stride(), tensor.dtype, tensor.device)
    return lambda array: str({**getattr(array, "__cuda_array_interface__", {}), "data": None})


def bytes_of(array: Any) -> tuple[int, int]:
    """Return the address and the size of an array on a GPU."""
    interface = array.__cuda_array_interface__
    return interface["data"][0], math.prod(interface["shape"]) * np.dtype(interface["typestr"]).itemsize


def _of_interface(interface: dict[str, Any]) -> tuple[Array, Any]:
    dtype, shape, strides = np.dtype(interface["typestr"]), tuple(interface["shape"]), interface.get("strides")
    in_elements = _by_rows(shape) if strides is None else tuple(stride // dtype.itemsize for stride in strides)
    return Array(interface["data"][0], shape, in_elements), dtype


def _by_rows(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(math.prod(shape[place + 1 :]) for place in range(len(shape)))


class _Tensor(ctypes.Structure):
    """The DLTensor at the beginning of a DLPack capsule's content."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device", ctypes.c_int32 * 2),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


def _of_dlpack(value: Any, stream: int) -> tuple[Array, Any]:
    """Read a capsule without consuming it: the array owns the memory as long as it lives."""
    if value.__dlpack_device__()[0] not in _DLPACK_GPU:
        raise AttributeError
    capsule = value.__dlpack__(stream=stream or 1)  # 1 is the default stream
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    tensor = _Tensor.from_address(pointer(capsule, b"dltensor"))
    shape = tuple(tensor.shape[: tensor.ndim])
    strides = tuple(tensor.strides[: tensor.ndim]) if tensor.strides else _by_rows(shape)
    kind = _DLPACK_KINDS[tensor.code] if tensor.code < len(_DLPACK_KINDS) and tensor.lanes == 1 else "V"
    dtype = np.dtype("V" if kind == "V" else "bool" if kind == "b" else f"{kind}{tensor.bits // 8}")
    return Array((tensor.data or 0) + tensor.byte_offset, shape, strides), dtype
