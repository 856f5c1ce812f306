"""A library in Python: its function, called with arrays of any package that has CUDA arrays."""

from __future__ import annotations

import ctypes
import json
import operator
import os
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from mltune.errors import DeviceError, LibraryError
from mltune.files.text import printable
from mltune.library.folder import read_library
from mltune.library.gpu_arrays import Array, Package, bytes_of, package_of, read_array
from mltune.library.source import ABI
from mltune.problem.array_values import STORAGE

_ARRAYS = ("in", "out", "inout")
_MATRICES = ("A", "B", "C")
_PRODUCT = {"m", "n", "k", "alpha", "A", "lda", "B", "ldb", "beta", "C", "ldc"}
_DRIVER = "libcuda.so.1"
_DEVICE_ORDINAL = 9
_MORE_WORKSPACE = -9
_MOST_REMEMBERED = 10_000
_NOTHING = (0, 0, None)


class _Plan(NamedTuple):
    """What two products of matrices of the same types, shapes and strides share."""

    values: bytes
    swapped: bool
    device: int | None
    kept: Sequence[Any]


@dataclass
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
    _functions: _Functions
    _driver: Any
    _takes_workspace: bool
    _handles: dict[int, ctypes.c_void_p] = field(default_factory=dict)
    _workspaces: dict[tuple[int | None, int], tuple[int, int, Any]] = field(default_factory=dict)
    _plans: dict[Any, _Plan] = field(default_factory=dict)
    _kinds: dict[type, list[Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Prepare what all calls share: which parameters are arrays, and how the words of the others are packed."""
        described = self.document["parameters"]
        self._arrays = [place for place, one in enumerate(described) if one["role"] in _ARRAYS]
        self._others = [place for place, one in enumerate(described) if one["role"] not in _ARRAYS]
        self._values = struct.Struct("<" + "".join(_code(described[place]) for place in self._others))
        self._pack = struct.Struct(f"<{len(self._arrays)}QQQQQ").pack
        self._are_numbers = all(described[place]["dtype"] in {*_CODES} - {"bool"} for place in self._others)
        self.is_product = {*self.parameters} == _PRODUCT
        if self.is_product:
            for name in (self.name, self.document["problem"].get("precision", "") + "gemm"):
                setattr(self, name, self.multiply)

    def __getattr__(self, name: str) -> Any:
        """Return the operation under its name; a product of matrices, such as ``sgemm``, has its own."""
        if name.startswith("_") or name not in (self.name, self.document["problem"].get("precision", "") + "gemm"):
            raise AttributeError(f"a library has its operation, {self.name}, but no {name!r}")
        return self

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
        try:
            arrays, others = [arguments[place] for place in self._arrays], [arguments[place] for place in self._others]
            package = package_of(type(arrays[0]))
            known = package is not None and self._are_numbers and len(arguments) == len(self.parameters)
            if package is not None and known and package.kinds(arrays) == self._kinds.get(type(arrays[0])):
                addresses, device = [*map(package.address, arrays)], package.device(arrays[0])
                values = self._values.pack(*others)
            else:
                known = False
        except (AttributeError, IndexError, TypeError, ValueError, OverflowError, struct.error):
            known = False
        if known:
            self._enqueue(package, device, addresses, values, stream, workspace)
        else:
            self._check_and_enqueue(arguments, stream, workspace)

    def _check_and_enqueue(self, arguments: Sequence[Any], stream: Any, workspace: Any) -> None:
        """Enqueue a call whose arguments are of types that are not known to be right."""
        described = self.document["parameters"]
        if len(arguments) != len(described):
            raise LibraryError(f"{self.name} takes {', '.join(self.parameters)}, got {len(arguments)} arguments.")
        on = 0 if stream is None else _stream(stream)
        found = [read_array(arguments[place], described[place], on) for place in self._arrays]
        given = [_given(arguments[place], described[place]) for place in self._others]
        arrays = [arguments[place] for place in self._arrays]
        package, device = _shared(arrays)
        values = self._values.pack(*(value for value, _ in given))
        self._enqueue(package, device, [one.address for one in found], values, stream, workspace)
        if package is not None:
            self._kinds[type(arrays[0])] = package.kinds(arrays)

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
        package, key, plan = package_of(type(out)), None, None
        if package is not None and type(a) is type(b) is type(out):
            key = package.facts(a, b, out), alpha, beta
            try:
                plan = self._plans.get(key)
            except TypeError:  # a number that is an array
                key = None
        if plan is not None and package is not None:
            first, second = (b, a) if plan.swapped else (a, b)
            addresses = [package.address(first), package.address(second), package.address(out)]
            self._enqueue(package, plan.device, addresses, plan.values, stream, workspace)
            return out
        on = 0 if stream is None else _stream(stream)
        x, y, z = (read_array(one, parameter, on) for one, parameter in zip((a, b, out), self._matrices(), strict=True))
        package, device = _shared((out, a, b))
        plan = self._plan(x, y, z, alpha, beta, device)
        addresses = [(y if plan.swapped else x).address, (x if plan.swapped else y).address, z.address]
        self._enqueue(package, device, addresses, plan.values, stream, workspace)
        if key is not None:
            if len(self._plans) >= _MOST_REMEMBERED:
                self._plans.clear()
            self._plans[key] = plan
        return out

    def _plan(self, x: Array, y: Array, z: Array, alpha: complex, beta: complex, device: int | None) -> _Plan:
        """Return how a product is passed; a LibraryError where its shapes or strides are not those of the case."""
        if any(len(one.shape) != 2 for one in (x, y, z)):
            raise LibraryError(f"{self.name} multiplies matrices, got shapes {x.shape}, {y.shape}, {z.shape}.")
        if not (x.shape[1] == y.shape[0] and z.shape == (x.shape[0], y.shape[1])):
            raise LibraryError(f"the shapes of a product must fit, got {x.shape}, {y.shape} and {z.shape}.")
        described = [self.document["parameters"][place] for place in self._others]
        trans = [str(self.document["problem"].get(f"trans_{one}")) for one in "ab"]
        for swapped, (first, second, third) in enumerate(
            ((x, y, z), (y.transposed, x.transposed, z.transposed)),
        ):
            leading = [first.leading(trans[0] == "T"), second.leading(trans[1] == "T"), third.leading(False)]
            if None not in leading and {*trans} <= {"N", "T"}:
                values: dict[str, Any] = dict(zip(("lda", "ldb", "ldc"), leading, strict=True))
                values |= {"m": third.shape[0], "n": third.shape[1], "k": first.shape[1], "alpha": alpha, "beta": beta}
                given = [_given(values[one["name"]], one) for one in described]
                packed = self._values.pack(*(value for value, _ in given))
                return _Plan(packed, bool(swapped), device, [kept for _, kept in given])
        raise LibraryError(
            f"{self.name} is for A {trans[0]} and B {trans[1]} stored by columns, or all of it transposed, but the "
            f"strides of a, b and out are {x.strides}, {y.strides} and {z.strides} elements; build a library of their "
            "case."
        )

    def torch_operator(self) -> Any:
        """Register the operation as ``torch.ops.mltune.NAME``, and return the operator.

        ``torch.compile`` and ``torch.export`` keep a call of it. A product of matrices is ``operator(a, b, alpha=1.0)``
        and returns a new tensor, stored by rows; other operations have the parameters of C and write to their outputs.
        The operator has no gradients. Another library of the same name takes its place.

        Examples
        --------
        >>> sgemm = lib.torch_operator()  # doctest: +SKIP
        >>> torch.compile(lambda a, b: torch.relu(sgemm(a, b)))(a, b)  # doctest: +SKIP
        """
        from mltune.library.torch_operator import torch_operator

        return torch_operator(self)

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

    def _enqueue(
        self,
        package: Package | None,
        device: int | None,
        addresses: list[int],
        values: bytes,
        stream: Any,
        workspace: Any,
    ) -> None:
        """Enqueue a call: addresses of arrays in order, and the words of all else."""
        handle = None if device is None else self._handles.get(device)
        if handle is None:
            handle = self._handle(device, addresses)
        if stream is None and package is not None and device is not None:
            on, grows = package.stream(device), workspace is None and self._takes_workspace
        else:
            on, grows = 0 if stream is None else _stream(stream), False
        if grows:
            address, size, _ = self._workspaces.get((device, on), _NOTHING)
        else:
            address, size = (0, 0) if workspace is None else bytes_of(workspace)
        status = self._functions.packed(handle, self._pack(*addresses, address, size, on, grows) + values)
        if status == _MORE_WORKSPACE and package is not None and device is not None:
            address, size, _ = self._larger(package, device, on, values)
            status = self._functions.packed(handle, self._pack(*addresses, address, size, on, grows) + values)
        if status:
            self._check(status)

    def _larger(self, package: Package, device: int, on: int, values: bytes) -> tuple[int, int, Any]:
        """Return enough memory for a stream; what it had stays, as a graph may have captured its address."""
        names = (self.parameters[place] for place in self._others)
        given, needed = dict(zip(names, self._values.unpack(values), strict=True)), ctypes.c_size_t()
        self._functions.choice(*(given[one] for one in self.document["sizes"]), 2**62, ctypes.byref(needed))
        zeros, before = package.zeros(needed.value, device), self._workspaces.get((device, on))
        found = self._workspaces[device, on] = package.address(zeros), needed.value, (zeros, before)
        return found

    def _handle(self, device: int | None, addresses: Sequence[int]) -> ctypes.c_void_p:
        """Return the library in the context of a device, by default the current one; the first call there loads it."""
        driver, context, here, popped = self._driver, ctypes.c_void_p(), ctypes.c_int(-1), ctypes.c_void_p()
        driver.cuCtxGetCurrent(ctypes.byref(context))
        if device is None and context.value is None:  # a thread that has not used the GPU
            driver.cuPointerGetAttribute(
                ctypes.byref(here), _DEVICE_ORDINAL, ctypes.c_uint64(max(addresses, default=0))
            )
            device = max(here.value, 0)
        key = device if device is not None else context.value or 0
        if (handle := self._handles.get(key)) is None:
            if context.value is not None:
                driver.cuCtxGetDevice(ctypes.byref(here))
            is_other = device is not None and (context.value is None or here.value != device)
            if is_other := is_other and not driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device):
                driver.cuCtxPushCurrent_v2(context)
            try:
                handle = ctypes.c_void_p()
                self._check(self._functions.create(ctypes.byref(handle), ABI))
            finally:
                if is_other:
                    driver.cuCtxPopCurrent_v2(ctypes.byref(popped))
            self._handles[key] = handle
        return handle

    def _check(self, status: int) -> None:
        if status > 0:
            raise DeviceError(f"the driver runs what {self.name} enqueues, but it failed with CUDA error {status}.")
        if status < 0:
            raise LibraryError(f"{self.name}: {self._functions.error(status).decode()}.")


class _Functions(NamedTuple):
    create: Any
    packed: Any
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
    return Library(document.name, document.model_dump(), names, functions, driver, takes)


def _functions(name: str, shared: bytes, document: dict[str, Any]) -> _Functions:
    """Load what was compared with its hash, not what may lie in the folder now."""
    descriptor = os.memfd_create(name, os.MFD_CLOEXEC)
    try:
        with open(descriptor, "wb", closefd=False) as file:
            file.write(shared)
        found = ctypes.CDLL(f"/proc/self/fd/{descriptor}")
    finally:
        os.close(descriptor)
    create, packed, choice, configuration, error = (getattr(found, f"{name}_{part}") for part in _Functions._fields)
    choice.argtypes = [*[ctypes.c_int64] * len(document["sizes"]), ctypes.c_size_t, ctypes.c_void_p]
    configuration.restype = error.restype = ctypes.c_char_p
    return _Functions(create, packed, choice, configuration, error)


_CODES = {
    **dict(zip(("int8", "int16", "int32", "int64"), "bhiq", strict=True)),
    **dict(zip(("uint8", "uint16", "uint32", "uint64"), "BHIQ", strict=True)),
    "float32": "f",
    "float64": "d",
    "bool": "B",
}
_RANGES = {"bool": (0, 1)} | {one: (int(np.iinfo(one).min), int(np.iinfo(one).max)) for one in _CODES if "int" in one}


def _code(parameter: dict[str, Any]) -> str:
    """Return how the module struct packs a number into a word; of a type that it lacks the address."""
    code = "q" if parameter["role"] == "size" else _CODES.get(parameter["dtype"], "Q")
    return f"{code}{8 - struct.calcsize(code)}x"


def _shared(arrays: Sequence[Any]) -> tuple[Package | None, int | None]:
    """Return the package of arrays that have one, and the device of the first."""
    package = package_of(type(arrays[0]))
    if package is None or any(package_of(type(one)) is not package for one in arrays):
        return None, None
    return package, package.device(arrays[0])


def _given(value: Any, parameter: dict[str, Any]) -> tuple[Any, Any]:
    """Return what is passed to C, and what must live as long."""
    role, dtype = parameter["role"], parameter["dtype"]
    if role == "scalar" and dtype not in _CODES:
        held = np.array([value], dtype=STORAGE[dtype])
        return held.ctypes.data, held
    try:
        if dtype.startswith("float"):
            return (ctypes.c_float if dtype == "float32" else ctypes.c_double)(float(value)).value, None
        low, high = _RANGES[dtype]
        if low <= (whole := operator.index(value)) <= high:
            return whole, None
    except (TypeError, ValueError):
        pass
    raise LibraryError(f"{parameter['name']} is passed as {dtype}, got {printable(repr(value), 60)}.")


def _stream(stream: Any) -> int:
    """Return the handle of a stream of CuPy, of PyTorch, or as a number."""
    return int(getattr(stream, "ptr", getattr(stream, "cuda_stream", stream)))
