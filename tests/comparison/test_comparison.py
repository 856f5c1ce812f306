"""A comparison is run in processes, resumed, split and joined; a process that dies affects only its job."""

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from mltune.comparison.clock import ended_seconds
from mltune.comparison.comparison import CompareCall, CompareRequest, Progress, compare_strategies, default_output
from mltune.comparison.jobs import OWN_S, run_jobs
from mltune.comparison.journal import Job, Journal, Outcome
from mltune.comparison.results import write_results
from mltune.comparison.simulation import Recording, RecordingSource, simulate
from mltune.comparison.strategies import named, strategy
from mltune.cost.model_file import load_card, load_model, save_model
from mltune.errors import DamagedRunError, ModelError, RunDirectoryError, RunError, UsageError
from mltune.files.folders import assets


@pytest.fixture(scope="session")
def source(tmp_path_factory: pytest.TempPathFactory) -> RecordingSource:
    """Return a bare table of 120 configurations, two of which failed."""
    path = tmp_path_factory.mktemp("tables") / "bowl.csv"
    lines = ["a,b,c,time_ms"]
    for a in range(6):
        for b in range(5):
            for c in (1, 2, 4, 8):
                time = (
                    "" if (a, b) == (0, 0) and c > 2 else f"{1 + (a - 3) ** 2 + (b - 1) ** 2 / 2 + abs(c - 4) / 9:.6f}"
                )
                lines.append(f"{a},{b},{c},{time}")
    path.write_text("\n".join(lines) + "\n")
    return RecordingSource("bowl", path, ("a", "b", "c"), "time_ms")


def request(source: RecordingSource, output: Path, **changes) -> CompareRequest:
    values = {"strategies": ("random", "astra"), "evaluations": 20, "seeds": 3, "processes": 1, "share": (1, 1)}
    values |= changes
    return CompareRequest(sources=(source,), output=output, **values | {"strategies": named(values["strategies"])[0]})


class Reported(list[int]):
    """The numbers of runs that have ended, one for each run that a comparison reports."""

    def __call__(self, progress: Progress) -> None:
        if progress.last:
            self.append(progress.done)


def test_every_job_is_run_once_and_a_second_comparison_runs_none(source: RecordingSource, tmp_path: Path) -> None:
    reported = Reported()
    first = compare_strategies(request(source, tmp_path, processes=2), reported)
    assert reported == [1, 2, 3, 4, 5, 6]
    again = compare_strategies(request(source, tmp_path), reported)
    assert len(reported) == 6
    for pair, runs in first.runs.items():
        assert runs.seeds == (0, 1, 2)
        np.testing.assert_array_equal(runs.best_s, again.runs[pair].best_s)


def test_more_seeds_go_on_from_those_that_are_there(written: Path, source: RecordingSource, tmp_path: Path) -> None:
    shutil.copy(written, tmp_path)
    reported = Reported()
    more = compare_strategies(request(source, tmp_path, seeds=4), reported)
    assert reported == [7, 8]
    assert more.runs["random", "bowl"].seeds == (0, 1, 2, 3)


def test_a_strategy_may_have_fewer_seeds(source: RecordingSource, tmp_path: Path) -> None:
    comparison = compare_strategies(request(source, tmp_path, fewer_seeds={"astra": 2}))
    assert comparison.runs["random", "bowl"].seeds == (0, 1, 2)
    assert comparison.runs["astra", "bowl"].seeds == (0, 1)


def test_shares_are_disjoint_and_are_joined(source: RecordingSource, tmp_path: Path) -> None:
    shares = [request(source, tmp_path, seeds=5, share=(part, 2)) for part in (1, 2)]
    jobs = [set(share.jobs()) for share in shares]
    assert not jobs[0] & jobs[1]
    assert jobs[0] | jobs[1] == set(request(source, tmp_path, seeds=5).jobs())
    for share in shares:
        part = compare_strategies(share)
        assert (part.runs, part.missing, part.errors, part.directory) == (len(share.jobs()), 0, {}, tmp_path)
        assert part.to_json()["share"] == f"{share.share[0]}/2"
    reported = Reported()
    joined = compare_strategies(request(source, tmp_path, seeds=5), reported)
    assert not reported
    assert joined.runs["random", "bowl"].seeds == (0, 1, 2, 3, 4)


def test_an_interrupted_comparison_keeps_what_has_ended(source: RecordingSource, tmp_path: Path) -> None:
    def interrupt(progress) -> None:
        if progress.done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        compare_strategies(request(source, tmp_path), interrupt)
    reported = Reported()
    compare_strategies(request(source, tmp_path), reported)
    assert reported == [3, 4, 5, 6]


def test_a_comparison_that_is_stopped_returns_what_has_ended(source: RecordingSource, tmp_path: Path) -> None:
    reported = Reported()
    stopped = compare_strategies(request(source, tmp_path, processes=1), reported, lambda: len(reported) == 2)
    assert stopped.missing == 4
    assert {runs.seeds for runs in stopped.runs.values()} == {(0,)}
    assert write_results(stopped, tmp_path)["missing"] == 4
    assert compare_strategies(request(source, tmp_path)).missing == 0


def test_a_comparison_that_is_stopped_at_once_says_that_it_goes_on(source: RecordingSource, tmp_path: Path) -> None:
    with pytest.raises(RunError, match="the same command goes on"):
        compare_strategies(request(source, tmp_path), None, lambda: True)


def test_what_there_is_to_know_is_said_before_the_first_run(source: RecordingSource, tmp_path: Path) -> None:
    said: list[Progress] = []
    found = compare_strategies(request(source, tmp_path, strategies=("tpe",)), said.append)
    messages = [one.message for one in said if one.message]
    account = "120 rows, 120 distinct, 2 failed; 120 of 120 configurations have no compile seconds: 1 s each is assumed"
    assert messages == [f"bowl: {account}", f"3 runs in {tmp_path}"]
    assert said[0].left_s is None
    assert said[1].left_s == pytest.approx(3 * 20 * OWN_S["tpe"])
    assert said[-1].left_s is None
    assert found.summary["datasets"]["bowl"]["account"] == account


class Deadly:
    """Times that end the process that looks at them."""

    def tolist(self):
        os._exit(7)


class Failing:
    """Times that cannot be read."""

    def tolist(self):
        raise UsageError("no times here")


def with_times(recording: Recording, times: object) -> Recording:
    changed = replace(recording)
    object.__setattr__(changed, "median_s", times)
    return changed


def test_a_process_that_dies_takes_no_other_job_with_it(source: RecordingSource) -> None:
    recording = source.load()
    recordings = {
        "bowl": recording,
        "deadly": with_times(recording, Deadly()),
        "failing": with_times(recording, Failing()),
    }
    jobs = [Job("random", dataset, seed) for seed in range(2) for dataset in recordings]
    outcomes = list(run_jobs(jobs, recordings, named(["random"])[0], 10, 2))
    assert {one.job for one in outcomes} == set(jobs)
    for one in outcomes:
        if one.job.dataset == "bowl":
            assert len(one.trace.indices) == 10
        else:
            assert (
                one.reason
                == {
                    "deadly": "the worker process died: exit status 7",
                    "failing": "no times here",
                }[one.job.dataset]
            )


def edit(journal: Path, change: Callable[[dict], object]) -> None:
    """Change each run of a journal."""
    lines = [json.loads(line) for line in journal.read_text().splitlines()]
    for line in lines:
        if "strategy" in line:
            change(line)
    journal.write_text("".join(f"{json.dumps(line)}\n" for line in lines))


def test_a_job_that_fails_is_recorded_and_tried_again(written: Path, source: RecordingSource, tmp_path: Path) -> None:
    def fail(run: dict) -> None:
        if run["strategy"] == "astra":
            run |= {"builds": None, "error": "Traceback\nValueError: lost\x1b[2J\n"}

    wanted = request(source, tmp_path)
    shutil.copy(written, tmp_path)
    edit(tmp_path / "runs-1of1.jsonl", fail)
    reported = Reported()
    found = compare_strategies(wanted, reported, lambda: True)
    assert found.strategies == ("random",)
    assert {(job.strategy, error) for job, error in found.errors.items()} == {("astra", "ValueError: lost [2J")}
    assert compare_strategies(wanted, reported).strategies == ("random", "astra")
    assert reported == [4, 5, 6]
    assert not compare_strategies(wanted, reported, lambda: True).errors


def test_a_comparison_without_any_run_says_why(source: RecordingSource, tmp_path: Path) -> None:
    wanted = request(source, tmp_path, strategies=("astra",))
    compare_strategies(wanted)
    edit(tmp_path / "runs-1of1.jsonl", lambda run: run.update(builds=None, error="no power"))
    with pytest.raises(RunError, match="no power"):
        compare_strategies(wanted, None, lambda: True)


@pytest.mark.parametrize("name", ["runs-1of1.jsonl", "runs-2of2.jsonl", "summary.json"])
def test_nothing_is_written_through_a_link(source: RecordingSource, tmp_path: Path, name: str) -> None:
    (tmp_path / "canary").write_text("")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / name).symlink_to("../canary")
    with pytest.raises(RunDirectoryError, match=f"{name} is a link to ../canary"):
        compare_strategies(request(source, tmp_path / "out"))
    assert (tmp_path / "canary").read_text() == ""


def test_another_comparison_does_not_mix_with_this_one(written: Path, source: RecordingSource, tmp_path: Path) -> None:
    shutil.copy(written, tmp_path)
    with pytest.raises(RunDirectoryError, match="evaluations"):
        compare_strategies(request(source, tmp_path, evaluations=21))
    changed = tmp_path / "bowl.csv"
    changed.write_text(source.table.read_text().replace("1.5", "1.6"))
    with pytest.raises(RunDirectoryError, match=r"content of dataset bowl .* the same"):
        compare_strategies(request(RecordingSource("bowl", changed, ("a", "b", "c"), "time_ms"), tmp_path))


@pytest.fixture(scope="session")
def written(source: RecordingSource, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the journal of a comparison."""
    folder = tmp_path_factory.mktemp("comparison")
    compare_strategies(request(source, folder))
    return folder / "runs-1of1.jsonl"


def with_evaluation(index: object, own_s: object, recorded_s: object) -> Callable[[dict], object]:
    return lambda run: run["builds"].__setitem__(0, [index, True, 0, own_s, recorded_s])


@pytest.mark.parametrize(
    "damage",
    [
        lambda run: run.update(seed=9),
        lambda run: run.update(builds=run["builds"] * 2),
        with_evaluation(120, 0.0, 0.0),
        with_evaluation(-1, 0.0, 0.0),
        with_evaluation(1.5, 0.0, 0.0),
        with_evaluation(0, float("nan"), 0.0),
        with_evaluation(0, 0.0, -1.0),
        with_evaluation(0, 0.0, None),
        lambda run: run["builds"][3].__setitem__(2, 4),
        lambda run: run["builds"][-1].__setitem__(1, False),
        lambda run: run.update(repeats=-1),
        lambda run: run.update(invalid=None),
        lambda run: run.update(more=1),
        *(lambda run, told=told: run.update(told=told) for told in ([1, 0], [-1], [0, 0], [2**40], "0", [0.5])),
    ],
)
@pytest.mark.sampled(2, nightly=99)
def test_a_run_that_was_lost_or_damaged_is_done_again(
    written: Path, source: RecordingSource, tmp_path: Path, damage
) -> None:
    shutil.copyfile(written, tmp_path / written.name)
    edit(tmp_path / written.name, lambda run: damage(run) if (run["strategy"], run["seed"]) == ("random", 1) else None)
    reported = Reported()
    again = compare_strategies(request(source, tmp_path), reported)
    assert reported == [6]
    first = compare_strategies(request(source, written.parent))
    for pair, runs in first.runs.items():
        np.testing.assert_array_equal(runs.best_s, again.runs[pair].best_s)


def test_the_order_in_which_results_were_told_is_kept(recording: Recording, tmp_path: Path) -> None:
    job = Job("mltune:compilers=8", recording.name, 0)
    uneven = replace(recording, compile_s=np.random.default_rng(0).lognormal(size=recording.space.count))
    trace = simulate(strategy(job.strategy), uneven, 40, 0)
    assert trace.told.tolist() != sorted(trace.told.tolist())
    journal, planned = Journal(tmp_path, {"evaluations": 40}), ([job], {recording.name: recording.space.count}, 40)
    journal.begin(*planned)
    journal.add(Outcome(job, trace))
    kept = journal.begin(*planned)[job].trace
    np.testing.assert_array_equal(kept.told, trace.told)
    np.testing.assert_array_equal(ended_seconds(kept, uneven, 8), ended_seconds(trace, uneven, 8))


@pytest.mark.parametrize(("whole", "more"), [(0, 0), (1, 0), (1, 40), (3, 500), (6, -2)])
@pytest.mark.sampled(2, nightly=17)
def test_what_is_left_of_a_journal_is_continued(
    written: Path, source: RecordingSource, tmp_path: Path, whole: int, more: int
) -> None:
    """A kill or a full disk may leave an empty file, or a part of the last line; the first line has the facts."""
    lines = written.read_bytes().splitlines(keepends=True)
    (tmp_path / written.name).write_bytes(b"".join(lines[:whole]) + (lines[whole][:more] if more else b""))
    reported = Reported()
    again = compare_strategies(request(source, tmp_path), reported)
    assert reported == list(range(max(whole, 1), 7))
    for pair, runs in compare_strategies(request(source, written.parent)).runs.items():
        np.testing.assert_array_equal(runs.best_s, again.runs[pair].best_s)
    assert compare_strategies(request(source, tmp_path), reported).missing == 0
    assert len(reported) == 7 - max(whole, 1)


def test_seconds_are_kept_exactly(source: RecordingSource, tmp_path: Path) -> None:
    first = compare_strategies(request(source, tmp_path, seeds=1))
    again = compare_strategies(request(source, tmp_path, seeds=1))
    for pair, runs in first.runs.items():
        np.testing.assert_array_equal(runs.spent_s, again.runs[pair].spent_s)


@pytest.mark.parametrize("name", ["runs-1of1.jsonl", "runs-2of2.jsonl"])
@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.write_bytes(b"garbage" * 1000),
        lambda path: path.write_bytes(b"\n\n"),
        lambda path: path.write_bytes(path.read_bytes()[40:]),
        lambda path: path.write_bytes(b"[" * 100_000),
        lambda path: path.write_bytes(b'{"facts": {"evaluations": [20]}}\n'),
    ],
)
def test_what_is_no_journal_is_refused(
    written: Path, source: RecordingSource, tmp_path: Path, name: str, damage
) -> None:
    shutil.copyfile(written, tmp_path / name)
    damage(tmp_path / name)
    with pytest.raises(DamagedRunError, match=name) as refusal:
        compare_strategies(request(source, tmp_path))
    assert str(refusal.value).isprintable()


def test_the_same_command_finds_its_directory(source: RecordingSource) -> None:
    where = default_output(["tpe", "random"], [source], 400)
    assert where == default_output(["random", "tpe"], [source], 400)
    others = [
        default_output(["tpe"], [source], 400),
        default_output(["tpe", "random"], [replace(source, parameters=("a", "b"))], 400),
        default_output(["tpe", "random"], [replace(source, table=Path("other.csv"))], 400),
        default_output(["tpe", "random"], [source], 200),
    ]
    assert len({where, *others}) == 5


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"share": "3/2"}, "share"),
        ({"share": "half"}, "share"),
        ({"strategies": "nosuch"}, "nosuch"),
        ({"strategies": "randm"}, "did you mean 'random'"),
        ({"aggregate": True}, "--table"),
        ({"strategies": "random,random"}, "once"),
        ({"strategies": "random@0"}, "SEEDS"),
        ({"datasets": "a", "table": Path("b.csv")}, "both"),
        ({"time_column": "time_ms"}, "--table"),
        ({"compile_cores": "0"}, "cannot be '0': they are whole numbers from 1 to 4096, such as 1,16"),
        ({"compile_cores": "16,-2"}, "cannot be '-2'"),
        ({"compile_cores": "99999999999999999999"}, "from 1 to 4096"),
    ],
)
def test_what_cannot_be_compared_is_refused(wrong: dict, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        CompareCall(**({"strategies": "random", "evaluations": 10, "seeds": 1} | wrong)).request()


def test_the_score_over_time_is_that_of_each_number_of_cores(source: RecordingSource, tmp_path: Path) -> None:
    strategies = ("mltune:batch=4:in_flight=1", "random")
    comparison = compare_strategies(
        request(source, tmp_path, strategies=strategies, cores=(1, 4), evaluations=60, seeds=1)
    )
    assert comparison.strategies == strategies, "searches with some cores are no strategies of their own"
    found = comparison.summary["strategies"]
    assert {name: [*one["over_time"]] for name, one in found.items()} == {name: ["1", "4"] for name in found}
    ours, theirs = (found[name]["over_time"] for name in strategies)
    assert theirs["1"] == theirs["4"], "one by one more cores do not help"
    assert ours["4"]["score"] > ours["1"]["score"]
    assert ours["4"]["to"]["0.95"]["seconds"] < ours["1"]["to"]["0.95"]["seconds"]
    assert ours["4"]["datasets"]["bowl"]["score"] == ours["4"]["score"]
    budget = comparison.summary["datasets"]["bowl"]["budget"]
    assert budget["seconds"] == pytest.approx(budget["evaluations"] * comparison.recordings["bowl"].evaluation_s)


def test_seconds_are_those_of_the_search_with_so_many_cores(source: RecordingSource, tmp_path: Path) -> None:
    played = compare_strategies(request(source, tmp_path, strategies=("mltune", "random"), cores=(4,)))
    assert ("mltune:compilers=4", "bowl") in played.runs
    other = {("mltune:compilers=4", "bowl"): played.runs["random", "bowl"]}
    found = replace(played, runs={**played.runs, **other}).summary["strategies"]
    assert found["mltune"]["over_time"] == found["random"]["over_time"]
    assert found["mltune"]["score"] == played.summary["strategies"]["mltune"]["score"] != found["random"]["score"]


def test_a_strategy_with_fewer_seeds_has_them_with_all_cores(source: RecordingSource, tmp_path: Path) -> None:
    wanted = request(source, tmp_path, strategies=("mltune", "random"), fewer_seeds={"mltune": 1}, cores=(1, 4))
    names = [job.strategy for job in wanted.jobs() if job.seed]
    assert [job.strategy for job in wanted.jobs()][:4] == [
        "mltune",
        "random",
        "mltune:compilers=1",
        "mltune:compilers=4",
    ]
    assert set(names) == {"random"}


SOFTMAX = "h200-softmax-16384x4096-random"


@pytest.fixture
def other_model(tmp_path: Path) -> Path:
    """Return a model of softmax whose card names other datasets."""
    card = json.loads((assets("models") / "softmax.json").read_text())
    (known,) = card["facts"]["datasets"].values()
    card["facts"]["datasets"] = {"elsewhere": known | {"device": "another GPU"}}
    (tmp_path / "other.json").write_text(json.dumps(card))
    shutil.copyfile(assets("models") / "softmax.npy", tmp_path / "other.npy")
    return tmp_path / "other"


def test_a_model_is_replayed_and_what_it_has_seen_is_said(
    other_model: Path, source: RecordingSource, tmp_path: Path
) -> None:
    own = f"mltune:prior={other_model}"
    asked = {"strategies": ("mltune", "mltune:prior=auto", own), "evaluations": 3, "seeds": 1}
    found = compare_strategies(request(RecordingSource(SOFTMAX), tmp_path / "out", **asked))
    seen, unseen = found.recordings[SOFTMAX].notices
    assert seen.startswith("mltune:prior=auto starts from the model softmax, which has learned from this dataset")
    assert seen.endswith(f"trained on {SOFTMAX}")
    assert (
        unseen
        == f"{own} starts from the model other, which has not seen this problem on this GPU; trained on elsewhere"
    )
    assert found.summary["datasets"][SOFTMAX]["notices"] == [seen, unseen]
    first = {name: runs.traces[0].indices.tolist() for (name, _), runs in found.runs.items()}
    assert first["mltune:prior=auto"] == first[own] != first["mltune"]
    without = compare_strategies(request(source, tmp_path / "without", strategies=("mltune:prior=auto",), seeds=1))
    assert without.recordings["bowl"].notices == ("there is no model, and mltune:prior=auto searches without one",)
    shutil.copyfile(assets("models") / "transpose.npy", other_model.with_suffix(".npy"))
    shutil.copyfile(assets("models") / "transpose.json", other_model.with_suffix(".json"))
    with pytest.raises(ModelError, match="other is a model of transpose"):
        compare_strategies(request(RecordingSource(SOFTMAX), tmp_path / "out", **asked))


def test_another_model_does_not_continue_the_runs(other_model: Path, tmp_path: Path) -> None:
    asked = {"strategies": (f"mltune:prior={other_model}",), "evaluations": 2, "seeds": 1}
    compare_strategies(request(RecordingSource(SOFTMAX), tmp_path / "out", **asked))
    card = load_card(other_model)
    model = load_model(other_model)
    save_model(replace(model, members=model.members * 2), other_model)
    assert load_card(other_model).sha256 != card.sha256
    with pytest.raises(RunDirectoryError, match="content of strategy mltune:prior="):
        compare_strategies(request(RecordingSource(SOFTMAX), tmp_path / "out", **asked))


def test_results_are_written_and_agree(source: RecordingSource, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    import pyarrow.parquet as pq

    comparison = compare_strategies(request(source, tmp_path, evaluations=60, seeds=6))
    document = write_results(comparison, tmp_path, {"table.md": "é"})
    assert (tmp_path / "table.md").read_text() == "é"
    assert json.loads((tmp_path / "summary.json").read_text()) == document
    for found in document["strategies"].values():
        assert [*found["at"]] == ["1", "2", "3", "5", "10", "25", "50"]
        low, high = found["score_interval"]
        assert low <= found["score"] <= high
        assert set(found["to"]) == {"0.95", "0.98", "0.99"}
        assert found["seeds"] == 6
    assert [one["second"] for one in document["significance"]] == [list(document["strategies"])[1]]
    table = pq.read_table(tmp_path / "evaluations.parquet").to_pandas()
    assert len(table) == 2 * 6 * 60
    last = table[(table.strategy == "random") & (table.evaluation == 25)].fraction.mean()
    assert last == pytest.approx(document["strategies"]["random"]["at"]["25"], rel=1e-6)
    for name in ("curves.svg", "curves.png", "curves-spaces.svg", "curves-spaces.png"):
        assert (tmp_path / name).stat().st_size > 1000
