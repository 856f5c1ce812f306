"""The document of a library, ``library.json``: its schema, which all readers share, and its hash."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from itertools import pairwise
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, StrictInt, StrictStr, model_validator

from mltune.files.validation import matching
from mltune.kernel.expressions import MAX_TEXT
from mltune.kernel.schema import MOST_TENSOR_MAPS
from mltune.problem.array_values import STORAGE

FORMAT = 3
"""Version of the document's format."""

READABLE = (2, FORMAT)
"""Versions that are read: before 3 a dispatcher has no exact sizes."""

ABI = 1
"""Version of the interface in C, and of the document."""

C_TYPES = {
    **{f"{sign}int{bits}": f"{sign}int{bits}_t" for sign in ("", "u") for bits in (8, 16, 32, 64)},
    "float32": "float",
    "float64": "double",
    "bool": "uint8_t",
}
"""Types of C by those of scalars; one that is missing is passed by its address."""

NAME = r"[a-z][a-z0-9_]{0,39}"
"""Names of libraries, which are names in C."""

MOST_CONFIGURATIONS, MOST_EXACT = 255, 10_000

HASH = "document_sha256"
"""The key of the document's own hash."""

_MOST_FORMULA_CHARACTERS = 1 << 18
"""Most characters of all formulas: a hundred configurations have 2,500 each, and as many cost a second or two."""

_ARRAYS = ("in", "out", "inout")
_INTEGERS = tuple(dtype for dtype in C_TYPES if "int" in dtype)

_Name = Annotated[StrictStr, matching(NAME, "be a name of small letters, digits and _")]
_FileName = Annotated[StrictStr, matching(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}", "be the name of a file in the folder")]
_Hash = Annotated[StrictStr, matching(r"[0-9a-f]{64}", "be a SHA-256")]
_Identifier = Annotated[StrictStr, matching(r"[A-Za-z_][A-Za-z0-9_]{0,63}", "be a name")]
_Text = Annotated[StrictStr, Field(max_length=10_000)]
_Formula = Annotated[StrictStr, Field(min_length=1, max_length=MAX_TEXT)]
_Entry = Annotated[StrictStr, matching(r"[A-Za-z_$][A-Za-z0-9_$.]{0,4999}", "be the name of a kernel")]
_Formulas = Annotated[list[_Formula], Field(min_length=3, max_length=3)]
_Count = Annotated[StrictInt, Field(ge=0, lt=2**31)]
_MapFormulas = tuple[_Count, _Formula, _Formula, _Formula, _Formula, _Formula]
_Int32 = Annotated[StrictInt, Field(ge=-(2**31), lt=2**31)]
_Number = Annotated[float, Field(strict=True, allow_inf_nan=False)]
_Node = tuple[_Count, _Number, _Int32, _Int32]


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class _Device(_Table):
    name: _Text
    compute_capability: Annotated[list[_Count], Field(min_length=2, max_length=2)]
    sm_count: _Count


class _Parameter(_Table):
    name: _Identifier
    dtype: Literal[tuple(STORAGE)]  # type: ignore[valid-type]
    role: Literal["size", "in", "out", "inout", "scalar"]


class LaunchFormulas(_Table):
    """The launch of a configuration, as formulas of the sizes.

    `launched` are passed after the arguments. `workspace_bytes` is None for a kernel that takes none; `zeros` are the
    bytes at its beginning that are zero before and after a launch, None for all. `tensor_maps` have the place of an
    array among the arguments, and formulas of what a :class:`~mltune.kernel.launch.TensorMap` has. `tiles` are the
    pieces of work that the dispatcher counts, and `of_tile` the work of each, 0 where it is not known.
    """

    grid: _Formulas
    block: _Formulas
    shared_bytes: _Formula
    workspace_bytes: _Formula | None
    zeros: _Formula | None
    tiles: _Formula
    of_tile: _Formula
    launched: Annotated[list[_Int32], Field(max_length=60)]
    tensor_maps: Annotated[list[_MapFormulas], Field(max_length=MOST_TENSOR_MAPS)] = []


class ConfigurationOfLibrary(_Table):
    """A configuration, the conditions on sizes, its most dynamic shared memory, and the place of its machine code."""

    kernel: _Text
    configuration: Annotated[dict[_Text, Any], Field(max_length=200)]
    entry: _Entry
    launch: LaunchFormulas
    sizes_must_satisfy: Annotated[dict[_Formula, _Text], Field(max_length=60)]
    most_shared_bytes: _Int32
    cubin: _Count

    @property
    def formulas(self) -> tuple[str, ...]:
        """All formulas of the launch and the conditions."""
        launch = self.launch
        further = [launch.workspace_bytes or "0", launch.zeros or "0", launch.tiles, launch.of_tile]
        further += (field for _, *fields in launch.tensor_maps for field in fields)
        return (*launch.grid, *launch.block, launch.shared_bytes, *further, *self.sizes_must_satisfy)


class _Dispatcher(_Table):
    nodes: Annotated[list[_Node], Field(max_length=5000)]
    roots: Annotated[list[_Int32], Field(max_length=100)]
    waves: list[list[_Number]]
    longer: Annotated[list[list[_Number]], Field(max_length=5000)]
    processors: Annotated[StrictInt, Field(ge=1, lt=2**31)]
    exact: Annotated[list[list[_Count]], Field(max_length=MOST_EXACT)] = []

    def check(self, extents: int, configurations: int) -> None:
        """Check its shape; a child of a node comes after it, so that every walk ends, and exact sizes ascend."""
        inputs = extents * (extents + 1) + (extents > 2)
        children = [(child, at + 1) for at, node in enumerate(self.nodes) for child in node[2:]]
        children += [(root, 0) for root in self.roots]
        rows = [(self.waves, 7 + 5 * extents), (self.longer, configurations)]
        if (
            any(node[0] >= inputs for node in self.nodes)
            or not all(-len(self.longer) <= child < len(self.nodes) and not 0 <= child < at for child, at in children)
            or any(len(row) != length for table, length in rows for row in table)
            or len(self.waves) != configurations
            or any(len(row) != extents + 1 or row[-1] >= configurations for row in self.exact)
            or any(before[:-1] >= row[:-1] for before, row in pairwise(self.exact))
        ):
            raise ValueError("the trees and coefficients of its dispatcher do not fit its extents and configurations")


class LibraryDocument(_Table):
    """A ``library.json``; see docs/reference/library.md."""

    format: Literal[READABLE]  # type: ignore[valid-type]
    abi: Literal[ABI]  # type: ignore[valid-type]
    name: _Name
    formula: _Text
    problem: Annotated[dict[StrictStr, Any], Field(max_length=200)]
    device: _Device
    sizes: Annotated[list[_Identifier], Field(min_length=1, max_length=60)]
    extents: Annotated[list[_Identifier], Field(min_length=1, max_length=60)]
    parameters: Annotated[list[_Parameter], Field(max_length=200)]
    alignment: Annotated[StrictInt, Field(ge=1, le=4096)]
    configurations: Annotated[list[ConfigurationOfLibrary], Field(min_length=1, max_length=MOST_CONFIGURATIONS)]
    dispatcher: _Dispatcher
    report: dict[StrictStr, Any]
    versions: Annotated[dict[StrictStr, _Text | None], Field(max_length=200)]
    shared_object: _FileName | None
    sha256: Annotated[dict[_FileName, _Hash], Field(max_length=16)]
    document_sha256: _Hash

    @model_validator(mode="after")
    def _check(self) -> Self:
        """Check what fields must have in common."""
        names = [parameter.name for parameter in self.parameters]
        if len({*names}) < len(names) or not {*self.extents} <= {*self.sizes} <= {*names}:
            raise ValueError(
                "two parameters have one name, a size is not among them, or an extent is not among the sizes"
            )
        for parameter in self.parameters:
            is_size = parameter.role == "size" or parameter.name in self.sizes
            if is_size and (parameter.role in _ARRAYS or parameter.dtype not in _INTEGERS):
                raise ValueError(f"the size {parameter.name} is no integer that is passed")
        if not any(parameter.role in _ARRAYS for parameter in self.parameters):
            raise ValueError("no parameter is an array, which an operation reads or writes")
        if not isinstance(self.problem.get("precision", ""), str):
            raise ValueError("the precision of its problem is no text")
        if not {f"{self.name}.h", f"{self.name}.c"} <= self.sha256.keys():
            raise ValueError("its header or its source is not among the hashed files")
        formulas = [text for configuration in self.configurations for text in configuration.formulas]
        if sum(map(len, formulas)) > _MOST_FORMULA_CHARACTERS:
            raise ValueError(f"its formulas have more than {_MOST_FORMULA_CHARACTERS} characters together")
        self.dispatcher.check(len(self.extents), len(self.configurations))
        return self


def hash_of(document: Mapping[str, Any]) -> str:
    """Return the SHA-256 of a document without its own hash: of JSON with sorted keys and no spaces, in ASCII."""
    values = {key: value for key, value in document.items() if key != HASH}
    return hashlib.sha256(json.dumps(values, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
