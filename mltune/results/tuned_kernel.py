"""A tuned kernel that can be called: machine code of a winner's folder, with its launch."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, Field, StrictInt, StrictStr, ValidationError

from mltune.errors import DeviceError, RunDirectoryError
from mltune.files.reading import parse_json, read_file, reason
from mltune.files.validation import problems_of

_MAX_BYTES = 1 << 28
_Extent = Annotated[StrictInt, Field(ge=1, lt=2**31)]
_Extents = Annotated[list[_Extent], Field(min_length=3, max_length=3)]


_Text = Annotated[StrictStr, Field(min_length=1, max_length=10_000)]
_Formulas = Annotated[list[_Text], Field(min_length=3, max_length=3)]
_Count = Annotated[StrictInt, Field(ge=0, lt=2**53)]


class _Function(BaseModel):
    function: _Text
    name: StrictStr = ""


class _AtOtherSizes(BaseModel):
    grid: _Formulas
    block: _Formulas
    shared_bytes: _Text
    workspace_bytes: _Text | None = None


class _Compiled(BaseModel):
    registers: _Count | None = None
    spill_bytes: _Count | None = None
    stack_bytes: _Count | None = None
    shared_bytes: _Count | None = Field(None, alias="static_shared_bytes")
    code_bytes: _Count | None = None


class _Launch(BaseModel):
    grid: _Extents
    block: _Extents
    shared_bytes: Annotated[StrictInt, Field(ge=0, lt=2**31)]
    workspace_bytes: _Count | None = None
    launched: Annotated[list[Annotated[StrictInt, Field(ge=-(2**31), lt=2**31)]], Field(max_length=60)]
    at_other_sizes: _AtOtherSizes | None = None
    sizes_must_satisfy: dict[_Text, StrictStr] = {}


class WinnerDocument(BaseModel):
    """The kernel of a winner.json: its problem, build and launch."""

    problem: dict[StrictStr, Any] = {}
    kernel: _Function
    build: _Compiled = Field(default_factory=lambda: _Compiled.model_validate({}))
    launch: _Launch


@dataclass(frozen=True, slots=True)
class TunedKernel:
    """A kernel on the current GPU, with the launch of the problem that it was tuned for.

    Attributes
    ----------
    function : cupy.RawKernel
    module : cupy.RawModule
        For example for its constant memory.
    grid, block : tuple of int
    shared_bytes : int
        Dynamic shared memory of a block.
    arguments : tuple of int
        Parameters passed at launch, after the arguments of a call.
    workspace : cupy.ndarray or None
        Memory that is passed last; None for a kernel that needs none.
    """

    function: Any
    module: Any
    grid: tuple[int, ...]
    block: tuple[int, ...]
    shared_bytes: int
    arguments: tuple[int, ...]
    workspace: Any = None

    def __call__(self, *arguments: Any, grid: tuple[int, ...] | None = None, workspace: Any = None) -> None:
        """Launch the kernel on the current stream.

        Parameters
        ----------
        *arguments
            Those of the kernel: CuPy arrays and NumPy scalars, in order.
        grid : tuple of int, optional
            Another number of blocks, for another size.
        workspace : cupy.ndarray, optional
            Other memory for the workspace, zero before its first launch: for another size, or for each further stream.
        """
        import numpy as np

        further: list[Any] = [np.int64(value) for value in self.arguments]
        if self.workspace is not None:
            further.append(self.workspace if workspace is None else workspace)
        self.function(grid or self.grid, self.block, (*arguments, *further), shared_mem=self.shared_bytes)


def load_winner(folder: Path) -> TunedKernel:
    """Load the kernel of a winner's folder.

    Raises
    ------
    RunDirectoryError
        The folder holds no machine code: the run was replayed, or has no winner yet.
    DeviceError
        CuPy is not installed, or there is no GPU.
    """
    document, code = read_winner(folder)
    launch = document.launch
    try:
        import cupy

        with tempfile.NamedTemporaryFile(suffix=".cubin") as file:  # CuPy loads files only
            file.write(code)
            file.flush()
            module = cupy.RawModule(path=file.name)
            function = module.get_function(document.kernel.function)  # loads it
        if launch.shared_bytes:
            function.max_dynamic_shared_size_bytes = launch.shared_bytes
        workspace = None if launch.workspace_bytes is None else cupy.zeros(launch.workspace_bytes, dtype="uint8")
    except ImportError as error:
        raise DeviceError(f"a tuned kernel runs with CuPy, but it cannot be imported: {error!s:.300}.") from error
    except Exception as error:  # each version of CuPy has its own errors where there is no GPU
        raise DeviceError(f"a tuned kernel needs a GPU of its architecture: {error!s:.300}.") from error
    shape = tuple(launch.grid), tuple(launch.block), launch.shared_bytes
    return TunedKernel(function, module, *shape, tuple(launch.launched), workspace)


def read_winner(folder: Path) -> tuple[WinnerDocument, bytes]:
    """Read description and machine code of a winner's folder; errors are those of :func:`load_winner`."""
    content: Any = None
    try:
        content = parse_json(read_file(folder / "winner.json", _MAX_BYTES, inside=folder))
        if isinstance(content, dict) and content.get("lacks_code"):
            raise ValueError("it has no machine code")
        document = WinnerDocument.model_validate(content)
        return document, read_file(folder / "kernel.cubin", _MAX_BYTES, inside=folder)
    except ValidationError as error:
        fact = problems_of(error, content, model=WinnerDocument)
    except (OSError, ValueError) as error:
        fact = reason(error)
    raise RunDirectoryError(
        f"a tuned kernel is compiled by a run on a GPU that has declared a winner, but {folder}: {fact}."
    )
