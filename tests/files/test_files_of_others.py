"""Files and folders of somebody else in the places of mltune's own are kept, and refused before any work."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from entries import entry

import mltune
from mltune.comparison.results import PRODUCTS
from mltune.dataset.dataset import check_own
from mltune.errors import (
    DatasetError,
    LibraryError,
    MltuneWarning,
    RunDirectoryError,
    RunError,
    UsageError,
    WisdomError,
)
from mltune.files.owned import FACTS, FIGURE, JUNIT, PAGE, REPORT, ROWS, STUDY, SUMMARY, TEXT, foreign
from mltune.known.serving import with_kept
from mltune.known.wisdom import Wisdom
from mltune.measure.cubin_cache import CubinCache
from mltune.records.trial import Build, TrialState
from mltune.show.report.writing import write_report
from mltune.show.study import Studies
from tests.campaign.conftest import SIMPLE, carry_out
from tests.conftest import few_rows

DATASET = "h200-sgemm-nt-4096-random"
TWO = {"strategies": "random", "evaluations": 20, "seeds": 2}
MINE = b"# mine\n"


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the directory of a run with its report."""
    folder = tmp_path_factory.mktemp("others") / "run"
    options = {"search": "random", "skip": False, "stop": False}
    mltune.tune(trials=20, device=f"replay:{DATASET}", run=folder, wisdom=folder.parent / "wisdom.json", **options)
    mltune.report(folder)
    return folder


@pytest.fixture
def own_run(run: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(run, tmp_path / "run"))


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return mltune.compare(datasets="convolution_w6600", out=tmp_path_factory.mktemp("compared"), **TWO).directory


SUFFIXES = {".json": b'{"accuracy": 0.9}', ".html": b"<!doctype html><title>mine</title>", ".md": MINE}


def test_a_comparison_keeps_files_of_others(compared: Path, tmp_path: Path) -> None:
    """Before it searches, and for each of its files; its own are replaced."""
    folder = Path(shutil.copytree(compared, tmp_path / "compared"))
    options: dict[str, Any] = {"datasets": "convolution_w6600", "out": folder, **TWO}
    for name in PRODUCTS:
        own = (folder / name).read_bytes()
        (folder / name).write_bytes(SUFFIXES.get((folder / name).suffix, b"mine"))
        before = contents(folder)
        with pytest.raises(UsageError, match=rf".*{name} is not .*overwrite=True"):
            mltune.compare(progress=lambda _: pytest.fail("it began"), **options)
        assert contents(folder) == before
        (folder / name).write_bytes(own)
    (folder / "table.md").write_bytes(MINE)
    mltune.compare(**options, overwrite=True)
    assert (folder / "table.md").read_bytes() != MINE
    mltune.compare(**options)


@pytest.mark.parametrize("name", ["report.html", "report.md", "winners.json"])
@pytest.mark.sampled(1, nightly=99)
def test_a_report_keeps_files_of_others(own_run: Path, tmp_path: Path, name: str) -> None:
    (tmp_path / "out").mkdir()
    for folder in (own_run, tmp_path / "out"):
        (folder / name).write_bytes(SUFFIXES[Path(name).suffix])
        before = contents(folder)
        with pytest.raises(UsageError, match=rf"{name} is not .*overwrite=True"):
            mltune.report(own_run, out=folder)
        with pytest.raises(RunError, match=rf"{name} is not .*--out"):
            write_report(own_run, folder)
        assert contents(folder) == before
        mltune.report(own_run, out=folder, overwrite=True)
        mltune.report(own_run, out=folder)


def test_a_link_in_the_place_of_a_report_is_kept(own_run: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "report.html").symlink_to(tmp_path / "elsewhere.html")
    with pytest.raises(UsageError, match=r"report\.html is a link to"):
        mltune.report(own_run, out=tmp_path / "out")
    assert not (tmp_path / "elsewhere.html").exists()


def test_reports_of_earlier_versions_are_replaced(own_run: Path) -> None:
    """They had no mark: their titles tell."""
    page, text = (own_run / name for name in ("report.html", "report.md"))
    page.write_text(page.read_text().replace('<meta name="generator" content="mltune">\n', ""))
    text.write_text(text.read_text().replace("<!-- written by mltune -->\n", ""))
    mltune.report(own_run)
    assert "generator" in page.read_text()


def test_each_product_is_recognised_and_no_other(run: Path, compared: Path, tmp_path: Path) -> None:
    mltune.devices("a100", out=tmp_path / "a100.json")
    (tmp_path / "junit.xml").write_text('<?xml version="1.0"?>\n<testsuite name="mltune gate" tests="1"/>')
    files = {run / "report.html": PAGE, run / "report.md": TEXT, run / "winners.json": REPORT}
    files |= {compared / name: product for name, product in PRODUCTS.items()}
    files |= {tmp_path / "a100.json": FACTS, tmp_path / "junit.xml": JUNIT, Studies(run).path: STUDY}
    for path, own in files.items():
        for product in (PAGE, TEXT, FIGURE, ROWS, JUNIT, STUDY, REPORT, SUMMARY, FACTS):
            assert (foreign(path, product) == "") == (product is own), (path, product)


def test_facts_and_verdicts_keep_files_of_others(tmp_path: Path) -> None:
    """A wisdom is one of them, for whoever writes facts."""
    for content in (b'{"name": "x"}', b'{"format": 1, "entries": []}', b"[1]", b"\xff"):
        (tmp_path / "facts.json").write_bytes(content)
        with pytest.raises(UsageError, match=r"facts\.json is not the facts of a GPU.*overwrite=True"):
            mltune.devices("a100", out=tmp_path / "facts.json")
        (tmp_path / "notes.md").write_bytes(content)
        with pytest.raises(UsageError, match=r"notes\.md is not a verdict of mltune gate.*overwrite=True"):
            mltune.gate("no/such/version", "nor/this", junit=tmp_path / "notes.md")
        assert contents(tmp_path) == {"facts.json": content, "notes.md": content}
    mltune.devices("a100", out=tmp_path / "facts.json", overwrite=True)
    mltune.devices("h200", out=tmp_path / "facts.json")


PLAN = """
[plan]
title = "One problem"
budget = "16 trials"
minimum = "16 trials"
produce = ["report"]
[[problems]]
datasets = ["{0}"]
"""


def test_a_run_of_a_plan_goes_on_beside_a_report_of_somebody_else(tmp_path: Path) -> None:
    plan = tmp_path / "mine.toml"
    plan.write_text(SIMPLE + PLAN.format(few_rows(tmp_path, rows=40)))
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "report.html").write_bytes(MINE)
    with pytest.warns(MltuneWarning, match=r"the run will write no report: .*report\.html is not a page of mltune"):
        result = mltune.run(plan, run=tmp_path / "run", progress=None)
    assert result.report is None
    assert result.to_json()["with_winner"] == 1
    assert (tmp_path / "run" / "report.html").read_bytes() == MINE
    assert mltune.run(plan, run=tmp_path / "run", progress=None, overwrite=True).report is not None
    assert (tmp_path / "run" / "report.html").read_bytes() != MINE


def test_a_plan_of_the_user_in_the_directory_is_kept(tmp_path: Path) -> None:
    text = SIMPLE + PLAN.format(few_rows(tmp_path, rows=40))
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "plan.toml").write_text(f"# mine\n{text}")
    with pytest.raises(RunDirectoryError, match=r"has a file plan.toml, .* and no runs"):
        carry_out(text, tmp_path / "run")
    assert (tmp_path / "run" / "plan.toml").read_text() == f"# mine\n{text}"


@pytest.mark.parametrize("name", ["events.jsonl", "run.lock", "siblings.json", "siblings.npy", "winner/notes.md"])
def test_a_run_does_not_begin_where_a_file_of_somebody_else_has_a_name_of_its_own(tmp_path: Path, name: str) -> None:
    (tmp_path / "run" / name).parent.mkdir(parents=True)
    (tmp_path / "run" / name).write_bytes(MINE)
    with pytest.raises(RunDirectoryError, match=r", and a run replaces only what mltune wrote; move it"):
        mltune.tune(trials=5, device=f"replay:{DATASET}", run=tmp_path / "run")
    assert contents(tmp_path) == {f"run/{name}": MINE}


@pytest.mark.parametrize("name", ["optuna.journal", "optuna.journal.lock"])
def test_a_dashboard_keeps_files_of_others(own_run: Path, name: str) -> None:
    (own_run / name).write_bytes(MINE)
    with pytest.raises(RunDirectoryError, match=rf".*{name} is not"):
        Studies(own_run)
    assert (own_run / name).read_bytes() == MINE


PROJECT = {
    "library.json": b'{"name": "ArduinoJson", "version": "7.0.0"}',
    "src/main.cpp": b"int main() {}",
    ".git/HEAD": b"ref: refs/heads/main",
}
SPEC: dict[str, Any] = {"library": {"operation": "sgemm", "trans": "NT"}, "sizes": {"shapes": [1024, 4096]}}


def test_a_library_is_not_written_over_a_project(tmp_path: Path) -> None:
    """PlatformIO's libraries have a library.json, too."""
    for name, content in PROJECT.items():
        (tmp_path / "project" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "project" / name).write_bytes(content)
    for sibling in (".project.new", ".project.old"):
        (tmp_path / sibling).write_bytes(MINE)
    before = contents(tmp_path)
    with pytest.raises(LibraryError, match=r"library\.json: it is not the document of a library, .*overwrite=True"):
        mltune.build_library(SPEC, tmp_path / "project", device="replay", run=tmp_path / "run")
    assert contents(tmp_path) == before


def test_a_wisdom_is_merged_into_and_a_damaged_one_is_not_overwritten(tmp_path: Path) -> None:
    whole, file, own = Wisdom([entry(16), entry(32)]), tmp_path / "team.json", tmp_path / "own.json"
    part = Wisdom(whole.entries[:1])
    part.save(own)
    whole.save(file)
    assert part.add_to(file) == whole
    assert Wisdom.merge_files([], file) == whole
    with pytest.raises(WisdomError, match=r"has entries that would be lost; keep them with `add_to`"):
        part.save(file)
    assert Wisdom.load(file) == whole
    part.save(file, overwrite=True)
    whole.save(file)
    for content in (file.read_bytes()[:-20], b"{}", MINE, b'{"format": 1, "entries": [{}]}'):
        file.write_bytes(content)
        writes: list[Callable[[], object]] = [
            lambda: part.save(file),
            lambda: part.add_to(file),
            lambda: Wisdom.merge_files([own], file),
        ]
        for write in writes:
            with pytest.raises(WisdomError, match=r"is no wisdom of mltune"):
                write()
            assert file.read_bytes() == content


def test_a_file_of_configurations_keeps_what_was_not_tuned_now() -> None:
    existing = json.dumps({"triton_version": "3.5.0", "64": {"num_warps": 4}, "1": {"num_warps": 1}}).encode()
    found = json.loads(with_kept(existing, b'{"16": {"num_warps": 8}, "64": {"num_warps": 2}}'))
    assert [*found] == ["triton_version", "1", "16", "64"]
    assert (found["1"], found["64"]) == ({"num_warps": 1}, {"num_warps": 2})
    for other in (b"[]", b'{"1": 2}', b'{"name": {}}', b"# mine", b"\xff", b'{"1": {}, "1": {}}'):
        with pytest.raises(ValueError, match=r"."):
            with_kept(other, b"{}")


@pytest.mark.parametrize("name", ["set.json", "set.parquet"])
def test_a_sweep_keeps_a_dataset_that_it_did_not_write(tmp_path: Path, name: str) -> None:
    check_own("set", tmp_path)
    few_rows(tmp_path, name="set")
    check_own("set", tmp_path)
    (tmp_path / name).write_bytes(MINE)
    with pytest.raises(DatasetError, match=r"are no dataset that mltune wrote"):
        check_own("set", tmp_path)


def test_a_full_cache_removes_its_own_files_alone(tmp_path: Path) -> None:
    cache = CubinCache(tmp_path / "cache", max_bytes=10)
    own = f"ab{'0' * 62}"
    for name in ("ab/notes.md", f"ab/{own}", "ab/.0123456789abcdef.partial"):
        (tmp_path / "cache" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "cache" / name).write_bytes(bytes(100))
    cache.put("c" * 64, Build(TrialState.OK, cubin=bytes(100)))
    assert contents(tmp_path / "cache") == {"ab/notes.md": bytes(100)}


def test_default_directories_are_no_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "runs").mkdir()
    (tmp_path / "kernels.py").write_text("raise SystemExit('it is run')")
    (tmp_path / "shapes.csv").write_text("M\n1\n")
    os.symlink("../elsewhere", tmp_path / "runs" / "kernels-tuned")
    with pytest.raises(RunDirectoryError, match=r"runs/kernels-tuned is a link .*, and no link is followed below"):
        mltune.tune_shapes("kernels.py:tuned", "shapes.csv")
    found = mltune.compare(datasets="convolution_w6600", **TWO)
    shutil.move(found.directory, tmp_path / "elsewhere" / "compared")
    os.symlink("../elsewhere/compared", found.directory)
    with pytest.raises(RunDirectoryError, match=r"runs/compare-\w+ is a link .*, and no link is followed below runs/"):
        mltune.compare(datasets="convolution_w6600", **TWO)


def test_winners_of_shapes_are_not_added_to_a_file_of_somebody_else(tmp_path: Path) -> None:
    (tmp_path / "kernels.py").write_text("raise SystemExit('it is run')")
    (tmp_path / "shapes.csv").write_text("M\n1\n")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "winners.jsonl").write_bytes(MINE)
    with pytest.raises(UsageError, match=r"winners\.jsonl is not the winners of shapes, .*; name another"):
        mltune.tune_shapes(f"{tmp_path}/kernels.py:tuned", tmp_path / "shapes.csv", run=tmp_path / "run")
    assert (tmp_path / "run" / "winners.jsonl").read_bytes() == MINE
