"""Results in Kernel Tuner's form: a tuple, its entries, metrics, and the warning of outputs that disagree."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

import mltune
from mltune.kernel.kernel_tuner_call import check_call
from mltune.records.trial import TrialState
from mltune.records.trials import Trials
from mltune.results.run import KernelResult, disagreement

DATASET = "replay:h200-transpose-8192x8192-random"


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: Any) -> mltune.TuneResult:
    run = tmp_path_factory.mktemp("run") / "run"
    return mltune.tune(device=DATASET, trials=20, run=run, progress=None, skip=False)


def test_it_is_a_result_and_the_tuple_of_kernel_tuner(tuned: mltune.TuneResult) -> None:
    result = KernelResult.of(tuned, {})
    results, env = result
    assert isinstance(result, mltune.TuneResult)
    assert isinstance(result, tuple)
    assert (results, env) == (result.results, result.env) == (result[0], result[1])
    assert result.best_config == tuned.best_config
    assert len(results) == len(tuned.measured)
    assert env["device_name"] == "NVIDIA H200"
    assert json.loads(json.dumps(result)) == [results, env]


def test_metrics_are_functions_and_expressions(tuned: mltune.TuneResult) -> None:
    metrics = {"GB/s": "(8192*8192*8/1e9) / (time/1000)", "twice": lambda entry: 2 * entry["GB/s"]}
    entry = KernelResult.of(tuned, check_call({"metrics": metrics}, None).metrics).results[0]
    assert entry["GB/s"] == pytest.approx(8192 * 8192 * 8 / 1e6 / entry["time"])
    assert entry["twice"] == 2 * entry["GB/s"]


def test_kernel_tuner_stores_it(tuned: mltune.TuneResult, tmp_path: Path) -> None:
    file_utils = pytest.importorskip("kernel_tuner.file_utils")
    result = KernelResult.of(tuned, {})
    file_utils.store_output_file(
        str(tmp_path / "results.json"), result.results, dict.fromkeys(result.best_config or {})
    )
    stored = json.loads((tmp_path / "results.json").read_text())
    assert len(stored["results"]) == len(result.results)


def test_outputs_that_mostly_disagree_are_reported(tuned: mltune.TuneResult) -> None:
    assert not disagreement(tuned)
    wrong = TrialState.WRONG_RESULT
    records = [
        dataclasses.replace(record, state=wrong, detail="7 values of sums wrong", measurement=None)
        if record.number > 2
        else record
        for record in tuned.records
    ]
    trials = Trials.from_records(records, list(tuned.header.parameters))
    message = disagreement(dataclasses.replace(tuned, records=trials))
    assert "17 of 20 configurations disagree" in message
    assert "7 values of sums wrong" in message
    assert "give `answer` and `verify`" in message
