"""Why a winner wins: what is said follows from the records of a replay; nothing is said where they are silent."""

from dataclasses import replace

import pytest

import mltune
from mltune.records.declaration import Declaration, Finalist
from mltune.records.trial import TrialRecord
from mltune.records.trials import Trials
from mltune.results.run import TuneResult
from mltune.show import table, tables
from mltune.show.report.evidence import placed_of
from mltune.show.why import bound_and_reasons, why


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> TuneResult:
    run = tmp_path_factory.mktemp("why") / "run"
    return mltune.tune(trials=40, device="replay:h200-dgemm-tn-4096-random", run=run, progress=None)


def with_others(
    tuned: TuneResult, default: TrialRecord | None = None, second: TrialRecord | None = None, ratio: float = 1.3
) -> TuneResult:
    """Return the run with another default configuration and another runner-up."""
    best = tuned.best_record
    assert best is not None
    records = [
        replace(one, proposed_by="default" if default is not None and one.number == default.number else "model")
        for one in tuned.records
    ]
    finalists = [Finalist(best.number, 1e-3, 1e-3, 1e-3)]
    if second is not None:
        finalists.append(Finalist(second.number, ratio * 1e-3, 1e-3, 1e-3, ratio, ratio, ratio))
    declared = Declaration(best.number, tuple(finalists), None, rounds=0, as_of=len(records), verified=False)
    return replace(tuned, records=Trials.from_records(records, best.configuration), declaration=declared)


def spilling(tuned: TuneResult, number: int, spill_bytes: int, **facts: int) -> TuneResult:
    """Return the run, in which a trial spills."""
    best = tuned.best_record
    assert best is not None
    records = [
        replace(one, build=replace(one.build, spill_bytes=spill_bytes, **facts)) if one.number == number else one
        for one in tuned.records
        if one.build is not None
    ]
    return replace(tuned, records=Trials.from_records(records, best.configuration))


def slow_one(tuned: TuneResult) -> TrialRecord:
    return max(
        (one for one in tuned.measured if not getattr(one.build, "spill_bytes", 1)), key=lambda one: one.median_s or 0
    )


def test_the_bound_of_a_replay_is_the_first_line(tuned: TuneResult) -> None:
    best = tuned.best_record
    assert best is not None and tuned.best_time_s is not None  # noqa: PT018
    bound, (first, *_) = bound_and_reasons(tuned)
    assert bound is not None
    assert first == f"it reaches {100 * bound['share']:.1f} % of its upper bound, set by {bound['binding']}"
    assert 0.3 < bound["share"] <= 1


def test_what_spills_is_slower_for_that(tuned: TuneResult) -> None:
    other = slow_one(tuned)
    run = with_others(spilling(tuned, other.number, 640), second=other, ratio=1.5)
    assert "1.50 times as fast as the runner-up, with 0 bytes spilled a thread, not 640" in why(run)[1]


def test_the_default_is_compared_by_its_measurement(tuned: TuneResult) -> None:
    other = slow_one(tuned)
    run = with_others(spilling(tuned, other.number, 640), default=other)
    assert other.median_s is not None and run.best_time_s is not None  # noqa: PT018
    assert f"{other.median_s / run.best_time_s:.2f} times as fast as the default, with 0 bytes spilled" in why(run)[1]


def test_a_tie_needs_no_reason(tuned: TuneResult) -> None:
    other = slow_one(tuned)
    assert len(why(with_others(spilling(tuned, other.number, 640), second=other, ratio=1.005))) == 1


def test_of_a_kernel_that_is_not_known_only_what_the_compiler_said_is(tuned: TuneResult) -> None:
    other = slow_one(tuned)
    unknown = replace(tuned, header=replace(tuned.header, kernel="own"))
    assert placed_of(unknown) is None
    assert why(with_others(unknown, second=other)) == []
    (line,) = why(with_others(spilling(unknown, other.number, 640), second=other))
    assert line == "1.30 times as fast as the runner-up, with 0 bytes spilled a thread, not 640"


def test_nothing_is_said_where_nothing_succeeded(tuned: TuneResult) -> None:
    best = tuned.best_record
    assert best is not None
    assert why(replace(tuned, records=Trials.from_records([], best.configuration), declaration=None)) == []


def test_it_is_in_the_output_of_a_tune_and_of_show_and_in_the_report(
    tuned: TuneResult, capsys: pytest.CaptureFixture[str]
) -> None:
    document = mltune.summarise(tuned)
    assert document["why"] == why(tuned)
    table.show(tables.tuned(document))
    shown = " ".join(capsys.readouterr().out.split())
    assert all(line in shown for line in document["why"])
    assert mltune.summarise(tuned.directory)["why"] == document["why"]
    paths = mltune.report(tuned.directory)
    (entry,) = paths.document["winners"]
    assert entry["why"] == document["why"]
    for line in document["why"][1:]:
        assert line in paths.markdown.read_text()
        assert line in paths.html.read_text()
