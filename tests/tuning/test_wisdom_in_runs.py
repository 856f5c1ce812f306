"""The wisdom in a run: what is known is measured first, also after a resume, and the winner is added."""

import json
from dataclasses import replace

import pytest

from mltune.dataset.dataset import load_dataset
from mltune.errors import DamagedRunError, MltuneWarning, WisdomError
from mltune.kernel.reader import load_kernel
from mltune.known.wisdom import Wisdom
from mltune.problem.gemm import GemmProblem
from mltune.records.events import no_events
from mltune.records.store import Store
from mltune.resolve.device import Target
from mltune.resolve.request import TuneRequest
from mltune.tuning.session import open_session
from mltune.tuning.tuner import tune
from mltune.tuning.wisdom import Siblings, found_so_far, known_configurations
from tests.conftest import few_rows

DATASET = "h200-sgemm-nt-4096-random"
MANIFEST = load_dataset(DATASET).manifest
KERNEL, TARGET = load_kernel(MANIFEST.kernel), Target(dataset=DATASET)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Return a function that tunes on some rows of the dataset."""
    target = Target(dataset=str(few_rows(tmp_path_factory.mktemp("dataset"), DATASET, rows=200)))

    def tuned(directory, trials=16, wisdom="auto", **options):
        request = TuneRequest(MANIFEST.problem, KERNEL, target, trials=trials, run=directory, wisdom=wisdom)
        return tune(request, **options)

    return tuned


@pytest.fixture(scope="module")
def first(run, tmp_path_factory):
    """Return a run with a wisdom, and the file."""
    folder = tmp_path_factory.mktemp("wisdom")
    return run(folder / "run", 32, folder / "wisdom.json"), folder / "wisdom.json"


@pytest.fixture
def file(first, tmp_path):
    copy = tmp_path / "wisdom.json"
    copy.write_bytes(first[1].read_bytes())
    return copy


def test_the_winner_is_added_with_its_facts(first):
    result, file = first
    (entry,) = Wisdom.load(file).best
    assert entry.configuration == result.best_config
    assert entry.low_s <= entry.median_s == result.best_time_s <= entry.high_s
    assert (entry.kernel, entry.source_hash) == (result.kernel, result.header.source_hash)
    assert (entry.problem, entry.device.name) == (result.problem.to_json(), "NVIDIA H200")
    assert (entry.driver, entry.trials, entry.verified) == ("13.0", 32, False)
    assert entry.reference_s == result.reference_s


def test_ties_are_added_so_that_every_process_chooses_the_same(first):
    result, file = first
    numbers = {result.declaration.number, *result.declaration.ties}
    assert len(Wisdom.load(file)) == len(numbers)


def test_the_next_run_measures_it_first_and_is_not_slower(run, first, file, tmp_path):
    before, _ = first
    events = tmp_path / "run" / "events.jsonl"

    result = run(tmp_path / "run", wisdom=file)

    assert (result.records[0].proposed_by, result.records[0].configuration) == ("wisdom", before.best.configuration)
    assert result.best_time_s <= before.best_time_s
    (told,) = (one for one in map(json.loads, events.read_text().splitlines()) if one["event"] == "wisdom")
    assert told["detail"] == "the same problem"


def test_of_another_size_the_nearest_is_measured(run, first, tmp_path):
    (entry, *_) = Wisdom.load(first[1]).best
    small = GemmProblem("s", "N", "T", 1024, 1024, 1024).to_json()
    Wisdom([entry.model_copy(update={"problem": small})]).save(tmp_path / "wisdom.json")
    result = run(tmp_path / "run", wisdom=tmp_path / "wisdom.json")
    assert [record.proposed_by for record in result.records[:2]] == ["wisdom", "start"]


@pytest.mark.parametrize("wisdom", ["none", "wisdom.json"])
def test_what_siblings_have_found_is_looked_up_with_the_wisdom(run, wisdom, first, tmp_path):
    """It is known without a wisdom, and beside one that holds a configuration of another size."""
    sibling, other = found_so_far(first[0]), first[0].records.fastest(9)[-1]
    elsewhere = {"problem": GemmProblem("s", "N", "T", 64, 64, 64).to_json(), "configuration": other.configuration}
    Wisdom([sibling[0].model_copy(update=elsewhere)]).save(tmp_path / "wisdom.json")
    file = wisdom if wisdom == "none" else tmp_path / wisdom

    result = run(tmp_path / "run", 5, file, siblings=Siblings(tuple(sibling)))

    known = [one.configuration for one in result.records if one.proposed_by == "wisdom"]
    assert known == [first[0].best.configuration, other.configuration][: 1 if wisdom == "none" else 2]


def test_a_run_that_has_not_ended_has_its_fastest_trial_to_offer(first):
    (offered,) = found_so_far(replace(first[0], declaration=None))
    assert (offered.configuration, offered.verified) == (dict(first[0].records.fastest(1)[0].configuration), False)
    assert found_so_far(replace(first[0], declaration=None, records=first[0].records[:0])) == []


def test_without_a_wisdom_nothing_changes(run, file, tmp_path, monkeypatch):
    """A replay does not use the user's file."""
    monkeypatch.setenv("MLTUNE_WISDOM", str(file))
    before = file.read_bytes()
    with_default, without = run(tmp_path / "one"), run(tmp_path / "other", wisdom="none")
    assert [one.index for one in with_default.records] == [one.index for one in without.records]
    assert "wisdom" not in {one.proposed_by for one in with_default.records}
    assert file.read_bytes() == before


def test_a_resumed_run_proposes_the_same_whatever_the_wisdom_is_by_then(run, file, tmp_path):
    whole = run(tmp_path / "whole", 40, file)
    run(tmp_path / "parts", 20, file)
    file.unlink()

    resumed = run(tmp_path / "parts", 40, file)

    assert [one.index for one in resumed.records] == [one.index for one in whole.records]
    assert len(Wisdom.load(file)) >= 1


def test_a_run_that_began_without_one_does_not_ask_later(run, file, tmp_path):
    run(tmp_path / "run", 5, "none")
    resumed = run(tmp_path / "run", 20, file)
    assert "wisdom" not in {one.proposed_by for one in resumed.records}


def test_an_interrupted_run_adds_nothing(run, tmp_path):
    run(tmp_path / "run", 32, tmp_path / "wisdom.json", stop=lambda: True)
    assert not (tmp_path / "wisdom.json").exists()


def test_a_named_wisdom_that_is_damaged_is_an_error_and_the_users_is_a_warning(run, tmp_path):
    (tmp_path / "wisdom.json").write_text("nonsense")
    with pytest.raises(WisdomError, match="is no wisdom"):
        run(tmp_path / "run", wisdom=tmp_path / "wisdom.json")
    session = open_session(TuneRequest(MANIFEST.problem, KERNEL, TARGET))
    header = run(tmp_path / "third").header
    with Store.open(tmp_path / "other", header) as store, pytest.warns(MltuneWarning, match="It is not used"):
        found = known_configurations(store, session, tmp_path / "wisdom.json", no_events, required=False)
    assert found == []


def test_a_wisdom_that_cannot_be_written_does_not_fail_the_run(run, tmp_path):
    (tmp_path / ".wisdom.json.lock").mkdir()
    with pytest.warns(MltuneWarning, match="not added to the wisdom"):
        result = run(tmp_path / "run", wisdom=tmp_path / "wisdom.json")
    assert result.best is not None


@pytest.mark.parametrize("recorded", [7, [7], [{"BLK_M": "64"}], [{"BLK_M": 2**60}], [{}] * 6])
@pytest.mark.sampled(2)
def test_a_damaged_record_of_what_was_known_is_told(run, recorded, tmp_path):
    result = run(tmp_path / "run")
    with Store.open(result.directory) as store:
        store.set_fact("wisdom", recorded)
    with pytest.raises(DamagedRunError, match="wisdom"):
        run(tmp_path / "run", 20)
