"""Manifests of datasets: kernel, problem, device, provenance, and the hash of the table."""

from __future__ import annotations

import dataclasses
import functools
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

from mltune.dataset.parquet import LONGEST_S
from mltune.device.facts import Device
from mltune.errors import DatasetError, MltuneError
from mltune.files.reading import parse_json, read_file, reason
from mltune.files.text import html_table, printable
from mltune.files.validation import adapter, problems_of
from mltune.kernel.bundle import Kernel
from mltune.kernel.coding import labelled
from mltune.problem.kinds import problem_from_json
from mltune.problem.problem import Problem
from mltune.records.columns import SHORTEST_S

FORMAT = 1
MAX_ROWS = 1_000_000
MAX_PARAMETERS = 200
LONGEST_LABEL = 200

_MAX_BYTES = 4_000_000
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,99}")
_PARAMETER = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,63}")
_HASH = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class Best:
    """The fastest configuration of a dataset and its median time in seconds."""

    configuration: Mapping[str, int]
    median_s: float


@dataclass(frozen=True, slots=True)
class Manifest:
    """The description of a dataset, which is read without its table.

    Attributes
    ----------
    name : str
        Name of the dataset and of its two files.
    kind : {"random", "complete", "pruned", "search"}
        Choice of the configurations: a uniform sample of the whole space, including failures; every legal combination
        of the values in ``parameters``; of these, all but what is surely slow; or the trials of a tuning run, which
        prefers fast ones.
    kernel, source_hash : str
        Name of the kernel bundle, and hash of its source.
    problem : Problem
    device : Device
    parameters : mapping of str to tuple of int
        The values that the configurations were chosen from, in the order of the bundle.
    labels : mapping of str to tuple of (int, float or str)
        The values of the parameters that are not integers: those parameters count the positions in these lists.
    rows : int
        Number of configurations.
    counts : mapping of str to int
        Number of configurations by final state.
    best : Best or None
        The fastest configuration; None when none ran.
    reference_median_s : float or None
        Median time of the reference kernel for the same problem on the same GPU, seconds.
    created : str
        Start of the run, ISO 8601, UTC.
    versions : mapping of str to str
        Versions of mltune, driver, NVRTC, CuPy and so on.
    seed : int or None
        Seed of the run.
    source, licence : str
        Origin and licence of data of third parties; empty for our own.
    sha256 : str
        Hash of the Parquet file; empty until it is written.
    pruning : mapping of str to float
        The promise, the audit and the seconds of a pruned sweep: :class:`mltune.tuning.sweep.Pruned`. Empty for
        datasets of other kinds.
    format : int
        Version of the format.
    """

    name: str
    kind: Literal["random", "complete", "pruned", "search"]
    kernel: str
    source_hash: str
    problem: Problem
    device: Device
    parameters: Mapping[str, tuple[int, ...]]
    rows: int
    counts: Mapping[str, int]
    best: Best | None
    reference_median_s: float | None = None
    created: str = ""
    versions: Mapping[str, str] = dataclasses.field(default_factory=dict)
    seed: int | None = None
    source: str = ""
    licence: str = ""
    sha256: str = ""
    labels: Mapping[str, tuple[int | float | str, ...]] = dataclasses.field(default_factory=dict)
    pruning: Mapping[str, int | float] = dataclasses.field(default_factory=dict)
    format: int = FORMAT

    __pydantic_config__: ClassVar[dict[str, Any]] = {"extra": "forbid", "arbitrary_types_allowed": True}

    def __repr__(self) -> str:
        return f"Manifest({self.name}: {self.rows:,} configurations of {self.kernel}, {self.problem.label})"

    def _repr_html_(self) -> str:
        return html_table(self.facts)

    @property
    def facts(self) -> dict[str, str]:
        """What a notebook shows of a dataset."""
        facts = {"dataset": self.name, "kernel": self.kernel, "problem": self.problem.label, "device": self.device.name}
        return {**facts, "configurations": f"{self.rows:,}"}

    def __post_init__(self) -> None:
        fastest = None if self.best is None else self.best.median_s
        times = [time for time in (self.reference_median_s, fastest) if time is not None]
        laws = (
            (self.format == FORMAT, f"`format` is {self.format}, not {FORMAT}; a newer mltune may read it"),
            (_NAME.fullmatch(self.name), f"the name cannot be {self.name!r}: it matches {_NAME.pattern}"),
            (not self.sha256 or _HASH.fullmatch(self.sha256), f"`sha256` is {self.sha256!r}, not 64 hex digits"),
            (1 <= self.rows <= MAX_ROWS, f"`rows` cannot be {self.rows}: it is from 1 to {MAX_ROWS}"),
            (
                all(SHORTEST_S <= time <= LONGEST_S for time in times),
                f"its times cannot be {times}: they are from {SHORTEST_S:g} to {LONGEST_S:g} s",
            ),
            (
                1 <= len(self.parameters) <= MAX_PARAMETERS,
                f"it has {len(self.parameters)} parameters, and not 1 to {MAX_PARAMETERS}",
            ),
            (
                len({name.lower() for name in self.parameters}) == len(self.parameters),
                f"the parameters {[*self.parameters]} have names that differ only in case",
            ),
            (
                bool(self.pruning) == (self.kind == "pruned") and all(map(math.isfinite, self.pruning.values())),
                f"`pruning` cannot be {dict(self.pruning)}: of kind pruned it has finite figures, else it is empty",
            ),
        )
        for holds, message in laws:
            if not holds:
                raise DatasetError(f"dataset {self.name!r}: {message}.")
        for name, values in self.parameters.items():
            if not _PARAMETER.fullmatch(name) or not values:
                raise DatasetError(
                    f"dataset {self.name!r}: {name!r} with {values} is no parameter, which has values and a name "
                    f"matching {_PARAMETER.pattern}."
                )
        self._check_labels()

    def _check_labels(self) -> None:
        for name, labels in self.labels.items():
            if not set(self.parameters.get(name, (-1,))) <= set(range(len(labels))):
                raise DatasetError(
                    f"dataset {self.name!r}: {name!r} has labels, but is no parameter, or its values are no positions "
                    "in their list."
                )
            if len(set(labels)) != len(labels) or not all(
                len(label) <= LONGEST_LABEL if isinstance(label, str) else math.isfinite(label) for label in labels
            ):
                raise DatasetError(
                    f"dataset {self.name!r}: the labels of {name!r} cannot be {list(labels)[:20]}: they are distinct, "
                    f"finite numbers or texts of at most {LONGEST_LABEL} characters."
                )

    def check_kernel(self, kernel: Kernel) -> str:
        """Check that the dataset belongs to a kernel; return a warning if its source has changed since, else ""."""
        kernel = kernel.recorded_with(self.parameters)
        recorded, of_kernel = self.parameters, kernel.all_parameters
        if self.kernel != kernel.name:
            raise DatasetError(
                f"{self.name} is of {self.kernel}, not of {kernel.name}, but a dataset is replayed with its own "
                "kernel; `mltune datasets` lists what there is."
            )
        labels = [name for name in self.labels if self.labels[name] != kernel.space.labels.get(name)]
        if differing := sorted(set(recorded) ^ set(of_kernel)) or labels:
            names = ", ".join(differing)
            raise DatasetError(f"{self.name} and {kernel.name} differ in {names}; record the dataset anew.")
        if not kernel.source.is_version(self.source_hash):
            return f"dataset {self.name} was recorded with another version of the source of {kernel.name}"
        return ""

    def labelled(self, configuration: Mapping[str, int]) -> dict[str, int | float | str]:
        """Return a configuration with labels in place of their positions."""
        return labelled(configuration, self.labels)

    def to_json(self) -> dict[str, Any]:
        """Return the manifest as plain JSON values."""
        document = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        best = None if self.best is None else {**dataclasses.asdict(self.best)}
        for name in ("labels", "pruning"):
            if not document[name]:
                del document[name]  # most datasets have none, and older versions know no such field
        return document | {"problem": self.problem.to_json(), "device": self.device.to_json(), "best": best}


def read_manifest(path: Path, *, inside: Path | None = None) -> Manifest:
    """Read the JSON file of a manifest and check it; no link below ``inside`` is followed."""
    try:
        data = read_file(path, _MAX_BYTES, inside=inside)
    except FileNotFoundError as error:
        raise DatasetError(
            f"there is no dataset {path.with_suffix('')}: a dataset is NAME.parquet with its manifest, NAME.json, and "
            f"{path.name} does not exist."
        ) from error
    except (OSError, ValueError) as error:
        text = printable(reason(error), 500)
        raise DatasetError(f"{path}, the manifest of the dataset, cannot be read: {text}.") from error
    return _validated(path, data)


@functools.lru_cache(maxsize=512)
def _validated(path: Path, data: bytes) -> Manifest:
    """Return the manifest in the data of a file; commands list all datasets several times."""
    from pydantic import ValidationError

    try:
        document = parse_json(data)
        _check_texts(document)
        if not isinstance(document, dict) or "problem" not in document:
            raise DatasetError("this is no manifest: it names no problem.")
        document["problem"] = problem_from_json(document["problem"])
        document["device"] = Device.from_json(document.get("device") or {})
        manifest: Manifest = adapter(Manifest).validate_python(document)
    except ValidationError as error:
        raise DatasetError(f"{path}: {problems_of(error, document)}.") from error
    except DatasetError as error:
        raise DatasetError(f"{path}: {printable(error, longest=500)}") from error
    except (ValueError, TypeError, LookupError, MltuneError) as error:
        text = printable(error, longest=500)
        raise DatasetError(f"{path} is no manifest of a dataset: {text}.") from error
    if manifest.name != path.stem:
        raise DatasetError(f"{path} holds the dataset {manifest.name!r}, but is not named after it; rename its files.")
    return manifest


def _check_texts(document: Any) -> None:
    """Refuse control characters: the texts of a manifest are shown on terminals and in reports."""
    parts = [*document, *document.values()] if isinstance(document, dict) else document
    for part in parts if isinstance(parts, list) else [parts]:
        if isinstance(part, dict | list):
            _check_texts(part)
        elif isinstance(part, str) and not part.isprintable():
            raise ValueError(f"its text {part[:100]!r} has control characters")
