"""Verification of kernels of any kind: outputs on the GPU are compared with those of a reference, element by element.

Every array lies between guard zones, so that writes outside are found. Outputs are poisoned before each run, so that
elements that are not written are wrong.
"""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from mltune.measure.gpu import LoadedKernel, problem_arguments
from mltune.measure.verification import runs_of
from mltune.problem.array_values import STORAGE, initial_array
from mltune.problem.arrays import Argument
from mltune.records.trial import Measurement, TrialState

if TYPE_CHECKING:
    from mltune.kernel.bundle import Launch
    from mltune.problem.arrays import ArraysProblem

GUARD_BYTES = 1 << 16
"""Size of the zone before an array and of that behind it."""

_SEED = 267
_HOST_BYTES = 2**31  # larger arrays are drawn on the GPU
_GUARD, _POISON_FLOAT, _POISON = 0x5A, 0xFF, 0xA5  # bytes; of any float the second makes NaN
_MOST_DETAILS = 3
_THREADS, _BLOCKS = 256, 1024

_WORDS = {"float16": "half", "bfloat16": "bfloat16", "float32": "float", "float64": "double"}
_WORDS |= {"complex64": "float", "complex128": "double"}

_LOOP = """
#define FIRST ((long long)blockIdx.x * blockDim.x + threadIdx.x)
#define STEP ((long long)gridDim.x * blockDim.x)
"""

_SOURCE = r"""
template <typename T> __device__ double value(T word) { return (double)word; }
struct half { unsigned short bits; };
struct bfloat16 { unsigned short bits; };
template <> __device__ double value(half word) {
  float wide;
  asm("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"(word.bits));
  return wide;
}
template <> __device__ double value(bfloat16 word) { return __uint_as_float((unsigned int)word.bits << 16); }

// results: the largest share of the bound, as bits; the number of wrong words; where the first one is
extern "C" __global__ void compare(const WORD* output, const WORD* expected, long long count, double tolerance,
                                   double absolute, const double* squares, unsigned long long* results) {
  const double infinity = __longlong_as_double(0x7ff0000000000000LL);
  const double floor_bound = absolute + tolerance * sqrt(*squares / (double)count);
  double worst = 0;
  unsigned long long wrong = 0, first = ~0ULL;
  for (long long i = FIRST; i < count; i += STEP) {
    const double found = value(output[i]), right = value(expected[i]);
    const bool same = found == right || (found != found && right != right);
    const double error = fabs(found - right);
    double share = same ? 0 : error / (tolerance * fabs(right) + floor_bound);
    if (!(share < infinity)) share = infinity;
    if (share > 1) {
      ++wrong;
      if (i < first) first = i;
    }
    if (share > worst) worst = share;
  }
  if (worst > 0) atomicMax(&results[0], (unsigned long long)__double_as_longlong(worst));  // ordered as their bits
  if (wrong) {
    atomicAdd(&results[1], wrong);
    atomicMin(&results[2], first);
  }
}

// The sum of the squares of all finite words.
extern "C" __global__ void square(const WORD* words, long long count, double* squares) {
  double sum = 0;
  for (long long i = FIRST; i < count; i += STEP) {
    const double word = value(words[i]);
    if (fabs(word) < 1e300) sum += word * word;
  }
  for (int lanes = 16; lanes > 0; lanes /= 2) sum += __shfl_down_sync(0xffffffffu, sum, lanes);
  if (threadIdx.x % 32 == 0 && sum > 0) atomicAdd(squares, sum);
}
"""

_GUARDS = r"""
// results: for each array the number of changed bytes in its guard zones
extern "C" __global__ void guards(const unsigned long long* bases, const unsigned long long* behind, long long bytes,
                                  unsigned int guard, unsigned long long* results) {
  const unsigned char* before = (const unsigned char*)bases[blockIdx.y];
  const unsigned char* after = before + behind[blockIdx.y];
  unsigned long long changed = 0;
  for (long long i = FIRST; i < bytes; i += STEP)
    changed += (before[i] != guard) + (after[i] != guard);
  if (changed) atomicAdd(&results[blockIdx.y], changed);
}
"""


@dataclass(frozen=True, slots=True)
class Baseline:
    """What the kernels of a problem are compared with: the default configuration, and the right answer.

    Attributes
    ----------
    cubin : bytes
        Machine code of the default configuration; it holds the reference entry, too.
    entry : str
        Name of the kernel.
    launches : tuple of Launch
        The default configuration's launches: for the problem's checks, and for itself.
    reference : (str, tuple of Launch) or None
        Name and launches of the entry that gives the right answer; None where the default configuration does.
    answer : mapping of str to str
        Files with the right outputs of the problem itself, by argument. They take the place of a reference there.
    verify : bytes
        A function that decides on the outputs of the problem itself, with its answer and tolerance, pickled: called as
        ``function(answer, outputs, atol=tolerance)``. It takes the place of every comparison there.
    """

    cubin: bytes
    entry: str
    launches: tuple[Launch, ...]
    reference: tuple[str, tuple[Launch, ...]] | None = None
    answer: Mapping[str, str] = field(default_factory=dict)
    verify: bytes = b""


class GuardedArray:
    """An array on the GPU between two guard zones; its elements begin at a multiple of 256 bytes.

    Attributes
    ----------
    argument : Argument
    role : {"in", "out", "inout", "constant"}
        That of the argument, or ``"in"`` for an ``"inout"`` array that the reference does not change.
    behind : int
        Distance of the second guard zone from the first, bytes.
    bytes : cupy.ndarray
        The elements as bytes.
    """

    def __init__(self, argument: Argument) -> None:
        import cupy

        self.argument = argument
        self.role = argument.role
        self.behind = GUARD_BYTES + argument.nbytes
        self._base = cupy.empty(-(-(self.behind + GUARD_BYTES) // 256) * 256, dtype=cupy.uint8)
        self._base.data.memset(_GUARD, self._base.nbytes)
        self.bytes = self._base[GUARD_BYTES : self.behind]

    @property
    def base(self) -> int:
        """Address of the first guard zone."""
        return int(self._base.data.ptr)

    @property
    def address(self) -> int:
        """Address of the first element."""
        return int(self.bytes.data.ptr)

    @property
    def whole(self) -> Any:
        """All bytes, with the guard zones."""
        return self._base

    def fill(self, values: Any) -> None:
        """Queue a copy of the elements from an array of NumPy or CuPy."""
        if isinstance(values, np.ndarray):
            self.bytes.set(np.ascontiguousarray(values).view(np.uint8).reshape(-1))
        else:
            self.bytes.data.copy_from_device_async(values.data, self.bytes.nbytes)

    def on_host(self) -> np.ndarray[Any, Any]:
        """Return a copy of the elements, in their shape."""
        elements: np.ndarray[Any, Any] = self.bytes.get().view(STORAGE[self.argument.dtype])
        return elements.reshape(self.argument.shape or ())

    def poison(self) -> None:
        """Queue a fill with a value that no correct kernel leaves."""
        floating = self.argument.dtype in _WORDS
        self.bytes.data.memset_async(_POISON_FLOAT if floating else _POISON, self.bytes.nbytes)


class _Comparison:
    """Compares outputs of one type with the expected ones."""

    def __init__(self, dtype: str) -> None:
        import cupy

        self._word_bytes, word = _word_of(dtype)
        options = (f"-DWORD={word}", "--std=c++17")
        self._compare, self._square = (cupy.RawKernel(_LOOP + _SOURCE, name, options) for name in ("compare", "square"))

    def squares(self, array: Any, squares: Any) -> None:
        """Queue the sum of the squares of the words of an array of bytes."""
        self._square((_BLOCKS,), (_THREADS,), (array, np.int64(array.nbytes // self._word_bytes), squares))

    def compare(self, output: Any, expected: Any, argument: Argument, squares: Any, results: Any) -> None:
        """Queue a comparison."""
        count, bounds = output.nbytes // self._word_bytes, (argument.tolerance, argument.absolute)
        arguments = (output, expected, np.int64(count), *map(np.float64, bounds), squares, results)
        self._compare((_BLOCKS,), (_THREADS,), arguments)


def _word_of(dtype: str) -> tuple[int, str]:
    """Return the size and the type of the words that elements are compared in; those of integers are never too wide."""
    if dtype in _WORDS:
        return {"half": 2, "bfloat16": 2, "float": 4, "double": 8}[_WORDS[dtype]], _WORDS[dtype]
    size = min(4, np.dtype(dtype).itemsize)
    return size, {1: "unsigned char", 2: "unsigned short", 4: "unsigned int"}[size]


@dataclass(slots=True)
class _Case:
    """A problem with its arrays on the GPU, and the expected outputs."""

    problem: ArraysProblem
    arrays: dict[str, GuardedArray]
    initial: dict[str, Any]
    expected: dict[str, Any]
    squares: dict[str, Any]

    @property
    def addresses(self) -> dict[str, int]:
        return {name: array.address for name, array in self.arrays.items()}

    @property
    def constants(self) -> list[tuple[str, int, int]]:
        return [(name, self.arrays[name].address, self.arrays[name].bytes.nbytes) for name in self.problem.constants]

    def prepare(self) -> None:
        """Queue the poisoning of outputs and the initial values of what is read and written."""
        for name, array in self.arrays.items():
            if array.role == "out":
                array.poison()
            elif array.role == "inout":
                array.fill(self.initial[name])

    @property
    def written(self) -> list[GuardedArray]:
        return [array for array in self.arrays.values() if array.role in ("out", "inout")]


class ArrayVerification:
    """Arrays and expected outputs of a problem and its checks.

    Parameters
    ----------
    problem : ArraysProblem
    baseline : Baseline
    seed : int
        Seed of the initial values; each check has others.

    Raises
    ------
    CudaError, cupy.cuda.runtime.CUDARuntimeError
        The reference cannot be launched, or failed.
    """

    def __init__(self, problem: ArraysProblem, baseline: Baseline, seed: int = _SEED) -> None:
        import cupy

        problems = (*problem.checks, problem)
        self._cases = [_case(one, seed + number) for number, one in enumerate(problems)]
        self._comparisons: dict[str, _Comparison] = {}
        self._verify = pickle.loads(baseline.verify) if baseline.verify else None  # noqa: S301 - of the caller
        for number, case in enumerate(self._cases):
            own_answer = baseline.answer if case.problem is problem else {}
            if len(own_answer) < len(case.written):  # else the answers are complete, and nothing is run
                entry, launches = baseline.reference or (baseline.entry, baseline.launches)
                with LoadedKernel(baseline.cubin, entry) as kernel:
                    case.prepare()
                    kernel.bind(launches[number], self._arguments(case), case.constants)()
                    cupy.cuda.runtime.deviceSynchronize()
            for array in case.written:
                name = array.argument.name
                if name not in own_answer and array.role == "inout" and (array.bytes == case.initial[name]).all():
                    array.role = "in"  # what the reference leaves unchanged, no other kernel may change
                    del case.initial[name]
                elif self._verify is None or case is not self._cases[-1]:
                    self._expect(case, array, own_answer.get(name))
        arrays = [array for case in self._cases for array in case.arrays.values()]
        self._labels = [
            (case.problem.label, array.argument.name) for case in self._cases for array in case.arrays.values()
        ]
        self._bases = cupy.asarray(np.array([array.base for array in arrays], dtype=np.uint64))
        self._behind = cupy.asarray(np.array([array.behind for array in arrays], dtype=np.uint64))
        self._guards = cupy.RawKernel(_LOOP + _GUARDS, "guards")
        outputs = sum(len(case.expected) for case in self._cases)
        self._results = cupy.empty((outputs, 3), dtype=cupy.uint64)
        self._changed = cupy.empty(len(arrays), dtype=cupy.uint64)
        self._initial_results = cupy.asarray(np.array([[0, 0, 2**64 - 1]] * outputs, dtype=np.uint64))

    @property
    def cases(self) -> int:
        """Number of cases."""
        return len(self._cases)

    @property
    def own(self) -> _Case:
        """The problem itself, whose arrays are used for timing."""
        return self._cases[-1]

    def buffers(self) -> list[tuple[str, Any]]:
        """Return the arrays that a kernel must not change, and the expected outputs, each with a name for messages."""
        inputs = [
            (name, array.bytes)
            for case in self._cases
            for name, array in case.arrays.items()
            if array.role in ("in", "constant")
        ]
        return [*inputs, *(("the expected results", kept) for case in self._cases for kept in case.expected.values())]

    def check(self, kernel: LoadedKernel, launches: Sequence[Launch]) -> Measurement:
        """Run a kernel on every case, each with its own launch, and compare the outputs.

        A kernel with a workspace runs twice: what its first launch left there must not change the second result.

        Returns
        -------
        Measurement
            ``OK`` or ``WRONG_RESULT``, with the largest error as a share of its bound.

        Raises
        ------
        CudaError, cupy.cuda.runtime.CUDARuntimeError
            The kernel cannot be launched, or failed.
        """
        for case, launch in zip(self._cases, launches, strict=True):
            launch_kernel = kernel.bind(launch, self._arguments(case), case.constants)
            for _ in range(runs_of([launch])):
                case.prepare()
                launch_kernel()
        return self._compare()

    def _arguments(self, case: _Case) -> list[Any]:
        return problem_arguments(case.problem, case.addresses)

    def _comparison(self, dtype: str) -> _Comparison:
        if dtype not in self._comparisons:
            self._comparisons[dtype] = _Comparison(dtype)
        return self._comparisons[dtype]

    def _expect(self, case: _Case, array: GuardedArray, file: str | None) -> None:
        """Keep the content of an output, or a file, as the expected one."""
        import cupy

        name, argument = array.argument.name, array.argument
        if file is not None:
            array.fill(initial_array(np, None, argument.dtype, argument.shape or (), file))
        case.expected[name] = cupy.empty(-(-array.bytes.nbytes // 4) * 4, dtype=cupy.uint8)
        case.expected[name].fill(0)
        case.expected[name].data.copy_from_device_async(array.bytes.data, array.bytes.nbytes)
        case.squares[name] = cupy.zeros(1, dtype=cupy.float64)
        self._comparison(argument.dtype).squares(array.bytes, case.squares[name])

    def _compare(self) -> Measurement:
        self._results.data.copy_from_device_async(self._initial_results.data, self._results.nbytes)
        self._changed.data.memset_async(0, self._changed.nbytes)
        outputs = [(case, case.arrays[name]) for case in self._cases for name in case.expected]
        for row, (case, array) in enumerate(outputs):
            argument = array.argument
            comparison = self._comparison(argument.dtype)
            expected, squares = case.expected[argument.name], case.squares[argument.name]
            comparison.compare(array.bytes, expected, argument, squares, self._results[row])
        zones = (self._bases, self._behind, np.int64(GUARD_BYTES), np.uint32(_GUARD), self._changed)
        self._guards((16, len(self._labels)), (_THREADS,), zones)
        results, changed = self._results.get(), self._changed.get()  # waits for the GPU
        worst, details = 0.0, []
        for (case, array), (bits, wrong, first) in zip(outputs, results, strict=True):
            share = float(np.uint64(bits).view(np.float64))
            worst = max(worst, share)
            if wrong:
                details.append(
                    f"{case.problem.label}: {int(wrong)} values of {array.argument.name} wrong, by up to {share:.3g} "
                    f"times the bound, the first at {int(first)}"
                )
        if self._verify is not None:
            details += _asked(self._cases[-1], *self._verify)
        for (label, name), count in zip(self._labels, changed.tolist(), strict=True):
            if count:
                details.append(f"{label}: {count} bytes written outside {name}")
        if changed.any():
            self._renew_guards()
        state = TrialState.WRONG_RESULT if details else TrialState.OK
        return Measurement(state, "; ".join(details[:_MOST_DETAILS]), error=worst)

    def _renew_guards(self) -> None:
        for case in self._cases:
            for array in case.arrays.values():
                for zone in (array.whole[:GUARD_BYTES], array.whole[array.behind :]):
                    zone.data.memset_async(_GUARD, zone.nbytes)


def run_once(problem: ArraysProblem, kernel: LoadedKernel, launch: Launch) -> dict[str, np.ndarray[Any, Any]]:
    """Run a kernel once on the initial values of a problem; return its arrays by name, as they are afterwards."""
    case = _case(problem, _SEED)
    kernel.bind(launch, problem_arguments(problem, case.addresses), case.constants)()
    return {name: array.on_host() for name, array in case.arrays.items()}


def _asked(case: _Case, function: Callable[..., Any], answer: Sequence[Any] | None, absolute: float) -> list[str]:
    """Ask a function of the caller whether outputs are right; return what is wrong with them."""
    wanted = itertools.repeat(True) if answer is None else (one is not None for one in answer)
    passed = (one for one in case.problem.arguments if one.role != "constant")
    outputs = [
        case.arrays[one.name].on_host() if one.shape is not None and want else None
        for one, want in zip(passed, wanted, strict=False)
    ]
    try:
        right = bool(np.all(function(answer, outputs, atol=absolute)))
    except Exception as error:  # it is the caller's
        return [f"verify raised {type(error).__name__}: {error!s:.300}"]
    return [] if right else [f"{case.problem.label}: verify returned false"]


def _case(problem: ArraysProblem, seed: int) -> _Case:
    """Make the arrays of a problem on the GPU."""
    import cupy

    xp = cupy if problem.operand_bytes > _HOST_BYTES else np
    values = problem.operands(xp, seed)
    arrays = {one.name: GuardedArray(one) for one in problem.arrays}
    for name, array in arrays.items():
        array.fill(values[name])
    initial = {name: array.bytes.copy() for name, array in arrays.items() if array.role == "inout"}
    return _Case(problem, arrays, initial, {}, {})
