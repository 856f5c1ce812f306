"""The result of tuning a kernel given in Python: a result that is also what Kernel Tuner returns."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Self

from mltune.records.trial import TrialState
from mltune.results.run import TuneResult

Metric = Callable[[dict[str, Any]], Any]


class KernelResult(TuneResult, tuple[Any, ...]):
    """The result of :func:`mltune.tune_kernel`: a :class:`TuneResult` that is also the tuple ``(results, env)``.

    So ``results, env = tune_kernel(...)`` and ``json.dump(tune_kernel(...), file)`` work as they do in Kernel Tuner.
    """

    @classmethod
    def of(cls, result: TuneResult, metrics: Mapping[str, Metric]) -> Self:
        """Make it from any result; ``metrics`` are figures of each entry of `results`, as functions of it."""
        entries = [_entry(result, record, metrics) for record in result.measured()]
        env: dict[str, Any] = {"device_name": result.device.name, **result.header.versions}
        made = tuple.__new__(cls, (entries, env))
        for field in dataclasses.fields(result):
            object.__setattr__(made, field.name, getattr(result, field.name))
        return made

    @property
    def results(self) -> list[dict[str, Any]]:
        """The configurations that were measured, in Kernel Tuner's form.

        Each has the parameters, ``time`` and ``times`` (milliseconds), ``compile_time``, ``verification_time`` and
        ``benchmark_time`` (milliseconds), and the metrics.
        """
        entries: list[dict[str, Any]] = self[0]
        return entries

    @property
    def env(self) -> dict[str, Any]:
        """The GPU and the versions."""
        facts: dict[str, Any] = self[1]
        return facts


def _entry(result: TuneResult, record: Any, metrics: Mapping[str, Metric]) -> dict[str, Any]:
    measured, build = record.measurement, record.build
    entry: dict[str, Any] = result.header.labelled(record.configuration)
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
    for name, metric in metrics.items():
        entry[name] = metric(entry)
    return entry


def disagreement(result: TuneResult) -> str:
    """Return a warning where most outputs disagree with those of the default configuration; empty otherwise."""
    wrong, right = (
        result.records.take(result.records.in_state(state)) for state in (TrialState.WRONG_RESULT, TrialState.OK)
    )
    if len(wrong) <= len(right):
        return ""
    return (
        f"{len(wrong)} of {len(wrong) + len(right)} configurations disagree with the default configuration "
        f"and count as wrong ({wrong[0].detail}); where outputs may differ, such as sums of parts, give `answer` and "
        "`verify`."
    )
