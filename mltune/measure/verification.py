"""Verification of a kernel on small problems: one comparison on the GPU checks every word that it may have written.

A problem makes the cases (:class:`~mltune.problem.runnable.VerificationCase`): for every word of an output buffer, with
its guard zones, the value that a correct kernel leaves there and the largest error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from mltune.measure.gpu import LoadedKernel, problem_arguments
from mltune.problem.runnable import CaseOutput, VerificationCase
from mltune.records.trial import Measurement, TrialState

if TYPE_CHECKING:
    from mltune.kernel.bundle import Launch

_MOST_DETAILS = 3
_THREADS, _BLOCKS_PER_OUTPUT = 256, 64
_REALS = {"float32": "float", "float64": "double"}

_COMPARE = r"""
extern "C" __global__ void compare(const REAL* output, const REAL* before, const double* expected, const double* bound,
                                   const long long* limits, unsigned long long* results) {
  __shared__ unsigned long long shared_result[3];
  if (threadIdx.x < 3) shared_result[threadIdx.x] = 0;
  __syncthreads();
  const double infinity = __longlong_as_double(0x7ff0000000000000LL);
  const long long end = limits[blockIdx.y + 1];  // of values; one is the sum of TERMS words
  const long long step = (long long)gridDim.x * blockDim.x;
  double worst = 0;
  unsigned long long wrong = 0, outside = 0;
  for (long long i = limits[blockIdx.y] + (long long)blockIdx.x * blockDim.x + threadIdx.x; i < end; i += step) {
    const double allowed = bound[TERMS * i];
    bool same = true;
    double difference = 0;
    for (int term = 0; term < TERMS; term++) {
      const long long word = TERMS * i + term;
      same = same && output[word] == before[word];
      difference += (double)output[word] - expected[word];
    }
    if (allowed < 0) {  // guard: whatever is written here, NaN included, differs from the word before
      if (!same) ++outside;
    } else {
      const double error = fabs(difference);
      double share = error == 0 ? 0 : error / allowed;
      if (!(share < infinity)) share = infinity;
      if (share > 1) ++wrong;
      if (share > worst) worst = share;
    }
  }
  atomicMax(&shared_result[0], (unsigned long long)__double_as_longlong(worst));  // ordered as their bits
  if (wrong) atomicAdd(&shared_result[1], wrong);
  if (outside) atomicAdd(&shared_result[2], outside);
  __syncthreads();
  if (threadIdx.x == 0) {
    atomicMax(&results[3 * blockIdx.y], shared_result[0]);
    atomicAdd(&results[3 * blockIdx.y + 1], shared_result[1]);
    atomicAdd(&results[3 * blockIdx.y + 2], shared_result[2]);
  }
}
"""


def runs_of(launches: Iterable[Launch]) -> int:
    """Return how often a verification runs a kernel: twice where a workspace lives on from launch to launch."""
    return 2 if any(launch.workspace_bytes for launch in launches) else 1


class Verification:
    """Operands, expected results and bounds of some cases on the GPU."""

    def __init__(self, cases: Sequence[VerificationCase]) -> None:
        self._cases = tuple(cases)
        self._copies: list[tuple[str, Any, NDArray[Any]]] = []  # name, copy on the GPU, original on the host
        addresses: list[dict[str, int]] = [{} for _ in self._cases]
        by_type: dict[tuple[np.dtype[Any], int], list[tuple[int, str, CaseOutput]]] = {}
        for number, case in enumerate(self._cases):
            for name, buffer in case.buffers().items():
                if isinstance(buffer, CaseOutput):
                    by_type.setdefault((buffer.content.dtype, buffer.terms), []).append((number, name, buffer))
                else:
                    copy = self._copy("the operands of the verification", buffer.content)
                    addresses[number][name] = copy.data.ptr + buffer.skip_bytes
        self._outputs: list[tuple[_Outputs, list[tuple[str, str]]]] = []
        for members in by_type.values():
            outputs = _Outputs([buffer for *_, buffer in members], self._copy)
            for (number, name, _), address in zip(members, outputs.addresses, strict=True):
                addresses[number][name] = address
            self._outputs.append((outputs, [(self._cases[number].label, name) for number, name, _ in members]))
        self._arguments = [
            problem_arguments(case.problem, pointers) for case, pointers in zip(self._cases, addresses, strict=True)
        ]
        self._clear()
        self._compare()

    @property
    def cases(self) -> int:
        """Number of cases."""
        return len(self._cases)

    def buffers(self) -> list[tuple[str, Any]]:
        """Return the buffers on the GPU that a kernel must not change, each with a name for messages."""
        return [(name, copy) for name, copy, _ in self._copies]

    def check(self, kernel: LoadedKernel, launches: Sequence[Launch]) -> Measurement:
        """Run a kernel on every case, each with its own launch, and compare the outputs.

        A kernel with a workspace runs twice: what its first launch left there must not change the second result.

        Returns
        -------
        Measurement
            ``OK`` or ``WRONG_RESULT``, with the largest error as a share of its bound: infinite where an exact result
            is missed, or is not a number.

        Raises
        ------
        CudaError, cupy.cuda.runtime.CUDARuntimeError
            The kernel cannot be launched, or failed.
        """
        bound = [
            kernel.bind(launch, arguments)
            for case, launch, arguments in zip(self._cases, launches, self._arguments, strict=True)
            if not case.problem.is_empty
        ]
        for _ in range(runs_of(launches)):
            self._clear()
            for launch_kernel in bound:
                launch_kernel()
        result = self._compare()
        if result.state is TrialState.WRONG_RESULT:
            for _, copy, original in self._copies:  # a wrong kernel may have written into them
                copy.set(original)
        return result

    def _copy(self, name: str, original: NDArray[Any]) -> Any:
        import cupy

        copy = cupy.asarray(original)
        self._copies.append((name, copy, original))
        return copy

    def _clear(self) -> None:
        for outputs, _ in self._outputs:
            outputs.clear()

    def _compare(self) -> Measurement:
        worst, details = 0.0, []
        for outputs, names in self._outputs:
            for (label, name), (share, wrong, words, outside) in zip(names, outputs.compare(), strict=True):
                worst = max(worst, share)
                if wrong:
                    details.append(f"{label}: {wrong} of {words} values wrong, by up to {share:.3g} times the bound")
                if outside:
                    details.append(f"{label}: {outside} values written outside {name}")
        state = TrialState.WRONG_RESULT if details else TrialState.OK
        return Measurement(state, "; ".join(details[:_MOST_DETAILS]), error=worst)


class _Outputs:
    """The output buffers of one type and number of terms, side by side on the GPU, next to their correct content."""

    def __init__(self, buffers: Sequence[CaseOutput], copy: Callable[[str, NDArray[Any]], Any]) -> None:
        import cupy

        terms = buffers[0].terms
        limits = np.cumsum([0, *(buffer.content.size // terms for buffer in buffers)]).astype(np.int64)
        columns = zip(*((buffer.content, buffer.expected, buffer.bound) for buffer in buffers), strict=True)
        originals = [*(np.concatenate(column) for column in columns), limits]
        self._before, *self._answers = (copy("the answers of the verification", original) for original in originals)
        self._values = [int((buffer.bound[::terms] >= 0).sum()) for buffer in buffers]
        self._output = cupy.empty_like(self._before)
        self._results = cupy.empty((len(buffers), 3), dtype=cupy.uint64)
        dtype = self._before.dtype
        self._kernel = cupy.RawKernel(_COMPARE, "compare", options=(f"-DREAL={_REALS[dtype.name]}", f"-DTERMS={terms}"))
        self.addresses = [
            self._output.data.ptr + int(begin) * terms * dtype.itemsize + buffer.skip_bytes
            for begin, buffer in zip(limits, buffers, strict=False)
        ]

    def clear(self) -> None:
        """Queue the copy that restores every word."""
        self._output.data.copy_from_device_async(self._before.data, self._before.nbytes)
        self._results.data.memset_async(0, self._results.nbytes)

    def compare(self) -> list[tuple[float, int, int, int]]:
        """Compare; return for each buffer the largest share of a bound, and the wrong, all and other changed values."""
        operands = (self._output, self._before, *self._answers, self._results)
        self._kernel((_BLOCKS_PER_OUTPUT, len(self._values)), (_THREADS,), operands)
        results = np.ascontiguousarray(self._results.get())  # waits for the GPU
        shares = np.ascontiguousarray(results[:, 0]).view(np.float64).tolist()
        return [
            (share, wrong, words, outside)
            for share, (_, wrong, outside), words in zip(shares, results.tolist(), self._values, strict=True)
        ]
