"""The driver's calls that a worker makes of its own: load a cubin, launch its kernel. And what their failures mean."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from mltune.measure.fault_classification import Fault, classify
from mltune.problem.gemm import GemmProblem
from mltune.problem.gemm_operands import GemmOperands

if TYPE_CHECKING:
    from mltune.kernel.bundle import Launch

_LARGEST_EXTENT = 2**31 - 1


class CudaError(RuntimeError):
    """A call of the driver failed.

    Attributes
    ----------
    code : int
        The driver's number of the error.
    """

    def __init__(self, call: str, code: int, name: str) -> None:
        super().__init__(f"{call}: {name}")
        self.code = code

    @property
    def refused(self) -> bool:
        """Whether the driver rejected the kernel and the context is unharmed."""
        return classify(self.code) is Fault.REFUSED


class RefusedError(CudaError):
    """A launch that no driver accepts, found before asking it."""

    def __init__(self, reason: str) -> None:
        super().__init__("launch", 1, reason)


class LoadedKernel:
    """A kernel of a cubin, loaded into the current context. A context manager: leaving it unloads the cubin.

    Parameters
    ----------
    cubin : bytes
        Machine code.
    entry : str
        Name of the kernel function.

    Raises
    ------
    CudaError
        The driver refuses the cubin.
    """

    def __init__(self, cubin: bytes, entry: str) -> None:
        from cuda.bindings import driver

        self._driver = driver
        self._module = _call(driver.cuModuleLoadData, cubin)
        self._function = _call(driver.cuModuleGetFunction, self._module, entry.encode())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            _call(self._driver.cuModuleUnload, self._module)
            return
        with contextlib.suppress(CudaError):  # launches may still be under way
            _call(self._driver.cuCtxSynchronize)
            _call(self._driver.cuModuleUnload, self._module)

    def bind(self, launch: Launch, arguments: Sequence[NDArray[Any]]) -> Callable[[], None]:
        """Return a function that launches the kernel on the default stream and does not wait for it.

        Parameters
        ----------
        launch : Launch
            Shape of the launch, and the arguments that follow those of the problem.
        arguments : sequence of ndarray
            The problem's arguments, each an array that holds the one value (see :func:`problem_arguments`).

        Raises
        ------
        CudaError
            The launch cannot be made; the returned function raises it as well.
        """
        driver = self._driver
        extents = (*launch.grid, *launch.block)
        if not all(1 <= extent <= _LARGEST_EXTENT for extent in extents):
            raise RefusedError(
                f"blocks and threads must number from 1 to 2**31 - 1, got a grid of {launch.grid} "
                f"and blocks of {launch.block}"
            )
        if launch.shared_bytes:
            attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            try:
                _call(driver.cuFuncSetAttribute, self._function, attribute, min(launch.shared_bytes, _LARGEST_EXTENT))
            except CudaError as error:
                if not error.refused:
                    raise
                raise RefusedError(
                    f"the shared memory of a block must fit the device, got {launch.shared_bytes} bytes ({error})"
                ) from error
        values = [*arguments, *(np.array(value, dtype=np.int64) for value in launch.arguments)]
        pointers = np.array([value.ctypes.data for value in values], dtype=np.uint64)
        address, shared_bytes, function = int(pointers.ctypes.data), launch.shared_bytes, self._function

        def launch_kernel(keep: Any = (values, pointers)) -> None:  # the driver reads the arguments from there
            _call(driver.cuLaunchKernel, function, *extents, shared_bytes, 0, address, 0)

        return launch_kernel


def problem_arguments(problem: GemmProblem, operands: GemmOperands) -> list[NDArray[Any]]:
    """Return a problem's arguments as arrays that hold one value each, for :meth:`LoadedKernel.bind`.

    Parameters
    ----------
    problem : GemmProblem
    operands : GemmOperands
        Device addresses, as integers.
    """
    addresses = GemmOperands(*(np.uint64(address) for address in (operands.A, operands.B, operands.C)))
    return [np.array(value) for value in problem.kernel_arguments(addresses)]


def _call(function: Any, *arguments: Any) -> Any:
    result, *values = function(*arguments)
    if int(result):
        raise CudaError(function.__name__, int(result), result.name)
    return values[0] if values else None
