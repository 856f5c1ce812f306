"""The result of a run: what it holds, how it is read while it grows, and its table and plot."""

import copy
import dataclasses
import math
import sqlite3
from dataclasses import replace

import pytest

from mltune.campaign.schedule import standing_of
from mltune.dataset.dataset import load_manifest
from mltune.errors import RunDirectoryError
from mltune.records.declaration import Declaration, Finalist
from mltune.records.directory import FILE
from mltune.records.store import Store
from mltune.records.trial import Measurement, Skip, TrialState
from mltune.results.reader import RunReader, read_run

DECLARED = Declaration(1, (Finalist(1, 2.1e-3, 2e-3, 2.2e-3), Finalist(0, 2.2e-3, 2.2e-3, 2.3e-3)), as_of=3)


@pytest.fixture
def directory(tmp_path, make_run, make_trial):
    skipped = replace(make_trial(3, TrialState.SKIPPED), skip=Skip("before_compile", -2.0, -1.5), build=None)
    return make_run(
        tmp_path / "run", make_trial(1, median_s=2e-3), make_trial(0), skipped, make_trial(2, TrialState.CRASHED)
    )


class TestReading:
    def test_trials_are_in_the_order_of_their_numbers(self, directory):
        run = read_run(directory)
        assert [record.number for record in run.records] == [0, 1, 2, 3]
        assert (run.kernel, run.slug, run.replayed) == ("toy", "sgemm-nt-4096", True)
        assert (run.reference_s, run.elapsed_s) == (2.65e-3, 2.0)
        assert {state: count for state, count in run.counts.items() if count} == {"ok": 2, "skipped": 1, "crashed": 1}

    def test_the_best_is_the_fastest_until_a_winner_is_declared(self, directory, make_run):
        run = read_run(directory)
        assert (run.best.number, run.best_time_s, run.best_config) == (1, 2e-3, {"BLK_M": 32, "STAGES": 2})
        assert run.to_json()["best"]["median_s"] == 2e-3
        make_run(directory, declaration=DECLARED.to_json())
        run = read_run(directory)
        assert (run.best.number, run.best_time_s) == (1, 2.1e-3)
        assert run.to_json()["best"]["interval_s"] == [2e-3, 2.2e-3]

    def test_where_nothing_succeeded_there_is_no_best(self, tmp_path, make_run, make_trial):
        run = read_run(make_run(tmp_path, make_trial(0, TrialState.TIMEOUT)))
        assert (run.best, run.best_config, run.best_time_s, run.best_rating) == (None, None, None, None)
        assert run.to_json()["best"] is None

    def test_an_open_store_and_its_directory_have_the_same_result(self, directory):
        with Store.read_only(directory) as store:
            assert RunReader(directory).read_from(store) == read_run(directory)
            assert RunReader(directory, "a").read_from(store).slug == "a"

    def test_improvements_are_by_time_or_by_number(self, directory):
        run = read_run(directory)
        assert run.improvements(by_time=True) == [(0.5, 3e-3), (1.0, 2e-3)]
        assert run.improvements(by_time=False) == [(1.0, 3e-3), (2.0, 2e-3)]

    def test_improvements_may_count_noisy_times(self, tmp_path, make_run, make_trial):
        noisy = replace(make_trial(0, TrialState.UNSTABLE), measurement=Measurement(TrialState.UNSTABLE, median_s=2e-3))
        run = read_run(make_run(tmp_path, noisy, make_trial(1), make_trial(2, TrialState.UNSTABLE)))
        assert run.improvements(by_time=False) == [(2.0, 3e-3)]
        assert run.improvements(by_time=False, noisy=True) == [(1.0, 2e-3)]
        assert standing_of(run, "trials").curve == [(1.0, 2e-3)], "one whose times are all noisy is not given up"

    def test_a_reader_reads_each_trial_once(self, directory, make_run, make_trial, monkeypatch):
        read = []
        records = Store.records
        monkeypatch.setattr(Store, "records", lambda store, after=0: read.append(after) or records(store, after))
        reader = RunReader(directory)
        first = reader.read()
        assert reader.read() is first
        make_run(directory, make_trial(4))
        assert [record.number for record in reader.read().records] == [0, 1, 2, 3, 4]
        assert [record.number for record in reader.ended] == [1, 0, 3, 2, 4]
        assert read == [0, 4]

    def test_where_there_is_no_run_it_is_refused(self, tmp_path):
        with pytest.raises(RunDirectoryError, match=FILE):
            read_run(tmp_path)

    @pytest.mark.parametrize(
        "statement",
        [
            "DROP TABLE facts",
            "UPDATE trials SET p_BLK_M = 'wide'",
            "UPDATE trials SET state = 'splendid'",
            "UPDATE header SET value = '{}' WHERE name = 'device'",
            "UPDATE header SET value = '[]' WHERE name = 'problem'",
            "INSERT INTO facts VALUES ('declaration', '{\"number\": 3}', 0)",
        ],
    )
    def test_a_damaged_store_is_refused(self, directory, statement):
        with sqlite3.connect(directory / FILE) as connection:
            connection.execute(statement)
        with pytest.raises(RunDirectoryError, match=str(directory)):
            read_run(directory)

    @pytest.mark.parametrize("median_s", [-1.0, 0.0, 1e-320, 9e999])
    def test_an_impossible_time_is_refused(self, tmp_path, make_run, make_trial, median_s):
        with pytest.raises(RunDirectoryError, match="trial 1: `median_s` is"):
            read_run(make_run(tmp_path, make_trial(0), make_trial(1, median_s=median_s)))


def test_the_best_trial_has_its_values_and_its_record_their_positions(tmp_path, make_run, make_trial):
    run = read_run(make_run(tmp_path, make_trial(0), make_trial(1)))
    labels = {"STAGES": tuple("abcdefgh")}
    labelled = dataclasses.replace(run, header=dataclasses.replace(run.header, labels=labels))
    assert labelled.best.configuration == labelled.best_config
    assert labelled.best.configuration["STAGES"] == labels["STAGES"][labelled.best_record.configuration["STAGES"]]
    assert labelled.best.number == labelled.best_record.number


class TestTable:
    def test_it_has_one_row_per_trial(self, directory):
        table = read_run(directory).to_dataframe()
        assert list(table["number"]) == [0, 1, 2, 3]
        assert {"BLK_M", "STAGES", "proposed_by", "elapsed_s", "noise", "batch"} <= set(table)
        assert table["tflops"][1] == pytest.approx(2 * 4096**3 / 2e-3 / 1e12)
        assert list(table["skipped_by"].fillna("")) == ["", "", "", "before_compile"]
        assert table["median_s"].isna().tolist() == [False, False, True, True]
        assert (table["registers"][0], table["detail"][2]) == (128, "what went wrong with 2")
        assert table["predicted_s"][0] == pytest.approx(2 * 4096**3 / (132 * 128 * 2 * 1.98e9) * math.exp(0.5))

    def test_a_parameter_with_the_name_of_a_column_has_one_of_its_own(self, directory):
        run = read_run(directory)
        renamed = copy.copy(run.records)
        renamed.parameters = ("batch", "median_s")
        table, plain = dataclasses.replace(run, records=renamed).to_dataframe(), run.to_dataframe()
        assert list(table.columns[5:7]) == ["parameter_batch", "parameter_median_s"]
        assert list(table["parameter_batch"]) == list(plain["BLK_M"])
        assert list(table["batch"]) == list(plain["batch"])
        assert table["median_s"].equals(plain["median_s"])

    def test_a_run_without_trials_has_an_empty_one(self, tmp_path, make_run):
        assert len(read_run(make_run(tmp_path)).to_dataframe()) == 0


class TestDisplay:
    def test_the_plot_is_the_best_so_far_with_the_reference(self, directory):
        from matplotlib.figure import Figure

        ax = Figure().add_subplot()
        assert read_run(directory).plot(ax) is ax
        best, reference = ax.get_lines()
        flops = 2 * 4096**3
        assert list(best.get_xdata()) == [1.0, 2.0, 4.0]
        assert list(best.get_ydata()) == pytest.approx([flops / 3e-3 / 1e12, flops / 2e-3 / 1e12, flops / 2e-3 / 1e12])
        assert list(reference.get_ydata()) == pytest.approx([flops / 2.65e-3 / 1e12] * 2)
        assert [text.get_text() for text in ax.get_legend().get_texts()] == ["toy", "cuBLAS"]

    def test_without_a_count_of_operations_times_are_shown(self, tmp_path, make_run, make_trial):
        problem = {"kind": "recorded", "name": "convolution"}
        run = read_run(make_run.of(problem=problem)(tmp_path, make_trial(0)))
        assert run.best_rating["tflops"] is run.best_rating["share_of_peak"] is None
        assert "tflops" not in run.to_dataframe()
        assert "3.0000 ms" in run._repr_html_()

    def test_with_a_count_of_bytes_gigabytes_per_second_are_shown(self, tmp_path, make_run, make_trial):
        from matplotlib.figure import Figure

        problem = load_manifest("h200-transpose-8192x8192-random").problem
        run = read_run(make_run.of(problem=problem.to_json())(tmp_path, make_trial(0)))
        rated = run.best_rating
        assert rated["gb_per_s"] == pytest.approx(8 * 8192**2 / 3e-3 / 1e9)
        assert rated["share_of_peak"] == pytest.approx(8 * 8192**2 / 3e-3 / 4.8e12)
        table = run.to_dataframe()
        assert "tflops" not in table
        assert list(table["gb_per_s"]) == [rated["gb_per_s"]]
        assert run.plot(Figure().add_subplot()).get_ylabel() == "GB/s"
        assert "179.0 GB/s, 88.3 % of default" in run._repr_html_()

    def test_a_notebook_shows_a_table(self, directory, make_run):
        shown = read_run(directory)._repr_html_()
        assert shown.startswith("<table>")
        for part in ("sgemm NT 4096", "NVIDIA H200", "132.5 % of cuBLAS", "BLK_M=32 STAGES=2", "4: 2 ok"):
            assert part in shown

    def test_names_are_escaped(self, tmp_path, make_run, make_trial):
        run = read_run(make_run.of(kernel="<script>")(tmp_path, make_trial(0)))
        assert "<script>" not in run._repr_html_()
