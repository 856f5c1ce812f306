"""Messages between a runner and its worker process: requests to verify, run and time builds, and the answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from mltune.measure.pipeline import SamplingRule
from mltune.measure.timing import RaceResult
from mltune.records.trial import Measurement, TrialState

if TYPE_CHECKING:
    from mltune.kernel.launch import Launch
    from mltune.problem.problem import RunnableProblem


@dataclass(frozen=True, slots=True)
class Baseline:
    """The default configuration and the source of the right answer, for problems that need them.

    The machine code holds the reference entry, too, whose name and launches are None where the default configuration
    gives the answer. A launch is one for each verification case. `verify` is a pickled function that decides on the
    outputs of the timed case in place of every comparison, with its answer and tolerance: called as ``function(answer,
    outputs, atol=tolerance)``.
    """

    cubin: bytes
    entry: str
    launches: tuple[Launch, ...]
    reference: tuple[str, tuple[Launch, ...]] | None = None
    verify: bytes = b""


@dataclass(frozen=True, slots=True)
class Begin:
    """Make the operands of a problem, and verify the default configuration where there is a baseline.

    The first request to a worker, and the first for every further problem.
    """

    problem: RunnableProblem
    baseline: Baseline | None = None


@dataclass(frozen=True, slots=True)
class Measure:
    """Verify a build on the verification cases, with a launch for each, then time it on the worker's problem."""

    cubin: bytes
    entry: str
    verified: tuple[Launch, ...]
    timed: Launch
    rule: SamplingRule
    best_s: float | None


@dataclass(frozen=True, slots=True)
class Check:
    """Verify a build on the own cases of one problem, with a launch for each; on the GPU where it has none."""

    cubin: bytes
    entry: str
    problem: RunnableProblem
    launches: tuple[Launch, ...]


@dataclass(frozen=True, slots=True)
class Run:
    """Run a build once on the buffers of the timed case; the answer holds them."""

    cubin: bytes
    entry: str
    launch: Launch


@dataclass(frozen=True, slots=True)
class TimeReference:
    """Time the reference implementation on the worker's problem and operands."""

    rule: SamplingRule


@dataclass(frozen=True, slots=True)
class Race:
    """Time several builds side by side, together with the reference implementation where there is one.

    An entry is a cubin, the name of its kernel, and the launch. With `orders` there is a round in each of these orders
    of the entries, and no reference.
    """

    entries: tuple[tuple[bytes, str, Launch], ...]
    budget_s: float
    orders: tuple[tuple[int, ...], ...] = ()


Request = Begin | Measure | Check | Run | TimeReference | Race


@dataclass(frozen=True, slots=True)
class Outputs:
    """The buffers of a problem by name after a :class:`Run`; empty unless the state is ``OK``."""

    state: TrialState
    detail: str = ""
    arrays: Mapping[str, Any] = field(default_factory=dict)


Result = Measurement | RaceResult | Outputs


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to a request: its result, or the state in which the kernel failed; None when the GPU is lost.

    A worker retires where a kernel has damaged its context or its data. A lost GPU is lost for good where it does not
    exist, or the operands are too large for it.
    """

    result: Result | None
    retire: bool = False
    lost: str = ""
    permanent: bool = False
