"""The schema of kernel.toml, with which :mod:`mltune.kernel.reader` validates a document.

Bundles may come from strangers, so the number of everything that costs time or memory is limited.
"""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    Field,
    StrictBool,
    StrictFloat,
    StrictInt,
    StrictStr,
    StringConstraints,
)

from mltune.files.validation import distinct, matching
from mltune.kernel.compiler_parameters import COMPILER_OPTION, COMPILER_OPTION_LAW
from mltune.problem.array_values import DTYPES
from mltune.problem.arrays import Role
from mltune.problem.problem import ACCURACIES, STRICTEST

MAX_PARAMETERS = 60
MOST_TENSOR_MAPS = 8
"""Most parameters of a kernel, those passed at launch included."""


def _text(value: object) -> object:
    """Accept a plain number as an expression."""
    return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value


def _float(value: object) -> object:
    """Keep an integer that is too large from becoming a float."""
    if isinstance(value, int):
        raise ValueError("must be a float")
    return value


_NAME = "be at most 64 letters, digits and underscores"
Slug = Annotated[StrictStr, matching(r"[a-z][a-z0-9_]{0,63}", f"{_NAME}, lower-case, a letter first")]
ParameterName = Annotated[StrictStr, matching(r"[A-Za-z][A-Za-z0-9_]{0,63}", f"{_NAME}, a letter first")]
VariableName = ParameterName
Identifier = Annotated[StrictStr, matching(r"[A-Za-z_][A-Za-z0-9_]{0,63}", f"{_NAME}, no digit first")]
_ENTRY = r"[A-Za-z_][A-Za-z0-9_:]{0,127}(<[A-Za-z0-9_:<>, *]{1,200}>)?"
EntryName = Annotated[StrictStr, matching(_ENTRY, "be the name of a kernel, or of a template")]
CompilerOption = Annotated[StrictStr, matching(COMPILER_OPTION.pattern, COMPILER_OPTION_LAW)]
_FILE_NAME = "be the name of a file: letters, digits, _, - and dots, no folder"
_NAME_OF_FILE = r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}"
PlainFileName = Annotated[StrictStr, matching(_NAME_OF_FILE, _FILE_NAME)]
_HEADER = rf"{_NAME_OF_FILE}\.(h|hh|hpp|hxx|cuh|inl|inc)"
HeaderName = Annotated[StrictStr, matching(_HEADER, f"{_FILE_NAME}, with an ending such as .h or .cuh")]
HEADER_PATH = re.compile(rf"({_NAME_OF_FILE}/){{0,30}}{_HEADER}")
SourceHash = Annotated[StrictStr, matching("[0-9a-f]{64}", "be 64 hex digits")]
_FOLDER = rf"\.|{_NAME_OF_FILE}(/{_NAME_OF_FILE}){{0,9}}"
IncludeFolder = Annotated[StrictStr, matching(_FOLDER, "be a folder of the bundle, such as include or a/b, or .")]
ExpressionText = Annotated[StrictStr, BeforeValidator(_text)]
Reason = Annotated[StrictStr, StringConstraints(strip_whitespace=True, min_length=1, max_length=500)]
ParameterValue = (
    StrictBool
    | Annotated[StrictInt, Field(gt=-(2**31), lt=2**31)]
    | Annotated[StrictFloat, BeforeValidator(_float), Field(allow_inf_nan=False)]
    | Annotated[StrictStr, matching(r"[ -~]{1,200}", "be at most 200 printable ASCII characters")]
)
ValueList = Annotated[list[ParameterValue], Field(min_length=1, max_length=1000)]
Parameters = Annotated[dict[ParameterName, ValueList], Field(max_length=MAX_PARAMETERS)]
CompilerValues = Annotated[list[StrictInt | StrictStr], Field(min_length=1, max_length=16)]


class _Table(BaseModel, extra="forbid"):
    """A table without other keys."""


class KernelTable(_Table):
    """``[kernel]``: the kernel's name, its problem and accuracy class, its source and the headers of that."""

    name: Slug
    problem: Slug
    precisions: Annotated[tuple[StrictStr, ...], Field(max_length=16), AfterValidator(distinct)] = ()
    architecture: Annotated[StrictStr, matching(r"sm_[0-9]{2,3}[af]?", "be like sm_90a")] | None = None
    unit: Literal["fp32", "fp64", "tensor_fp16", "tensor_tf32", "tensor_fp64"] | None = None
    variables: Annotated[tuple[VariableName, ...], Field(max_length=60)] = ()
    source: PlainFileName | None = None
    headers: Annotated[tuple[HeaderName, ...], Field(max_length=60), AfterValidator(distinct)] = ()
    include: Annotated[tuple[IncludeFolder, ...], Field(max_length=8), AfterValidator(distinct)] = ()
    entry: EntryName | None = None
    options: Annotated[tuple[CompilerOption, ...], Field(max_length=16)] = ()
    accuracy: Literal[ACCURACIES] = STRICTEST  # type: ignore[valid-type]
    candidate: StrictBool = True
    physics: StrictBool = True
    batched: StrictBool = False
    epilogues: StrictBool = False
    same_as: Annotated[tuple[SourceHash, ...], Field(max_length=16)] = ()


class PresetTable(_Table):
    """``[presets.NAME]``: a part of the space, such as that of an older version of the kernel."""

    values: Parameters = {}
    restrictions: Annotated[dict[ExpressionText, Reason], Field(max_length=200)] = {}


_FiveTexts = Annotated[list[ExpressionText], Field(min_length=5, max_length=5)]
TensorMaps = Annotated[dict[ParameterName, _FiveTexts], Field(min_length=1, max_length=MOST_TENSOR_MAPS)]


class LaunchTable(_Table):
    """``[launch]``: the shape of a launch, the parameters that are passed at launch, the workspace and tensor maps."""

    block: Annotated[list[ExpressionText], Field(min_length=1, max_length=3)] = ["1"]
    grid: Annotated[list[ExpressionText], Field(min_length=1, max_length=3)] = ["1"]
    parameters: Parameters = {}
    arguments: Annotated[list[ParameterName], Field(max_length=MAX_PARAMETERS), AfterValidator(distinct)] = []
    workspace: ExpressionText | None = None
    zeros: ExpressionText | None = None
    tensor_maps: TensorMaps | None = None


class AccessTable(_Table):
    """``[access.NAME]``: one load or store of the main loop, with its number, width and layout of lanes."""

    memory: Literal["shared", "global"]
    count: ExpressionText
    bytes: ExpressionText
    lanes: Annotated[list[tuple[ExpressionText, ExpressionText]], Field(min_length=1, max_length=6)]


class ArgumentTable(_Table):
    """``[arguments]``: an array, which has a shape, or a scalar, which has a value."""

    dtype: Literal[DTYPES]  # type: ignore[valid-type]
    shape: Annotated[list[ExpressionText], Field(min_length=1, max_length=8)] | None = None
    role: Role = "in"
    initial: StrictStr | StrictInt | Annotated[StrictFloat, Field(allow_inf_nan=False)] = "uniform"
    value: ExpressionText | None = None
    tolerance: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    absolute: ExpressionText | None = None


class WorkTable(_Table):
    """``[work]``: what a problem takes at least, over its sizes."""

    flops: ExpressionText | None = None
    bytes: ExpressionText | None = None
    arithmetic: Literal["fp32", "fp64"] | None = None


class ReferenceTable(_Table):
    """``[reference]``: another kernel of the source with its launch, or files with the right answer."""

    entry: Identifier | None = None
    block: Annotated[list[ExpressionText], Field(min_length=1, max_length=3)] = ["1"]
    grid: Annotated[list[ExpressionText], Field(min_length=1, max_length=3)] = ["1"]
    answer: Annotated[dict[Identifier, PlainFileName], Field(max_length=100)] = {}


Sizes = Annotated[dict[VariableName, Annotated[StrictInt, Field(ge=0, lt=2**53)]], Field(max_length=60)]


class KernelDocument(_Table):
    """A whole kernel.toml."""

    kernel: KernelTable
    sizes: Sizes = {}
    arguments: Annotated[dict[Identifier, ArgumentTable], Field(max_length=100)] = {}
    macros: Annotated[dict[VariableName, ExpressionText], Field(max_length=100)] = {}
    work: WorkTable = WorkTable()
    reference: ReferenceTable = ReferenceTable()
    verify: Annotated[list[Sizes], Field(max_length=20)] = []
    parameters: Annotated[Parameters, Field(min_length=1)]
    default: Annotated[dict[ParameterName, ParameterValue], Field(max_length=MAX_PARAMETERS)] = {}
    derived: Annotated[dict[VariableName, ExpressionText], Field(max_length=200)] = {}
    restrictions: Annotated[dict[ExpressionText, Reason], Field(max_length=200)] = {}
    distinct: Annotated[dict[ExpressionText, Reason], Field(max_length=200)] = {}
    resources: Annotated[dict[VariableName, ExpressionText], Field(max_length=200)] = {}
    access: Annotated[dict[VariableName, AccessTable], Field(max_length=20)] = {}
    launch: LaunchTable = LaunchTable()
    compiler: Annotated[dict[ParameterName, CompilerValues], Field(max_length=8)] = {}
    presets: Annotated[dict[VariableName, PresetTable], Field(max_length=20)] = {}
