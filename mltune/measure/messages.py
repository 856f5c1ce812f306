"""Messages between a runner and its worker process: requests to verify, run and time builds, and the answers."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from mltune.kernel.launch import Launch
from mltune.measure.pipeline import SamplingRule
from mltune.measure.timing import RaceResult
from mltune.problem.problem import RunnableProblem
from mltune.process.child import send_to_parent
from mltune.records.trial import Measurement, TrialState

SLICE_S = 0.05
"""Seconds after which a worker begins no further build of a :class:`MeasureAll`."""


@dataclass(frozen=True, slots=True)
class Baseline:
    """The default configuration and the source of the right answer, for problems that need them.

    The reference is None where the default configuration gives the answer. A launch is one for each verification case.
    `verify` is a pickled ``function(answer, outputs, atol=tolerance)`` that replaces every comparison of the timed
    case.
    """

    cubin: bytes
    entry: str
    launches: tuple[Launch, ...]
    reference: tuple[str, tuple[Launch, ...]] | None = None
    verify: bytes = b""


@dataclass(frozen=True, slots=True)
class Begin:
    """Make the operands of a problem, and verify the baseline: the first request for every problem of a worker."""

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
class MeasureAll:
    """Measure builds in turn: the last answer is that of the request, earlier ones are messages (:func:`in_turn`)."""

    requests: tuple[Measure, ...]


@dataclass(frozen=True, slots=True)
class Check:
    """Verify a build on the own cases of one problem, with a launch for each; on the GPU where it has none."""

    cubin: bytes
    entry: str
    problem: RunnableProblem
    launches: tuple[Launch, ...]


@dataclass(frozen=True, slots=True)
class Prepare:
    """Make the own cases of a problem, which a later :class:`Check` needs; the answer says that the worker goes on."""

    problem: RunnableProblem


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
    """Time builds side by side, with the reference implementation, or without it in given `orders`, one a round."""

    entries: tuple[tuple[bytes, str, Launch], ...]
    budget_s: float
    orders: tuple[tuple[int, ...], ...] = ()


Request = Begin | Measure | Check | Prepare | Run | TimeReference | Race


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


def in_turn(serve: Callable[[Request], Answer]) -> Callable[[Request | MeasureAll], Answer]:
    """Return the function of a worker that serves :class:`MeasureAll` too: the parent is heard once for several builds.

    The builds after a damage, or after :data:`SLICE_S`, are not begun.
    """

    def serve_all(request: Request | MeasureAll) -> Answer:
        if not isinstance(request, MeasureAll):
            return serve(request)
        ends = time.monotonic() + SLICE_S
        *earlier, last = request.requests
        for measure in earlier:
            answer = serve(measure)
            if answer.retire or answer.result is None or time.monotonic() >= ends:
                return answer
            send_to_parent(answer)
        return serve(last)

    return serve_all
