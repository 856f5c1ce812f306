"""Manifests of datasets: kernel, problem, device, provenance, and the hash of the table."""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

from mltune.device.facts import Device
from mltune.errors import DatasetError, MltuneError
from mltune.files.reading import reason
from mltune.files.validation import problems_of
from mltune.problem.kinds import problem_from_json
from mltune.problem.problem import Problem

FORMAT = 1
MAX_ROWS = 1_000_000
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
    kind : {"random", "complete", "search"}
        Choice of the configurations: a uniform sample of the whole space, including failures; every legal combination
        of the values in ``parameters``; or the trials of a tuning run, which prefers fast ones.
    kernel, source_hash : str
        Name of the kernel bundle, and hash of its source.
    problem : Problem
    device : Device
    parameters : mapping of str to tuple of int
        The values that the configurations were chosen from, in the order of the bundle.
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
    format : int
        Version of the format.

    Raises
    ------
    DatasetError
        A value is out of bounds.
    """

    name: str
    kind: Literal["random", "complete", "search"]
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
    format: int = FORMAT

    __pydantic_config__: ClassVar[dict[str, Any]] = {"extra": "forbid", "arbitrary_types_allowed": True}

    def __post_init__(self) -> None:
        fastest = None if self.best is None else self.best.median_s
        times = [time for time in (self.reference_median_s, fastest) if time is not None]
        laws = (
            (self.format == FORMAT, f"`format` must be {FORMAT}, got {self.format}; a newer mltune may read it"),
            (_NAME.fullmatch(self.name), f"a dataset's name must match {_NAME.pattern}, got {self.name!r}"),
            (not self.sha256 or _HASH.fullmatch(self.sha256), f"`sha256` must be 64 hex digits, got {self.sha256!r}"),
            (1 <= self.rows <= MAX_ROWS, f"1 <= rows <= {MAX_ROWS} must hold, got {self.rows}"),
            (all(math.isfinite(time) and time > 0 for time in times), f"times must be positive, got {times}"),
            (
                all(math.isfinite(fact) and fact > 0 for fact in _divisors(self.device)),
                f"a device has positive counts, clocks and throughput, got {self.device}",
            ),
            (self.parameters, "a dataset must have parameters, got none"),
            (
                len({name.lower() for name in self.parameters}) == len(self.parameters),
                f"the names of parameters must differ in more than case, got {[*self.parameters]}",
            ),
        )
        for holds, message in laws:
            if not holds:
                raise DatasetError(f"dataset {self.name!r}: {message}.")
        for name, values in self.parameters.items():
            if not _PARAMETER.fullmatch(name) or not values:
                raise DatasetError(
                    f"dataset {self.name!r}: a parameter has a name matching {_PARAMETER.pattern} and values, "
                    f"got {name!r} with {values}."
                )

    def to_json(self) -> dict[str, Any]:
        """Return the manifest as plain JSON values."""
        document = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        best = None if self.best is None else {**dataclasses.asdict(self.best)}
        return document | {"problem": self.problem.to_json(), "device": self.device.to_json(), "best": best}


def _divisors(device: Device) -> tuple[float, ...]:
    """Return the facts of a device that are used as divisors."""
    return (device.sm_count, device.clock_hz, device.warp_size, *(device.fma_per_clock or ()))


def read_manifest(path: Path) -> Manifest:
    """Read the JSON file of a manifest and check it.

    Raises
    ------
    DatasetError
        The file does not exist, or is not a manifest.
    """
    from pydantic import TypeAdapter, ValidationError

    try:
        with path.open("rb") as file:
            text = file.read(_MAX_BYTES + 1)
        if len(text) > _MAX_BYTES:
            raise DatasetError(f"a manifest must have at most {_MAX_BYTES} bytes, but {path} has more.")
        document = json.loads(text)
        if not isinstance(document, dict) or "problem" not in document:
            raise DatasetError(f"a manifest is a table with a problem, got {document!r:.60}.")
        document["problem"] = problem_from_json(document["problem"])
        if "cublas_median_s" in document:  # before version 0.2
            document["reference_median_s"] = document.pop("cublas_median_s")
        manifest = TypeAdapter(Manifest).validate_python(document)
    except ValidationError as error:
        raise DatasetError(f"{path}: {problems_of(error, document)}.") from error
    except OSError as error:
        raise DatasetError(f"a dataset has a manifest, but {path} cannot be read: {reason(error)}.") from error
    except DatasetError as error:
        raise DatasetError(f"{path}: {error}") from error
    except (ValueError, TypeError, LookupError, RecursionError, MltuneError) as error:
        raise DatasetError(f"{path} must be the manifest of a dataset: {error}") from error
    if manifest.name != path.stem:
        raise DatasetError(f"a dataset's files carry its name, but {path} holds {manifest.name!r}.")
    return manifest
