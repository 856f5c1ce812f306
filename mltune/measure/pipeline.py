"""The protocols of builders and runners, and the pipeline from candidates to records.

Builders and runners return futures, so that the compile pool runs ahead of the GPU; in replay the future is already
done. Neither raises an error for the failure of a configuration: the failure is the state of the result. A runner's
future holds a :class:`~mltune.errors.DeviceLostError` when the GPU failed and nothing is known of the configuration.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import AbstractContextManager
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Any, Protocol, TypeVar

from mltune.errors import RunError
from mltune.records.store import Seconds
from mltune.records.trial import Build, Candidate, Measurement, TrialRecord, TrialState

EQUAL_CODE = "not measured again: machine code and launch are those of trial"
"""Detail of a measurement that is that of another trial, whose number follows."""

_OF_THE_DIFFERENCE = 0.1
_CERTAIN = (TrialState.OK, TrialState.WRONG_RESULT, TrialState.LAUNCH_ERROR)  # a second time would end so again


class Builder(AbstractContextManager[Any], Protocol):
    """Compile configurations of one kernel for one problem and one architecture. A context manager."""

    def submit(self, configuration: Mapping[str, int]) -> Future[Build]:
        """Queue one configuration; its failure is the state of the build, never an exception of the future."""


@dataclass(frozen=True, slots=True)
class SamplingRule:
    """When to stop sampling the run time of one configuration.

    Attributes
    ----------
    min_samples, max_samples : int
        Bounds on the number of samples.
    noise_target : float
        Relative noise of the median at which sampling ends.
    slow_ratio : float
        A configuration whose fastest sample is slower than this multiple of the run's best is not sampled further.
    max_s : float
        Most seconds of sampling, after ``min_samples``: a search needs many trials more than exact times, and the
        fastest are raced at its end.
    limited_noise : float
        Noise up to which a time counts whose sampling was ended by ``max_s``.
    resolution_s : float
        Noise in seconds below which no more is asked: CUDA's events and launches of short kernels are not more precise.
    """

    min_samples: int = 3
    max_samples: int = 20
    noise_target: float = 0.005
    slow_ratio: float = 1.3
    max_s: float = 0.3
    limited_noise: float = 0.02
    resolution_s: float = 250e-9

    def target(self, time_s: float, best_s: float | None = None) -> float:
        """Return the relative noise at which the sampling of a kernel that takes some time ends.

        For one that is slower than the best so far it is a tenth of the difference, if that is more.
        """
        behind = 0.0 if best_s is None else time_s / best_s - 1.0
        return max(self.noise_target, self.resolution_s / time_s, _OF_THE_DIFFERENCE * behind)


class Runner(AbstractContextManager[Any], Protocol):
    """Verify and time builds on one GPU, one at a time. A context manager."""

    def submit(
        self, configuration: Mapping[str, int], build: Build, *, best_s: float | None = None
    ) -> Future[Measurement]:
        """Queue one build.

        Parameters
        ----------
        configuration : mapping of str to int
            All parameters, those passed at launch included.
        build : Build
            Its build, in state ``OK``.
        best_s : float or None
            Best median so far, seconds: a much slower kernel is not sampled further. The runner may know a better one
            by the time that it runs the build.
        """


Answer = TypeVar("Answer")

Decide = Callable[[Sequence[tuple[Candidate, Build]]], Iterable[Candidate]]
"""The gate after compiling: from candidates with their builds to the same candidates with its decisions filled in."""


@dataclass(eq=False)
class Pipeline:
    """Turns candidates into records; deterministic, and no stage waits for another without need.

    Candidates whose builds `identify` names alike are measured once; it returns None for what is always measured.
    """

    builder: Builder
    runner: Runner
    decide: Decide | None = None
    _: KW_ONLY
    seconds: Seconds = field(default_factory=lambda: Seconds({}))
    check: Callable[[Measurement], Measurement] | None = None
    identify: Callable[[Candidate, Build], Hashable] = lambda candidate, build: None
    best_s: float | None = field(default=None, init=False)
    _measured: dict[Hashable, tuple[int, Measurement]] = field(default_factory=dict)
    _building: dict[int, tuple[Candidate, Future[Build]]] = field(default_factory=dict)
    _running: dict[int, tuple[Candidate, Build, Hashable, Future[Measurement]]] = field(
        default_factory=dict, init=False
    )
    _error: RunError | None = None

    def __len__(self) -> int:
        """Return the number of candidates under way."""
        return len(self._building) + len(self._running)

    def submit(self, candidate: Candidate) -> None:
        """Start to build a candidate."""
        self._building[candidate.number] = (candidate, self.builder.submit(candidate.configuration))

    def abandon(self) -> None:
        """Cancel everything that has not started; builder and runner finish the rest."""
        for _, building in self._building.values():
            building.cancel()
        for *_, running in self._running.values():
            running.cancel()
        self._building.clear()
        self._running.clear()

    def advance(self, timeout_s: float | None = None) -> list[TrialRecord]:
        """Wait until a build or measurement ends, and return the new records; a RunError when it cannot continue."""
        if self._error is not None:
            raise self._error
        futures: list[Future[Any]] = [future for _, future in self._building.values()]
        futures += [future for *_, future in self._running.values()]
        with self.seconds.spent_on("wait"):
            wait(futures, timeout=timeout_s, return_when=FIRST_COMPLETED)
        records = [*self._take_builds(), *self._take_measurements()]
        return sorted(records, key=lambda record: record.number)

    def _take_builds(self) -> list[TrialRecord]:
        """Record failed builds and skipped candidates; submit the others to the runner."""
        done = sorted(number for number, (_, future) in self._building.items() if future.done())
        ended = map(self._building.pop, done)
        built = [(candidate, build) for candidate, future in ended if (build := self._result(future)) is not None]
        records = [
            candidate.record(build.state, build.detail, build=build)
            for candidate, build in built
            if build.state != "ok"
        ]
        good = [(candidate, build) for candidate, build in built if build.state == "ok"]
        decided = self.decide(good) if self.decide and good else [candidate for candidate, _ in good]
        for candidate, (_, build) in zip(decided, good, strict=True):
            if candidate.is_skipped:
                records.append(candidate.record(TrialState.SKIPPED, build=build))
                continue
            key = self.identify(candidate, build)
            if (same := self._measured.get(key)) is not None:
                detail = "; ".join(filter(None, (same[1].detail, f"{EQUAL_CODE} {same[0]}")))
                measured = replace(same[1], detail=detail, verify_s=0.0, time_s=0.0)
                records.append(candidate.record(measured.state, detail, build=build, measurement=measured))
            else:
                future = self.runner.submit(candidate.configuration, build, best_s=self.best_s)
                self._running[candidate.number] = (candidate, build, key, future)
        return records

    def _take_measurements(self) -> list[TrialRecord]:
        done = sorted(number for number, (*_, future) in self._running.items() if future.done())
        records = []
        for candidate, build, key, future in map(self._running.pop, done):
            answer = self._result(future)
            if answer is None:
                continue
            measured = answer if self.check is None else self.check(answer)
            if measured.state is TrialState.OK and measured.median_s is not None:
                self.best_s = min(measured.median_s, self.best_s or measured.median_s)
            if measured.state in _CERTAIN and key is not None:
                self._measured[key] = candidate.number, measured
            records.append(candidate.record(measured.state, measured.detail, build=build, measurement=measured))
        return records

    def _result(self, future: Future[Answer]) -> Answer | None:
        """Return the result of a future; on a RunError return None and raise the error at the next call."""
        try:
            return future.result()
        except RunError as error:
            self._error = error
            return None
