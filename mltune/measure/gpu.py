"""Loading and launching of kernels through the CUDA driver."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from mltune.measure.fault_classification import OUT_OF_MEMORY, Fault, classify

if TYPE_CHECKING:
    from mltune.kernel.bundle import Launch
    from mltune.problem.runnable import RunnableProblem

_LARGEST_EXTENT = 2**31 - 1
_INVALID_VALUE = 1  # CUDA_ERROR_INVALID_VALUE


class CudaError(RuntimeError):
    """A call of the driver failed.

    Attributes
    ----------
    code : int
        The ``CUresult``.
    """

    def __init__(self, call: str, code: int, name: str) -> None:
        super().__init__(f"{call}: {name}")
        self.code = code


class LoadedKernel:
    """A kernel of a cubin in the current context. A context manager that unloads the cubin at its end.

    Parameters
    ----------
    cubin : bytes
        Machine code.
    entry : str
        Name of the kernel function.

    Raises
    ------
    CudaError
        The driver rejects the cubin.
    """

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

        Each bound kernel has a workspace of its own, which is zero before the first launch.

        Parameters
        ----------
        launch : Launch
            Shape of the launch, the arguments after those of the problem, and the size of the workspace.
        arguments : sequence of ndarray
            The problem's arguments, one value per array (see :func:`problem_arguments`).
        constants : iterable of (str, int, int)
            Symbols in constant memory with the device address and the size in bytes of what is copied there now.

        Raises
        ------
        CudaError
            The driver rejects the launch, which the returned function also raises, or the workspace does not fit
            into the memory.
        """
        driver = self._driver
        for symbol, address, size in constants:
            self._set_constant(symbol, address, size)
        extents = (*launch.grid, *launch.block)
        if not all(1 <= extent <= _LARGEST_EXTENT for extent in extents):
            raise _rejected(
                f"blocks and threads must number from 1 to 2**31 - 1, got a grid of {launch.grid} "
                f"and blocks of {launch.block}"
            )
        if launch.shared_bytes > self._shared_bytes:
            attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            try:
                _call(driver.cuFuncSetAttribute, self._function, attribute, min(launch.shared_bytes, _LARGEST_EXTENT))
            except CudaError as error:
                if classify(error.code) is not Fault.REJECTED:
                    raise
                raise _rejected(
                    f"the shared memory of a block must fit the device, got {launch.shared_bytes} bytes ({error})"
                ) from error
            self._shared_bytes = launch.shared_bytes
        values = [*arguments, *(np.array(value, dtype=np.int64) for value in launch.arguments)]
        workspace = None if launch.workspace_bytes is None else _zeros(launch.workspace_bytes)
        if workspace is not None:
            values.append(np.array(workspace.data.ptr, dtype=np.uint64))
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
                f'the source must define `extern "C" __constant__` memory {symbol}, but its machine code has none'
            ) from error
        if size > int(room):
            raise _rejected(f"{symbol} in constant memory must have room for {size} bytes, but has {int(room)}")
        _call(driver.cuMemcpyDtoDAsync, target, driver.CUdeviceptr(address), size, 0)


def problem_arguments(problem: RunnableProblem, addresses: Mapping[str, int]) -> list[NDArray[Any]]:
    """Return the arguments of a problem whose buffers have some device addresses, one value per array."""
    pointers = {name: np.uint64(address) for name, address in addresses.items()}
    return [np.array(value) for value in problem.kernel_arguments(pointers).values()]


def _zeros(size: int) -> Any:
    """Return an array of zeros in memory of the GPU; CuPy takes it from what earlier ones have given back."""
    import cupy

    try:
        return cupy.zeros(size, dtype=cupy.uint8)
    except MemoryError as error:
        reason = f"a workspace must fit into the free memory of the GPU, got {size} bytes"
        raise CudaError("launch", OUT_OF_MEMORY, reason) from error


def _rejected(reason: str) -> CudaError:
    return CudaError("launch", _INVALID_VALUE, reason)


def _call(function: Any, *arguments: Any) -> Any:
    result, *values = function(*arguments)
    if int(result):
        raise CudaError(function.__name__, int(result), result.name)
    return values[0] if len(values) == 1 else values or None
