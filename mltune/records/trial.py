"""A trial: one configuration and the one state that it ended in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class TrialState(StrEnum):
    """How a trial ended. Each is a record; none ends a run."""

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
    """What the compiler made of one configuration.

    Attributes
    ----------
    state : TrialState
        ``OK``; ``COMPILE_ERROR`` when the compiler refused; ``TIMEOUT`` when it was late; ``CRASHED`` when it died.
    detail : str
        Empty, or what went wrong: the compiler's message, shortened.
    cubin : bytes
        The machine code; empty unless ``state`` is ``OK``, and in replay.
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
        Seconds that the compiler took (when the cubin came from the cache: took when it was made).
    cached : bool
        Whether the cubin came from the cache.
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


@dataclass(frozen=True, slots=True)
class Measurement:
    """What the GPU made of one build.

    Attributes
    ----------
    state : TrialState
        ``OK``, ``LAUNCH_ERROR``, ``WRONG_RESULT``, ``TIMEOUT``, ``CRASHED`` or ``UNSTABLE`` (too noisy).
    detail : str
        Empty, or what went wrong.
    samples_s : tuple of float
        Every time sample kept, seconds, in the order taken.
    median_s : float or None
        Median of the samples.
    noise : float or None
        Relative noise of the samples (see docs/explanation/measurement.md).
    stopped_early : bool
        Whether sampling ended because the configuration was hopelessly slow.
    error : float or None
        Largest error found by the verification, as a share of the error bound: above 1 is wrong.
    verify_s, time_s : float
        Seconds that the worker spent on verifying and on timing.
    sm_clock_hz, temperature_c, power_w : float or None
        State of the GPU while it was sampled, from NVML.
    throttle_reasons : int or None
        NVML's bit mask of clock event reasons.
    discarded : int
        Samples that were discarded, and taken again, because something held the clock of the GPU down.
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
    """Why a gate skipped a configuration, or would have if the audit had not drawn it.

    Attributes
    ----------
    gate : {"before_compile", "after_compile"}
        Which gate.
    predicted, optimistic : float
        Predicted log share of the device's peak, and the optimistic end of its interval.
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
        The batch of proposals that it came with, from 0.
    index : int
        Index of the configuration in the run's search space.
    configuration : mapping of str to int
        Value of every parameter, in the order of the kernel bundle.
    state : TrialState
        How it ended.
    detail : str
        Empty, or what went wrong.
    proposed_by : str
        What proposed it: ``"start"``, ``"random"``, ``"tpe"``, ``"model"``.
    skip : Skip or None
        The gate's verdict, when it was to skip.
    audited : bool
        True when a gate's verdict was to skip and the audit had it measured all the same.
    build : Build or None
        None when it was skipped before compiling. Its cubin is not kept.
    measurement : Measurement or None
        None when it was skipped or did not compile.
    predicted : float or None
        Log share of the device's peak that the search expected of it when it proposed it; None where nobody said.
    finished_at : float
        Seconds since the epoch.
    elapsed_s : float
        Seconds of the run when it ended, interruptions not counted: the host's clock may be set in between. 0: unknown.
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
        """Median time, seconds; None where nothing was timed."""
        return None if self.measurement is None else self.measurement.median_s
