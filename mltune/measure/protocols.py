"""The two seams of measure/: a Builder makes a build of a configuration, a Runner a measurement of a build.

Both answer with a future, so that the compile pool runs ahead of the GPU; in replay the future is already done. Neither
raises for anything that one configuration does: that is the state of what it returns. A runner's future holds a
:class:`~mltune.errors.DeviceLostError` when it is not the configuration but the GPU that failed: then nothing is known
of the configuration.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol, Self

from mltune.records.trial import Build, Measurement


class Builder(Protocol):
    """Compiles configurations of one kernel for one problem and one architecture. A context manager."""

    def submit(self, configuration: Mapping[str, int]) -> Future[Build]:
        """Queue one configuration; the future never holds an exception for what the configuration does."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


@dataclass(frozen=True, slots=True)
class SamplingRule:
    """When to stop sampling the run time of one configuration.

    Attributes
    ----------
    min_samples, max_samples : int
        Bounds on the number of samples.
    noise_target : float
        Relative noise of the median at which sampling ends.
    hopeless_ratio : float
        A configuration whose fastest sample is slower than this many times the best of the run is not sampled further.
    max_s : float
        Most seconds of sampling, after ``min_samples``.
    """

    min_samples: int = 3
    max_samples: int = 20
    noise_target: float = 0.005
    hopeless_ratio: float = 1.3
    max_s: float = 1.0


class Runner(Protocol):
    """Verifies and times builds on one GPU, one at a time. A context manager."""

    def submit(
        self, configuration: Mapping[str, int], build: Build, *, best_s: float | None = None
    ) -> Future[Measurement]:
        """Queue one build.

        Parameters
        ----------
        configuration : mapping of str to int
            The parameters, those passed at launch among them.
        build : Build
            Its build, in state ``OK``.
        best_s : float or None
            Best median so far, seconds: what is hopelessly slower is not sampled further. By the time that a build is
            run, the runner may know a better one.
        """
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
