"""Verification of a kernel: every word that it may have written is compared on the GPU, on every case.

A case (:class:`~mltune.problem.problem.VerificationCase`) has buffers, their correct content and the largest error of
every word. Guard zones reveal writes outside, checksums writes into buffers that a kernel must not change.
"""

from __future__ import annotations

import itertools
import math
import pickle
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mltune.kernel.launch import Launch
from mltune.measure.gpu import LoadedKernel, copied, problem_arguments, worker_kernel
from mltune.measure.messages import Baseline
from mltune.problem.array_values import FP8, STORAGE
from mltune.problem.problem import CaseBuffer, RunnableProblem, VerificationCase
from mltune.records.trial import Measurement, TrialState

GUARD_BYTES = 1 << 16
"""Least size of the zone before a buffer and of that behind it."""

_HOST_BYTES = 2**31  # operands of larger problems are drawn on the GPU
_GUARD = 0x5A  # the byte around buffers that kernels write
_UNREAD_FLOAT, _UNREAD = 0xFF, 0xA5  # around read buffers, and in outputs before a kernel; a float of such bytes is NaN
_MOST_DETAILS = 3
_THREADS, _MOST_BLOCKS, _ZONE_BLOCKS, _CHECKSUM_BLOCKS = 256, 1024, 64, 512
_WORDS_OF_A_THREAD = 8
_CHECKSUM_WORD_BYTES = 4

_WORDS = {"float16": "half", "bfloat16": "bfloat16", "float32": "float", "float64": "double"}
_WORDS |= {"complex64": "float", "complex128": "double"}
_WORD_BYTES = {"half": 2, "bfloat16": 2, "float": 4, "double": 8}
_INTEGER_WORDS = {1: "unsigned char", 2: "unsigned short", 4: "unsigned int"}


class Verification:
    """The buffers of some cases on the GPU, and their correct content, from a baseline where there is one."""

    def __init__(self, cases: Sequence[VerificationCase], baseline: Baseline | None = None) -> None:
        import cupy

        self._of = () if baseline or any(case.is_timed for case in cases) else (*cases,)
        self._cases = [DeviceCase(case) for case in cases]
        self._verify = pickle.loads(baseline.verify) if baseline and baseline.verify else None  # noqa: S301 - caller's
        for number, case in enumerate(self._cases):
            if baseline is not None and any(array.buffer.expected is None for array in case.written):
                _run_reference(case, baseline, number)
            for array in case.written:
                if self._verify is None or not case.is_timed:
                    array.expect()
        self._arrays = [(case.label, array) for case in self._cases for array in case.arrays.values()]
        self._outputs = [array for _, array in self._arrays if array.comparison is not None]
        zones = [zone for _, array in self._arrays for zone in array.zones]
        self._zones = cupy.asarray(np.array(zones, dtype=np.uint64))
        self._count_zones = worker_kernel("guards.cu", "count_changed")
        self._changed = cupy.empty(2 * len(self._arrays), dtype=cupy.uint64)
        self._results = cupy.empty((len(self._outputs), 4), dtype=cupy.uint64)
        self._no_results = cupy.asarray(np.array([[0, 0, 2**64 - 1, 0]] * len(self._outputs), dtype=np.uint64))
        self._read()  # loads the kernels

    def is_of(self, problem: RunnableProblem) -> bool:
        """Return whether it has the cases of a problem, of which none is timed, without a baseline."""
        return bool(self._of) and self._of == (*problem.verification_cases(),)

    @property
    def timed(self) -> DeviceCase | None:
        """The case whose buffers kernels are timed on; None where they are timed on others."""
        return next((case for case in self._cases if case.is_timed), None)

    def buffers(self) -> list[tuple[str, Any]]:
        """Return the buffers on the GPU that a kernel must not change, each with a name for messages."""
        own = [("the expected results", table) for table in (self._zones, self._no_results)]
        return [*(buffer for _, array in self._arrays for buffer in array.kept()), *own]

    def check(self, kernel: LoadedKernel, launches: Sequence[Launch]) -> Measurement:
        """Run a kernel on every case, each with its own launch, and compare the outputs.

        A kernel with a workspace runs twice: what the first launch leaves there must not change the second result. The
        error is the largest as a share of its bound: infinite where an exact result is missed, or is not a number.
        """
        for case, launch in zip(self._cases, launches, strict=True):
            if case.problem.is_empty:
                continue
            launch_kernel = kernel.bind(launch, case.arguments, case.constants)
            for _ in range(2 if launch.workspace_bytes else 1):
                case.prepare()
                launch_kernel()
        return self._compare()

    def _compare(self) -> Measurement:
        results, changed = self._read()
        worst, details, rows = 0.0, [], iter(results.tolist())
        for (label, array), around in zip(self._arrays, changed, strict=True):
            outside = around
            if array.comparison is not None:
                bits, wrong, first, written = next(rows)
                share = float(np.uint64(bits).view(np.float64))
                worst, outside = max(worst, share), around + written
                if wrong:
                    details.append(
                        f"{label}: {wrong} of {array.comparison.values} values wrong in {array.name}, "
                        f"by up to {share:.3g} times the bound, the first at {first}"
                    )
            if outside:
                details.append(f"{label}: {outside} bytes written outside {array.name}")
            if around:
                array.renew_guards()
        if self._verify is not None and self.timed is not None:
            details += _asked(self.timed, *self._verify)
        state = TrialState.WRONG_RESULT if details else TrialState.OK
        return Measurement(state, "; ".join(details[:_MOST_DETAILS]), error=worst)

    def _read(self) -> tuple[NDArray[np.uint64], list[int]]:
        """Compare; return a row of results for each output, and the changed bytes around each array."""
        self._results.data.copy_from_device_async(self._no_results.data, self._results.nbytes)
        self._changed.data.memset_async(0, self._changed.nbytes)
        for array, row in zip(self._outputs, self._results, strict=True):
            array.compare(row)
        self._count_zones((_ZONE_BLOCKS, len(self._zones)), (_THREADS,), (self._zones, self._changed))
        results, changed = np.ascontiguousarray(self._results.get()), self._changed.get()  # waits for the GPU
        return results, changed.reshape(-1, 2).sum(axis=1).tolist()


def run_once(case: VerificationCase, kernel: LoadedKernel, launch: Launch) -> dict[str, NDArray[Any]]:
    """Run a kernel once on the initial values of a case; return its arrays by name, as they are afterwards."""
    device_case = DeviceCase(case)
    kernel.bind(launch, device_case.arguments, device_case.constants)()
    return {name: array.on_host() for name, array in device_case.arrays.items()}


def _run_reference(case: DeviceCase, baseline: Baseline, number: int) -> None:
    """Run the reference of a baseline; arrays that it does not change become read-only."""
    import cupy

    entry, launches = baseline.reference or (baseline.entry, baseline.launches)
    with LoadedKernel(baseline.cubin, entry) as kernel:
        case.prepare()
        kernel.bind(launches[number], case.arguments, case.constants)()
        cupy.cuda.runtime.deviceSynchronize()
    for array in case.written:
        if array.buffer.expected is None and array.initial is not None and not _different(array.bytes, array.initial):
            array.role, array.initial = "in", None


def _different(buffer: Any, other: Any) -> int:
    """Return the number of bytes in which two buffers differ; CuPy's own comparison takes seconds to compile."""
    import cupy

    result = cupy.zeros(1, dtype=cupy.uint64)
    arguments = (buffer, other, np.int64(buffer.nbytes), result)
    worker_kernel("guards.cu", "count_different")((_CHECKSUM_BLOCKS,), (_THREADS,), arguments)
    return int(result.get()[0])


def _asked(case: DeviceCase, function: Callable[..., Any], answer: Sequence[Any] | None, absolute: float) -> list[str]:
    """Ask a function of the caller whether outputs are right; return the reasons why not."""
    needed = itertools.repeat(True) if answer is None else (part is not None for part in answer)
    passed: Iterable[Any] = case.problem.kernel_arguments(case.arrays).values()
    outputs = [
        value.on_host() if isinstance(value, DeviceArray) and want else None
        for value, want in zip(passed, needed, strict=False)
    ]
    try:
        right = bool(np.all(function(answer, outputs, atol=absolute)))
    except Exception as error:  # it is the caller's
        return [f"verify raised {type(error).__name__}: {error!s:.300}"]
    return [] if right else [f"{case.label}: verify returned false"]


class DeviceCase:
    """A problem with its arrays on the GPU."""

    def __init__(self, case: VerificationCase) -> None:
        import cupy

        self.problem, self.label, self.is_timed = case.problem, case.label, case.is_timed
        buffers = case.buffers(cupy if self.problem.operand_bytes > _HOST_BYTES else np)
        self.arrays = {name: DeviceArray(name, buffer) for name, buffer in buffers.items()}
        self.arguments = problem_arguments(self.problem, {name: array.address for name, array in self.arrays.items()})

    @property
    def constants(self) -> list[tuple[str, int, int]]:
        """Name, address and size of the arrays that are copied to constant memory."""
        constants = (array for array in self.arrays.values() if array.role == "constant")
        return [(array.name, array.address, array.bytes.nbytes) for array in constants]

    @property
    def written(self) -> list[DeviceArray]:
        """The arrays that a kernel may change."""
        return [array for array in self.arrays.values() if array.role in ("out", "inout")]

    def prepare(self) -> None:
        """Queue the preparation of all arrays for a run."""
        for array in self.arrays.values():
            array.prepare()


class DeviceArray:
    """A buffer of a case on the GPU, between two guard zones.

    An ``"inout"`` one that the reference does not change has the role ``"in"``; others are restored to their initial
    content.
    """

    def __init__(self, name: str, buffer: CaseBuffer) -> None:
        import cupy

        self.name, self.role = name, buffer.role
        self.buffer = replace(buffer, values=None)  # they may be as large as the array
        self.comparison: _Comparison | None = None
        self._unread = _UNREAD_FLOAT if buffer.dtype in (*_WORDS, *FP8) else _UNREAD
        self._guard = self._unread if buffer.role in ("in", "constant") else _GUARD
        self._first = GUARD_BYTES + buffer.offset_bytes
        self._behind = self._first + buffer.values.nbytes
        whole = self._behind + max(GUARD_BYTES, buffer.guard_bytes)
        self._whole = cupy.empty(-(-whole // 256) * 256, dtype=cupy.uint8)
        self.bytes = self._whole[self._first : self._behind]
        self.renew_guards()
        self._fill(buffer.values)
        self.initial = copied(self.bytes) if buffer.role == "inout" else None

    @property
    def address(self) -> int:
        """Address of the first element."""
        return int(self._whole.data.ptr) + self._first

    @property
    def zones(self) -> list[tuple[int, int, int]]:
        """Address, size and content of the guard zones before and behind the elements."""
        base, behind = int(self._whole.data.ptr), self._whole.nbytes - self._behind
        return [(base, self._first, self._guard), (base + self._behind, behind, self._guard)]

    def renew_guards(self) -> None:
        """Queue a fill of the guard zones."""
        for zone in (self._whole[: self._first], self._whole[self._behind :]):
            zone.data.memset_async(self._guard, zone.nbytes)

    def prepare(self) -> None:
        """Queue a copy of the initial values, or a fill of bytes that no correct kernel leaves."""
        if self.initial is not None:
            self._fill(self.initial)
        elif self.role == "out":
            self.bytes.data.memset_async(self._unread, self.bytes.nbytes)

    def on_host(self) -> NDArray[Any]:
        """Return a copy of the elements, in their shape."""
        elements: NDArray[Any] = self.bytes.get().view(STORAGE[self.buffer.dtype])
        return elements.reshape(self.buffer.shape)

    def expect(self) -> None:
        """Keep the expected content: that of the case, or the present one."""
        buffer = self.buffer
        if buffer.expected is not None and buffer.bound is None:
            self._fill(buffer.expected)
        self.comparison = _Comparison(buffer, self.bytes)
        self.buffer = replace(buffer, expected=None, bound=None)

    def compare(self, results: Any) -> None:
        """Queue a comparison with the expected content."""
        assert self.comparison is not None  # noqa: S101 - of outputs
        self.comparison.queue(self.bytes, self.initial, results)

    def kept(self) -> list[tuple[str, Any]]:
        """Return the memory that must not change, with names for messages."""
        aligned = self._whole[GUARD_BYTES : self._behind]  # elements may begin anywhere, checksums read words
        buffers = [(self.name, aligned)] if self.role in ("in", "constant") else []
        if self.initial is not None:
            buffers.append((f"the initial {self.name}", self.initial))
        if self.comparison is not None:
            buffers += [("the expected results", buffer) for buffer in self.comparison.kept]
        return buffers

    def _fill(self, values: Any) -> None:
        """Queue a copy of the elements from an array of NumPy or CuPy."""
        if not self.bytes.nbytes:
            return
        if isinstance(values, np.ndarray):
            self.bytes.set(np.ascontiguousarray(values).view(np.uint8).reshape(-1))
        else:
            self.bytes.data.copy_from_device_async(values.data, self.bytes.nbytes)


class _Comparison:
    """The expected content of an array (itself, without a bound for every word), and the kernel that compares it."""

    def __init__(self, buffer: CaseBuffer, now: Any) -> None:
        import cupy

        self._word_bytes, word = word_of(buffer.dtype)
        self._limits = tuple(map(np.float64, (buffer.tolerance, buffer.absolute)))
        self._count = now.nbytes // self._word_bytes // buffer.terms
        expected = word if buffer.bound is None else "double"
        options = (f"-DWORD={word}", f"-DEXPECTED={expected}", f"-DTERMS={buffer.terms}", "--std=c++17")
        self._compare = worker_kernel("compare.cu", "compare", options)
        self.kept: tuple[Any, ...]
        self._squares: Any = np.uint64(0)
        self._bound: Any = np.uint64(0)
        if buffer.bound is None:
            self._expected = cupy.zeros(-(-now.nbytes // 4) * 4, dtype=cupy.uint8)  # whole words of checksums
            self._expected.data.copy_from_device_async(now.data, now.nbytes)
            self._squares = cupy.zeros(1, dtype=cupy.float64)
            square = worker_kernel("compare.cu", "square", options)
            square((_MOST_BLOCKS,), (_THREADS,), (now, np.int64(self._count), self._squares))
            self.values, self.kept = self._count, (self._expected, self._squares)
        else:
            self._expected, self._bound = cupy.asarray(buffer.expected), cupy.asarray(buffer.bound)
            self.values, self.kept = int((buffer.bound[:: buffer.terms] >= 0).sum()), (self._expected, self._bound)
        self._blocks = max(1, min(_MOST_BLOCKS, math.ceil(self._count / (_THREADS * _WORDS_OF_A_THREAD))))

    def queue(self, output: Any, before: Any, results: Any) -> None:
        """Queue a comparison."""
        values = (output, np.uint64(0) if before is None else before, self._expected, self._bound)
        limits = (np.int64(self._count), *self._limits, self._squares)
        self._compare((self._blocks,), (_THREADS,), (*values, *limits, results))


def word_of(dtype: str) -> tuple[int, str]:
    """Return the size and the C++ type of the words that elements are compared in; of integers at most 4 bytes."""
    if dtype in _WORDS:
        return _WORD_BYTES[_WORDS[dtype]], _WORDS[dtype]
    size = min(4, np.dtype(dtype).itemsize)
    return size, _INTEGER_WORDS[size]


class OperandChecksums:
    """Detect changes of read-only buffers on the GPU by checksums of their 4-byte words, at the memory's speed."""

    def __init__(self, buffers: Iterable[tuple[str, Any]]) -> None:
        import cupy

        self._names, self._buffers = zip(*buffers, strict=True)
        self._addresses = cupy.asarray(np.array([buffer.data.ptr for buffer in self._buffers], dtype=np.uint64))
        words = [buffer.nbytes // _CHECKSUM_WORD_BYTES for buffer in self._buffers]
        self._words = cupy.asarray(np.array(words, dtype=np.uint64))
        self._sums = cupy.empty(len(words), dtype=cupy.uint64)
        self._checksum = worker_kernel("checksum.cu", "checksum")
        self._initial = self._read()

    def changed(self) -> tuple[str, ...]:
        """Return the names of the buffers that have changed, each once."""
        differences = self._read() != self._initial
        return tuple(dict.fromkeys(name for name, differs in zip(self._names, differences, strict=True) if differs))

    def _read(self) -> Any:
        self._sums.data.memset_async(0, self._sums.nbytes)
        arguments = (self._addresses, self._words, self._sums)
        self._checksum((_CHECKSUM_BLOCKS, len(self._names)), (_THREADS,), arguments)
        return self._sums.get()  # waits for the GPU
