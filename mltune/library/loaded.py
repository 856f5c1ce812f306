"""A library in Python: its function, called with arrays of any package that has CUDA arrays."""

from __future__ import annotations

import ctypes
import json
import math
import operator
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from mltune.errors import DeviceError, LibraryError
from mltune.files.text import printable
from mltune.library.folder import read_library
from mltune.library.source import ABI
from mltune.problem.array_values import STORAGE

_MATRICES = ("A", "B", "C")
_PRODUCT = {"m", "n", "k", "alpha", "A", "lda", "B", "ldb", "beta", "C", "ldc"}
_DRIVER = "libcuda.so.1"
_MOST_REMEMBERED = 10_000


class _Array(NamedTuple):
    """An array on a GPU: its address, and shape and strides in elements."""

    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def transposed(self) -> _Array:
        return _Array(self.address, self.shape[::-1], self.strides[::-1])

    def leading(self, trans: bool) -> int | None:
        """Return its leading dimension, stored by columns or transposed; None where it is stored in another way."""
        (rows, columns), (down, across) = (self.shape, self.strides) if not trans else self.transposed[1:]
        if rows > 1 and down != 1:
            return None
        if columns > 1:
            return across if across >= max(rows, 1) else None
        return max(rows, 1)


@dataclass(slots=True)
class Library:
    """A library that is loaded: ``lib(...)`` calls it as in C, ``lib.sgemm(a, b, out=c)`` is a product of matrices.

    Attributes
    ----------
    name : str
        Name of the function in C.
    document : mapping
        ``library.json``: what it was built for, and its report.
    parameters : tuple of str
        The parameters of a call, in order.
    """

    name: str
    document: dict[str, Any]
    parameters: tuple[str, ...]
    _functions: Any
    _driver: Any
    _handles: dict[int, ctypes.c_void_p]
    _takes_workspace: bool
    _needs: dict[tuple[int, ...], int] = field(default_factory=dict)
    _workspaces: dict[tuple[int, int], Any] = field(default_factory=dict)

    def __getattr__(self, name: str) -> Any:
        """Return the product of matrices under the name of the operation, such as ``sgemm``."""
        if name.startswith("_") or name not in (self.name, self.document["problem"].get("precision", "") + "gemm"):
            raise AttributeError(f"a library has its operation, {self.name}, but no {name!r}")
        return self.multiply if {*self.parameters} == _PRODUCT else self

    def __call__(self, *arguments: Any, stream: Any = None, workspace: Any = None) -> None:
        """Enqueue the operation with its parameters in the order of :attr:`parameters`.

        Parameters
        ----------
        *arguments
            Integers for sizes; arrays, of which the address is passed; numbers.
        stream : int or stream, optional
            By default the current stream of the package of the first array, else the default stream.
        workspace : array, optional
            Zeros before the first use, for configurations that need some, which no other stream uses. By default, on
            the current stream, the package of the first array allocates it once, if that is CuPy or PyTorch (before a
            graph is captured, call the same sizes once); otherwise none of them runs.

        Raises
        ------
        LibraryError
            The number or the type of an argument, the sizes, or the GPU is not one that the library is for.
        DeviceError
            The driver failed.
        """
        described = self.document["parameters"]
        if len(arguments) != len(described):
            raise LibraryError(f"{self.name} takes {', '.join(self.parameters)}, got {len(arguments)} arguments.")
        kept = [_given(value, one) for value, one in zip(arguments, described, strict=True)]
        array = next(
            (v for v, p in zip(arguments, described, strict=True) if p["role"] in ("in", "out", "inout")), None
        )
        self._enqueue([value for value, _ in kept], array, stream, workspace)

    def multiply(
        self,
        a: Any,
        b: Any,
        *,
        out: Any,
        alpha: complex = 1.0,
        beta: complex = 0.0,
        stream: Any = None,
        workspace: Any = None,
    ) -> Any:
        """Enqueue ``out = alpha a b + beta out`` for matrices with two dimensions, and return `out`.

        The orders in which they are stored must be those of the library's case: N N is for three matrices stored by
        rows, or three by columns; another case has one of `a` and `b`, or both, in the other order.
        """
        matrices = [_array(one, parameter) for one, parameter in zip((a, b, out), self._matrices(), strict=True)]
        if any(len(one.shape) != 2 for one in matrices):
            raise LibraryError(
                f"{self.name} multiplies matrices, got shapes {', '.join(str(x.shape) for x in matrices)}."
            )
        x, y, z = matrices
        if not (x.shape[1] == y.shape[0] and z.shape == (x.shape[0], y.shape[1])):
            raise LibraryError(f"the shapes of a product must fit, got {x.shape}, {y.shape} and {z.shape}.")
        trans = [str(self.document["problem"].get(f"trans_{one}")) for one in "ab"]
        for first, second, third in ((x, y, z), (y.transposed, x.transposed, z.transposed)):
            leading = [first.leading(trans[0] == "T"), second.leading(trans[1] == "T"), third.leading(False)]
            if None not in leading and {*trans} <= {"N", "T"}:
                values: dict[str, Any] = dict(zip(("lda", "ldb", "ldc"), leading, strict=True))
                values |= {"m": third.shape[0], "n": third.shape[1], "k": first.shape[1], "alpha": alpha, "beta": beta}
                values |= dict(zip(_MATRICES, (first.address, second.address, third.address), strict=True))
                kept = [_given(values[one["name"]], one, is_address=True) for one in self.document["parameters"]]
                self._enqueue([value for value, _ in kept], out, stream, workspace)
                return out
        raise LibraryError(
            f"{self.name} is for A {trans[0]} and B {trans[1]} stored by columns, or all of it transposed, but the "
            f"strides of a, b and out are {x.strides}, {y.strides} and {z.strides} elements; build a library of their "
            "case."
        )

    def choice(self, *, workspace_bytes: int = 2**62, **sizes: int) -> dict[str, Any]:
        """Return the configuration that a call of some sizes runs with a workspace of some bytes."""
        lacking = [one for one in self.document["sizes"] if one not in sizes]
        if lacking:
            raise LibraryError(
                f"the sizes are {', '.join(self.document['sizes'])}, but {', '.join(lacking)} is missing."
            )
        values = [sizes[one] for one in self.document["sizes"]]
        number = self._functions.choice(*values, workspace_bytes, None)
        self._check(min(number, 0))
        found: dict[str, Any] = json.loads(self._functions.configuration(number).decode())
        return found

    def _matrices(self) -> list[dict[str, Any]]:
        named = {one["name"]: one for one in self.document["parameters"]}
        return [named[one] for one in _MATRICES]

    def _enqueue(self, values: Sequence[Any], array: Any, stream: Any, workspace: Any) -> None:
        on, context = _stream(stream, array), ctypes.c_void_p()
        self._driver.cuCtxGetCurrent(ctypes.byref(context))
        if workspace is None and stream is None and self._takes_workspace:
            workspace = self._workspace((context.value or 0, on), values, array)
        handle = self._handles.get(context.value or 0)
        if handle is None:  # it is loaded into a context at the first call there
            handle = ctypes.c_void_p()
            self._check(self._functions.create(ctypes.byref(handle), ABI))
            self._handles[context.value or 0] = handle
        address, size = (None, 0) if workspace is None else _bytes_of(workspace)
        self._check(self._functions.call(handle, *values, address, size, on))

    def _workspace(self, key: tuple[int, int], values: Sequence[Any], array: Any) -> Any:
        """Return the memory of a stream, which grows with the sizes of its calls; None as long as none needs any."""
        sizes = tuple(values[self.parameters.index(one)] for one in self.document["sizes"])
        if (needed := self._needs.get(sizes)) is None:
            found = ctypes.c_size_t()
            self._functions.choice(*sizes, 2**62, ctypes.byref(found))
            if len(self._needs) >= _MOST_REMEMBERED:
                self._needs.clear()
            needed = self._needs[sizes] = found.value
        held = self._workspaces.get(key)
        if needed and (held is None or held.nbytes < needed) and (zeros := _zeros_of(array)):
            held = self._workspaces[key] = zeros(needed)
        return held

    def _check(self, status: int) -> None:
        if status > 0:
            raise DeviceError(f"the driver runs what {self.name} enqueues, but it failed with CUDA error {status}.")
        if status < 0:
            raise LibraryError(f"{self.name}: {self._functions.error(status).decode()}.")


class _Functions(NamedTuple):
    create: Any
    call: Any
    choice: Any
    configuration: Any
    error: Any


def load_library(folder: str | Path) -> Library:
    """Load a library that ``mltune library build`` wrote, for all GPUs of this process.

    All files are compared with their hashes first. A library is a program: load those of people whom you trust.

    Raises
    ------
    LibraryError
        The folder is none of a library, is damaged or of another version, or cannot be loaded.
    DeviceError
        There is no NVIDIA driver.

    Examples
    --------
    >>> import mltune
    >>> lib = mltune.load_library("sgemm_nn")  # doctest: +SKIP
    >>> lib.sgemm(a, b, out=c)  # doctest: +SKIP
    """
    document, shared = read_library(Path(folder))
    try:
        driver = ctypes.CDLL(_DRIVER)
    except OSError as error:
        raise DeviceError(f"a library needs the NVIDIA driver: {error!s:.300}.") from error
    try:
        functions = _functions(document.name, shared, document.model_dump())
    except (OSError, AttributeError) as error:
        raise LibraryError(
            f"a library is a shared object for this host, but that of {folder} is not: {error!s:.300}."
        ) from error
    takes = any(one.launch.workspace_bytes not in (None, "0") for one in document.configurations)
    names = tuple(one.name for one in document.parameters)
    return Library(document.name, document.model_dump(), names, functions, driver, {}, takes)


def _functions(name: str, shared: bytes, document: dict[str, Any]) -> _Functions:
    """Load what was compared with its hash, not what may lie in the folder now."""
    descriptor = os.memfd_create(name, os.MFD_CLOEXEC)
    try:
        with open(descriptor, "wb", closefd=False) as file:
            file.write(shared)
        found = ctypes.CDLL(f"/proc/self/fd/{descriptor}")
    finally:
        os.close(descriptor)
    parts = ("create", "choice", "configuration", "error")
    create, choice, configuration, error = (getattr(found, f"{name}_{part}") for part in parts)
    call = getattr(found, name)
    sizes = [ctypes.c_int64] * len(document["sizes"])
    call.argtypes = [
        ctypes.c_void_p,
        *map(_c_type, document["parameters"]),
        ctypes.c_void_p,
        ctypes.c_size_t,
        ctypes.c_void_p,
    ]
    choice.argtypes = [*sizes, ctypes.c_size_t, ctypes.c_void_p]
    configuration.restype = error.restype = ctypes.c_char_p
    return _Functions(create, call, choice, configuration, error)


_C_TYPES = {
    **{f"{sign}int{bits}": getattr(ctypes, f"c_{sign}int{bits}") for sign in ("", "u") for bits in (8, 16, 32, 64)},
    "float32": ctypes.c_float,
    "float64": ctypes.c_double,
    "bool": ctypes.c_uint8,
}
_RANGES = {"bool": (0, 1)} | {one: (int(np.iinfo(one).min), int(np.iinfo(one).max)) for one in _C_TYPES if "int" in one}


def _c_type(parameter: dict[str, Any]) -> Any:
    if parameter["role"] == "size":
        return ctypes.c_int64
    return _C_TYPES.get(parameter["dtype"], ctypes.c_void_p) if parameter["role"] == "scalar" else ctypes.c_void_p


def _given(value: Any, parameter: dict[str, Any], *, is_address: bool = False) -> tuple[Any, Any]:
    """Return what is passed to C, and what must live as long."""
    role, dtype = parameter["role"], parameter["dtype"]
    if role == "size" or (dtype in _C_TYPES and role == "scalar"):
        try:
            if dtype.startswith("float"):
                return float(value), None
            low, high = _RANGES[dtype]
            if low <= (whole := operator.index(value)) <= high:
                return whole, None
        except (TypeError, ValueError):
            pass
        raise LibraryError(f"{parameter['name']} is passed as {dtype}, got {printable(repr(value), 60)}.")
    if role == "scalar":
        held = np.array([value], dtype=STORAGE[dtype])
        return held.ctypes.data_as(ctypes.c_void_p), held
    return (value, None) if is_address else (_array(value, parameter).address, value)


def _array(value: Any, parameter: dict[str, Any]) -> _Array:
    """Return an array on a GPU; a LibraryError where it is none, or has another type."""
    interface = getattr(value, "__cuda_array_interface__", None)
    if interface is None:
        raise LibraryError(f"{parameter['name']} must be an array on a GPU, got {type(value).__name__}.")
    dtype = STORAGE[parameter["dtype"]]
    if np.dtype(interface["typestr"]).itemsize != dtype.itemsize or np.dtype(interface["typestr"]).kind not in (
        dtype.kind,
        "V",
    ):
        raise LibraryError(
            f"{parameter['name']} must have elements of {parameter['dtype']}, got {interface['typestr']}."
        )
    shape = tuple(interface["shape"])
    if interface.get("strides") is None:
        strides = tuple(int(np.prod(shape[place + 1 :])) for place in range(len(shape)))
    else:
        strides = tuple(one // dtype.itemsize for one in interface["strides"])
    return _Array(interface["data"][0], shape, strides)


def _package(array: Any) -> str:
    return type(array).__module__.partition(".")[0]


def _stream(stream: Any, array: Any) -> int:
    """Return the handle of a stream, by default of the one that is current in the package of an array."""
    if stream is not None:
        return int(getattr(stream, "ptr", getattr(stream, "cuda_stream", stream)))
    match _package(array):
        case "cupy":
            return int(sys.modules["cupy"].cuda.get_current_stream().ptr)
        case "torch":
            return int(sys.modules["torch"].cuda.current_stream(array.device).cuda_stream)
    return 0


def _bytes_of(array: Any) -> tuple[int, int]:
    """Return the address and the size of an array on a GPU."""
    interface = array.__cuda_array_interface__
    return interface["data"][0], math.prod(interface["shape"]) * np.dtype(interface["typestr"]).itemsize


def _zeros_of(array: Any) -> Any:
    """Return what makes bytes of zeros on the GPU of an array, on its current stream; None where that is unknown."""
    match _package(array):
        case "cupy":
            return lambda count: sys.modules["cupy"].zeros(count, dtype="uint8")
        case "torch":
            torch = sys.modules["torch"]
            return lambda count: torch.zeros(count, dtype=torch.uint8, device=array.device)
    return None
