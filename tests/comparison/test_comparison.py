"""A comparison is run in processes, resumed, split and joined; a process that dies affects only its job."""

import json
import os
import sqlite3
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from mltune.comparison.comparison import compare
from mltune.comparison.jobs import run_jobs
from mltune.comparison.journal import Job, Journal
from mltune.comparison.recording import Source
from mltune.comparison.request import CompareRequest, compare_request
from mltune.comparison.results import write_results
from mltune.errors import RunDirectoryError, RunError, UsageError


@pytest.fixture(scope="session")
def source(tmp_path_factory: pytest.TempPathFactory) -> Source:
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
    return Source("bowl", path, ("a", "b", "c"), "time_ms")


def request(source: Source, output: Path, **changes) -> CompareRequest:
    values = {"strategies": ("random", "astra"), "evaluations": 20, "seeds": 3, "processes": 2, "share": (1, 1)}
    return CompareRequest(sources=(source,), output=output, **(values | changes))


def test_every_job_is_run_once_and_a_second_comparison_runs_none(source: Source, tmp_path: Path) -> None:
    reported: list[int] = []
    first = compare(request(source, tmp_path), lambda progress: reported.append(progress.done))
    assert reported == [1, 2, 3, 4, 5, 6]
    again = compare(request(source, tmp_path), lambda progress: reported.append(-1))
    assert -1 not in reported
    for pair, runs in first.runs.items():
        assert runs.seeds == (0, 1, 2)
        np.testing.assert_array_equal(runs.best_s, again.runs[pair].best_s)


def test_more_seeds_go_on_from_those_that_are_there(source: Source, tmp_path: Path) -> None:
    compare(request(source, tmp_path))
    reported: list[int] = []
    more = compare(request(source, tmp_path, seeds=4), lambda progress: reported.append(progress.jobs))
    assert reported == [8, 8]
    assert more.runs["random", "bowl"].seeds == (0, 1, 2, 3)


def test_a_strategy_may_have_fewer_seeds(source: Source, tmp_path: Path) -> None:
    comparison = compare(request(source, tmp_path, fewer_seeds={"astra": 2}))
    assert comparison.runs["random", "bowl"].seeds == (0, 1, 2)
    assert comparison.runs["astra", "bowl"].seeds == (0, 1)


def test_shares_are_disjoint_and_are_joined(source: Source, tmp_path: Path) -> None:
    shares = [request(source, tmp_path, seeds=5, share=(part, 2)) for part in (1, 2)]
    jobs = [set(share.jobs()) for share in shares]
    assert not jobs[0] & jobs[1]
    assert jobs[0] | jobs[1] == set(request(source, tmp_path, seeds=5).jobs())
    assert all(compare(share) is None for share in shares)
    reported: list[int] = []
    joined = compare(request(source, tmp_path, seeds=5), lambda progress: reported.append(1))
    assert not reported
    assert joined.runs["random", "bowl"].seeds == (0, 1, 2, 3, 4)


def test_an_interrupted_comparison_keeps_what_has_ended(source: Source, tmp_path: Path) -> None:
    def interrupt(progress) -> None:
        if progress.done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        compare(request(source, tmp_path), interrupt)
    reported: list[int] = []
    compare(request(source, tmp_path), lambda progress: reported.append(progress.done))
    assert reported == [3, 4, 5, 6]


def test_a_job_that_fails_is_recorded_and_tried_again(source: Source, tmp_path: Path) -> None:
    pytest.importorskip("kernel_tuner")
    with_failure = request(source, tmp_path, strategies=("random", "kernel_tuner:nosuch"))
    comparison = compare(with_failure)
    assert comparison.strategies == ("random",)
    assert {job.strategy for job in comparison.errors} == {"kernel_tuner:nosuch"}
    assert "nosuch" in next(iter(comparison.errors.values()))
    reported: list[int] = []
    compare(with_failure, lambda progress: reported.append(progress.failed))
    assert reported == [1, 2, 3]


def test_a_comparison_without_any_run_says_why(source: Source, tmp_path: Path) -> None:
    with pytest.raises(RunError, match="nosuch"):
        compare(request(source, tmp_path, strategies=("kernel_tuner:nosuch",)))


class Deadly(Source):
    """A source that kills the process that loads it."""

    def load(self):
        os._exit(7)


def test_a_process_that_dies_takes_no_other_job_with_it(source: Source) -> None:
    jobs = [Job("random", dataset, seed) for seed in range(2) for dataset in ("bowl", "deadly")]
    outcomes = list(run_jobs(jobs, {"bowl": source, "deadly": Deadly("deadly")}, 10, 2))
    assert {one.job for one in outcomes} == set(jobs)
    for one in outcomes:
        if one.job.dataset == "deadly":
            assert "exit status 7" in one.error
        else:
            assert len(one.trace.indices) == 10


@pytest.mark.parametrize("name", ["runs-1of1.sqlite", "runs-1of1.sqlite-wal", "summary.json", "curves.svg"])
def test_nothing_is_written_through_a_link(source: Source, tmp_path: Path, name: str) -> None:
    (tmp_path / "canary").write_text("")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / name).symlink_to("../canary")
    with pytest.raises(RunDirectoryError, match=f"{name} is a link to ../canary"):
        compare(request(source, tmp_path / "out"))
    assert (tmp_path / "canary").read_text() == ""


def test_another_comparison_does_not_mix_with_this_one(source: Source, tmp_path: Path) -> None:
    compare(request(source, tmp_path))
    with pytest.raises(RunDirectoryError, match="evaluations"):
        compare(request(source, tmp_path, evaluations=21))
    changed = tmp_path / "bowl.csv"
    changed.write_text(source.table.read_text().replace("1.5", "1.6"))
    with pytest.raises(RunDirectoryError, match="dataset bowl"):
        compare(request(Source("bowl", changed, ("a", "b", "c"), "time_ms"), tmp_path))


def test_a_run_that_was_lost_is_done_again(source: Source, tmp_path: Path) -> None:
    compare(request(source, tmp_path))
    with closing(sqlite3.connect(tmp_path / "runs-1of1.sqlite", isolation_level=None)) as database:
        database.execute("delete from runs where seed = 1")
    with closing(Journal(tmp_path, {})) as journal:
        assert {job.seed for job in journal.done()} == {0, 2}


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"share": "3/2"}, "share"),
        ({"share": "half"}, "share"),
        ({"strategies": "nosuch"}, "nosuch"),
        ({"strategies": "random,random"}, "once"),
        ({"strategies": "random@0"}, "SEEDS"),
        ({"datasets": "a", "table": Path("b.csv")}, "both"),
        ({"times": "time_ms"}, "--table"),
    ],
)
def test_what_cannot_be_compared_is_refused(wrong: dict, message: str) -> None:
    asked = {"strategies": "random", "datasets": None, "table": None, "parameters": None, "times": None}
    asked |= {"evaluations": 10, "seeds": 1, "processes": 1, "output": None, "share": "1/1"}
    with pytest.raises(UsageError, match=message):
        compare_request(**(asked | wrong))


def test_results_are_written_and_agree(source: Source, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    import pyarrow.parquet as pq

    comparison = compare(request(source, tmp_path, evaluations=60, seeds=6))
    document = write_results(comparison, tmp_path)
    assert json.loads((tmp_path / "summary.json").read_text()) == document
    for found in document["strategies"].values():
        assert set(found["at"]) == {"25", "50"}
        assert set(found["to"]) == {"0.95", "0.98", "0.99"}
        assert found["seeds"] == 6
    assert [one["second"] for one in document["significance"]] == [list(document["strategies"])[1]]
    table = pq.read_table(tmp_path / "evaluations.parquet").to_pandas()
    assert len(table) == 2 * 6 * 60
    last = table[(table.strategy == "random") & (table.evaluation == 25)].fraction.mean()
    assert last == pytest.approx(document["strategies"]["random"]["at"]["25"], rel=1e-6)
    assert "| random |" in (tmp_path / "table.md").read_text()
    for name in ("curves.svg", "curves.png", "curves-spaces.svg", "curves-spaces.png"):
        assert (tmp_path / name).stat().st_size > 1000
