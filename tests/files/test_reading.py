"""Files of strangers are read only if they are regular files within their limits."""

import os
from pathlib import Path

import pytest

from mltune.files.reading import RefusedFileError, read_file, read_text


def test_a_regular_file_is_read_to_its_limit(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"12345")
    assert read_file(tmp_path / "file", limit=5) == b"12345"
    with pytest.raises(RefusedFileError, match=r"at most 4 bytes are read, but .*file has 5"):
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
    with pytest.raises(RefusedFileError, match="at most 10 bytes"):
        read_file("/proc/self/status", limit=10)


def test_text_is_utf_8(tmp_path: Path) -> None:
    (tmp_path / "text").write_bytes(b"abc\xff")
    with pytest.raises(RefusedFileError, match=r"UTF-8, but .* is not at byte 3"):
        read_text(tmp_path / "text", limit=100)
