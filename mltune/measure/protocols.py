"""The Builder and Runner protocols: a builder compiles configurations, a runner measures builds.

Both return futures, so that the compile pool runs ahead of the GPU; in replay the future is already done. Neither
raises an error for the failure of a configuration: the failure is the state of the result. A runner's future holds a
:class:`~mltune.errors.DeviceLostError` when the GPU failed and nothing is known of the configuration.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from mltune.records.trial import Build, Measurement

_OF_THE_DIFFERENCE = 0.1


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
        """Return the noise at which the sampling of a kernel that takes some time ends, relative.

        Of one that is slower than the best so far it is a tenth of the difference, if that is more.

        Examples
        --------
        >>> SamplingRule().target(8e-6), SamplingRule().target(1e-3)
        (0.03125, 0.005)
        >>> round(SamplingRule().target(1.2e-3, best_s=1e-3), 3)
        0.02
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
