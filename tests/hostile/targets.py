"""Files and folders of somebody else where a command writes: they stay as they are, byte for byte."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

from tests.hostile.cases import Place, add
from tests.hostile.values import ESCAPE, XSS

TARGET = "target"
"""The name, in the folder ``elsewhere``, of what commands write; some add a suffix."""

INPUTS = {"store": "run", "wisdom.json": "wisdom.json", "table.csv": "table.csv", "plan.toml": "plan.toml",
          "dataset/recorded.json": "recorded.json", "dataset/recorded.parquet": "recorded.parquet", "content.pickle": "content.pickle"}  # fmt: skip
"""Honest inputs of the commands that write."""

TEXTS: dict[str, bytes] = {
    "a-text": b"my notes\n",
    "bytes": bytes(range(256)) * 20,
    "json-of-another-program": b'{"name": "ArduinoJson", "version": "6.21.3", "keywords": "json, rest"}',
    "a-list-in-json": b"[1, 2, 3]",
    "json-with-a-format": b'{"format": 1, "name": "mine", "sha256": {}, "files": [], "entries": 7}',
    "toml": b'[project]\nname = "mine"\n',
    "markup": f"<!doctype html><title>mine {XSS}</title>".encode(),
    "a-database": b"SQLite format 3\0" + bytes(84),
    "escapes": ESCAPE.encode(),
}
"""Files that mltune did not write; an empty one may be replaced."""

INSIDE = (
    "report.html", "report.md", "winners.json", "winners", "recorded.parquet", "recorded.json", "summary.json", "table.md",
    "scoreboard.html", "library.json", "kernel.toml", "kernel.cu", "plan.toml", "events.jsonl", "run.sqlite", "run.lock", "winner",
    "sgemm_nt.c", "winners.jsonl", "problems", "runs-1of1.jsonl", "optuna.journal", "table.json", "table.parquet", ".git", "src", "a b", "few-merged.json",
    "E=9,N=14336,device_name=NVIDIA_H100_80GB_HBM3.json",
)  # fmt: skip
"""Names in a folder of somebody else, most of them of files that mltune writes."""


def _folder(place: Place, path: Path, count: int = 5) -> None:
    path.mkdir()
    for name in place.rng.sample(INSIDE, count):
        if place.rng.random() < 0.2 or name in (".git", "src", "problems"):
            (path / name).mkdir()
            (path / name / "main.c").write_text("int main;\n")
        else:
            (path / name).write_bytes(place.rng.choice(list(TEXTS.values())))


def _repository(place: Place, path: Path) -> None:
    (path / ".git/refs").mkdir(parents=True)
    (path / ".git/HEAD").write_text("ref: refs/heads/main\n")
    (path / "main.c").write_text("int main;\n")


def _run(place: Place, path: Path) -> None:
    """Leave the directory of an own run, with files of somebody else in it."""
    shutil.copytree(
        place.base / "store", path, ignore=shutil.ignore_patterns("run.lock")
    )  # which is mltune's to change
    for name in place.rng.sample(INSIDE, 6):
        if not (path / name).exists():
            (path / name).write_bytes(place.rng.choice(list(TEXTS.values())))


def _link(place: Place, path: Path) -> None:
    path.with_name(f"mine-{path.name}").write_bytes(place.rng.choice(list(TEXTS.values())))
    path.symlink_to(f"mine-{path.name}")


def _link_to_folder(place: Place, path: Path) -> None:
    _folder(place, path.with_name(f"mine-{path.name}"))
    path.symlink_to(f"mine-{path.name}")


FOREIGN: dict[str, Callable[[Place, Path], object]] = {
    "a-folder": _folder,
    "an-empty-folder": lambda place, path: path.mkdir(),
    "a-repository": _repository,
    "a-run-with-files-of-somebody": _run,
    "a-link-to-a-file": _link,
    "a-link-to-a-folder": _link_to_folder,
    "a-link-to-nothing": lambda place, path: path.symlink_to("nothing"),
    "a-fifo": lambda place, path: os.mkfifo(path),
    **{name: lambda place, path, text=text: path.write_bytes(text) for name, text in TEXTS.items()},
}


def inputs(place: Place) -> None:
    for name, to in INPUTS.items():
        place.copy(name, to)


def random_target(place: Place) -> None:
    """Put something of somebody else in place of what commands write, and of temporary names beside it."""
    inputs(place)
    names = (TARGET, f"{TARGET}.json", f"{TARGET}.npy", f".{TARGET}.new", f".{TARGET}.old", f".{TARGET}.lock", f"{TARGET}.lock")  # fmt: skip
    for name in {TARGET, *place.rng.sample(names, 3)} if place.rng.random() < 0.8 else place.rng.sample(names[1:], 3):
        path = place.folder / "elsewhere" / name
        if not os.path.lexists(path):
            FOREIGN[place.rng.choice(list(FOREIGN))](place, path)


def _target(name: str, *commands: str) -> None:
    def build(place: Place) -> None:
        inputs(place)
        for suffix in ("", ".json", ".npy"):
            FOREIGN[name](
                place, place.folder / "elsewhere" / f"{TARGET}{suffix}"
            ) if not suffix or name in TEXTS else None

    add("target", f"{name}-where-a-command-writes", build, *commands)


WRITERS = (
    "wisdom_merge_to", "wisdom_export_to", "wisdom_of_tune_to", "report_to", "export_trials_to", "compare_to", "scoreboard_to",
    "run_to", "tune_to", "export_dataset_to", "merge_datasets_to", "import_dataset_to", "train_to", "device_to", "init_to",
    "junit_to", "library_to", "shapes_to", "export_shapes_to",
)  # fmt: skip
for _name in FOREIGN:
    _target(_name, *WRITERS)
