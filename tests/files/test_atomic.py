"""Files and folders are replaced as a whole, and never through a link."""

import hashlib
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from mltune.files.atomic import append_line, described_file, replace_folder_atomically, write_file_atomically
from mltune.files.reading import RefusedFileError


def contents(directory: Path) -> dict[str, bytes]:
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


@pytest.fixture
def canary(tmp_path: Path) -> Path:
    """Return a folder that nothing may change."""
    folder = tmp_path / "canary"
    (folder / "inner").mkdir(parents=True)
    (folder / "file").write_text("alive")
    (folder / "inner" / "file").write_text("alive")
    return folder


@pytest.mark.parametrize("durable", [True, False])
def test_a_file_is_written_and_replaced(tmp_path: Path, durable: bool) -> None:
    for content in (b"one", b"two"):
        write_file_atomically(tmp_path / "new" / "file", content, durable=durable)
        assert contents(tmp_path) == {"new/file": content}
    assert os.stat(tmp_path / "new" / "file").st_mode & 0o777 == 0o666 & ~_umask()


def _umask() -> int:
    os.umask(mask := os.umask(0))
    return mask


def test_a_file_that_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "folder" / "inner").mkdir(parents=True)
    with pytest.raises(OSError, match="irectory"):
        write_file_atomically(tmp_path / "folder" / "inner", b"")
    assert os.listdir(tmp_path / "folder") == ["inner"]


KILLED = """
import os, sys
from pathlib import Path
from mltune.files.atomic import write_described
left = [int(sys.argv[2])]
def hook(event, arguments):
    left[0] -= event == "os.rename"
    if event == "os.rename" and not left[0]:
        os.kill(os.getpid(), 9)
sys.addaudithook(hook)
write_described(Path(sys.argv[1]) / "file", b"new", Path(sys.argv[1]) / "description", sys.argv[3].encode())
"""


@pytest.mark.parametrize("before", [b"old", b""])
@pytest.mark.parametrize("at", [1, 2, 3, 4])
def test_a_kill_leaves_the_old_file_with_its_description_or_the_new_one(tmp_path: Path, at: int, before: bytes) -> None:
    path, hashes = tmp_path / "file", {one: hashlib.sha256(one).hexdigest() for one in (b"old", b"new")}
    if before:
        path.write_bytes(before)
        (tmp_path / "description").write_text(hashes[before])
    done = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path), str(at), hashes[b"new"]])
    assert done.returncode == (0 if at == 4 else -9)
    found = (tmp_path / "description").read_text() if before or at > 2 else ""
    if found:
        content = b"new" if at > 2 else before
        assert (found, described_file(path, found, 100).read_bytes()) == (hashes[content], content)


def test_an_error_names_the_file_that_cannot_be_written(tmp_path: Path) -> None:
    """Writes to a full disk fail without a name."""
    path, limits = tmp_path / "file", resource.getrlimit(resource.RLIMIT_FSIZE)
    path.write_bytes(b"a line\n")
    for write in (
        lambda: write_file_atomically(path, bytes(1000)),
        lambda: replace_folder_atomically(path, {"inner/file": bytes(1000)}),
        lambda: append_line(path, bytes(1000)),
    ):
        resource.setrlimit(resource.RLIMIT_FSIZE, (7, limits[1]))
        try:
            with pytest.raises(OSError, match="too large") as error:
                write()
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert error.value.filename == str(path)
    assert contents(tmp_path) == {"file": b"a line\n"}


def test_a_link_is_replaced_and_its_target_is_not_written(tmp_path: Path, canary: Path) -> None:
    before = contents(canary)
    (tmp_path / "link").symlink_to(canary / "file")
    write_file_atomically(tmp_path / "link", b"new")
    (tmp_path / "folder").symlink_to(canary)
    replace_folder_atomically(tmp_path / "folder", {"file": b"new"})
    assert not (tmp_path / "link").is_symlink()
    assert contents(tmp_path / "folder") == {"file": b"new"}
    assert contents(canary) == before


def test_nothing_is_written_through_a_link_on_the_way(tmp_path: Path, canary: Path) -> None:
    before, run = contents(canary), tmp_path / "run"
    run.mkdir()
    (run / "winners").symlink_to("../canary")
    with pytest.raises(RefusedFileError, match=r"run/winners is a link to \.\./canary"):
        replace_folder_atomically(run / "winners" / "inner", {"file": b"new"}, inside=run)
    with pytest.raises(RefusedFileError, match=r"run/winners is a link to \.\./canary"):
        write_file_atomically(run / "winners" / "file", b"new", inside=run)
    assert contents(canary) == before


@pytest.mark.parametrize("leftover", [".folder.new", ".folder.old"])
def test_what_lies_in_place_of_a_temporary_folder_is_not_followed(tmp_path: Path, canary: Path, leftover: str) -> None:
    before = contents(canary)
    (tmp_path / leftover).symlink_to(canary)
    replace_folder_atomically(tmp_path / "folder", {"file": b"1"})
    (tmp_path / leftover).mkdir()
    (tmp_path / leftover / "link").symlink_to(canary)
    replace_folder_atomically(tmp_path / "folder", {"file": b"2"})
    assert sorted(os.listdir(tmp_path)) == ["canary", "folder"]
    assert contents(tmp_path / "folder") == {"file": b"2"}
    assert contents(canary) == before


def test_files_may_lie_in_folders_of_a_folder(tmp_path: Path) -> None:
    files = {"file": b"1", "a/file": b"2", "a/b/file": b"3", "c/file": b"4"}
    for _ in range(2):
        replace_folder_atomically(tmp_path / "folder", files)
        assert contents(tmp_path / "folder") == files


@pytest.mark.parametrize("name", ["../file", "/etc/file", "inner/../../file", "inner/", "inner//file", ".", ""])
def test_a_name_does_not_lead_out_of_its_folder(canary: Path, name: str) -> None:
    before = contents(canary)
    with pytest.raises(OSError, match=r"stays in the folder"):
        replace_folder_atomically(canary / "folder", {name: b"new"})
    assert contents(canary) == before
