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
    """The result of compiling one configuration, whose failure is its state.

    The state is ``OK``, ``COMPILE_ERROR``, ``TIMEOUT`` (the compiler exceeded its deadline) or ``CRASHED`` (it died),
    and `detail` the shortened message. The `cubin` is empty unless ``OK``, and in replay. Registers, spills (stores
    plus loads) and stack are those of a thread, `shared_bytes` are static and of a block, `code_bytes` of the ``.text``
    section. `compile_s` of a `cached` cubin are those of its first compilation. `entry` is the kernel's name where it
    is not that of the source: of a template.
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
    """The result of verifying and timing one build, whose failure is its state.

    The state is ``OK``, ``LAUNCH_ERROR``, ``WRONG_RESULT``, ``TIMEOUT``, ``CRASHED`` or ``UNSTABLE`` (too noisy).
    Samples are in the order of measurement, `noise` relative (docs/explanation/measurement.md); sampling
    `stopped_early` where the configuration is too slow to be the best. The `error` is relative to its bound: above 1 is
    wrong. NVML reports the median clock, the last temperature and power between samples, and the bit mask of clock
    event reasons; throttled samples are `discarded` and repeated.
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
    """The decision of a gate to skip a configuration.

    `predicted` is the logarithm of the share of the device's peak, `optimistic` the optimistic bound of its interval.
    """

    gate: str
    predicted: float
    optimistic: float


@dataclass(frozen=True, slots=True)
class TrialRecord:
    """One trial of a run: number and batch from 0, the configuration with its index in the space, and its results.

    It was `proposed_by` ``"default"``, ``"wisdom"``, ``"start"``, ``"random"``, ``"tpe"``, ``"model"`` or
    ``"variant"``, with a `predicted` logarithm of the share of the device's peak where there is one. It is `audited` if
    measured although a gate decided to skip it. What it did not reach, build or measurement, is None. It ended at
    `finished_at`, seconds since the epoch, after `elapsed_s` of the run on a monotonic clock without interruptions; 0
    where unknown.
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
"""The searches: a Gaussian process with a physical prior, Optuna's TPE, random, and random within LAWN 267."""


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
