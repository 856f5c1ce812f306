"""Pruned sweeps in replay: result, dataset and manifest, resumption, refusals."""

import dataclasses
import json

import numpy as np
import pytest

from mltune.comparison.simulation import PRUNED, RecordingSource
from mltune.dataset.dataset import load_dataset
from mltune.dataset.merging import merge_datasets
from mltune.errors import DatasetError, RunDirectoryError, RunError, UsageError
from mltune.records.store import Store
from mltune.records.trial import Measurement
from mltune.resolve.resolve import resolve_sweep
from mltune.results.reader import read_run
from mltune.search.pruning import Promise
from mltune.search.strata import FALSE_SHARE
from mltune.tuning.sweep import pruned_sweep
from mltune.tuning.training import train
from tests.conftest import few_rows

DATASET = "convolution_mi250x_gcd"


def request(run, dataset=DATASET, **options):
    return resolve_sweep(None, {}, device=f"replay:{dataset}", run=run, **options)


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    """Return the result of a sweep, and the directory of its run."""
    run = tmp_path_factory.mktemp("pruned") / "run"
    return pruned_sweep(request(run), Promise()), run


@pytest.fixture(scope="module")
def records(swept):
    with Store.read_only(swept[1]) as store:
        return list(store.records())


@pytest.fixture(scope="module")
def few(tmp_path_factory):
    """Return a dataset of few configurations, of which a sweep takes a second, the result, and the run's directory."""
    folder = tmp_path_factory.mktemp("few")
    dataset = few_rows(folder, DATASET, 400, kind="complete")
    return dataset, pruned_sweep(request(folder / "run", dataset), Promise()), folder / "run"


def test_best_is_measured_in_a_fraction_of_the_seconds(swept):
    result, _ = swept
    found, truth = load_dataset(result.dataset).manifest, load_dataset(DATASET).manifest

    assert found.best == truth.best
    assert result.audit.measured == found.rows < 0.2 * truth.rows
    assert result.total_s < 0.2 * result.complete_s


def test_its_model_scores_the_whole_space(swept):
    result, run = swept
    found = read_run(run).funnel

    assert found.valid == result.audit.valid
    assert found.scored == pytest.approx(found.valid, rel=0.1)
    assert found.proposed == found.compiled == result.audit.measured
    assert found.not_proposed_saved_s == pytest.approx(result.complete_s - result.total_s, rel=0.25)


def test_seconds_of_a_complete_sweep_are_estimated(swept):
    recorded = load_dataset(DATASET)
    truth = max(recorded.numbers("compile_s").sum(), recorded.numbers("time_s").sum())

    assert swept[0].complete_s == pytest.approx(truth, rel=0.25)
    assert swept[0].saved_s == swept[0].complete_s - swept[0].total_s


def test_manifest_has_promise_audit_and_seconds(swept):
    result, _ = swept
    manifest = load_dataset(result.dataset).manifest

    assert manifest.kind == "pruned"
    assert manifest.pruning == result.to_json()
    assert manifest.pruning["audited"] > 250
    assert manifest.pruning["false_share_at_most"] < FALSE_SHARE
    assert json.loads(result.dataset.with_suffix(".json").read_text())["pruning"] == result.to_json()


def test_rounds_are_batches_and_sources_are_named(records):
    batches = [record.batch for record in records]

    assert {record.proposed_by for record in records} <= {"random", "model", "audit"}
    assert min(batches) == 0
    assert len(set(batches)) > 3
    assert [record.number for record in sorted(records, key=lambda one: one.number)] == list(range(len(records)))


def test_interrupted_sweep_goes_on_with_the_same_decisions(few, tmp_path):
    dataset, swept, run = few
    with Store.read_only(run) as store:
        header, records = store.header, list(store.records())
    assert {record.proposed_by for record in records} == {"random", "model", "audit"}
    some = np.random.default_rng(0).permutation(len(records))[: len(records) // 2]
    with Store.open(tmp_path / "run", header) as store:
        store.append(*(records[at] for at in some.tolist()))

    again = pruned_sweep(request(tmp_path / "run", dataset), Promise())

    assert again.audit == swept.audit
    with Store.read_only(tmp_path / "run") as store:
        resumed = sorted(store.records(), key=lambda one: one.number)
    assert resumed == sorted(records, key=lambda one: one.number)


def test_finished_sweep_answers_the_same_again(few):
    dataset, swept, run = few

    assert pruned_sweep(request(run, dataset), Promise()) == swept


def test_record_of_another_configuration_is_refused(swept, records, tmp_path):
    with Store.read_only(swept[1]) as store:
        header = store.header
    wrong = dataclasses.replace(records[1], number=records[0].number)
    with Store.open(tmp_path / "run", header) as store:
        store.append(wrong)

    with pytest.raises(RunError, match="same choices"):
        pruned_sweep(request(tmp_path / "run"), Promise())


def test_another_promise_is_another_run(swept):
    with pytest.raises(RunDirectoryError, match="within"):
        pruned_sweep(request(swept[1]), Promise(within=0.05))


def test_model_is_trained_on_a_pruned_dataset(swept):
    pruned = load_dataset(swept[0].dataset)

    assert [one.sweep for one in train([pruned]).members] == [pruned.manifest.name]


def test_a_comparison_says_that_it_is_no_whole_space(swept):
    assert RecordingSource(str(swept[0].dataset)).load().notices == (PRUNED,)


def test_union_of_pruned_datasets_promises_nothing(swept):
    one = load_dataset(swept[0].dataset)
    other = dataclasses.replace(one, manifest=dataclasses.replace(one.manifest, name="other"))

    merged, _ = merge_datasets([one, other], "both")

    assert (merged.manifest.kind, merged.manifest.pruning) == ("search", {})


def test_figures_belong_to_pruned_datasets_alone(swept):
    manifest = load_dataset(swept[0].dataset).manifest

    with pytest.raises(DatasetError, match="kind pruned"):
        dataclasses.replace(manifest, kind="complete")
    with pytest.raises(DatasetError, match="kind pruned"):
        dataclasses.replace(manifest, pruning={})


def test_only_the_whole_of_a_complete_dataset_is_replayed(tmp_path):
    wanted = request(tmp_path / "run")
    with pytest.raises(UsageError, match="some values were chosen"):
        pruned_sweep(wanted, Promise(), values={"tile_size_x": [1]})
    partial = resolve_sweep(None, {}, device="replay:h200-sgemm-nt-4096-random", run=tmp_path / "run")
    with pytest.raises(UsageError, match="of kind random"):
        pruned_sweep(partial, Promise())


def test_measurements_are_those_recorded(records):
    assert all(isinstance(record.measurement, Measurement) for record in records)
