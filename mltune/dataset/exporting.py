"""Export datasets to the formats of others: Kernel Tuner's cache, and T4 of the autotuning community.

Both hold a time for each configuration that ran, and the kind of failure of every other, and nothing of resources, the
state of the GPU and the facts of the device.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from mltune.dataset.dataset import Dataset
from mltune.kernel.coding import row
from mltune.records.trial import TrialState

_KERNEL_TUNER = {TrialState.COMPILE_ERROR: "CompilationFailedConfig"}
_T4 = {
    TrialState.COMPILE_ERROR: "compile",
    TrialState.TIMEOUT: "timeout",
    TrialState.WRONG_RESULT: "correctness",
}
_TIMED = (TrialState.OK, TrialState.UNSTABLE)
_MOST_SIZES = 3  # of a problem of Kernel Tuner


def kernel_tuner_cache(dataset: Dataset) -> str:
    """Return the text of a cache file of Kernel Tuner, which its simulation mode reads.

    A time is the median of the samples. Every failure but one of compiling is a ``RuntimeFailedConfig``.
    """
    manifest = dataset.manifest
    values = {
        name: [manifest.labelled({name: value})[name] for value in values]
        for name, values in manifest.parameters.items()
    }
    head = {
        "device_name": manifest.device.name,
        "kernel_name": manifest.kernel,
        "problem_size": [*manifest.problem.variables.values()][:_MOST_SIZES] or [1],
        "tune_params_keys": [*values],
        "tune_params": values,
        "objective": "time",
    }
    entries = ",\n".join(map(_cached, _outcomes(dataset)))
    return f'{json.dumps(head)[:-1]}, "cache": {{\n{entries}}}\n}}'


def t4_results(dataset: Dataset) -> str:
    """Return the text of a results file in T4, version 1.0.0; a time is the median of the samples."""
    results = [*map(_t4, _outcomes(dataset))]
    document = {"results": results, "schema_version": "1.0.0", "metadata": {"timeunit": "milliseconds"}}
    return json.dumps(document, allow_nan=False) + "\n"


FORMATS: Mapping[str, Callable[[Dataset], str]] = {"kernel-tuner": kernel_tuner_cache, "t4": t4_results}
"""The formats by name."""

_Outcome = tuple[dict[str, int | float | str], TrialState, dict[str, float], list[float]]


def _outcomes(dataset: Dataset) -> Iterator[_Outcome]:
    """Yield the configuration, the state, the times and the samples of each row, in milliseconds."""
    names = ("median_s", "compile_s", "verify_s", "time_s")
    columns = {name: dataset.numbers(name).tolist() for name in names}
    samples = dataset.table["samples_s"].to_pylist()
    for index, state in enumerate(dataset.states.tolist()):
        configuration = dataset.manifest.labelled(row(dataset.columns, index))
        times = {name: _milliseconds(columns[name][index]) for name in names}
        yield configuration, TrialState(state), times, [_milliseconds(sample_s) for sample_s in samples[index]]


def _milliseconds(seconds: float) -> float:
    """Return a time of 32 bits in milliseconds, without the digits that it does not have."""
    return float(f"{1e3 * seconds:.8g}")


def _cached(outcome: _Outcome) -> str:
    configuration, state, times, samples = outcome
    entry: dict[str, Any] = dict(configuration)
    if state in _TIMED:
        entry |= {"time": times["median_s"], "times": samples or [times["median_s"]]}
    else:
        error = _KERNEL_TUNER.get(state, "RuntimeFailedConfig")
        entry |= {"time": error, "__error__": error}
    entry |= {
        "compile_time": times["compile_s"],
        "verification_time": times["verify_s"],
        "benchmark_time": times["time_s"],
        "strategy_time": 0.0,
        "framework_time": 0.0,
    }
    key = ",".join(map(str, configuration.values()))
    return f"{json.dumps(key)}: {json.dumps(entry, allow_nan=False)}"


def _t4(outcome: _Outcome) -> dict[str, Any]:
    configuration, state, times, samples = outcome
    ran = state in _TIMED
    return {
        "configuration": configuration,
        "times": {
            "compilation": times["compile_s"],
            "benchmark": times["time_s"],
            "validation": times["verify_s"],
            "framework": 0.0,
            "search_algorithm": 0.0,
            "runtimes": samples,
        },
        "invalidity": "correct" if ran else _T4.get(state, "runtime"),
        "correctness": 0 if state is TrialState.WRONG_RESULT else 1,
        "measurements": [{"name": "time", "value": times["median_s"], "unit": "ms"}] if ran else [],
        "objectives": ["time"],
    }
