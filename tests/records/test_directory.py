"""What lies at mltune's names in a run directory is a file or folder of its own."""

import os
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from mltune.errors import DamagedRunError, RunDirectoryError
from mltune.records.directory import (
    check_directory,
    holds_run,
    in_use,
    is_plan,
    lock_directory,
    new_directory,
    runs_in,
)

FILES = ("run.sqlite", "run.sqlite-wal", "run.sqlite-shm", "run.sqlite-journal", "run.lock", "events.jsonl")
FILES += ("plan.toml", "plan.json", "optuna.journal", "report.html", "report.md", "winners.json")
FOLDERS = ("problems", "winners", "winner", "datasets")


def a_socket(path: Path) -> None:
    here = os.open(path.parent, os.O_RDONLY)
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(f"/proc/self/fd/{here}/{path.name}")  # the path of a socket has at most 108 characters
    os.close(here)


KINDS = {
    "a link to ../canary/file": lambda path: path.symlink_to("../canary/file"),
    "a link to ../canary": lambda path: path.symlink_to("../canary"),
    "a link to nowhere": lambda path: path.symlink_to("nowhere"),
    "a FIFO": os.mkfifo,
    "a socket": a_socket,
}


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    (tmp_path / "canary").mkdir()
    (tmp_path / "canary" / "file").write_text("alive")
    (tmp_path / "run").mkdir()
    return tmp_path / "run"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", [*FILES, *FOLDERS])
def test_nothing_but_a_file_or_folder_of_its_own_is_accepted(directory: Path, name: str, kind: str) -> None:
    KINDS[kind](directory / name)
    for use in (check_directory, is_plan, runs_in, holds_run, lock_directory):
        with pytest.raises(DamagedRunError, match=rf"/run/{name} is {kind}; .*: remove it"):
            use(directory)
    assert not in_use(directory)
    assert os.listdir(directory) == [name]
    assert (directory.parent / "canary" / "file").read_text() == "alive"


@pytest.mark.parametrize(
    ("name", "kind"), [*((n, "a directory") for n in FILES), *((n, "a regular file") for n in FOLDERS)]
)
def test_files_and_folders_are_not_confused(directory: Path, name: str, kind: str) -> None:
    (directory / name).mkdir() if kind == "a directory" else (directory / name).touch()
    with pytest.raises(DamagedRunError, match=f"{name} is {kind}"):
        check_directory(directory)


def test_the_target_of_a_link_cannot_write_to_the_terminal(directory: Path) -> None:
    (directory / "run.lock").symlink_to("\x1b[2J")
    with pytest.raises(DamagedRunError, match=r"a link to  \[2J;"):
        check_directory(directory)


@pytest.mark.parametrize("name", ["run.sqlite", "run.sqlite-wal", "run.lock", "events.jsonl"])
def test_a_file_with_another_name_elsewhere_is_not_written_in_place(directory: Path, name: str) -> None:
    os.link(directory.parent / "canary" / "file", directory / name)
    check_directory(directory)
    with pytest.raises(DamagedRunError, match=f"{name} is also a file elsewhere"):
        lock_directory(directory)
    assert (directory.parent / "canary" / "file").read_text() == "alive"


@pytest.mark.parametrize("link", ["problems", "problems/one"])
def test_the_run_of_a_problem_is_not_reached_through_a_link_in_its_plan(directory: Path, link: str) -> None:
    (directory / "plan.toml").touch()
    (directory.parent / "canary" / "one").mkdir()
    (directory / link).parent.mkdir(exist_ok=True)
    (directory / link).symlink_to(directory.parent / "canary")
    for use in (holds_run, lock_directory):
        with pytest.raises(DamagedRunError, match=f"{link} is a link to .*canary"):
            use(directory / "problems" / "one")
    assert not in_use(directory / "problems" / "one")
    assert sorted(os.listdir(directory.parent / "canary")) == ["file", "one"]


def test_the_path_to_a_directory_may_lead_through_links(directory: Path) -> None:
    (directory.parent / "mine").symlink_to("run")
    (directory.parent / "mine" / "problems").mkdir()
    os.close(lock_directory(directory.parent / "mine"))
    os.close(lock_directory(directory.parent / "mine" / "problems" / "one"))
    assert (directory / "problems" / "one" / "run.lock").exists()


def test_a_problem_has_the_name_of_one(directory: Path) -> None:
    (directory / "plan.toml").touch()
    for name in ("sgemm-nt-4096", "\x1b[2J", "a b", "..."):
        (directory / "problems" / name).mkdir(parents=True)
        (directory / "problems" / name / "run.sqlite").touch()
    assert [path.name for path in runs_in(directory)] == ["sgemm-nt-4096"]


def test_a_path_that_cannot_be_looked_at_is_an_error_of_the_user(tmp_path: Path) -> None:
    with pytest.raises(RunDirectoryError, match="cannot be read"):
        is_plan(tmp_path / ("x" * 300))


def test_runs_that_begin_in_the_same_second_have_directories_of_their_own(monkeypatch, tmp_path):
    """Also where another process has not written anything yet."""
    monkeypatch.chdir(tmp_path)
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(new_directory, ["sgemm NT 64"] * 32))
    assert len(set(found)) == 32
    assert all(path.is_dir() for path in found)
