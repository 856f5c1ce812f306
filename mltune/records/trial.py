"""Trial records: one configuration, its build, its measurement and its final state; candidates for trials."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum


class TrialState(StrEnum):
    """Final state of a trial. None of them ends a run."""

    OK = "ok"
    SKIPPED = "skipped"
    COMPILE_ERROR = "compile_error"
    LAUNCH_ERROR = "launch_error"
    WRONG_RESULT = "wrong_result"
    TIMEOUT = "timeout"
    CRASHED = "crashed"
    UNSTABLE = "unstable"


@dataclass(frozen=True, slots=True)
class Build:
    """Result of compiling one configuration.

    Attributes
    ----------
    state : TrialState
        ``OK``, ``COMPILE_ERROR``, ``TIMEOUT`` (the compiler exceeded its deadline) or ``CRASHED`` (it died).
    detail : str
        Empty, or the message of the compiler, shortened.
    cubin : bytes
        Machine code; empty unless ``state`` is ``OK``, and in replay.
    registers : int or None
        Registers per thread.
    spill_bytes : int or None
        Spill stores plus spill loads, bytes per thread.
    stack_bytes : int or None
        Stack frame, bytes per thread.
    shared_bytes : int or None
        Static shared memory, bytes per block.
    code_bytes : int or None
        Size of the kernel's machine code (its ``.text`` section).
    compile_s : float
        Seconds of compiling; for a cubin from the cache those of its first compilation.
    cached : bool
        Whether the cubin came from the cache.
    entry : str
        Name of the kernel in the machine code, where it is not that of the source: of a template.
    """

    state: TrialState
    detail: str = ""
    cubin: bytes = b""
    registers: int | None = None
    spill_bytes: int | None = None
    stack_bytes: int | None = None
    shared_bytes: int | None = None
    code_bytes: int | None = None
    compile_s: float = 0.0
    cached: bool = False
    entry: str = ""


@dataclass(frozen=True, slots=True)
class Measurement:
    """Result of verifying and timing one build.

    Attributes
    ----------
    state : TrialState
        ``OK``, ``LAUNCH_ERROR``, ``WRONG_RESULT``, ``TIMEOUT``, ``CRASHED`` or ``UNSTABLE`` (too noisy).
    detail : str
        Empty, or the reason of the failure.
    samples_s : tuple of float
        Time samples in seconds, in the order of measurement.
    median_s : float or None
        Median of the samples, seconds.
    noise : float or None
        Relative noise of the samples (see docs/explanation/measurement.md).
    stopped_early : bool
        Whether sampling ended early because the configuration cannot be the best.
    error : float or None
        Largest error relative to the error bound: above 1 is wrong.
    verify_s, time_s : float
        Seconds spent on verification and on timing.
    sm_clock_hz, temperature_c, power_w : float or None
        State of the GPU during sampling, from NVML.
    throttle_reasons : int or None
        Bit mask of clock event reasons, from NVML.
    discarded : int
        Number of samples that were discarded and repeated because the GPU was throttled.
    """

    state: TrialState
    detail: str = ""
    samples_s: tuple[float, ...] = ()
    median_s: float | None = None
    noise: float | None = None
    stopped_early: bool = False
    error: float | None = None
    verify_s: float = 0.0
    time_s: float = 0.0
    sm_clock_hz: float | None = None
    temperature_c: float | None = None
    power_w: float | None = None
    throttle_reasons: int | None = None
    discarded: int = 0


GATES = ("before_compile", "after_compile")
"""The gates, in the order in which a trial passes them."""


@dataclass(frozen=True, slots=True)
class Skip:
    """Decision of a gate to skip a configuration.

    Attributes
    ----------
    gate : {"before_compile", "after_compile"}
        The gate.
    predicted, optimistic : float
        Predicted logarithm of the share of the device's peak, and the optimistic bound of its interval.
    """

    gate: str
    predicted: float
    optimistic: float


@dataclass(frozen=True, slots=True)
class TrialRecord:
    """One trial of a run.

    Attributes
    ----------
    number : int
        Position in the run, from 0, in the order of proposal.
    batch : int
        Number of its batch of proposals, from 0.
    index : int
        Index of the configuration in the run's search space.
    configuration : mapping of str to int
        Value of every parameter, in the order of the kernel bundle.
    state : TrialState
        Final state.
    detail : str
        Empty, or the reason of a failure.
    proposed_by : str
        Source of the proposal: ``"default"``, ``"wisdom"``, ``"start"``, ``"random"``, ``"tpe"``, ``"model"``,
        ``"variant"``.
    skip : Skip or None
        Decision of a gate to skip it; None where every gate let it pass.
    audited : bool
        Whether it was measured for the audit although a gate decided to skip it.
    build : Build or None
        None when it was skipped before compiling. Its cubin is not stored.
    measurement : Measurement or None
        None when it was skipped or did not compile.
    predicted : float or None
        Logarithm of the share of the device's peak that the search predicted with the proposal; None without one.
    finished_at : float
        End of the trial, seconds since the epoch.
    elapsed_s : float
        End of the trial, elapsed seconds of the run on a monotonic clock without interruptions; 0 where unknown.
    """

    number: int
    batch: int
    index: int
    configuration: Mapping[str, int]
    state: TrialState
    detail: str = ""
    proposed_by: str = ""
    skip: Skip | None = None
    audited: bool = False
    build: Build | None = None
    measurement: Measurement | None = None
    predicted: float | None = None
    finished_at: float = field(default=0.0, compare=False)
    elapsed_s: float = field(default=0.0, compare=False)

    @property
    def median_s(self) -> float | None:
        """Median time in seconds; None where nothing was timed."""
        return None if self.measurement is None else self.measurement.median_s


BATCH = 16
"""Most candidates of the first batch: enough to keep many compilers busy, few enough to learn soon."""


SEARCHES = ("model", "tpe", "random", "astra")
"""The searches that propose candidates: a Gaussian process with a physical prior; Optuna's TPE restricted to valid, new
configurations; random search; random search within the hand-set thresholds of LAWN 267."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A proposed configuration; its attributes are those of :class:`TrialRecord`."""

    number: int
    batch: int
    index: int
    configuration: Mapping[str, int]
    proposed_by: str
    predicted: float | None = None
    skip: Skip | None = None
    audited: bool = False

    @property
    def is_skipped(self) -> bool:
        """Whether it is not measured."""
        return self.skip is not None and not self.audited

    def record(
        self,
        state: TrialState,
        detail: str = "",
        *,
        build: Build | None = None,
        measurement: Measurement | None = None,
    ) -> TrialRecord:
        """Return the record of the trial that ended in a state."""
        return TrialRecord(
            **{field.name: getattr(self, field.name) for field in fields(self)},
            state=state,
            detail=detail,
            build=None if build is None else replace(build, cubin=b""),
            measurement=measurement,
            finished_at=time.time(),
        )
