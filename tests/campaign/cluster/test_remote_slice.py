"""The files of a run on their way from a worker: they stay in its directory, and a winner has only its own."""

import resource

import pytest

from mltune.campaign.cluster.remote_slice import files_in, put_files
from mltune.campaign.device_worker import Outcome, outcome_of
from mltune.errors import DiskFullError, RunDirectoryError, UsageError
from tests.owned_folders import described


def winner(files):
    """Return the files of a winner, by their paths in the directory of a run."""
    return {f"winner/{name}": content for name, content in described(files).items()}


def test_files_come_back_without_the_store(tmp_path):
    here, there = tmp_path / "here", tmp_path / "there"
    names = ("siblings.json", "run.sqlite", "run.lock", "events.jsonl", "other/file", "own")
    written = {name: name.encode() for name in names} | winner({"kernel.cu": b"new"})
    for name, content in written.items():
        (there / name).parent.mkdir(parents=True, exist_ok=True)
        (there / name).write_bytes(content)
    assert dict(files_in(there)) == {"siblings.json": b"siblings.json"}
    files = dict(files_in(there, with_winner=True))
    assert files == {"siblings.json": b"siblings.json", **winner({"kernel.cu": b"new"})}
    put_files(here, winner({"old.cu": b"old"}))
    put_files(here, files)
    assert dict(files_in(here, with_winner=True)) == files


def test_a_file_of_the_user_in_the_folder_of_a_winner_stays(tmp_path):
    put_files(tmp_path, winner({"kernel.cu": b"old"}))
    (tmp_path / "winner/notes.md").write_text("mine")
    with pytest.raises(RunDirectoryError, match=r"winner/notes.md is not in the list of winner.json, .*; move it"):
        put_files(tmp_path, winner({"kernel.cu": b"new"}))
    assert (tmp_path / "winner/notes.md").read_text() == "mine"
    assert (tmp_path / "winner/kernel.cu").read_bytes() == b"old"


def test_a_full_disk_is_told(tmp_path):
    """Not as a worker that died: the campaign waits for room."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    for files in ({"siblings.json": bytes(100)}, {"winner/kernel.cu": bytes(100)}):
        resource.setrlimit(resource.RLIMIT_FSIZE, (7, limits[1]))
        try:
            with pytest.raises(DiskFullError, match=rf"{tmp_path}/\S+ cannot be written: file too large") as full:
                put_files(tmp_path, files)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert outcome_of(full.value) is Outcome.DISK_FULL
    assert list(tmp_path.iterdir()) == []


NAMES = (
    *("../out", "/etc/passwd", "winner/../../out", "winner//x", "winner/.", "/winner/x", "winner\\x", ".", ""),
    *("winner", "winner/", "Winner/x", "./siblings.json", "siblings.json/"),
    *("run.sqlite", "run.sqlite-wal", "run.lock", "run.json", "plan.toml", "plan.json", "report.html", "events.jsonl"),
)


@pytest.mark.parametrize("name", NAMES)
def test_nothing_leaves_the_directory_or_touches_the_store(name, tmp_path):
    with pytest.raises(UsageError, match=r"is no file of a run: siblings.json, siblings.npy, or one in winner/"):
        put_files(tmp_path, {"siblings.npy": b"y", name: b"x"})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("link", "target"),
    [
        ("winner", "."),
        ("winner/include", "include"),
        ("winner/kernel.cu", "kernel.cu"),
        ("siblings.json", "siblings.json"),
    ],
)
def test_nothing_is_written_or_removed_through_a_link(link, target, tmp_path):
    run, elsewhere = tmp_path / "run", tmp_path / "elsewhere"
    for name in ("kernel.cu", "include/kernel.cu", "siblings.json"):
        (elsewhere / name).parent.mkdir(parents=True, exist_ok=True)
        (elsewhere / name).write_text("mine")
    (run / link).parent.mkdir(parents=True)
    (run / link).symlink_to(elsewhere / target)
    files = {"siblings.json": b"{}", "winner/kernel.cu": b"new", "winner/include/kernel.cu": b"new"}
    if link == "siblings.json":
        put_files(run, files)
        assert dict(files_in(run, with_winner=True)) == files
    else:
        with pytest.raises(RunDirectoryError, match="winner"):
            put_files(run, files)
    assert {path.read_text() for path in elsewhere.rglob("*") if path.is_file()} == {"mine"}
    assert len([path for path in elsewhere.rglob("*") if path.is_file()]) == 3
