"""Loading and launching of kernels through the CUDA driver, and the meaning of its errors."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from mltune.kernel.launch import Launch
from mltune.problem.problem import RunnableProblem

OUT_OF_MEMORY = 2
"""``CUDA_ERROR_OUT_OF_MEMORY``, and ``cudaErrorMemoryAllocation``."""

_REJECTED = frozenset({1, 200, 209, 218, 222, 301, 302, 303, 500, 701})
"""Invalid value, no machine code for this architecture, symbol not found, too few resources for a launch."""

_GPU_UNAVAILABLE = frozenset({3, 4, 46, 100, 101, 102, 214, 220, 304, *range(800, 804), *range(805, 811)})
"""Numbers of CUresult, as of cudaError_t, of a GPU, driver, system or MPS that cannot be used whatever the kernel."""

_LARGE_SHARE = 0.1
"""Share of the memory that other processes' contexts alone do not take."""

_FOLDER = Path(__file__).parent / "worker_kernels"
_LARGEST_EXTENT = 2**31 - 1
_INVALID_VALUE = 1  # CUDA_ERROR_INVALID_VALUE


class Fault(StrEnum):
    """The cause of a CUDA error.

    ``REJECTED``: the driver rejected the kernel; the context is usable. ``CONTEXT_LOST``: the kernel failed and the
    context is lost. ``GPU_UNAVAILABLE``: the GPU cannot be used now, whatever the kernel.
    """

    REJECTED = "rejected"
    CONTEXT_LOST = "context lost"
    GPU_UNAVAILABLE = "GPU unavailable"


@dataclass(frozen=True, slots=True)
class Memory:
    """The use of a GPU's memory: all of it, what is free, and what this process holds."""

    total_bytes: int
    free_bytes: int
    own_bytes: int

    @property
    def used_by_others(self) -> bool:
        """Whether other processes hold more than is free, and more than a tenth of all."""
        other_bytes = self.total_bytes - self.free_bytes - self.own_bytes
        return other_bytes > self.free_bytes and other_bytes > _LARGE_SHARE * self.total_bytes


def classify(code: int, memory: Memory | None = None) -> Fault:
    """Classify a ``CUresult`` or ``cudaError_t``; out of memory is the kernel's fault unless others use the memory.

    An unknown error counts as a lost context: the worker is replaced, and if that fails the GPU counts as unavailable.
    """
    if code == OUT_OF_MEMORY:
        return Fault.GPU_UNAVAILABLE if memory is not None and memory.used_by_others else Fault.REJECTED
    if code in _GPU_UNAVAILABLE:
        return Fault.GPU_UNAVAILABLE
    return Fault.REJECTED if code in _REJECTED else Fault.CONTEXT_LOST


class CudaError(RuntimeError):
    """A call of the driver failed; the code is the ``CUresult``."""

    def __init__(self, call: str, code: int, name: str) -> None:
        super().__init__(f"{call}: {name}")
        self.code = code


class LoadedKernel:
    """A kernel of a cubin in the current context. A context manager that unloads the cubin at its end."""

    def __init__(self, cubin: bytes, entry: str) -> None:
        from cuda.bindings import driver

        self._driver = driver
        self._module = _call(driver.cuModuleLoadData, cubin)
        self._function = _call(driver.cuModuleGetFunction, self._module, entry.encode())
        self._shared_bytes = 0  # the most that a bound launch uses

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        if kind is None:
            _call(self._driver.cuModuleUnload, self._module)
            return
        with contextlib.suppress(CudaError):  # launches may still be running
            _call(self._driver.cuCtxSynchronize)
            _call(self._driver.cuModuleUnload, self._module)

    def bind(
        self,
        launch: Launch,
        arguments: Sequence[NDArray[Any]],
        constants: Iterable[tuple[str, int, int]] = (),
    ) -> Callable[[], None]:
        """Return a function that launches the kernel on the default stream and does not wait for it.

        `constants` are symbols in constant memory with device address and bytes of what is copied there now. Each bound
        kernel has its own workspace, which is zero before the first launch. A launch that the driver rejects raises a
        CudaError.
        """
        driver = self._driver
        for symbol, address, size in constants:
            self._set_constant(symbol, address, size)
        extents = (*launch.grid, *launch.block)
        if not all(1 <= extent <= _LARGEST_EXTENT for extent in extents):
            raise _rejected(
                f"the grid is {launch.grid} and a block {launch.block}; blocks and threads number from 1 to 2**31 - 1"
            )
        if launch.shared_bytes > self._shared_bytes:
            attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            try:
                _call(driver.cuFuncSetAttribute, self._function, attribute, min(launch.shared_bytes, _LARGEST_EXTENT))
            except CudaError as error:
                if classify(error.code) is not Fault.REJECTED:
                    raise
                raise _rejected(
                    f"{launch.shared_bytes} bytes of shared memory of a block do not fit the device ({error})"
                ) from error
            self._shared_bytes = launch.shared_bytes
        values = [*arguments, *(np.array(value, dtype=np.int64) for value in launch.arguments)]
        workspace = None if launch.workspace_bytes is None else _zeros(launch.workspace_bytes)
        if workspace is not None:
            values.append(np.array(workspace.data.ptr, dtype=np.uint64))
        for matrix in launch.tensor_maps:
            if matrix.place >= len(arguments):
                raise _rejected(f"a tensor map is of argument {matrix.place}, and there are {len(arguments)}")
            values.append(np.frombuffer(matrix.encoded(int(arguments[matrix.place])), dtype=np.uint8))
        pointers = np.array([value.ctypes.data for value in values], dtype=np.uint64)
        address, shared_bytes, function = int(pointers.ctypes.data), launch.shared_bytes, self._function

        def launch_kernel(keep: Any = (values, pointers, workspace)) -> None:  # the driver reads the arguments there
            _call(driver.cuLaunchKernel, function, *extents, shared_bytes, 0, address, 0)

        return launch_kernel

    def _set_constant(self, symbol: str, address: int, size: int) -> None:
        """Queue a copy into constant memory."""
        driver = self._driver
        try:
            target, room = _call(driver.cuModuleGetGlobal, self._module, symbol.encode())
        except CudaError as error:
            raise _rejected(
                f'the machine code has no memory {symbol}; the source must define it as `extern "C" __constant__`'
            ) from error
        if size > int(room):
            raise _rejected(f"{symbol} in constant memory has room for {int(room)} bytes; it must have {size}")
        _call(driver.cuMemcpyDtoDAsync, target, driver.CUdeviceptr(address), size, 0)


def fault_of(error: Exception) -> Fault:
    """Classify an error of a request; one without a code counts as a lost context."""
    code = _code(error)
    return Fault.CONTEXT_LOST if code is None else classify(code, gpu_memory() if code == OUT_OF_MEMORY else None)


def _code(error: Exception) -> int | None:
    """Return the ``CUresult`` of an error; None where it has none."""
    if isinstance(error, CudaError):
        return error.code
    if isinstance(error, MemoryError):
        return OUT_OF_MEMORY
    from cupy.cuda import driver, runtime

    if isinstance(error, driver.CUDADriverError | runtime.CUDARuntimeError):
        return int(error.status)
    return None


def gpu_memory() -> Memory | None:
    """Return the use of the GPU's memory; None where it can no longer be read."""
    import cupy

    with contextlib.suppress(RuntimeError):
        free_bytes, total_bytes = cupy.cuda.runtime.memGetInfo()
        return Memory(total_bytes, free_bytes, cupy.get_default_memory_pool().total_bytes())
    return None


def open_context(device_index: int) -> None:
    """Make the context of a GPU that CuPy uses: without Python's lock, so that a thread does it meanwhile."""
    with contextlib.suppress(OSError):  # later calls say what is missing
        driver, device, context = ctypes.CDLL("libcuda.so.1"), ctypes.c_int(), ctypes.c_void_p()
        if driver.cuInit(0) == driver.cuDeviceGet(ctypes.byref(device), device_index) == 0:
            driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)


def worker_kernel(file: str, name: str, options: tuple[str, ...] = ()) -> Any:
    """Return one of the worker's own kernels, which CuPy compiles."""
    import cupy

    return cupy.RawKernel((_FOLDER / file).read_text("utf-8"), name, options)


def copied(array: Any) -> Any:
    """Return a copy of a contiguous array of CuPy, without a kernel that CuPy would have to compile."""
    import cupy

    copy = cupy.empty_like(array)
    copy.data.copy_from_device_async(array.data, array.nbytes)
    return copy


def problem_arguments(problem: RunnableProblem, addresses: Mapping[str, int]) -> list[NDArray[Any]]:
    """Return the arguments of a problem whose buffers have some device addresses, one value per array."""
    pointers = {name: np.uint64(address) for name, address in addresses.items()}
    return [np.array(value) for value in problem.kernel_arguments(pointers).values()]


def _zeros(size: int) -> Any:
    """Return zeros in memory of the GPU; CuPy takes it from what earlier arrays have given back."""
    import cupy

    try:
        return cupy.zeros(size, dtype=cupy.uint8)
    except MemoryError as error:
        reason = f"a workspace of {size} bytes does not fit into the free memory of the GPU"
        raise CudaError("launch", OUT_OF_MEMORY, reason) from error


def _rejected(reason: str) -> CudaError:
    return CudaError("launch", _INVALID_VALUE, reason)


def _call(function: Any, *arguments: Any) -> Any:
    result, *values = function(*arguments)
    if int(result):
        raise CudaError(function.__name__, int(result), result.name)
    return values[0] if len(values) == 1 else values or None
