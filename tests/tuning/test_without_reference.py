"""A GEMM that no library has, tuned on an imaginary GPU: finals, tables, report and winner do without a reference."""

import json
from concurrent.futures import Future

import numpy as np
import pytest
from imaginary_gpu import NO_REFERENCE, imaginary_runner
from rich.console import Console

from mltune.device.known import H200
from mltune.kernel.bundle import variables_of
from mltune.kernel.placed import PlacedKernel
from mltune.kernel.reader import load_kernel
from mltune.kernel.space import ConstrainedSpace, TableSpace
from mltune.measure import runner as runner_module
from mltune.problem.gemm import parse_problem
from mltune.records.trial import Build, TrialState
from mltune.resolve.device import Target
from mltune.resolve.problems import named_problem
from mltune.resolve.request import TuneRequest
from mltune.results.summary import summarise_run
from mltune.show import tables
from mltune.show.report.writing import write_report
from mltune.tuning import tuner
from mltune.tuning.session import Session

PROBLEM = parse_problem("ddgemm", size=512)
KERNEL = load_kernel("gemm_dd")


class Builder:
    """A builder of cubins of the imaginary GPU: two configurations are fast, and fail no verification."""

    def submit(self, configuration):
        future = Future()
        time_s = 2e-3 + 1e-4 * (configuration["RENORMALISE"] < 8) + 1e-4 * configuration["PAD_A"]
        cubin = json.dumps({"time_s": time_s, "noise": 0.002}).encode()
        future.set_result(Build(TrialState.OK, cubin=cubin, registers=128, spill_bytes=0))
        return future

    def __enter__(self):
        return self

    def __exit__(self, *failure):
        """Do nothing: there is nothing to release."""


def test_the_kernel_is_the_problems_own():
    assert named_problem("ddgemm", {"size": 512}) == (PROBLEM, load_kernel("gemm_dd"))
    assert named_problem(PROBLEM, {}) == (PROBLEM, load_kernel("gemm_dd"))
    assert named_problem("dgemm", {})[1].name == "gemm_simt"


@pytest.fixture
def result(tmp_path, idle_workers, monkeypatch):
    """Tune ten configurations."""
    monkeypatch.setattr(runner_module, "_PAUSES_S", ())
    (idle_workers.folder / NO_REFERENCE).touch()
    whole = ConstrainedSpace(KERNEL, variables_of(PROBLEM, H200))
    columns = whole.rows(whole.sample(10, np.random.default_rng(0)))

    def opened(*arguments, **options):
        runner = imaginary_runner(kernel=KERNEL, problem=PROBLEM, pool=idle_workers.pool)
        space = TableSpace({name: column.tolist() for name, column in columns.items()})
        return Session(
            PlacedKernel(KERNEL, PROBLEM, H200, space),
            Builder(),
            runner,
            {"driver": "13.0", "nvrtc": "13.0"},
            gpu=runner,
        )

    monkeypatch.setattr(tuner, "open_session", opened)
    return tuner.tune(TuneRequest(PROBLEM, KERNEL, Target(cuda=0), trials=10, run=tmp_path / "run", wisdom="none"))


def test_a_run_without_a_reference(result, tmp_path):
    assert result.settled
    assert result.declaration.verified
    assert result.declaration.reference is None
    assert result.reference_s is None
    figures = result.to_json()["best"]
    assert figures["share_of_reference"] is None
    assert 0 < figures["share_of_peak"] < 1 / 12

    console = Console(width=200, record=True)
    for part in tables.run_summary(summarise_run(result, 5)):
        console.print(part)
    assert "cuBLAS" not in console.export_text()

    report = write_report(tmp_path / "run", tmp_path / "report", quick=True)
    assert "cuBLAS" not in report.markdown.read_text()
    assert report.document["winners"][0]["reference"] is None

    winner = tmp_path / "run" / "winner"
    assert json.loads((winner / "winner.json").read_text())["launch"]["arguments"][3] == {
        "name": "alpha", "type": "complex128", "value": [1.0, 0.0],
    }  # fmt: skip
    assert "a reference was not timed" in (winner / "README.txt").read_text()
