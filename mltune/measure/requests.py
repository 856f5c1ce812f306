"""Requests to a worker: verify and time a build, run or check it once, time the reference, race builds."""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from mltune.errors import DeviceError
from mltune.measure.array_verification import Baseline, run_once
from mltune.measure.clock_monitor import Series
from mltune.measure.gpu import LoadedKernel
from mltune.measure.protocols import SamplingRule
from mltune.measure.race import RaceResult, run_rounds
from mltune.problem.arrays import ArraysProblem
from mltune.records.trial import Measurement, TrialState

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from mltune.kernel.bundle import Launch
    from mltune.measure.array_verification import Baseline
    from mltune.measure.worker import Worker
    from mltune.problem.runnable import RunnableProblem, SolvedProblem


@dataclass(frozen=True, slots=True)
class Begin:
    """The first request, which gives a worker its problem; the baseline is of kernels of kind arrays."""

    problem: RunnableProblem
    baseline: Baseline | None = None

    def run(self, worker: Worker) -> Measurement:
        """Return the verification of the default configuration where there is a baseline."""
        return Measurement(TrialState.OK) if self.baseline is None else worker.begin(self.baseline)


@dataclass(frozen=True, slots=True)
class Outputs:
    """The arrays of a problem after a run; empty unless the state is ``OK``."""

    state: TrialState
    detail: str = ""
    arrays: Mapping[str, np.ndarray[Any, Any]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Run:
    """Run a build once on the arrays of the worker's problem."""

    cubin: bytes
    entry: str
    launch: Launch

    def run(self, worker: Worker) -> Outputs:
        """Return the arrays."""
        assert isinstance(worker.problem, ArraysProblem)  # noqa: S101 - others have no arrays to return
        with LoadedKernel(self.cubin, self.entry) as kernel:
            return Outputs(TrialState.OK, arrays=run_once(worker.problem, kernel, self.launch))


@dataclass(frozen=True, slots=True)
class Measure:
    """Verify a build on small problems, then time it on the worker's problem."""

    cubin: bytes
    entry: str
    verified: tuple[Launch, ...]
    timed: Launch
    rule: SamplingRule
    best_s: float | None

    def run(self, worker: Worker) -> Measurement:
        """Verify, then time."""
        started = time.perf_counter()
        with LoadedKernel(self.cubin, self.entry) as kernel:
            measured = verified = worker.verification.check(kernel, self.verified)
            verify_s = time.perf_counter() - started
            if verified.state is TrialState.OK:
                measured = worker.time(worker.bind(kernel, self.timed), self.rule, self.best_s)
            measured = _unless_changed(measured, worker.changed_buffers())
        return replace(measured, error=verified.error, verify_s=verify_s)


@dataclass(frozen=True, slots=True)
class Check:
    """Verify a build on one problem: on its own cases, or on the GPU when it is too large for the host.

    The arrays of a kernel of any kind are drawn anew, with its checks; there is one launch for each.
    """

    cubin: bytes
    entry: str
    problem: SolvedProblem | ArraysProblem
    launches: tuple[Launch, ...]
    baseline: Baseline | None = None

    def run(self, worker: Worker) -> Measurement:
        """Verify."""
        started = time.perf_counter()
        with LoadedKernel(self.cubin, self.entry) as kernel:
            if isinstance(self.problem, ArraysProblem):
                assert self.baseline is not None  # noqa: S101 - of kernels of any kind
                verified, changed = worker.check_anew(kernel, self.baseline, self.launches)
            elif (verification := worker.verification_of(self.problem)) is not None:
                verified = verification.check(kernel, [*self.launches] * verification.cases)
                changed = worker.changed_buffers(self.problem)
            else:
                verified = worker.check_on_device(kernel, self.problem, self.launches[0])
                changed = worker.changed_buffers()
        return replace(_unless_changed(verified, changed), error=verified.error, verify_s=time.perf_counter() - started)


@dataclass(frozen=True, slots=True)
class TimeReference:
    """Time the reference implementation on the worker's problem and operands."""

    rule: SamplingRule

    def run(self, worker: Worker) -> Measurement:
        """Time it."""
        launch = worker.reference()
        launch()  # the first call loads the library's kernels, which must not even count as a warm-up
        return worker.time(launch, self.rule, None)


@dataclass(frozen=True, slots=True)
class Race:
    """Time several builds side by side, together with the reference implementation where there is one."""

    entries: tuple[tuple[bytes, str, Launch], ...]
    budget_s: float

    def run(self, worker: Worker) -> RaceResult:
        """Race."""
        with ExitStack() as stack:
            kernels = [stack.enter_context(LoadedKernel(cubin, entry)) for cubin, entry, _ in self.entries]
            launches = [worker.bind(kernel, launch) for kernel, (*_, launch) in zip(kernels, self.entries, strict=True)]
            entered = len(launches)
            try:
                reference = worker.reference()
            except DeviceError:
                pass
            else:
                reference()  # loads the library's kernels, before anything is timed
                launches.append(reference)

            def take(order: Sequence[int]) -> Series:
                return worker.time_each([launches[runner] for runner in order])

            rounds = run_rounds(len(launches), take, time.sleep, worker.usual_clock, self.budget_s)
            changed = worker.changed_buffers()
        if changed:
            return RaceResult(TrialState.WRONG_RESULT, f"one of the kernels {_wrote(changed)}")
        throttled = rounds.disturbed
        return RaceResult(
            TrialState.OK if throttled is None else TrialState.UNSTABLE,
            "" if throttled is None else f"throughout the race, {throttled.detail}",
            samples_s=tuple(times_s[:entered] for times_s in rounds.times_s),
            reference_s=tuple(times_s[entered] for times_s in rounds.times_s if len(times_s) > entered),
        )


def _unless_changed(measured: Measurement, changed: tuple[str, ...]) -> Measurement:
    """Return a measurement, or a wrong result if the kernel changed buffers that it must not change."""
    if not changed:
        return measured
    before = f"{measured.detail}; " if measured.detail else ""
    return Measurement(TrialState.WRONG_RESULT, f"{before}{_wrote(changed)}", time_s=measured.time_s)


def _wrote(changed: tuple[str, ...]) -> str:
    return f"wrote into {' and '.join(changed)}"
