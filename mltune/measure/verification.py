"""Is a kernel right? It runs on small problems that reach every fringe; one comparison on the GPU judges them all.

Every case lies in one buffer: the matrix C of each, with guard zones around it and in the padding below its columns.
For every word of that buffer it is known what a right kernel leaves there: an answer within an error bound, one exact
answer (small integers have no rounding), or what stood there before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from mltune.measure.gpu import LoadedKernel, problem_arguments
from mltune.problem.gemm import GemmProblem
from mltune.problem.gemm_operands import GemmOperands

if TYPE_CHECKING:
    from mltune.kernel.bundle import Launch

_SEED = 20110
_GUARD = 4096  # elements before a matrix, and at least so many behind it
_GUARD_COLUMNS = 256  # columns behind C: as wide as tiles are
_ALIGNMENT = 64  # elements
_CANARY = 12345.0  # exact in every precision, and never an answer
_DETAILS = 3  # of what may be wrong with every case, so many are told
_THREADS, _BLOCKS_PER_CASE = 256, 64

_COMPARE = r"""
extern "C" __global__ void compare(const REAL* output, const REAL* before, const double* expected, const double* bound,
                                   const long long* limits, unsigned long long* verdicts) {
  __shared__ unsigned long long shared_verdict[3];
  if (threadIdx.x < 3) shared_verdict[threadIdx.x] = 0;
  __syncthreads();
  const double infinity = __longlong_as_double(0x7ff0000000000000LL);
  const long long end = limits[blockIdx.y + 1];
  const long long step = (long long)gridDim.x * blockDim.x;
  double worst = 0;
  unsigned long long wrong = 0, outside = 0;
  for (long long i = limits[blockIdx.y] + (long long)blockIdx.x * blockDim.x + threadIdx.x; i < end; i += step) {
    const double allowed = bound[i];
    if (allowed < 0) {  // guard: what is written here, were it NaN, differs from what stood here
      if (!(output[i] == before[i])) ++outside;
    } else {
      const double error = fabs((double)output[i] - expected[i]);
      double share = error == 0 ? 0 : error / allowed;
      if (!(share < infinity)) share = infinity;
      if (share > 1) ++wrong;
      if (share > worst) worst = share;
    }
  }
  atomicMax(&shared_verdict[0], (unsigned long long)__double_as_longlong(worst));  // ordered as their bits
  if (wrong) atomicAdd(&shared_verdict[1], wrong);
  if (outside) atomicAdd(&shared_verdict[2], outside);
  __syncthreads();
  if (threadIdx.x == 0) {
    atomicMax(&verdicts[3 * blockIdx.y], shared_verdict[0]);
    atomicAdd(&verdicts[3 * blockIdx.y + 1], shared_verdict[1]);
    atomicAdd(&verdicts[3 * blockIdx.y + 2], shared_verdict[2]);
  }
}
"""


@dataclass(frozen=True, slots=True)
class Case:
    """One problem that a kernel must solve.

    Attributes
    ----------
    problem : GemmProblem
        What to compute.
    integers : bool
        Whether the operands are small integers, whose answer is exact.
    offset : int
        Elements by which the operands begin behind an aligned address.
    """

    problem: GemmProblem
    integers: bool
    offset: int

    @property
    def label(self) -> str:
        """What a person reads."""
        kind = "integer operands" if self.integers else "random operands"
        return f"{self.problem.label}, {kind}, {'unaligned' if self.offset else 'aligned'}"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What came out of a verification.

    Attributes
    ----------
    error : float
        Largest error as a share of its bound; infinite where an exact answer is missed, or is not a number.
    detail : str
        Empty when the kernel is right, else what it did wrong.
    """

    error: float
    detail: str


def verification_cases(problem: GemmProblem) -> tuple[Case, ...]:
    """Return what every configuration is verified on.

    An odd size, once aligned, so that wide loads are made, once with odd leading dimensions and addresses, so that they
    are not; each with random and with integer operands. Without alignment beta is 0 and C is NaN.
    """
    cases = []
    for aligned in (True, False):
        small = problem.verification_problem(aligned=aligned)
        cases += [Case(small, integers, 0 if aligned else 1) for integers in (False, True)]
    return tuple(cases)


def size_cases(problem: GemmProblem) -> tuple[Case, ...]:
    """Return the cases of one given problem: random operands, and integers where their answer is exact."""
    return tuple(Case(problem, integers, 0) for integers in (False, True) if not integers or problem.is_exact)


class Verification:
    """Operands, answers and bounds of some cases, on the GPU.

    Parameters
    ----------
    cases : sequence of Case
        All of one precision.
    """

    def __init__(self, cases: Sequence[Case]) -> None:
        import cupy

        self._cases = tuple(cases)
        dtype = cases[0].problem.dtype
        self._parts = 2 if dtype.kind == "c" else 1
        hosts = [_HostCase.make(case) for case in cases]
        words = [host.before.size for host in hosts]
        self._copies: list[tuple[Any, NDArray[Any]]] = []  # on the GPU, and the original on the host
        self._before = self._copy(np.concatenate([host.before for host in hosts]))
        self._expected = self._copy(np.concatenate([host.expected for host in hosts]))
        self._bound = self._copy(np.concatenate([host.bound for host in hosts]))
        begins = np.concatenate(([0], np.cumsum(words))).astype(np.int64)
        self._limits = self._copy(begins)
        self._output = cupy.empty_like(self._before)
        self._verdicts = cupy.empty((len(hosts), 3), dtype=cupy.uint64)
        real = np.dtype(dtype.char.lower())
        self._arguments = []
        for host, begin in zip(hosts, begins, strict=False):
            addresses = [self._copy(values).data.ptr + host.skip_bytes for values in (host.A, host.B)]
            addresses.append(self._output.data.ptr + int(begin) * real.itemsize + host.skip_bytes)
            self._arguments.append(problem_arguments(host.case.problem, GemmOperands(*addresses)))
        name = "float" if real.itemsize == 4 else "double"
        self._compare = cupy.RawKernel(_COMPARE, "compare", options=(f"-DREAL={name}",))
        self._clear()
        self._judge()

    @property
    def cases(self) -> int:
        """Number of cases."""
        return len(self._cases)

    def buffers(self) -> list[tuple[str, Any]]:
        """Return what a kernel must not change, on the GPU, under names for people."""
        judging = {id(buffer) for buffer in (self._before, self._expected, self._bound, self._limits)}
        return [
            (f"the {'answers' if id(copy) in judging else 'operands'} of the verification", copy)
            for copy, _ in self._copies
        ]

    def check(self, kernel: LoadedKernel, launches: Sequence[Launch]) -> Verdict:
        """Run a kernel on every case and judge what it left.

        Parameters
        ----------
        kernel : LoadedKernel
        launches : sequence of Launch
            How it is launched for each case.

        Raises
        ------
        CudaError, cupy.cuda.runtime.CUDARuntimeError
            The kernel cannot be launched, or failed.
        """
        self._clear()
        for case, launch, arguments in zip(self._cases, launches, self._arguments, strict=True):
            if case.problem.m and case.problem.n:
                kernel.bind(launch, arguments)()
        verdict = self._judge()
        if verdict.detail:
            self._restore()
        return verdict

    def _copy(self, original: NDArray[Any]) -> Any:
        import cupy

        copy = cupy.asarray(original)
        self._copies.append((copy, original))
        return copy

    def _clear(self) -> None:
        self._output.data.copy_from_device_async(self._before.data, self._before.nbytes)
        self._verdicts.data.memset_async(0, self._verdicts.nbytes)

    def _judge(self) -> Verdict:
        operands = (self._output, self._before, self._expected, self._bound, self._limits, self._verdicts)
        self._compare((_BLOCKS_PER_CASE, len(self._cases)), (_THREADS,), operands)
        verdicts = np.ascontiguousarray(self._verdicts.get())  # waits for the GPU
        shares = np.ascontiguousarray(verdicts[:, 0]).view(np.float64)
        details = []
        for case, (_, wrong, outside), share in zip(self._cases, verdicts.tolist(), shares.tolist(), strict=True):
            if wrong:
                words = case.problem.m * case.problem.n * self._parts
                details.append(f"{case.label}: {wrong} of {words} values wrong, by up to {share:.3g} times the bound")
            if outside:
                details.append(f"{case.label}: {outside} values written outside C")
        return Verdict(float(shares.max()), "; ".join(details[:_DETAILS]))

    def _restore(self) -> None:
        """Copy everything to the GPU again: what a wrong kernel wrote elsewhere must not judge the next one."""
        for copy, original in self._copies:
            copy.set(original)


@dataclass(frozen=True, slots=True)
class _HostCase:
    """The buffers of one case on the host; those of C in real words."""

    case: Case
    A: NDArray[Any]
    B: NDArray[Any]
    before: NDArray[Any]
    expected: NDArray[np.float64]
    bound: NDArray[np.float64]
    skip_bytes: int  # from the beginning of a buffer to the first element of its matrix

    @classmethod
    def make(cls, case: Case) -> _HostCase:
        problem = case.problem
        operands = problem.operands(np, _SEED, integers=case.integers)
        reference = problem.answer(operands)
        bound = np.zeros_like(reference) if case.integers else problem.error_bound(operands)
        parts = 2 if problem.is_complex else 1
        matrix = operands.C.copy()
        problem.padding(matrix)[...] = _canary(problem)
        before = _surround(matrix, case.offset, _GUARD_COLUMNS * problem.ldc, _canary(problem))
        before = before.view(problem.dtype.char.lower())
        first = (_GUARD + case.offset) * parts
        expected, allowed = np.zeros(before.size), np.full(before.size, -1.0)
        for words, values in ((expected, reference), (allowed, bound)):
            inside = words[first : first + problem.ldc * problem.n * parts]
            inside.reshape(problem.n, problem.ldc, parts)[:, : problem.m] = _words(values, parts)
        nan = problem.dtype.type(complex(np.nan, np.nan) if problem.is_complex else np.nan)
        A, B = (_surround(values, case.offset, _GUARD, nan) for values in (operands.A, operands.B))
        return cls(case, A, B, before, expected, allowed, (_GUARD + case.offset) * problem.element_bytes)


def _canary(problem: GemmProblem) -> Any:
    return problem.dtype.type(complex(_CANARY, _CANARY) if problem.is_complex else _CANARY)


def _surround(values: NDArray[Any], offset: int, behind: int, guard: Any) -> NDArray[Any]:
    """Put guard zones around a buffer, so that it begins ``offset`` elements behind an aligned address."""
    begin = _GUARD + offset
    size = begin + values.size + max(behind, _GUARD)
    buffer = np.full(-(-size // _ALIGNMENT) * _ALIGNMENT, guard, dtype=values.dtype)
    buffer[begin : begin + values.size] = values
    return buffer


def _words(matrix: NDArray[Any], parts: int) -> NDArray[np.float64]:
    """Return a matrix of shape (m, n) as doubles of shape (n, m, parts)."""
    wide = np.ascontiguousarray(matrix.T).astype("complex128" if parts == 2 else "float64")
    return wide.view(np.float64).reshape(*wide.shape, parts)
