"""A winner's folder is loaded as a function only if it describes a launch that can be."""

import json
from pathlib import Path
from typing import Any

import pytest

from mltune.errors import DeviceError, RunDirectoryError
from mltune.results.tuned_kernel import load_winner

LAUNCH = {"grid": [4, 1, 1], "block": [32, 1, 1], "shared_bytes": 0, "launched": [3]}


def folder(path: Path, launch: Any = LAUNCH, **facts: Any) -> Path:
    document = {"kernel": {"function": "add"}, "launch": launch, "lacks_code": "", **facts}
    (path / "winner.json").write_text(json.dumps(document))
    (path / "kernel.cubin").write_bytes(b"\x7fELF, not a cubin")
    return path


def test_an_honest_description_is_taken(tmp_path: Path) -> None:
    with pytest.raises(DeviceError):  # for want of CuPy, a GPU, or a real cubin
        load_winner(folder(tmp_path))


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({"launch": LAUNCH | {"grid": [1, 1]}}, "launch.grid"),
        ({"launch": LAUNCH | {"grid": ["1", 1, 1]}}, "launch.grid"),
        ({"launch": LAUNCH | {"block": [2**40, 1, 1]}}, "launch.block"),
        ({"launch": LAUNCH | {"shared_bytes": None}}, "launch.shared_bytes"),
        ({"launch": LAUNCH | {"launched": {"a": 1}}}, "launch.launched"),
        ({"launch": {}}, "launch.grid"),
        ({"kernel": {"function": 3}}, "kernel.function"),
        ({"kernel": []}, "kernel"),
        ({"launch": None, "lacks_code": "replayed"}, "it has no machine code"),
    ],
)
def test_a_description_without_a_launch_is_refused(tmp_path: Path, facts: dict[str, Any], words: str) -> None:
    with pytest.raises(RunDirectoryError, match=words):
        load_winner(folder(tmp_path, **facts))


@pytest.mark.parametrize("name", ["winner.json", "kernel.cubin"])
def test_a_file_that_is_missing_or_a_link_is_refused(tmp_path: Path, name: str) -> None:
    folder(tmp_path)
    (tmp_path / name).unlink()
    with pytest.raises(RunDirectoryError, match="there is no such file"):
        load_winner(tmp_path)
    (tmp_path / name).symlink_to("/etc/hostname")
    with pytest.raises(RunDirectoryError, match="no link is followed"):
        load_winner(tmp_path)
