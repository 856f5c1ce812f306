"""Header of a run: kernel, problem, device, seed, versions and settings, which decide all proposals."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from mltune.errors import RunDirectoryError
from mltune.files.text import printable
from mltune.files.validation import validated

REPLAY = "replay:"
"""Prefix of the setting ``target`` of a run that replays a dataset."""

DATASET_HASH = "dataset_sha256"
"""The setting that identifies the content of a replayed dataset."""

LARGEST = 2**53
"""Largest integer on record: a float holds it exactly."""

_YEAR_10000 = 253_402_300_800.0  # seconds since the epoch; no date is later


@dataclass(frozen=True, slots=True)
class RunHeader:
    """Facts that stay the same for the whole of a run, resumed or not.

    Problem, device and `settings` (all else that decides proposals and measurements, without budgets) are plain JSON.
    Parameters are in the order of the bundle; those with `labels` hold positions in these. Headers that differ only in
    `created_at`, seconds since the epoch, belong to the same run.
    """

    __pydantic_config__: ClassVar[dict[str, Any]] = {"extra": "forbid", "strict": True}

    kernel: str
    source_hash: str
    parameters: Mapping[str, tuple[int, ...]]
    problem: Mapping[str, Any]
    device: Mapping[str, Any]
    seed: int
    versions: Mapping[str, str] = dataclasses.field(default_factory=dict)
    settings: Mapping[str, str | int | float | bool | None] = dataclasses.field(default_factory=dict)
    created_at: float = dataclasses.field(default=0.0, compare=False)
    labels: Mapping[str, tuple[float | str, ...]] = dataclasses.field(default_factory=dict)

    @property
    def replayed(self) -> bool:
        """Whether the times of the run were recorded earlier."""
        return str(self.settings.get("target", "")).startswith("replay:")

    def to_json(self) -> dict[str, Any]:
        """Return the header as plain JSON values, exactly as they read back from a file."""
        plain = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        document: dict[str, Any] = json.loads(json.dumps(plain, default=_plain))
        if not self.labels:
            del document["labels"]  # most runs have none, and those of earlier versions no such field
        return document

    def labelled(self, configuration: Mapping[str, int]) -> dict[str, int | float | str]:
        """Return a configuration with labels in place of their positions."""
        return {
            name: self.labels[name][value] if name in self.labels else value for name, value in configuration.items()
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> RunHeader:
        """Rebuild a header from :meth:`to_json`; a field that is missing or of another type raises a ValueError."""
        header = validated(RunHeader, document, within=("header",), as_json=True)
        values = [value for values_of_parameter in header.parameters.values() for value in values_of_parameter]
        if not all(abs(value) <= LARGEST for value in values) or not 0.0 <= header.created_at < _YEAR_10000:
            raise ValueError("its header holds a number out of range")
        if not all(header.parameters.values()):
            raise ValueError("its header holds a parameter without values")
        for name, labels in header.labels.items():
            if not all(0 <= value < len(labels) for value in header.parameters.get(name, (-1,))):
                raise ValueError(f"its header has labels of {printable(name, 60)!r} that do not fit its values")
        return header

    def check_continued(self, header: RunHeader | None, directory: Path) -> None:
        """Check that a header, if there is one, is that of the run in a directory; else raise a RunDirectoryError."""
        if header is not None and (difference := self.difference(header)):
            raise RunDirectoryError(
                f"{directory} holds another run: {difference}; choose another directory, or repeat the command that "
                "began the run."
            )

    def difference(self, other: RunHeader) -> str:
        """Describe the most important difference, such as ``"seed is 1, not 2"``; empty for headers of the same run."""
        before, now = self.to_json(), other.to_json()
        if difference := _dataset_difference(before["settings"], now["settings"]):
            return difference
        if before["kernel"] != now["kernel"]:
            return f"the kernel is {_shown(before['kernel'])}, not {_shown(now['kernel'])}"
        if difference := _model_difference(before["settings"], now["settings"]):
            return difference
        for name in before:
            if name != "created_at" and before[name] != now[name]:
                return _difference(name, before[name], now[name])
        if list(before["parameters"]) != list(now["parameters"]):
            return f"the order of the parameters is {list(before['parameters'])}, not {list(now['parameters'])}"
        return ""


def _dataset_difference(first: dict[str, Any], second: dict[str, Any]) -> str:
    """Describe the difference between the replayed datasets; older runs have no hash of theirs."""
    before, now = (str(settings.get("target")) for settings in (first, second))
    kind = "dataset" if before.startswith(REPLAY) and now.startswith(REPLAY) else "device"
    if before != now:
        return f"the {kind} is {_shown(before.removeprefix(REPLAY))}, not {_shown(now.removeprefix(REPLAY))}"
    hashes = [settings.pop(DATASET_HASH, None) for settings in (first, second)]
    if None in hashes or hashes[0] == hashes[1]:
        return ""
    return (
        f"the dataset {_shown(before.removeprefix(REPLAY))} had another content: its sha256 was {_shown(hashes[0])}, "
        f"and is {_shown(hashes[1])} now"
    )


def _model_difference(first: dict[str, Any], second: dict[str, Any]) -> str:
    """Describe the difference between the models that a search starts from: settings hold their SHA-256."""
    before, now = (str(settings.get("prior")) for settings in (first, second))
    if before == now or "prior" not in first.keys() & second.keys():
        return ""
    began = "no pretrained model (--prior none)"
    if before != "none":
        began = f"{'the' if now == 'none' else 'another'} pretrained model whose sha256 is {_shown(before)} (--prior)"
    return f"the search began with {began}"


def _plain(value: object) -> object:
    """Convert NumPy scalars and read-only mappings to values that JSON has."""
    if isinstance(value, Mapping):
        return dict(value)
    item = getattr(value, "item", None)
    if item is None:
        raise TypeError(f"{value!r} ({type(value).__name__}) is no plain JSON value, and a header holds no other")
    return item()


def _difference(path: str, before: object, now: object) -> str:
    if isinstance(before, dict) and isinstance(now, dict):
        for key in [*before, *(key for key in now if key not in before)]:
            if before.get(key) != now.get(key):
                return _difference(f"{path}.{key}", before.get(key), now.get(key))
    return f"{printable(path)} is {_shown(repr(before))}, not {_shown(repr(now))}"


def _shown(value: object) -> str:
    return printable(value, longest=100)
