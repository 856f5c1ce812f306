"""What a worker is asked to do, one after the other: verify and time a build, check it, race several, time cuBLAS."""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from mltune.errors import DeviceError
from mltune.measure.clock_monitor import Series
from mltune.measure.gpu import LoadedKernel
from mltune.measure.protocols import SamplingRule
from mltune.measure.race import BUDGET_S, RaceResult, run_rounds
from mltune.measure.references import bind_cublas
from mltune.problem.gemm import GemmProblem
from mltune.records.trial import Measurement, TrialState

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mltune.kernel.bundle import Launch
    from mltune.measure.worker import Worker

_SELF_TEST_RUNS = 7
SMALL_ELEMENTS, SMALL_PRODUCTS = 2**21, 2**26


@dataclass(frozen=True, slots=True)
class Greet:
    """Say that the GPU can be used: nothing more is done."""

    def run(self, worker: Worker) -> Measurement:
        """Say so."""
        return Measurement(TrialState.OK)


@dataclass(frozen=True, slots=True)
class Measure:
    """Verify a build on small problems, then time it on the worker's problem."""

    cubin: bytes
    verified: tuple[Launch, ...]
    timed: Launch
    rule: SamplingRule
    best_s: float | None

    def run(self, worker: Worker) -> Measurement:
        """Verify, then time."""
        started = time.perf_counter()
        with LoadedKernel(self.cubin, worker.entry) as kernel:
            verdict = worker.verification.check(kernel, self.verified)
            verify_s = time.perf_counter() - started
            if verdict.detail:
                measured = Measurement(TrialState.WRONG_RESULT, verdict.detail)
            else:
                measured = worker.time(kernel.bind(self.timed, worker.arguments), self.rule, self.best_s)
            measured = _as_found(measured, worker.broken())
        return replace(measured, error=verdict.error, verify_s=verify_s)


@dataclass(frozen=True, slots=True)
class Check:
    """Verify a build on one problem: by the bound, and exactly on integers where that is small enough for the host."""

    cubin: bytes
    problem: GemmProblem
    launch: Launch

    def run(self, worker: Worker) -> Measurement:
        """Verify."""
        started = time.perf_counter()
        with LoadedKernel(self.cubin, worker.entry) as kernel:
            sealed = [self.problem] if is_small(self.problem) else []
            if sealed:
                verification = worker.verification_of(self.problem)
                verdict = verification.check(kernel, [self.launch] * verification.cases)
                error, detail = verdict.error, verdict.detail
            else:
                error = worker.large_error(kernel, self.problem, self.launch)
                detail = "" if error <= 1 else f"{self.problem.label}: wrong by up to {error:.3g} times the bound"
            state = TrialState.WRONG_RESULT if detail else TrialState.OK
            measured = _as_found(Measurement(state, detail), worker.broken(*sealed))
        return replace(measured, error=error, verify_s=time.perf_counter() - started)


@dataclass(frozen=True, slots=True)
class TimeCublas:
    """Time cuBLAS on the worker's problem and operands."""

    rule: SamplingRule

    def run(self, worker: Worker) -> Measurement:
        """Time it."""
        launch = bind_cublas(worker.problem, worker.addresses)
        launch()  # the first call loads the library's kernels, which is not to be timed, not even as a warm-up
        return worker.time(launch, self.rule, None)


@dataclass(frozen=True, slots=True)
class TimeSpin:
    """Time a kernel that runs for a known time: a test of the timing itself."""

    duration_s: float

    def run(self, worker: Worker) -> Measurement:
        """Time it."""
        samples = worker.stopwatch.take(lambda: worker.stopwatch.spin(self.duration_s), _SELF_TEST_RUNS)
        return Measurement(TrialState.OK, samples_s=tuple(samples), median_s=float(np.median(samples)))


@dataclass(frozen=True, slots=True)
class Race:
    """Time several builds side by side, and cuBLAS with them where it can be had."""

    entries: tuple[tuple[bytes, Launch], ...]
    budget_s: float = BUDGET_S

    def run(self, worker: Worker) -> RaceResult:
        """Race."""
        with ExitStack() as stack:
            kernels = [stack.enter_context(LoadedKernel(cubin, worker.entry)) for cubin, _ in self.entries]
            launches = [
                kernel.bind(launch, worker.arguments) for kernel, (_, launch) in zip(kernels, self.entries, strict=True)
            ]
            entered = len(launches)
            launches += _cublas(worker)

            def take(order: Sequence[int]) -> Series:
                return worker.time_each([launches[runner] for runner in order])

            rounds = run_rounds(len(launches), take, time.sleep, worker.usual_clock, self.budget_s)
            broken = worker.broken()
        if broken:
            return RaceResult(TrialState.WRONG_RESULT, f"one of the kernels {_wrote(broken)}")
        held_back = rounds.disturbed
        return RaceResult(
            TrialState.OK if held_back is None else TrialState.UNSTABLE,
            "" if held_back is None else f"throughout the race, {held_back.detail}",
            samples_s=tuple(times_s[:entered] for times_s in rounds.times_s),
            reference_s=tuple(times_s[entered] for times_s in rounds.times_s if len(times_s) > entered),
            discarded=rounds.discarded,
        )


def is_small(problem: GemmProblem) -> bool:
    """Return whether a problem's reference is computed on the host, in higher precision whatever the precision."""
    products = problem.m * problem.n * max(problem.k, 1)
    return products <= SMALL_PRODUCTS and problem.ldc * problem.n <= SMALL_ELEMENTS


def _cublas(worker: Worker) -> list[Callable[[], None]]:
    """Return the launch of cuBLAS, made once before anything is timed; nothing where there is none."""
    try:
        launch = bind_cublas(worker.problem, worker.addresses)
    except DeviceError:
        return []
    launch()
    return [launch]


def _as_found(measured: Measurement, broken: tuple[str, ...]) -> Measurement:
    """Return a measurement, or what is to be said in its place of a kernel that changed what it must only read."""
    if not broken:
        return measured
    told = f"{measured.detail}; " if measured.detail else ""
    return Measurement(TrialState.WRONG_RESULT, f"{told}{_wrote(broken)}", time_s=measured.time_s)


def _wrote(broken: tuple[str, ...]) -> str:
    return f"wrote into {' and '.join(broken)}"
