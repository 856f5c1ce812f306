"""Files of strangers are read only if they are regular files within their limits, and behind no link."""

import os
import socket
from pathlib import Path

import pytest

from mltune.files.reading import RefusedFileError, check_folder, open_regular, read_file, read_text


def test_a_regular_file_is_read_to_its_limit(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"12345")
    assert read_file(tmp_path / "file", limit=5) == b"12345"
    with pytest.raises(RefusedFileError, match=r"file has 5 bytes, of which at most 4 are read"):
        read_file(tmp_path / "file", limit=4)


def test_a_fifo_does_not_hang_the_reader(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(RefusedFileError, match="is a FIFO"):
        read_file(tmp_path / "fifo", limit=5)


@pytest.mark.parametrize("path", ["/dev/zero", "/dev/null", "/tmp"])  # noqa: S108
def test_devices_and_directories_are_refused(path: str) -> None:
    with pytest.raises(OSError, match="only regular files"):
        read_file(path, limit=5)


def test_a_file_whose_size_is_not_known_beforehand_keeps_its_limit() -> None:
    with pytest.raises(RefusedFileError, match="more than 10 bytes"):
        read_file("/proc/self/status", limit=10)


def test_text_is_utf_8(tmp_path: Path) -> None:
    (tmp_path / "text").write_bytes(b"abc\xff")
    with pytest.raises(RefusedFileError, match=r"is not text in UTF-8 at byte 3"):
        read_text(tmp_path / "text", limit=100)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Return a directory that is reached through a link of the user's own, with links inside it."""
    (tmp_path / "real" / "inner").mkdir(parents=True)
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "file").write_text("secret")
    (tmp_path / "real" / "inner" / "file").write_text("own")
    (tmp_path / "real" / "outwards").symlink_to("../secret")
    (tmp_path / "real" / "link").symlink_to("../secret/file")
    (tmp_path / "real" / "dangling").symlink_to("../secret/new")
    (tmp_path / "mine").symlink_to("real")
    return tmp_path / "mine"


def test_the_path_that_the_user_names_may_lead_through_links(directory: Path) -> None:
    descriptor = open_regular(directory / "inner" / "file", inside=directory)
    assert os.read(descriptor, 10) == b"own"
    os.close(descriptor)
    descriptor = open_regular(directory / "link")
    assert os.read(descriptor, 10) == b"secret"
    os.close(descriptor)


@pytest.mark.parametrize(
    ("name", "target"), [("link", "../secret/file"), ("outwards/file", "../secret"), ("dangling", "../secret/new")]
)
@pytest.mark.parametrize("flags", [os.O_RDONLY, os.O_RDWR | os.O_CREAT, os.O_WRONLY | os.O_TRUNC])
def test_a_link_inside_a_directory_is_named_and_not_followed(
    directory: Path, name: str, target: str, flags: int
) -> None:
    with pytest.raises(RefusedFileError, match=rf"mine/{name.split('/')[0]} is a link to {target}, and no"):
        open_regular(directory / name, flags, inside=directory)
    assert [path.read_text() for path in (directory.parent / "secret").iterdir()] == ["secret"]


@pytest.mark.parametrize("flags", [os.O_RDONLY, os.O_RDWR | os.O_CREAT | os.O_APPEND], ids=["read", "append"])
def test_what_is_no_regular_file_is_refused_at_once(tmp_path: Path, flags: int) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "folder").mkdir()
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(tmp_path / "socket"))
        for name in ("fifo", "folder", "socket", "/dev/zero"):
            with pytest.raises(OSError):  # noqa: PT011 - that of the system where it refuses by itself
                open_regular(tmp_path / name, flags, inside=tmp_path if name[0] != "/" else None)


def test_nothing_is_left_open(directory: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    os.mkfifo(directory / "fifo")
    for name in ("link", "outwards/file", "fifo", "none", "none/file"):
        with pytest.raises(OSError):  # noqa: PT011
            open_regular(directory / name, inside=directory)
    assert len(os.listdir("/proc/self/fd")) == before


def test_folders_are_made_on_the_way_but_not_through_a_link(directory: Path) -> None:
    check_folder(directory / "a" / "b", inside=directory, create=True)
    assert (directory / "a" / "b").is_dir()
    with pytest.raises(RefusedFileError, match="outwards is a link"):
        check_folder(directory / "outwards" / "b", inside=directory, create=True)
    assert sorted(os.listdir(directory.parent / "secret")) == ["file"]
