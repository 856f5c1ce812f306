"""The files of a run on their way from a worker: they stay in its directory, and a winner has only its own."""

import pytest

from mltune.campaign.cluster.remote_slice import files_in, put_files
from mltune.errors import UsageError


def test_files_come_back_without_the_store(tmp_path):
    here, there = tmp_path / "here", tmp_path / "there"
    for name in ("siblings.json", "winner/kernel.cu", "run.sqlite", "run.lock", "events.jsonl", "other/file"):
        (there / name).parent.mkdir(parents=True, exist_ok=True)
        (there / name).write_bytes(name.encode())
    assert dict(files_in(there)) == {"siblings.json": b"siblings.json"}
    files = dict(files_in(there, with_winner=True))
    assert files == {"siblings.json": b"siblings.json", "winner/kernel.cu": b"winner/kernel.cu"}
    (here / "winner").mkdir(parents=True)
    (here / "winner/old.cu").touch()
    put_files(here, files)
    assert dict(files_in(here, with_winner=True)) == files


@pytest.mark.parametrize("name", ["../out", "/etc/passwd", "winner/../../out", "run.sqlite", "run.lock"])
def test_nothing_leaves_the_directory_or_touches_the_store(name, tmp_path):
    with pytest.raises(UsageError, match="a file of a run lies in its directory"):
        put_files(tmp_path, {name: b"x"})
    assert list(tmp_path.iterdir()) == []
