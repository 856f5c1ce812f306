"""The distance of a replayed run from the optimum of its dataset."""

import io
from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console

from mltune.dataset.dataset import load_dataset
from mltune.kernel.reader import load_kernel
from mltune.records.trial import Skip, TrialRecord, TrialState
from mltune.records.trials import Trials
from mltune.resolve.device import Target
from mltune.resolve.request import TuneRequest
from mltune.results.reader import read_run
from mltune.results.summary import optimum, summarise_tuning
from mltune.show.report.evidence import ReportInput
from mltune.show.report.findings import findings
from mltune.show.report.sections import sections
from mltune.show.report.writing import html, markdown
from mltune.show.tables import tuned
from mltune.tuning.tuner import tune

DATASET = "convolution_rtx_a4000"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    manifest = load_dataset(DATASET).manifest
    directory = tmp_path_factory.mktemp("runs") / "run"
    return tune(
        TuneRequest(manifest.problem, load_kernel(manifest.kernel), Target(dataset=DATASET), trials=16, run=directory)
    )


def test_it_is_that_of_the_whole_table(run):
    dataset, found = load_dataset(DATASET), optimum(run)
    times = np.sort(dataset.numbers("median_s")[dataset.states == str(TrialState.OK)])
    assert found.dataset == DATASET
    assert (found.median_s, found.configurations) == (times[0], len(times))
    assert times[found.rank - 1] == pytest.approx(run.best.median_s)
    assert found.share == pytest.approx(times[0] / run.best.median_s)


@pytest.mark.parametrize("target", ["cuda:0", "replay:none_of_ours", "replay:/etc/passwd"])
def test_nothing_is_said_of_another_target(run, target):
    other = replace(run, header=replace(run.header, settings={"target": target}))
    assert optimum(other) is None


def test_nothing_is_said_where_nothing_was_found(make_run, tmp_path):
    assert optimum(read_run(make_run(tmp_path / "run"))) is None


def test_the_dataset_knows_what_was_skipped_and_faster(run):
    """The optimum was skipped, and nothing was measured to check: no page says that no skip was wrong."""
    dataset = load_dataset(DATASET)
    times_s = np.where(dataset.states == str(TrialState.OK), dataset.numbers("median_s"), np.inf)
    rows = [int(np.argmin(times_s)), int(np.argmax(times_s))]  # the optimum, and one that failed
    skipped = [
        TrialRecord(
            84 + at,
            84,
            0,
            {name: int(column[row]) for name, column in dataset.columns.items()},
            TrialState.SKIPPED,
            skip=Skip("after_compile", -2.0, -1.5),
        )
        for at, row in enumerate(rows)
    ]
    slow = replace(run, records=Trials.from_records([*run.measured[:3], *skipped], run.records.parameters))
    slow = replace(slow, declaration=None)
    found = optimum(slow)
    assert (found.skipped, found.skipped_faster, found.best_skipped) == (2, 1, 84)
    assert found.share < 1.0
    assert found.best_skipped_ratio == pytest.approx(found.share)
    truth = (
        "faster than the winner: 1 of the 2 skipped trials; the fastest of them, trial 84, takes "
        f"{100 * found.share:.1f} % of its time"
    )
    output = Console(file=io.StringIO(), width=400)
    output.print(*tuned(summarise_tuning(slow)))
    printed = output.file.getvalue()
    assert truth in printed
    assert "none measured to check" in printed
    assert "saved, as recorded" in printed
    assert "; recorded: compile " in printed
    source = ReportInput(run.directory, None, "one", [slow], [], [])
    document = findings(source, {})
    pages = [write(document, sections(source, document, quick=True)) for write in (html, markdown)]
    for page in pages:
        assert truth in page.replace("\\", "")
        assert "0 of them" not in page
    assert "No skip was checked by a measurement, so the share of wrong skips is unknown." in pages[0]
    assert "<strong>1 of the skipped is faster than the winner</strong>" in pages[0]
    assert "none measured to check. Faster than the winner, as the recordings know: 1 of 2 skipped." in pages[1]
