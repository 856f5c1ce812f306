"""The cache of cubins answers with what its user has built, or not at all."""

import hashlib
import json
import os
import tracemalloc
import zlib
from pathlib import Path

import pytest

from mltune.measure.cubin_cache import LARGEST_CUBIN, CubinCache
from mltune.records.trial import Build, TrialState

KEY, OTHER = "ab" * 32, "ac" * 32
BUILD = Build(TrialState.OK, cubin=b"machine code" * 1000, registers=32, compile_s=0.5)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "cubins"


def entry(folder: Path, key: str = KEY) -> Path:
    return folder / key[:2] / key


def plant(path: Path, cubin: bytes = b"x", **changes: object) -> None:
    """Write a file whose hash is right."""
    numbers = dict.fromkeys(("registers", "spill_bytes", "stack_bytes", "shared_bytes", "code_bytes"), 1)
    header = {"detail": "", **numbers, "compile_s": 1.0, "key": KEY, "state": "ok"} | changes
    body = json.dumps(header).encode() + b"\n" + zlib.compress(cubin)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(hashlib.sha256(body).digest() + body)


def test_what_is_put_is_got_by_another_cache(folder: Path) -> None:
    CubinCache(folder).put(KEY, BUILD)
    found = CubinCache(folder).get(KEY)
    assert found is not None
    assert (found.cubin, found.registers, found.cached) == (BUILD.cubin, 32, True)
    plant(entry(folder, OTHER), key=OTHER)
    assert CubinCache(folder).get(OTHER) is not None


def test_the_folder_is_for_the_user_alone(folder: Path) -> None:
    CubinCache(folder).put(KEY, BUILD)
    assert folder.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o702])
def test_a_folder_that_others_can_write_to_is_not_used(folder: Path, mode: int, caplog) -> None:
    CubinCache(folder).put(KEY, BUILD)
    folder.chmod(mode)
    cache = CubinCache(folder)
    assert cache.get(KEY) is None
    cache.put(OTHER, BUILD)
    assert not entry(folder, OTHER).exists()
    assert "others can write to it" in caplog.text


@pytest.mark.skipif(os.geteuid() != 0, reason="gives a folder to another user")
def test_a_folder_of_somebody_else_is_not_used(folder: Path, caplog) -> None:
    CubinCache(folder).put(KEY, BUILD)
    os.chown(folder, 12345, -1)
    assert CubinCache(folder).get(KEY) is None
    assert "belongs to user 12345" in caplog.text


@pytest.mark.parametrize(
    "changes",
    [
        {"key": OTHER},
        {"key": None},
        {"state": "splendid"},
        {"state": ["ok"]},
        {"registers": "many"},
        {"registers": 1.5},
        {"registers": True},
        {"detail": 7},
        {"compile_s": "long"},
        {"further": 1},
        {"cached": False},
    ],
    ids=str,
)
def test_an_entry_that_is_not_of_its_key_and_form_is_removed(folder: Path, changes: dict[str, object]) -> None:
    cache = CubinCache(folder)
    plant(entry(folder), **changes)
    assert cache.get(KEY) is None
    assert not entry(folder).exists()
    cache.put(KEY, BUILD)
    assert cache.get(KEY) is not None


def test_an_entry_under_the_name_of_another_is_removed(folder: Path) -> None:
    cache = CubinCache(folder)
    cache.put(KEY, BUILD)
    entry(folder, OTHER).parent.mkdir()
    entry(folder).rename(entry(folder, OTHER))
    assert cache.get(OTHER) is None
    assert not entry(folder, OTHER).exists()


@pytest.mark.slow
def test_an_entry_that_unfolds_to_gigabytes_is_removed(folder: Path) -> None:
    cache = CubinCache(folder)
    zeros, compressor = bytes(1 << 20), zlib.compressobj()
    body = json.dumps({"key": KEY, "state": "ok"}).encode() + b"\n"
    body += b"".join(compressor.compress(zeros) for _ in range(1500)) + compressor.flush()
    entry(folder).parent.mkdir()
    entry(folder).write_bytes(hashlib.sha256(body).digest() + body)
    tracemalloc.start()
    try:
        assert cache.get(KEY) is None
        assert tracemalloc.get_traced_memory()[1] < 3 * LARGEST_CUBIN
    finally:
        tracemalloc.stop()
    assert not entry(folder).exists()


def test_a_cubin_at_the_limit_is_kept_and_a_larger_one_is_not(folder: Path) -> None:
    cache = CubinCache(folder)
    cache.put(KEY, Build(TrialState.OK, cubin=bytes(LARGEST_CUBIN)))
    cache.put(OTHER, Build(TrialState.OK, cubin=bytes(LARGEST_CUBIN + 1)))
    found = cache.get(KEY)
    assert found is not None
    assert len(found.cubin) == LARGEST_CUBIN
    assert cache.get(OTHER) is None


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo, lambda path: path.symlink_to("/dev/zero")])
def test_what_is_no_file_counts_as_absent(folder: Path, make) -> None:
    cache = CubinCache(folder)
    entry(folder).parent.mkdir()
    make(entry(folder))
    assert cache.get(KEY) is None


def test_a_file_larger_than_any_entry_is_not_read(folder: Path) -> None:
    cache = CubinCache(folder)
    entry(folder).parent.mkdir()
    with entry(folder).open("wb") as file:
        file.truncate(1 << 40)  # sparse
    assert cache.get(KEY) is None
    assert not entry(folder).exists()
