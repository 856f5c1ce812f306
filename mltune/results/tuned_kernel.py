"""A tuned kernel that can be called: machine code of a winner's folder, with its launch."""

from __future__ import annotations

import ctypes
import struct
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import accumulate, islice
from pathlib import Path
from typing import Annotated, Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, Field, StrictInt, StrictStr, model_validator

from mltune.device.gpu_arrays import cupy_array
from mltune.errors import DeviceError, RunDirectoryError
from mltune.files.reading import parse_json, raising, read_file
from mltune.files.validation import validated
from mltune.kernel.expressions import maps_of
from mltune.kernel.launch import Launch, TensorMap
from mltune.kernel.schema import MOST_TENSOR_MAPS

_MAX_BYTES = 1 << 28
_MAX_DOCUMENT_BYTES = 1 << 24
_Extent = Annotated[StrictInt, Field(ge=1, lt=2**31)]
_Extents = Annotated[list[_Extent], Field(min_length=3, max_length=3)]


_Text = Annotated[StrictStr, Field(min_length=1, max_length=10_000)]
_Formulas = Annotated[list[_Text], Field(min_length=3, max_length=3)]
_Count = Annotated[StrictInt, Field(ge=0, lt=2**53)]
_MapFormulas = tuple[_Count, _Text, _Text, _Text, _Text, _Text]
_Map = tuple[_Count, _Count, _Count, _Count, _Count, _Count]
_most_maps = Field(max_length=MOST_TENSOR_MAPS)


class _Function(BaseModel):
    function: _Text
    name: StrictStr = ""


class _Argument(BaseModel):
    name: StrictStr = ""
    type: StrictStr = ""


class _AtOtherSizes(BaseModel):
    grid: _Formulas
    block: _Formulas
    shared_bytes: _Text
    workspace_bytes: _Text | None = None
    tensor_maps: Annotated[list[_MapFormulas], _most_maps] = []


class _Compiled(BaseModel):
    registers: _Count | None = None
    spill_bytes: _Count | None = None
    stack_bytes: _Count | None = None
    shared_bytes: _Count | None = Field(None, alias="static_shared_bytes")
    code_bytes: _Count | None = None


class _LaunchTable(BaseModel):
    grid: _Extents
    block: _Extents
    shared_bytes: Annotated[StrictInt, Field(ge=0, lt=2**31)]
    workspace_bytes: _Count | None = None
    launched: Annotated[list[Annotated[StrictInt, Field(ge=-(2**31), lt=2**31)]], Field(max_length=60)]
    tensor_maps: Annotated[list[_Map], _most_maps] = []
    arguments: Annotated[list[_Argument], Field(max_length=200)] = []
    at_other_sizes: _AtOtherSizes | None = None
    sizes_must_satisfy: dict[_Text, StrictStr] = {}

    @model_validator(mode="after")
    def _check(self) -> Self:
        """Check that tensor maps are of arrays."""
        maps = [*self.tensor_maps, *(self.at_other_sizes.tensor_maps if self.at_other_sizes else ())]
        arrays = [place for place, argument in enumerate(self.arguments) if argument.type.startswith("pointer")]
        if others := {place for place, *_ in maps} - {*arrays}:
            raise ValueError(f"its tensor maps are of argument {min(others)}, which is no array")
        return self


class WinnerDocument(BaseModel):
    """The kernel of a winner.json: its problem, build and launch."""

    problem: dict[StrictStr, Any] = {}
    kernel: _Function
    build: _Compiled = Field(default_factory=lambda: _Compiled.model_validate({}))
    launch: _LaunchTable


@dataclass(frozen=True, slots=True)
class TunedKernel:
    """A kernel on the current GPU, with the launch of the problem that it was tuned for.

    Attributes
    ----------
    function : cupy.RawKernel
    module : cupy.RawModule
        For example for its constant memory.
    grid, block : tuple of int
    shared_bytes : int
        Dynamic shared memory of a block.
    arguments : tuple of int
        Parameters passed at launch, after the arguments of a call.
    workspace : cupy.ndarray or None
        Memory that is passed after them; None for a kernel that needs none.
    tensor_maps : tuple of tuple
        Of each tensor map, which are passed last, the place of the array, and the fields of a
        :class:`~mltune.kernel.launch.TensorMap` as formulas of arguments.
    names : tuple of str
        Of the arguments, as these formulas know them.
    """

    function: Any
    module: Any
    grid: tuple[int, ...]
    block: tuple[int, ...]
    shared_bytes: int
    arguments: tuple[int, ...]
    workspace: Any = None
    tensor_maps: tuple[tuple[Any, ...], ...] = ()
    names: tuple[str, ...] = ()
    _prepared: _OfThread = field(default_factory=lambda: _OfThread(), init=False, repr=False, compare=False)

    def __call__(self, *arguments: Any, grid: tuple[int, ...] | None = None, workspace: Any = None) -> None:
        """Launch the kernel on the current stream.

        Parameters
        ----------
        *arguments
            Those of the kernel: CuPy arrays and NumPy scalars, in order.
        grid : tuple of int, optional
            Another number of blocks, for another size.
        workspace : cupy.ndarray, optional
            Other memory for the workspace, zero before its first launch: for another size, or for each further stream.
        """
        memory = self.workspace if workspace is None else workspace
        maps = _maps_at(self.tensor_maps, self._sizes(arguments)) if self.tensor_maps else ()
        further: list[Any] = [matrix.encoded(arguments[matrix.place].data.ptr) for matrix in maps]
        if self.workspace is not None:
            further.insert(0, memory)
        values = [*arguments, *self.arguments, *further]
        types, of_thread = tuple(map(type, values)), self._prepared.of_types
        if types not in of_thread:
            of_thread[types] = _prepare(types)
        if (prepared := of_thread[types]) is None or not prepared.launch(self, values, grid or self.grid):
            launched = [np.int64(value) for value in self.arguments]
            further = [np.frombuffer(value, "V128") if isinstance(value, bytes) else value for value in further]
            self.function(
                grid or self.grid, self.block, (*arguments, *launched, *further), shared_mem=self.shared_bytes
            )

    def _sizes(self, arguments: Sequence[Any]) -> tuple[tuple[str, int], ...]:
        """Return the integers among arguments by their names."""
        numbers = (int, np.integer)
        pairs = zip(self.names, arguments, strict=False)
        return tuple((name, int(value)) for name, value in pairs if isinstance(value, numbers))

    def launch(self, *arguments: Any) -> None:
        """Launch the kernel on arrays of any package, on the current stream of PyTorch where one is a tensor of it."""
        import cupy

        stream, tensors = cupy.cuda.get_current_stream(), [value for value in arguments if hasattr(value, "detach")]
        if tensors:
            current = sys.modules["torch"].cuda.current_stream(tensors[0].device)
            if hasattr(cupy.cuda.Stream, "from_external") and hasattr(current, "__cuda_stream__"):
                stream = cupy.cuda.Stream.from_external(current)
            else:  # before CuPy 14 or PyTorch 2.7
                stream = cupy.cuda.ExternalStream(current.cuda_stream)
        with stream:
            self(*map(cupy_array, arguments))


@lru_cache(64)
def _maps_at(rows: tuple[tuple[Any, ...], ...], sizes: tuple[tuple[str, int], ...]) -> tuple[TensorMap, ...]:
    """Return the tensor maps of rows of formulas at some sizes."""
    return maps_of(rows, dict(sizes))


class _OfThread(threading.local):
    """What a thread launches with, by the types of the arguments."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self.of_types: dict[tuple[type, ...], _Prepared | None] = {}


CODES = {
    **dict(zip(("b1", "i1", "i2", "i4", "i8"), "?bhiq", strict=True)),
    **dict(zip(("u1", "u2", "u4", "u8", "f2", "f4", "f8"), "BHIQefd", strict=True)),
}
"""How the module struct packs NumPy's scalars, by type and size in bytes."""

_LAUNCH = "<7I4x3Q8x"
"""The driver's CUlaunchConfig: grid, block, shared memory, stream, and no attributes."""

_SLOT = 16


class _Prepared(NamedTuple):
    """A launch of arguments of known types: memory that holds it, and how it is filled.

    CuPy's own launch makes an object for each argument, which costs more than the launch.
    """

    enqueue: Any
    memory: bytearray
    pack_into: Callable[..., None]
    arrays: tuple[int, ...]
    complexes: tuple[int, ...]
    stream: Callable[[], Any]
    config: Any
    pointers: Any

    def launch(self, kernel: TunedKernel, values: list[Any], grid: tuple[int, ...]) -> bool:
        """Launch on the current stream; False where CuPy must do so, or say what is wrong."""
        for place in self.arrays:
            values[place] = values[place].data.ptr
        for place in self.complexes:
            values[place] = values[place].tobytes()
        function, shape = ctypes.c_void_p(kernel.function.kernel.ptr), (*grid, 1, 1)[:3]
        try:
            self.pack_into(self.memory, 0, *shape, *kernel.block, kernel.shared_bytes, self.stream().ptr, 0, 0, *values)
        except (struct.error, OverflowError, TypeError):
            return False
        return not self.enqueue(self.config, function, self.pointers, None)


def _prepare(types: tuple[type, ...]) -> _Prepared | None:
    """Prepare launches of a thread; None for types that only CuPy passes, and for a driver before CUDA 11.8."""
    import cupy

    try:
        enqueue = ctypes.CDLL("libcuda.so.1").cuLaunchKernelEx
        codes = ["Q" if kind is cupy.ndarray else _code(kind) for kind in types]
    except (AttributeError, KeyError, OSError):
        return None
    begin = struct.calcsize(_LAUNCH)
    slots = [f"{code}{-struct.calcsize(f'<{code}') % _SLOT}x" for code in codes]
    layout = _LAUNCH + "".join(slots)
    memory = bytearray(struct.calcsize(layout))
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    places_of_slots = accumulate((struct.calcsize(f"<{slot}") for slot in slots), initial=address + begin)
    pointers = (ctypes.c_void_p * (len(codes) + 1))(*islice(places_of_slots, len(codes)))
    arrays = tuple(place for place, kind in enumerate(types) if kind is cupy.ndarray)
    complexes = tuple(place for place, code in enumerate(codes) if code[-1] == "s" and types[place] is not bytes)
    pack_into, stream = struct.Struct(layout).pack_into, cupy.cuda.get_current_stream
    return _Prepared(enqueue, memory, pack_into, arrays, complexes, stream, ctypes.c_void_p(address), pointers)


def _code(of_type: type) -> str:
    """Return how the module struct packs a scalar, of NumPy or of Python as CuPy passes it, or a tensor map.

    KeyError for others.
    """
    if of_type is bytes:
        return "128s"
    if of_type not in (bool, int, float) and not issubclass(of_type, np.generic):
        raise KeyError(of_type)
    dtype = np.dtype(of_type)
    return f"{dtype.itemsize}s" if dtype.str[1:] in ("c8", "c16") else CODES[dtype.str[1:]]


def load_winner(folder: Path) -> TunedKernel:
    """Load the kernel of a winner's folder; a RunDirectoryError where it has no machine code."""
    document, code = read_winner(folder)
    shapes = document.launch
    (gx, gy, gz), (bx, by, bz) = shapes.grid, shapes.block
    launch = Launch((gx, gy, gz), (bx, by, bz), shapes.shared_bytes, tuple(shapes.launched), shapes.workspace_bytes)
    maps, names = (shapes.at_other_sizes or shapes).tensor_maps, tuple(argument.name for argument in shapes.arguments)
    return replace(load_code(code, document.kernel.function, launch, {}), tensor_maps=tuple(maps), names=names)


def load_code(code: bytes, name: str, launch: Launch, constants: Mapping[str, NDArray[Any]]) -> TunedKernel:
    """Load machine code into the current GPU; constants are copied to the ``__constant__`` symbols of their names."""
    try:
        import cupy

        with tempfile.NamedTemporaryFile(suffix=".cubin") as file:  # CuPy loads files only
            file.write(code)
            file.flush()
            module = cupy.RawModule(path=file.name)
            function = module.get_function(name)  # loads it
        if launch.shared_bytes:
            function.max_dynamic_shared_size_bytes = launch.shared_bytes
        for symbol, values in constants.items():
            cupy.ndarray(values.shape, values.dtype, module.get_global(symbol)).set(values)
        workspace = None if launch.workspace_bytes is None else cupy.zeros(launch.workspace_bytes, dtype="uint8")
    except ImportError as error:
        raise DeviceError(f"CuPy, with which a tuned kernel runs, cannot be imported: {error!s:.300}.") from error
    except Exception as error:  # each version of CuPy has its own errors where there is no GPU
        raise DeviceError(f"it cannot be loaded: {error!s:.300}; it needs a GPU of its architecture.") from error
    return TunedKernel(function, module, launch.grid, launch.block, launch.shared_bytes, launch.arguments, workspace)


def read_winner(folder: Path) -> tuple[WinnerDocument, bytes]:
    """Read description and machine code of a winner's folder; errors are those of :func:`load_winner`."""
    fact = f"{folder} has no tuned kernel, which a run on a GPU writes when it declares a winner"
    with raising(RunDirectoryError, fact, OSError, ValueError):
        content = parse_json(read_file(folder / "winner.json", _MAX_DOCUMENT_BYTES, inside=folder))
        if isinstance(content, dict) and content.get("lacks_code"):
            raise ValueError("it has no machine code")
        document = validated(WinnerDocument, content)
        return document, read_file(folder / "kernel.cubin", _MAX_BYTES, inside=folder)
