"""The evidence agrees with the records, counted another way."""

import math
from dataclasses import replace

import numpy as np
import optuna
import pytest
from campaigns import HOSTILE, RECORDS, REFERENCES, REPLAYED, replayed, stored, trial
from hypothesis import given
from hypothesis import strategies as st

from mltune.errors import RunDirectoryError
from mltune.problem.gemm import GemmProblem
from mltune.records.directory import PLAN_FILE, is_plan
from mltune.records.trial import TrialState
from mltune.show.report import evidence
from mltune.show.report.evidence import LEAST_NOISE, MOST_CELLS, TIME_USE, Evidence, failures, read_input, time_use
from mltune.show.study import Studies


@pytest.fixture
def evidence_of(tmp_path):
    def read(records, **options):
        stored(tmp_path, records, **options)
        return Evidence(read_input(tmp_path).runs[0])

    return read


def test_the_curve_is_the_best_so_far_in_seconds_as_a_share_of_reference(evidence_of):
    medians = [3.0e-3, 4.0e-3, 2.0e-3, 2.5e-3]
    curve = evidence_of([trial(at, median_s=median_s) for at, median_s in enumerate(medians)], reference_s=2e-3).curve
    assert curve.unit == "s"
    assert curve.of == "cuBLAS"
    assert curve.at.tolist() == [2.0, 6.0, 100.0]  # up to the end of the run
    assert curve.share.tolist() == pytest.approx([2 / 3, 1.0, 1.0])


def test_without_cublas_the_curve_ends_at_one(evidence_of):
    curve = evidence_of(RECORDS[:10], reference_s=None).curve
    assert curve.of == "final best"
    assert curve.share[-1] == 1.0
    assert np.all(np.diff(curve.share) >= 0.0)


def test_the_curve_of_a_replay_is_over_trials(campaign):
    runs = {run.slug: run for run in read_input(campaign).runs}
    curve = Evidence(runs["convolution-rtx-a4000"]).curve
    assert curve.unit == "trials"
    assert curve.at[-1] == len(runs["convolution-rtx-a4000"].records)


def test_cells_hold_the_best_of_each(evidence_of):
    each = evidence_of([trial(at, median_s=(3 + at * 7 % 5 + at % 3) * 1e-3) for at in range(60)])
    cells = each.cells
    assert cells is not None
    for row, first in enumerate(cells.rows):
        for column, second in enumerate(cells.columns):
            medians = [
                record.median_s
                for record in each.measured
                if (record.configuration[cells.names[0]], record.configuration[cells.names[1]]) == (first, second)
            ]
            expected = each.run.problem.flops / min(medians) / 1e12 if medians else math.nan
            assert cells.values[row, column] == pytest.approx(expected, nan_ok=True)


def test_cells_are_of_the_two_most_important_parameters(campaign):
    for run in read_input(campaign).runs:
        each = Evidence(run)
        if each.cells is not None:
            assert set(each.cells.names) == {*list(each.importance)[:2]}
            assert LEAST_NOISE <= each.cells.noise < 0.1


def test_a_table_that_nobody_can_read_is_not_made(evidence_of):
    side = math.isqrt(MOST_CELLS) + 1
    records = [replace(trial(at), configuration={"BLK_M": at, HOSTILE: at * at}) for at in range(side)]
    assert evidence_of(records).cells is None


def test_changes_of_the_reference_are_against_its_usual_time(evidence_of):
    assert evidence_of(RECORDS, references=REFERENCES).reference_changes.tolist() == pytest.approx([0, 0, 0.1, 0, 0])


def test_predictions_are_ranked_against_what_was_measured(evidence_of):
    found = evidence_of(RECORDS).predictions  # later ones are faster, and were predicted slower
    assert len(found.measured) == 40
    assert found.rank_correlation == pytest.approx(-1.0)


def test_importances_are_those_of_the_dashboard(tmp_path):
    replayed(tmp_path / "run", REPLAYED[1], trials=64)
    storage = Studies(tmp_path / "run").storage
    theirs = optuna.importance.get_param_importances(optuna.load_study(storage=storage, study_name="run"))
    assert Evidence(read_input(tmp_path / "run").runs[0]).importance == pytest.approx(theirs)


def test_every_kind_of_failure_has_its_count_and_an_example_that_says_why(evidence_of):
    records = [
        trial(0, TrialState.TIMEOUT, detail=""),
        trial(1, TrialState.TIMEOUT),
        trial(2),
        trial(3, TrialState.CRASHED),
    ]
    found = failures([evidence_of(records).run])
    assert [(failure.state, failure.count, failure.example.number) for failure in found] == [
        ("timeout", 2, 1),
        ("crashed", 1, 3),
    ]


def test_a_matrix_of_each_operand_crosses_the_bus_once(evidence_of):
    each = evidence_of(RECORDS[:1], problem=GemmProblem("s", "N", "N", 10, 20, 30))
    assert each.intensity == pytest.approx(2 * 10 * 20 * 30 / (4 * (10 * 30 + 30 * 20 + 10 * 20)))


@given(st.dictionaries(st.sampled_from([*TIME_USE, "total", "time"]).filter("rest".__ne__), st.floats(0.0, 1e6)))
def test_parts_of_the_time_are_never_negative(seconds):
    parts = time_use(seconds)
    assert parts.keys() == TIME_USE.keys()
    assert all(part >= 0.0 for part in parts.values())
    assert sum(parts.values()) >= seconds.get("total", 0.0) - 1e-6


def test_a_directory_that_becomes_that_of_a_plan_while_it_is_read(tmp_path, monkeypatch):
    """A campaign writes its first files while another process asks for its report."""

    def then_the_plan_begins(directory):
        asked = is_plan(directory)
        (tmp_path / PLAN_FILE).write_text("")
        return asked

    monkeypatch.setattr(evidence, "is_plan", then_the_plan_begins)
    with pytest.raises(RunDirectoryError, match="is not the directory of a run"):
        read_input(tmp_path)
    (tmp_path / PLAN_FILE).write_text("")
    assert read_input(tmp_path).runs == []
