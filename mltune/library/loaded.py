"""A library in Python: its function, called with arrays of any package that has CUDA arrays."""

from __future__ import annotations

import ctypes
import functools
import json
import operator
import os
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from mltune.device.gpu_arrays import Array, GradientError, Package, bytes_of, name_of, package_of, read_array
from mltune.errors import DeviceError, LibraryError
from mltune.files.reading import raising
from mltune.files.text import html_table, many, printable
from mltune.library.document import ABI, C_TYPES
from mltune.library.folder import read_library
from mltune.problem.array_values import STORAGE, block_shapes
from mltune.results.tuned_kernel import CODES

_ARRAYS = ("in", "out", "inout")
_PRODUCT = {"A", "B", "C"}, {"m", "n", "k", "alpha", "lda", "ldb", "beta", "ldc"}
"""The arrays and the other parameters of a product of matrices."""

_DRIVER = "libcuda.so.1"
_DEVICE_ORDINAL = 9
_MORE_WORKSPACE = -9
_MOST_REMEMBERED = 10_000
_VECTORS = ("scale_m", "scale_n", "bias")
_NOTHING = (0, 0, None)


class _Call(NamedTuple):
    """What a call passes: arrays by their addresses, and words of all else; what is kept must live as long.

    The package and the device of the first array say what the current stream is.
    """

    package: Package | None
    device: int | None
    addresses: list[int]
    values: bytes
    kept: Sequence[Any] = ()
    swapped: bool = False


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
    _plans: dict[Any, _Call] = field(default_factory=dict)
    _kinds: dict[type, list[Any]] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"Library({self.name}({', '.join(self.parameters)}))"

    def _repr_html_(self) -> str:
        configurations = many(len(self.document["configurations"]), "configuration")
        return html_table({"library": self.name, "parameters": ", ".join(self.parameters), "holds": configurations})

    def __post_init__(self) -> None:
        """Prepare what all calls share: which parameters are arrays, and how the words of the others are packed."""
        described = self.document["parameters"]
        self._arrays = [place for place, parameter in enumerate(described) if parameter["role"] in _ARRAYS]
        self._scalars = [place for place, parameter in enumerate(described) if parameter["role"] not in _ARRAYS]
        self._scalars_of = _getter(self._scalars)
        self._values = struct.Struct("<" + "".join(_code(described[place]) for place in self._scalars))
        self._pack = struct.Struct(f"<{len(self._arrays)}QQQQQ").pack
        self._are_numbers = all(described[place]["dtype"] in {*C_TYPES} - {"bool"} for place in self._scalars)
        arrays, scalars = ({described[place]["name"] for place in places} for places in (self._arrays, self._scalars))
        self.vectors = [name for name in _VECTORS if name in arrays]
        self.has_bias = "bias" in arrays
        self.is_product = (arrays - {*_VECTORS}, scalars) == _PRODUCT
        product = [self.document["problem"].get("precision", "") + "gemm"] if self.is_product else []
        for name in (self.name, *product):
            if not hasattr(self, name):  # as a library of the name "choice" has
                setattr(self, name, self.multiply if self.is_product else self)

    def __getattr__(self, name: str) -> Any:
        """Refuse a name that is none of the operation."""
        raise AttributeError(f"a library has no {name!r}; its operation is {self.__dict__.get('name')}")

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
        call = self._repeated(arguments) or self._checked(arguments, stream)
        self._enqueue(call, call[2], stream, workspace)

    def _repeated(self, arguments: Sequence[Any]) -> tuple[Any, ...] | None:
        """Return what a call passes whose arrays are of types that were checked; None for another call."""
        try:
            arrays = [arguments[place] for place in self._arrays]
            package = package_of(type(arrays[0]))
            if package is None or package.kinds(arrays) != self._kinds.get(type(arrays[0])):
                return None
            addresses, values = [*map(package.address, arrays)], self._values.pack(*self._scalars_of(arguments))
        except (AttributeError, IndexError, TypeError, ValueError, OverflowError, struct.error):
            return None
        is_known = self._are_numbers and len(arguments) == len(self.parameters)
        return (package, package.device(arrays[0]), addresses, values) if is_known else None

    def _checked(self, arguments: Sequence[Any], stream: Any) -> _Call:
        described = self.document["parameters"]
        if len(arguments) != len(described):
            raise LibraryError(
                f"{len(arguments)} arguments were passed; {self.name} takes {', '.join(self.parameters)}."
            )
        arrays, on = [arguments[place] for place in self._arrays], 0 if stream is None else _stream(stream)
        read = [_read(array, described[place], on) for array, place in zip(arrays, self._arrays, strict=True)]
        scalars = [_given(arguments[place], described[place]) for place in self._scalars]
        package, values = package_of(type(arrays[0])), self._values.pack(*(value for value, _ in scalars))
        if package is not None and all(package_of(type(array)) is package for array in arrays):
            self._kinds[type(arrays[0])] = package.kinds(arrays)
        device = package and package.device(arrays[0])
        return _Call(package, device, [array.address for array in read], values, [kept for _, kept in scalars])

    def multiply(
        self,
        a: Any,
        b: Any,
        *scales: Any,
        out: Any,
        bias: Any = None,
        alpha: complex = 1.0,
        beta: complex = 0.0,
        stream: Any = None,
        workspace: Any = None,
    ) -> Any:
        """Enqueue ``out = alpha a b + beta out`` for matrices with two dimensions, and return `out`.

        A library with an epilogue applies it; the elements of a `bias` lie side by side, as do those of `scales`: the
        vectors scale_m and scale_n, whose m and n are rows and columns of matrices that are stored by columns. The
        orders in which matrices are stored must be those of the library's case: N N is for three matrices stored by
        rows, or three by columns; another case has one of `a` and `b`, or both, in the other order.
        """
        package, key = package_of(type(out)), None
        vectors = scales if bias is None else (*scales, bias)
        if (
            package is not None
            and package_of(type(a)) is package_of(type(b)) is package
            and not (vectors and any(package_of(type(vector)) is not package for vector in vectors))
        ):
            key = package.facts(a, b, out), alpha, beta, *[package.facts(vector, vector, vector) for vector in vectors]
        try:
            plan = self._plans.get(key)
        except TypeError:  # a number that is an array
            key, plan = None, None
        if plan is not None and package is not None:
            first, second = (b, a) if plan.swapped else (a, b)
            addresses = [*map(package.address, (first, second, out, *vectors))]
        else:
            plan = self._product((a, b, out, *vectors), alpha, beta, 0 if stream is None else _stream(stream))
            addresses = plan.addresses
            if len(self._plans) >= _MOST_REMEMBERED:
                self._plans.clear()
            if key is not None:
                self._plans[key] = plan
        self._enqueue(plan, addresses, stream, workspace)
        return out

    def repeated(self, a: Any, b: Any, out: Any, alpha: complex = 1.0, *vectors: Any) -> Callable[..., None]:
        """Return a function that enqueues this product for arrays ``(a, b, out, *vectors)`` of the same kinds.

        What follows from types, shapes, strides and the GPU is checked and prepared once; the function does not check
        its arrays, which are those of CuPy or PyTorch.
        """
        plan, package = self._product((a, b, out, *vectors), alpha, 0.0, 0), package_of(type(out))
        if package is None or plan.device is None:
            raise LibraryError(f"out is a {type(out).__name__}; a product is repeated with arrays of CuPy or PyTorch.")
        address, enqueue = package.address, self._enqueue
        if plan.swapped:
            return lambda a, b, *rest: enqueue(plan, [address(b), address(a), *map(address, rest)], None, None)
        return lambda *arrays: enqueue(plan, [*map(address, arrays)], None, None)

    def _product(self, arrays: Sequence[Any], alpha: complex, beta: complex, on: int) -> _Call:
        """Return what a product passes; a LibraryError where shapes or strides are not those of the case."""
        named = {parameter["name"]: parameter for parameter in self.document["parameters"]}
        names = ("A", "B", "C", *self.vectors)
        if len(arrays) != len(names):
            taken = ", ".join(("a", "b", "out", *self.vectors))
            raise LibraryError(f"a product of {self.name} takes {taken}; its formula says what they are.")
        x, y, z, *vectors = (_read(array, named[name], on) for array, name in zip(arrays, names, strict=True))
        if any(len(matrix.shape) != 2 for matrix in (x, y, z)):
            raise LibraryError(f"the shapes {x.shape}, {y.shape} and {z.shape} are not all those of matrices.")
        if not (x.shape[1] == y.shape[0] and z.shape == (x.shape[0], y.shape[1])):
            raise LibraryError(f"the shapes {x.shape}, {y.shape} and {z.shape} do not fit a product.")
        problem = self.document["problem"]
        trans = [str(problem.get(f"trans_{side}")) for side in "ab"]
        ways = [(x, y, z), (y.transposed, x.transposed, z.transposed)]
        shapes = [self._vector_shapes(way[2].shape, x.shape[1]) for way in ways]
        pairs = [*zip(ways, shapes, strict=True)]
        if 1 in z.shape:
            pairs.sort(key=lambda pair: -pair[0][2].shape[0])
        for (first, second, third), of_way in pairs:
            leading = [first.leading(trans[0] == "T"), second.leading(trans[1] == "T"), third.leading(False)]
            fits = all(
                vector.shape == shape and vector.is_packed for vector, shape in zip(vectors, of_way, strict=True)
            )
            if None not in leading and fits and {*trans} <= {"N", "T"}:
                values: dict[str, Any] = dict(zip(("lda", "ldb", "ldc"), leading, strict=True))
                values |= {"m": third.shape[0], "n": third.shape[1], "k": first.shape[1], "alpha": alpha, "beta": beta}
                scalars = [
                    _given(values[name], named[name]) for name in map(self.parameters.__getitem__, self._scalars)
                ]
                words, package = self._values.pack(*(value for value, _ in scalars)), package_of(type(arrays[2]))
                addresses = [array.address for array in (first, second, third, *vectors)]
                device = package and package.device(arrays[2])
                return _Call(package, device, addresses, words, [kept for _, kept in scalars], first is not x)
        for name, vector, *either in zip(self.vectors, vectors, *shapes, strict=True):
            if vector.shape not in either:
                raise LibraryError(
                    f"{name} has the shape {vector.shape}; it must have {either[0]}, or {either[1]} for C stored by "
                    "rows."
                )
            if not vector.is_packed:
                raise LibraryError(
                    f"{name} has the strides {vector.strides}; its elements must lie side by side, by rows."
                )
        raise LibraryError(
            f"the strides of a, b and out are {x.strides}, {y.strides} and {z.strides} elements, but {self.name} is "
            f"for A {trans[0]} and B {trans[1]} stored by columns, or all of it transposed; build a library of their "
            "case."
        )

    def _vector_shapes(self, of_c: tuple[int, ...], k: int) -> list[tuple[int, ...]]:
        """Return the shapes of the vectors of an epilogue for a shape of C, which is stored by columns."""
        (m, n), epilogue = of_c, str(self.document["problem"].get("epilogue"))
        shapes: dict[str, tuple[int, ...]] = {"scale_m": (m,), "scale_n": (n,)}
        if "block_scales" in epilogue:
            shapes["scale_m"], shapes["scale_n"] = block_shapes(m, n, k)
        shapes["bias"] = (n if "bias_n" in epilogue else m,)
        return [shapes[name] for name in self.vectors]

    def to_torch_operator(self) -> Any:
        """Register the operation as ``torch.ops.mltune.NAME``, and return the operator.

        ``torch.compile`` and ``torch.export`` keep a call of it, and ``torch.library.opcheck`` takes
        ``torch.ops.mltune.NAME.default``. A product of matrices is ``operator(a, b, alpha=1.0)``
        or, with a bias, ``operator(a, b, bias, alpha=1.0)``, and returns a new tensor, stored by rows; its gradients
        are products of PyTorch. Other operations have the parameters of C, write to their outputs, and have no
        gradients. Another library of its name takes its place.

        Examples
        --------
        >>> sgemm = lib.to_torch_operator()  # doctest: +SKIP
        >>> torch.compile(lambda a, b: torch.relu(sgemm(a, b)))(a, b)  # doctest: +SKIP
        """
        from mltune.library.torch_operator import torch_operator

        return torch_operator(self)

    def replace_linears(self, model: Any) -> int:
        """Replace the ``torch.nn.Linear`` layers of a model, and return how many were replaced.

        The library is a product TN with results of the type of its operands: without an epilogue for layers without a
        bias, with ``epilogue = "bias_m"`` for those with one. Layers of another type, and subclasses, stay as they
        are. The new layers have the same parameters by the same names, so that a state of the model still fits, and
        the gradients of :meth:`to_torch_operator`.

        Examples
        --------
        >>> mltune.load_library("hgemm_tn").replace_linears(model)  # doctest: +SKIP
        224
        """
        from mltune.library.torch_linear import replace_linears

        return replace_linears(self, model)

    def choice(self, *, workspace_bytes: int = 2**62, **sizes: int) -> dict[str, Any]:
        """Return the configuration that a call of some sizes runs with a workspace of some bytes."""
        lacking = [size for size in self.document["sizes"] if size not in sizes]
        if lacking:
            raise LibraryError(f"{', '.join(lacking)} is missing; the sizes are {', '.join(self.document['sizes'])}.")
        values = [sizes[size] for size in self.document["sizes"]]
        number = self._functions.choice(*values, workspace_bytes, None)
        self._check(min(number, 0))
        configuration: dict[str, Any] = json.loads(self._functions.configuration(number).decode())
        return configuration

    def _enqueue(self, call: tuple[Any, ...], addresses: Sequence[int], stream: Any, workspace: Any) -> None:
        """Enqueue a call with arrays of some addresses."""
        package, device, _, values = call[:4]
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
        names = (self.parameters[place] for place in self._scalars)
        arguments, needed = dict(zip(names, self._values.unpack(values), strict=True)), ctypes.c_size_t()
        self._functions.choice(*(arguments[size] for size in self.document["sizes"]), 2**62, ctypes.byref(needed))
        zeros, before = package.zeros(needed.value, device), self._workspaces.get((device, on))
        workspace = self._workspaces[device, on] = package.address(zeros), needed.value, (zeros, before)
        return workspace

    def _handle(self, device: int | None, addresses: Sequence[int]) -> ctypes.c_void_p:
        """Return the library on a GPU, by default the current one; the first call there loads it."""
        driver, here, context, handle = self._driver, ctypes.c_int(-1), ctypes.c_void_p(), ctypes.c_void_p()
        has_none = driver.cuCtxGetDevice(ctypes.byref(here))  # as a thread that has not used the GPU
        if device is None and has_none:
            address = ctypes.c_uint64(max(addresses, default=0))
            driver.cuPointerGetAttribute(ctypes.byref(here), _DEVICE_ORDINAL, address)
        device = max(here.value, 0) if device is None else device
        if device not in self._handles:
            is_other = has_none or here.value != device
            if is_other := is_other and not driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device):
                driver.cuCtxPushCurrent_v2(context)
            try:
                self._check(self._functions.create(ctypes.byref(handle), ABI))
            finally:
                if is_other:
                    driver.cuCtxPopCurrent_v2(ctypes.byref(context))
            self._handles[device] = handle
        return self._handles[device]

    def _check(self, status: int) -> None:
        if status > 0:
            raise DeviceError(f"what {self.name} enqueued failed with CUDA error {status}.")
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
    with raising(DeviceError, "the NVIDIA driver cannot be loaded, which a library needs"):
        driver = ctypes.CDLL(_DRIVER)
    fact = f"the library of {folder} is no shared object for this host"
    with raising(LibraryError, fact, OSError, AttributeError):
        functions = _functions(document.name, shared, document.model_dump())
    takes = any(configuration.launch.workspace_bytes not in (None, "0") for configuration in document.configurations)
    names = tuple(parameter.name for parameter in document.parameters)
    return Library(document.name, document.model_dump(), names, functions, driver, takes)


@functools.cache
def _loaded(name: str, shared: bytes) -> ctypes.CDLL:
    """Load what was compared with its hash, not what may lie in the folder now.

    The loader knows an object by its path and gives back the first one of a path, so the file stays open: the path of
    its descriptor, which would be taken again, is that of this object for as long as the process lasts.
    """
    descriptor = os.memfd_create(name, os.MFD_CLOEXEC)
    try:
        with open(descriptor, "wb", closefd=False) as file:
            file.write(shared)
        return ctypes.CDLL(f"/proc/self/fd/{descriptor}")
    except OSError:
        os.close(descriptor)
        raise


def _functions(name: str, shared: bytes, document: dict[str, Any]) -> _Functions:
    functions = _loaded(name, shared)
    create, packed, choice, configuration, error = (getattr(functions, f"{name}_{part}") for part in _Functions._fields)
    choice.argtypes = [*[ctypes.c_int64] * len(document["sizes"]), ctypes.c_size_t, ctypes.c_void_p]
    configuration.restype = error.restype = ctypes.c_char_p
    return _Functions(create, packed, choice, configuration, error)


_RANGES = {"bool": (0, 1)} | {
    c_type: (int(np.iinfo(c_type).min), int(np.iinfo(c_type).max)) for c_type in C_TYPES if "int" in c_type
}


def _getter(places: Sequence[int]) -> Callable[[Sequence[Any]], tuple[Any, ...]]:
    getter = operator.itemgetter(*places) if len(places) > 1 else None
    return getter or (lambda arguments: tuple(arguments[place] for place in places))


def _code(parameter: dict[str, Any]) -> str:
    """Return how the module struct packs a number into a word; of a type that it lacks the address."""
    dtype = "int64" if parameter["role"] == "size" else parameter["dtype"]
    code = CODES[np.dtype(dtype).str[1:]] if dtype in C_TYPES else "Q"
    return f"{code}{8 - struct.calcsize(code)}x"


def _read(value: Any, parameter: dict[str, Any], stream: int) -> Array:
    """Return an array on a GPU; a LibraryError where it is none, or has another type."""
    try:
        array, dtype = read_array(value, stream)
    except AttributeError:
        raise LibraryError(f"{parameter['name']} is a {type(value).__name__}; it must be an array on a GPU.") from None
    except GradientError:
        fact = "a tensor requires a gradient, and a library has none; call it within torch.no_grad()."
        raise LibraryError(fact) from None
    storage, name = STORAGE[parameter["dtype"]], name_of(dtype)
    is_bits = dtype.itemsize == storage.itemsize and dtype.kind in (storage.kind, "V")
    if not is_bits or name not in (dtype.str, parameter["dtype"]):
        raise LibraryError(f"{parameter['name']} has elements of {name}; they must be of {parameter['dtype']}.")
    return array


def _given(value: Any, parameter: dict[str, Any]) -> tuple[Any, Any]:
    """Return what is passed to C, and what must live as long."""
    role, dtype = parameter["role"], parameter["dtype"]
    if role == "scalar" and dtype not in C_TYPES:
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
    raise LibraryError(f"{parameter['name']} cannot be {printable(repr(value), 60)}: it is passed as {dtype}.")


def _stream(stream: Any) -> int:
    """Return the handle of a stream of CuPy, of PyTorch, or as a number."""
    return int(getattr(stream, "ptr", getattr(stream, "cuda_stream", stream)))
