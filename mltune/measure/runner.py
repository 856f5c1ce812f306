"""The runner on a GPU: the parent of one worker process, which holds its deadline and turns its end into a state."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, Self

from mltune.device.facts import Device
from mltune.errors import DeviceError, ExpressionError, ProblemError, UsageError, WorkerError
from mltune.kernel.bundle import Kernel, device_variables
from mltune.kernel.gemm import GemmProblem
from mltune.measure.child import Child, ChildDiedError, ChildTimeoutError
from mltune.measure.protocols import SamplingRule
from mltune.measure.verification import verification_cases
from mltune.measure.worker import Answer, Check, Measure, Setup, TimeCublas, TimeSpin
from mltune.records.trial import Build, Measurement, TrialState

WINNER_SIZES = ((1, 1, 1), (127, 129, 65), (256, 256, 256), (1023, 33, 257), (64, 1500, 1), (500, 300, 0))
"""Sizes (m, n, k) that a winner is verified at, besides its own."""

_DEFAULT_RULE = SamplingRule()
_WORKER = "mltune.measure.worker:make_worker"
_LONGEST_CHECK_S = 120.0
_PAUSE_BEFORE_RETRY_S = 1.0  # a GPU takes its time to clear away a killed process


@dataclass(frozen=True, slots=True)
class WinnerCheck:
    """One verification of a winner.

    Attributes
    ----------
    problem : GemmProblem
        What it computed.
    state : TrialState
        ``OK`` when it was right.
    error : float or None
        Largest error as a share of its bound; None when it did not come so far.
    detail : str
        Empty, or what went wrong.
    """

    problem: GemmProblem
    state: TrialState
    error: float | None
    detail: str


class GpuRunner:
    """Verifies and times the builds of one kernel for one problem on one GPU. Satisfies the Runner protocol.

    The worker process is started on entry, while the first builds are compiled, and replaced when a kernel hung or
    harmed it. A kernel that does so costs the start of a worker, some seconds.

    Parameters
    ----------
    kernel : Kernel
    problem : GemmProblem
        What is timed; a small problem of the same case is what kernels are verified on.
    device_index : int
        The GPU, among those that the driver shows.
    device : Device, optional
        Its facts; asked of the driver when missing.
    rule : SamplingRule, optional
        When to stop sampling a run time.
    timeout_s : float
        Seconds that one build may take, from its loading to its last sample.

    Attributes
    ----------
    restarts : int
        How many workers have been replaced.

    Raises
    ------
    ProblemError
        The result of the problem has no elements.
    UsageError
        The kernel has no source.
    DeviceError
        There is no such GPU, or what it is used through is not installed.
    """

    def __init__(
        self,
        kernel: Kernel,
        problem: GemmProblem,
        device_index: int = 0,
        *,
        device: Device | None = None,
        rule: SamplingRule = _DEFAULT_RULE,
        timeout_s: float = 10.0,
    ) -> None:
        if not problem.m * problem.n:
            raise ProblemError(f"a problem whose result has elements is timed, got {problem.label}.")
        if kernel.entry is None:
            raise UsageError(f"a kernel with a source can be run, but {kernel.name} has none; replay a dataset of it.")
        if device is None:
            from mltune.device.query import query_device

            device = query_device(device_index)
        self.restarts = 0
        self._kernel = kernel
        self._problem = problem
        self._device = device_variables(device)
        self._rule = rule
        self._timeout_s = timeout_s
        problems = [*(case.problem for case in verification_cases(problem)), problem]
        variables = [self._variables(one) for one in problems]
        self._shapes = [one for at, one in enumerate(variables) if one not in variables[:at]]
        self._shape_of = [self._shapes.index(one) for one in variables]  # of each verification, and of the timing
        self._child = Child(_WORKER, (Setup(device_index, problem, kernel.entry),))
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="mltune-gpu")
        self._closing = False

    def __enter__(self) -> Self:
        self._thread.submit(self._start)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closing = True
        self._thread.shutdown(wait=False, cancel_futures=True)
        self._child.interrupt()
        self._thread.shutdown(wait=True)
        self._child.kill()

    def submit(
        self, configuration: Mapping[str, int], build: Build, *, best_s: float | None = None
    ) -> Future[Measurement]:
        """Queue one build (see the Runner protocol)."""
        if build.state is not TrialState.OK or not build.cubin:
            raise UsageError(f"a build in state ok, with its cubin, can be run, got one in state {build.state}.")
        try:
            launches = [self._kernel.launch(configuration, variables) for variables in self._shapes]
        except ExpressionError as error:
            refused: Future[Measurement] = Future()
            refused.set_result(Measurement(TrialState.LAUNCH_ERROR, str(error)))
            return refused
        *verified, timed = (launches[shape] for shape in self._shape_of)
        return self._thread.submit(self._ask, Measure(build.cubin, tuple(verified), timed, self._rule, best_s))

    def time_cublas(self) -> Measurement:
        """Time cuBLAS on the runner's problem, in the same process and in the same way as the kernels."""
        return self._thread.submit(self._ask, TimeCublas(self._rule)).result()

    def self_test(self, duration_s: float = 2e-3) -> float:
        """Time a kernel of known duration; return measured over known.

        Raises
        ------
        DeviceError
            The kernel did not run.
        """
        measured = self._thread.submit(self._ask, TimeSpin(duration_s)).result()
        if measured.median_s is None:
            raise DeviceError(
                f"a GPU must run a kernel that waits, but it did not: {measured.detail}; see `nvidia-smi`."
            )
        return measured.median_s / duration_s

    def verify_winner(
        self, configuration: Mapping[str, int], build: Build, sizes: Iterable[tuple[int, int, int]] = WINNER_SIZES
    ) -> tuple[WinnerCheck, ...]:
        """Verify a build at the problem's own size and at others.

        Parameters
        ----------
        configuration : mapping of str to int
        build : Build
            In state ``OK``.
        sizes : iterable of (m, n, k)
            The other sizes.
        """
        others = [replace(self._problem, m=m, n=n, k=k, lda=0, ldb=0, ldc=0) for m, n, k in sizes]
        return tuple(self._check(configuration, build, problem) for problem in (self._problem, *others))

    def _check(self, configuration: Mapping[str, int], build: Build, problem: GemmProblem) -> WinnerCheck:
        request = Check(build.cubin, problem, self._kernel.launch(configuration, self._variables(problem)))
        timeout_s = max(self._timeout_s, _LONGEST_CHECK_S)
        measured = self._thread.submit(self._ask, request, timeout_s).result()
        return WinnerCheck(problem, measured.state, measured.error, measured.detail)

    def _variables(self, problem: GemmProblem) -> dict[str, int]:
        return {**self._device, **problem.variables()}

    def _start(self) -> None:
        try:
            self._child.start()
        except WorkerError:
            if self._closing or not self.restarts:
                raise
            time.sleep(_PAUSE_BEFORE_RETRY_S)
            self._child.start()

    def _ask(self, request: Any, timeout_s: float | None = None) -> Measurement:
        """Ask the worker in the runner's thread, and say what became of it."""
        self._start()
        limit_s = self._timeout_s if timeout_s is None else timeout_s
        try:
            answer: Answer = self._child.call(request, limit_s)
        except ChildTimeoutError:
            self.restarts += 1
            return Measurement(TrialState.TIMEOUT, f"no answer within {limit_s:g} s: it hangs, or is slower than that")
        except ChildDiedError as error:
            self.restarts += 1
            return Measurement(TrialState.CRASHED, str(error))
        if answer.retire:
            self.restarts += 1
            self._child.kill()
        return answer.measurement
