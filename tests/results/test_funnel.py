"""The funnel of a run: its stages add up, in one part or two, and what is not on record is named."""

import dataclasses
import io
import json
import shutil
from pathlib import Path

import pytest
from imaginary_gpu import HOSTILE, PROBLEM, ImaginaryBuilder, built, imaginary_runner
from rich.console import Console

from mltune.dataset.dataset import load_dataset
from mltune.device.known import H200
from mltune.kernel.placed import PlacedKernel
from mltune.kernel.reader import load_kernel
from mltune.kernel.space import TableSpace
from mltune.records.store import Store
from mltune.records.trial import GATES, Build, Measurement, Skip, TrialRecord, TrialState
from mltune.records.trials import Trials
from mltune.resolve.device import Target
from mltune.resolve.request import TuneRequest
from mltune.results.funnel import funnel_of, total
from mltune.results.reader import read_run
from mltune.results.summary import summarise_campaign, summarise_run
from mltune.show.report.writing import write_report
from mltune.show.tables import campaign_summary, run_summary
from mltune.tuning import tuner
from mltune.tuning.session import Session
from mltune.tuning.tuner import tune

GOLDEN = Path(__file__).parents[1] / "golden"
DATASET = "h200-sgemm-nt-4096-complete"


def search(run, trials=100, **options):
    manifest = load_dataset(DATASET).manifest
    kernel, target = load_kernel(manifest.kernel), Target(dataset=DATASET)
    return tune(TuneRequest(manifest.problem, kernel, target, trials=trials, run=run, **options))


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return search(tmp_path_factory.mktemp("funnel") / "run")


def printed(renderables):
    output = Console(file=io.StringIO(), width=400)
    output.print(*renderables)
    return output.file.getvalue()


def adds_up(found):
    assert found.proposed == found.skipped_before + found.compiled
    assert found.compiled == found.skipped_after + found.failed + found.measured
    assert min(count or 0 for count in dataclasses.astuple(found)) >= 0


def test_stages_of_a_replay_add_up(whole):
    found = whole.funnel

    adds_up(found)
    assert found.valid == load_dataset(DATASET).manifest.rows
    assert found.compiled == 100 == len(whole.records)
    assert found.valid >= found.scored == whole.scored > 10 * found.proposed
    assert found.skipped_before > 50, "three are proposed for each, and some of them again"
    assert found.skipped_after == whole.counts["skipped"] > 0
    assert whole.audit.skipped == found.skipped_before + found.skipped_after
    assert found.measured == len(whole.measured)
    assert found.finalists == len(whole.declaration.finalists) > 1
    assert read_run(whole.directory).funnel == found
    assert whole.to_json()["funnel"] == found.to_json()


@pytest.mark.nightly
def test_a_run_in_two_parts_has_the_funnel_of_the_whole(whole, tmp_path):
    first = search(tmp_path / "run", trials=37).funnel  # it ends within a batch
    assert 0 < first.scored <= whole.funnel.scored

    assert search(tmp_path / "run").funnel == whole.funnel
    assert search(tmp_path / "run").funnel == whole.funnel, "nothing is counted twice"


class Builder(ImaginaryBuilder):
    """A builder to which every fourth kernel is too much."""

    def __init__(self):
        pass

    def submit(self, configuration):
        at = configuration["REPEAT"]
        return built(time_s=2e-3 + 1e-5 * at, noise=0.001, deed="" if at % 4 else "no build")


def test_stages_on_a_gpu_add_up_in_one_part_and_in_two(tmp_path, idle_workers, monkeypatch):
    kernel, space = load_kernel(HOSTILE), TableSpace({"MISDEED": [0] * 200, "REPEAT": list(range(200))})

    def opened(*_, **__):
        runner = imaginary_runner(kernel=kernel, pool=idle_workers.pool)
        return Session(
            PlacedKernel(kernel, PROBLEM, H200, space), Builder(), runner, {"driver": "13.0"}, gpu=runner, compilers=2
        )

    def tuned(name, trials):
        options = {"run": tmp_path / name, "trials": trials, "wisdom": "none", "prior": "none", "stop": False}
        return tune(TuneRequest(PROBLEM, kernel, Target(cuda=0), **options))

    monkeypatch.setattr(tuner, "open_session", opened)
    part, rest, whole = tuned("parts", 40), tuned("parts", 72), tuned("whole", 72)
    for result, trials in ((part, 40), (whole, 72)):
        found = result.funnel
        adds_up(found)
        assert (found.valid, found.compiled, result.compilers) == (200, trials, 2)
        assert found.scored == 200 - 8 - 4, "no model scored the first two batches: a kernel of the first failed"
        assert found.failed == result.counts["crashed"] > 0
        assert found.finalists > 1
    adds_up(rest.funnel)  # the order in which trials end may differ, and the outcomes with it
    assert (rest.funnel.valid, rest.funnel.compiled, rest.funnel.scored) == (200, 72, 200 - 8 - 4)


def test_where_chance_proposes_nothing_is_scored(tmp_path):
    found = search(tmp_path / "run", trials=20, search="random", skip=False, stop=False).funnel

    adds_up(found)
    assert (found.scored, found.not_proposed_saved_s, found.before_saved_s, found.after_saved_s) == (0, 0.0, 0.0, 0.0)


def test_saved_seconds_follow_from_the_rates_of_the_run():
    """Two compilers make a build in 1 s, the GPU takes .25 s: what is not compiled saves the former."""
    ok, measured = (
        Build(TrialState.OK, compile_s=2.0),
        Measurement(TrialState.OK, median_s=1e-3, verify_s=0.05, time_s=0.2),
    )
    before, after = (Skip(gate, -2.0, -1.5) for gate in GATES)
    outcomes = [
        *([(TrialState.OK, None, ok, measured)] * 3),
        *([(TrialState.SKIPPED, before, None, None)] * 4),
        *([(TrialState.SKIPPED, after, ok, None)] * 5),
        (TrialState.COMPILE_ERROR, None, Build(TrialState.COMPILE_ERROR, compile_s=2.0), None),
    ]
    records = [
        TrialRecord(at, 0, at, {"P": at}, state, skip=skip, build=build, measurement=timed)
        for at, (state, skip, build, timed) in enumerate(outcomes)
    ]
    trials = Trials.from_records(records, ["P"])
    found = funnel_of(trials, valid=10**13, scored=133, never_compiled=20, finalists=2, compilers=2)

    adds_up(found)
    assert (found.skipped_before, found.compiled, found.skipped_after, found.failed, found.measured) == (24, 9, 5, 1, 3)
    assert (found.not_proposed_saved_s, found.before_saved_s, found.after_saved_s) == pytest.approx((100.0, 24.0, 1.25))
    by_gpu = funnel_of(trials, valid=None, scored=None, never_compiled=0, finalists=0, compilers=16)
    assert (by_gpu.not_proposed_saved_s, by_gpu.before_saved_s) == (None, pytest.approx(1.0)), "the GPU is the busier"

    both = total([found, by_gpu])
    adds_up(both)
    assert (both.valid, both.scored, both.proposed, both.finalists) == (None, None, 46, 2)


def test_a_run_of_an_earlier_version_says_which_stage_is_not_on_record(tmp_path):
    run = shutil.copytree(GOLDEN / "run-format-3", tmp_path / "run")
    found = read_run(run).funnel

    adds_up(found)
    assert (found.valid, found.scored, found.not_proposed_saved_s) == (5000, None, None)
    text = printed(run_summary(summarise_run(read_run(run), 3)))
    assert text.count("not on record") == 1
    report = write_report(run, tmp_path / "report", quick=True)
    for page in (report.html, report.markdown):
        assert page.read_text().count("not on record") == 1
    assert report.document["funnel"] == found.to_json()


def test_an_earlier_run_that_goes_on_has_no_count_of_its_end_alone(tmp_path):
    search(tmp_path / "run", trials=20)
    with Store.open(tmp_path / "run") as store:
        store.set_fact("scored", None)
        store.set_fact("skipped", None)

    found = search(tmp_path / "run", trials=60).funnel
    adds_up(found)
    assert (found.proposed, found.compiled, found.scored) == (60, 60, None)


@pytest.mark.parametrize(
    ("scored", "stages"),
    [
        ([-3], {"valid": "-3", "compilers": -3}),
        ([1.5], {"valid": "1.5", "compilers": "many"}),
        ("many", "many"),
        ([2**60], {"valid": 5320, "compilers": 0}),
        ({"1": 2}, {"valid": "٣", "compilers": [8]}),
        ([[]], {"valid": "9" * 5000, "compilers": True}),
        (7, [None]),
    ],
)
def test_damaged_counts_are_not_on_record(scored, stages, whole, tmp_path):
    run = shutil.copytree(whole.directory, tmp_path / "run")
    with Store.open(run) as store:
        store.set_fact("scored", scored)
        store.set_fact("skipped", scored)
        store.set_fact("stages", stages)
    found = read_run(run).funnel

    adds_up(found)
    assert (found.scored, found.skipped_before) == (None, 0)
    assert found.valid in (None, whole.funnel.valid), "the header has it, too"
    assert found.after_saved_s == whole.funnel.after_saved_s
    json.dumps(summarise_run(read_run(run), 3), allow_nan=False)
    assert "not on record" in printed(run_summary(summarise_run(read_run(run), 3)))


def test_a_campaign_has_the_sums(whole, tmp_path):
    (tmp_path / "plan.toml").write_text("")
    for slug in ("one", "two"):
        shutil.copytree(whole.directory, tmp_path / "problems" / slug)
    document = summarise_campaign(tmp_path)

    one = whole.funnel
    assert document["funnel"] == total([one, one]).to_json() == write_report(tmp_path, quick=True).document["funnel"]
    assert document["funnel"]["measured"] == 2 * one.measured
    assert [entry["funnel"] for entry in document["problems"]] == [one.to_json()] * 2
    assert f"{2 * one.valid:,}" in printed(campaign_summary(document))


def test_a_campaign_that_has_not_begun_is_empty(tmp_path):
    (tmp_path / "plan.toml").write_text("")
    assert not any(summarise_campaign(tmp_path)["funnel"].values())
