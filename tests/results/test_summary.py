"""The summary of a run, as a document and as a table."""

import io
from dataclasses import replace

import pytest
from rich.console import Console

from mltune.dataset.dataset import load_manifest
from mltune.records.declaration import Declaration, Finalist
from mltune.results.reader import read_run
from mltune.results.summary import summarise_run
from mltune.show import tables as render

WINNER = Finalist(1, 2e-3, 1.98e-3, 2.02e-3)
DECLARED = Declaration(
    1,
    (WINNER, Finalist(0, 2.01e-3, 2e-3, 2.02e-3, 1.005, 0.999, 1.01), Finalist(2, 3e-3, 3e-3, 3e-3, 1.5, 1.4, 1.6)),
    Finalist(-1, 1.9e-3, 1.9e-3, 1.9e-3, 0.951, 0.9501, 0.952),
    rounds=31,
    as_of=4,
    rejected={3: "wrong"},
    verified=True,
)


@pytest.fixture
def run(tmp_path, make_run, make_trial):
    def make(declaration, trials=4, target="cuda:0"):
        make_run.header = replace(make_run.header, settings={"target": target})
        facts = {} if declaration is None else {"declaration": declaration.to_json()}
        return make_run(tmp_path / "run", *(make_trial(number) for number in range(trials)), **facts)

    return make


def read(document):
    """Return what a person reads."""
    console = Console(file=io.StringIO(), width=400, markup=False)
    for part in render.run_summary(document):
        console.print(part)
    return console.file.getvalue()


def test_what_was_declared_is_in_the_document_as_it_is_on_file(run):
    assert summarise_run(read_run(run(DECLARED)), 1)["declaration"] == DECLARED.to_json()


def test_the_winner_has_its_interval_its_share_of_cublas_and_its_ties(run):
    shown = read(summarise_run(read_run(run(DECLARED)), 1))
    assert "trial 1: 68.72 TFLOPS (68.04 to 69.41, 95 %), 2.0000 ms" in shown
    assert "95.1 % of cuBLAS (95.0 to 95.2), verified; ties: 0; faster, but failed the last verification: 3" in shown
    assert "came later" not in shown


def test_a_winner_of_replay_has_no_race_with_cublas_and_is_not_said_to_be_verified(run):
    """Also where the declaration was written by a version that said so."""
    result = read_run(run(Declaration(1, (WINNER,), as_of=4, verified=True), target="replay:toy"))
    shown = read(summarise_run(result, 0))
    assert "cuBLAS" not in shown.splitlines()[4]
    assert "of the peak, replayed from recorded times: nothing was compiled or verified; ties: none" in shown
    assert ", verified" not in shown
    assert result.to_json()["best"]["verified"] is False
    assert summarise_run(result, 0)["declaration"]["verified"] is False
    assert "replayed from recorded times: nothing was compiled or verified" in result._repr_html_()
    assert result.settled


def test_a_winner_that_was_not_verified_is_said_not_to_be(run):
    result = read_run(run(replace(DECLARED, verified=False)))
    assert "(95.0 to 95.2), not verified; ties: 0" in read(summarise_run(result, 0))
    assert ", not verified" in result._repr_html_()
    assert not result.settled


def test_trials_after_the_declaration_are_counted(run):
    assert "ties: 0" in (shown := read(summarise_run(read_run(run(DECLARED, trials=6)), 1)))
    assert "2 trials came later" in shown


def test_before_the_finals_there_is_no_winner(run):
    document = summarise_run(read_run(run(None)), 1)
    assert document["declaration"] is None
    assert "none declared yet" in read(document)


def test_a_run_that_counts_bytes_is_shown_in_gigabytes_per_second(tmp_path, make_run, make_trial):
    problem = load_manifest("h200-transpose-8192x8192-random").problem.to_json()
    directory = make_run.of(problem=problem)(tmp_path, *map(make_trial, range(4)), declaration=DECLARED.to_json())
    shown = read(summarise_run(read_run(directory), 1))
    assert "trial 1: 268.4 GB/s (265.8 to 271.1, 95 %), 2.0000 ms, 5.6 % of the memory bandwidth, 95.1 % of" in shown
    heading, row = shown.splitlines()[-2:]
    assert heading.split() == ["trial", "GB/s", "of", "default", "of", "peak", "ms", "configuration"]
    assert row.split()[:3] == ["0", "179.0", "88.3"]


def test_a_run_that_counts_nothing_is_shown_in_milliseconds_once(tmp_path, make_run, make_trial):
    problem = {"kind": "recorded", "name": "convolution"}
    directory = make_run.of(problem=problem)(tmp_path, *map(make_trial, range(4)), declaration=DECLARED.to_json())
    shown = read(summarise_run(read_run(directory), 1))
    assert "trial 1: 2.0000 ms (1.9800 to 2.0200, 95 %), 95.1 % of" in shown
    assert shown.splitlines()[-2].split() == ["trial", "ms", "of", "reference", "of", "peak", "configuration"]
