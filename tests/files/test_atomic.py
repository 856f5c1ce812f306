"""Files and folders are replaced as a whole, and never through a link."""

import ctypes
import hashlib
import os
import resource
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from mltune.files.atomic import (
    append_line,
    described_file,
    replace_folder_atomically,
    write_described,
    write_file_atomically,
)
from mltune.files.owned import WINNER, ForeignFileError
from mltune.files.reading import RefusedFileError
from tests.environment import importing
from tests.owned_folders import described


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


def test_a_strangers_file_is_no_file_that_waits_for_its_name(tmp_path: Path) -> None:
    """Neither read nor replaced: the name belongs to a hash, and its content has another."""
    path, hashed = tmp_path / "file", hashlib.sha256(b"new").hexdigest()
    path.write_bytes(b"new")
    for name in (".file.new", f".file.{hashed[:16]}.new"):
        (tmp_path / name).write_bytes(b"mine")
    assert described_file(path, hashed, 100) == path
    with pytest.raises(ForeignFileError, match="does not have the hash of its name, and is not replaced; move it"):
        write_described(path, b"new", tmp_path / "description", hashed.encode())
    write_described(path, b"newer", tmp_path / "description", b"")
    assert contents(tmp_path) == {
        "file": b"newer",
        "description": b"",
        ".file.new": b"mine",
        f".file.{hashed[:16]}.new": b"mine",
    }


def test_an_error_names_the_file_that_cannot_be_written(tmp_path: Path) -> None:
    """Writes to a full disk fail without a name."""
    path, limits = tmp_path / "file", resource.getrlimit(resource.RLIMIT_FSIZE)
    path.write_bytes(b"a line\n")
    for write in (
        lambda: write_file_atomically(path, bytes(1000)),
        lambda: replace_folder_atomically(tmp_path / "folder", {"inner/file": bytes(1000)}),
        lambda: append_line(path, bytes(1000)),
    ):
        resource.setrlimit(resource.RLIMIT_FSIZE, (7, limits[1]))
        try:
            with pytest.raises(OSError, match="too large") as error:
                write()
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert error.value.filename in (str(path), str(tmp_path / "folder"))
    assert contents(tmp_path) == {"file": b"a line\n"}


def test_a_link_is_replaced_and_its_target_is_not_written(tmp_path: Path, canary: Path) -> None:
    before = contents(canary)
    (tmp_path / "link").symlink_to(canary / "file")
    write_file_atomically(tmp_path / "link", b"new")
    (tmp_path / "folder").symlink_to(canary)
    with pytest.raises(ForeignFileError, match="folder is a link to"):
        replace_folder_atomically(tmp_path / "folder", {"file": b"new"}, WINNER)
    kept = replace_folder_atomically(tmp_path / "folder", {"file": b"new"}, WINNER, overwrite=True)
    assert not (tmp_path / "link").is_symlink()
    assert contents(tmp_path / "folder") == {"file": b"new"}
    assert kept is not None
    assert kept.is_symlink()
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


@pytest.mark.parametrize("name", [".folder.new", ".folder.old", ".folder", "folder.old", ".folder.tmp"])
@pytest.mark.parametrize("exchanges", [True, False])
def test_siblings_of_a_folder_are_not_touched(
    tmp_path: Path, canary: Path, monkeypatch: pytest.MonkeyPatch, name: str, exchanges: bool
) -> None:
    """Whoever made them: every name that a writer uses is random."""
    if not exchanges:
        monkeypatch.setattr(ctypes, "CDLL", lambda name: SimpleNamespace())  # a C library without renameat2
    canary.rename(tmp_path / name)
    before = contents(tmp_path / name)
    for content in (b"1", b"2"):
        replace_folder_atomically(tmp_path / "folder", described({"file": content}), WINNER)
        assert contents(tmp_path / "folder") == described({"file": content})
    assert contents(tmp_path / name) == before
    assert sorted(os.listdir(tmp_path)) == sorted([name, "folder"])


FOREIGN = {
    "another file": lambda folder: (folder / "notes.md").write_text("mine"),
    "a hidden file": lambda folder: (folder / ".env").write_text("mine"),
    "a changed file": lambda folder: (folder / "file").write_text("mine"),
    "a folder": lambda folder: (folder / "src").mkdir(),
    "a file in a folder": lambda folder: (folder / "inner" / "notes.md").write_text("mine"),
    "a link": lambda folder: (folder / "link").symlink_to("file"),
    "a link in place of a file": lambda folder: ((folder / "file").unlink(), (folder / "file").symlink_to("/dev/null")),
    "a link in place of a folder": lambda folder: (
        (folder / "inner").rename(folder.parent / "moved"),
        (folder / "inner").symlink_to("../moved"),
    ),
    "no document": lambda folder: (folder / WINNER.document).unlink(),
    "a document of something else": lambda folder: (folder / WINNER.document).write_text('{"name": "ArduinoJson"}'),
    "a document that is no JSON": lambda folder: (folder / WINNER.document).write_bytes(b"\xff"),
}


@pytest.mark.parametrize("name", FOREIGN)
def test_a_folder_with_something_foreign_is_not_replaced(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "folder"
    replace_folder_atomically(folder, described({"file": b"1", "inner/file": b"1"}), WINNER)
    FOREIGN[name](folder)
    before = contents(tmp_path), sorted(tmp_path.rglob("*"))

    with pytest.raises(ForeignFileError, match=r"/folder.*, and only a folder whose files mltune wrote is replaced"):
        replace_folder_atomically(folder, described({"file": b"2"}), WINNER)
    assert (contents(tmp_path), sorted(tmp_path.rglob("*"))) == before

    kept = replace_folder_atomically(folder, described({"file": b"2"}), WINNER, overwrite=True)
    assert contents(folder) == described({"file": b"2"})
    assert kept is not None
    assert {name: data for name, data in before[0].items() if not name.startswith("folder/")} | {
        f"folder/{name}": data for name, data in contents(kept).items()
    } == before[0]


def test_a_folder_of_no_kind_is_not_replaced(tmp_path: Path, canary: Path) -> None:
    """That of a new bundle, say, which was made in the meantime."""
    before = contents(canary)
    with pytest.raises(ForeignFileError, match=r"canary exists, .*; move it"):
        replace_folder_atomically(canary, {"kernel.cu": b""})
    assert contents(canary) == before


STOPPED = """
import ctypes, os, sys
from pathlib import Path
from types import SimpleNamespace
from mltune.files.atomic import replace_folder_atomically
from mltune.files.owned import WINNER
from tests.owned_folders import described
if sys.argv[2] == "renames":
    ctypes.CDLL = lambda name: SimpleNamespace()
folder, left = Path(sys.argv[1]), [int(sys.argv[3])]
def hook(event, arguments):
    changes = event in ("os.rename", "os.remove", "os.rmdir")
    left[0] -= changes
    if changes and not left[0]:
        os.kill(os.getpid(), 9)
sys.addaudithook(hook)
replace_folder_atomically(folder, described({"file": b"new"}), WINNER)
"""


@pytest.mark.parametrize(
    ("way", "at"), [*(("exchanges", at) for at in range(1, 5)), *(("renames", at) for at in range(1, 6))]
)
def test_after_a_kill_the_old_folder_is_there_or_named(
    tmp_path: Path, way: str, at: int, caplog: pytest.LogCaptureFixture
) -> None:
    old, new = described({"file": b"old"}), described({"file": b"new"})
    replace_folder_atomically(tmp_path / "folder", old, WINNER)
    arguments = [str(tmp_path / "folder"), way, str(at)]
    done = subprocess.run([sys.executable, "-c", STOPPED, *arguments], env=importing())
    assert done.returncode == -9
    remains = [path for path in tmp_path.iterdir() if path.name != "folder"]
    if (tmp_path / "folder").exists():
        assert contents(tmp_path / "folder") in (old, new)
    else:
        assert way == "renames"
        assert old in map(contents, remains)

    replace_folder_atomically(tmp_path / "folder", new, WINNER)
    assert contents(tmp_path / "folder") == new
    assert [path for path in tmp_path.iterdir() if path.name != "folder"] == remains
    assert all(str(path) in caplog.text for path in remains)


def test_files_may_lie_in_folders_of_a_folder(tmp_path: Path) -> None:
    files = described({"file": b"1", "a/file": b"2", "a/b/file": b"3", "c/file": b"4"})
    for _ in range(2):
        replace_folder_atomically(tmp_path / "folder", files, WINNER)
        assert contents(tmp_path / "folder") == files
    assert os.listdir(tmp_path) == ["folder"]


@pytest.mark.parametrize("name", ["../file", "/etc/file", "inner/../../file", "inner/", "inner//file", ".", ""])
def test_a_name_does_not_lead_out_of_its_folder(canary: Path, name: str) -> None:
    before = contents(canary)
    with pytest.raises(OSError, match=r"leads out of its folder"):
        replace_folder_atomically(canary / "folder", {name: b"new"})
    assert contents(canary) == before
