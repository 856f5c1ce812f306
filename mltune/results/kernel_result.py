"""The result of tuning a kernel given in Python: a result that also unpacks as that of Kernel Tuner."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Self

from mltune.results.run import TuneResult


@dataclass(frozen=True)
class KernelResult(TuneResult):
    """The result of :func:`mltune.tune_kernel`.

    Attributes
    ----------
    metrics : mapping of str to callable
        Figures of each result, from its dictionary, as Kernel Tuner computes them.
    """

    metrics: Mapping[str, Callable[[dict[str, Any]], Any]] = dataclasses.field(default_factory=dict)

    @classmethod
    def of(cls, result: TuneResult, metrics: Mapping[str, Any]) -> Self:
        """Make it from any result."""
        fields = {field.name: getattr(result, field.name) for field in dataclasses.fields(result)}
        return cls(**fields, metrics=metrics)

    def __iter__(self) -> Iterator[Any]:
        """Return ``results`` and ``env``, so that ``results, env = tune_kernel(...)`` works."""
        yield self.results
        yield self.env

    @property
    def results(self) -> list[dict[str, Any]]:
        """The configurations that were measured, in Kernel Tuner's form.

        Each has the parameters, ``time`` and ``times`` (milliseconds), ``compile_time``, ``verification_time`` and
        ``benchmark_time`` (milliseconds), and the metrics.
        """
        return [self._entry(record) for record in self.measured()]

    @property
    def env(self) -> dict[str, Any]:
        """The GPU and the versions."""
        return {"device_name": self.device.name, **self.header.versions}

    def _entry(self, record: Any) -> dict[str, Any]:
        measured, build = record.measurement, record.build
        entry: dict[str, Any] = self.header.labelled(record.configuration)
        entry |= {
            "time": 1e3 * measured.median_s,
            "times": [1e3 * sample for sample in measured.samples_s],
            "compile_time": 1e3 * build.compile_s if build is not None else 0.0,
            "verification_time": 1e3 * measured.verify_s,
            "benchmark_time": 1e3 * measured.time_s,
            "strategy_time": 0.0,
            "framework_time": 0.0,
            "timestamp": record.finished_at,
        }
        for name, metric in self.metrics.items():
            entry[name] = metric(entry)
        return entry
