"""The folder of a library: written whole, read with all hashes compared."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictInt, StrictStr, ValidationError

from mltune.errors import DiskFullError, LibraryError
from mltune.files.atomic import replace_folder_atomically
from mltune.files.reading import parse_json, read_file, reason
from mltune.files.text import printable
from mltune.files.validation import matching, problems_of
from mltune.library.source import ABI, Content, c_files
from mltune.problem.array_values import DTYPES

FORMAT = 1
"""Version of the document's format."""

DOCUMENT = "library.json"
NAME = r"[a-z][a-z0-9_]{0,39}"
"""Names of libraries, which are names in C."""

_MAX_BYTES = 1 << 30
_MAX_DOCUMENT_BYTES = 1 << 26
_COMPILE_S = 600.0
_COMPILERS = ("cc", "gcc", "clang")

_Name = Annotated[StrictStr, matching(NAME, "be a name of small letters, digits and _")]
_FileName = Annotated[StrictStr, matching(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}", "be the name of a file in the folder")]
_Hash = Annotated[StrictStr, matching(r"[0-9a-f]{64}", "be a SHA-256")]
_Identifier = Annotated[StrictStr, matching(r"[A-Za-z_][A-Za-z0-9_]{0,63}", "be a name")]


class _Parameter(BaseModel):
    name: _Identifier
    dtype: Literal[DTYPES]  # type: ignore[valid-type]
    role: Literal["size", "in", "out", "inout", "scalar"]


class _Launch(BaseModel):
    model_config = ConfigDict(extra="allow")

    workspace_bytes: StrictStr | None


class _Configuration(BaseModel):
    model_config = ConfigDict(extra="allow")

    launch: _Launch


class Document(BaseModel):
    """What a program needs of a library.json, and all the rest; see docs/reference/library.md."""

    model_config = ConfigDict(extra="allow")

    format: Literal[1]
    abi: StrictInt
    name: _Name
    problem: dict[StrictStr, Any]
    sizes: Annotated[list[_Identifier], Field(min_length=1, max_length=60)]
    parameters: Annotated[list[_Parameter], Field(max_length=200)]
    configurations: Annotated[list[_Configuration], Field(min_length=1, max_length=255)]
    shared_object: _FileName | None
    sha256: Annotated[dict[_FileName, _Hash], Field(max_length=100)]


def write_library(folder: Path, content: Content) -> dict[str, Any]:
    """Write the folder of a library in place of an existing one, and return its document.

    Where there is a C compiler, the shared object is among the files.

    Raises
    ------
    DiskFullError
        The folder cannot be written. An existing one is unchanged.
    LibraryError
        The host's compiler refuses the source.
    """
    files = c_files(content)
    built = compiled(content.name, files)
    shared = f"lib{content.name}.so"
    files |= {} if built is None else {shared: built}
    document = {
        "format": FORMAT,
        "abi": ABI,
        **content.to_json(),
        "shared_object": None if built is None else shared,
        "sha256": {name: hashlib.sha256(data).hexdigest() for name, data in files.items()},
    }
    check_place(folder)
    try:
        replace_folder_atomically(folder, {**files, DOCUMENT: (json.dumps(document, indent=1) + "\n").encode()})
    except OSError as error:
        raise DiskFullError(
            f"a library must be written as a whole, but {folder} cannot be: {reason(error)}."
        ) from error
    return document


def check_place(folder: Path) -> None:
    """Refuse a folder with anything else than a library: what lies there would be replaced."""
    if folder.exists() and not (folder / DOCUMENT).is_file() and (not folder.is_dir() or any(folder.iterdir())):
        raise LibraryError(f"a library is written to a folder of its own, but {folder} holds something else.")


def compiled(name: str, files: Mapping[str, bytes]) -> bytes | None:
    """Return the shared object of a library; None where there is no C compiler."""
    compiler = next((found for one in _COMPILERS if (found := shutil.which(one))), None)
    if compiler is None:
        return None
    with tempfile.TemporaryDirectory() as scratch:
        for file in (f"{name}.h", f"{name}.c"):
            (Path(scratch) / file).write_bytes(files[file])
        made = Path(scratch) / f"lib{name}.so"
        command = [compiler, "-O3", "-shared", "-fPIC", f"{name}.c", "-o", made.name, "-ldl", "-lm"]
        try:
            subprocess.check_output(command, cwd=scratch, stderr=subprocess.STDOUT, timeout=_COMPILE_S)  # noqa: S603
        except subprocess.CalledProcessError as error:
            fact = printable(error.output.decode(errors="replace"), 500)
            raise LibraryError(f"a library is compiled by {compiler}, but that fails: {fact}.") from error
        except (OSError, subprocess.TimeoutExpired) as error:
            raise LibraryError(f"a library is compiled by {compiler}, but that fails: {error!s:.300}.") from error
        return made.read_bytes()


def machine_code(folder: Path, document: Mapping[str, Any], number: int) -> bytes:
    """Return the machine code of a configuration of a library with this document, from its C source.

    Raises
    ------
    LibraryError
        The source is not the one of the document.
    """
    name = f"{document['name']}.c"
    source = read_file(folder / name, _MAX_BYTES, inside=folder)
    used = re.findall(rb'^  \{(\d+), "', source, re.MULTILINE)
    codes = re.findall(rb"^static const uint64_t cubin_\d+\[\] = \{(.*?)\};", source, re.MULTILINE)
    if hashlib.sha256(source).hexdigest() != document["sha256"].get(name) or not number < len(used):
        raise LibraryError(
            f"a library has the machine code in its C source, but {folder / name} lacks it or is damaged."
        )
    words = [int(word, 16) for word in codes[int(used[number])].split(b",")]
    return struct.pack(f"<{len(words)}Q", *words)


def read_library(folder: Path) -> tuple[Document, bytes]:
    """Read the document and the shared object of a library, with the hashes of all files compared.

    Raises
    ------
    LibraryError
        The folder is none of a library or of another version, or a file is missing or damaged.
    """
    content: Any = None
    file = folder / DOCUMENT
    try:
        content = parse_json(read_file(file, _MAX_DOCUMENT_BYTES, inside=folder))
        if isinstance(content, dict) and (content.get("format"), content.get("abi")) != (FORMAT, ABI):
            raise ValueError(
                f"it has format {printable(content.get('format'), 20)} and ABI {printable(content.get('abi'), 20)}, "
                f"and this mltune reads format {FORMAT} and ABI {ABI}; build it again"
            )
        document = Document.model_validate(content)
        if not {*document.sizes} <= {one.name for one in document.parameters}:
            raise ValueError("its sizes are not among its parameters")
        shared = b""
        for name, wanted in document.sha256.items():
            file = folder / name
            data = read_file(file, _MAX_BYTES, inside=folder)
            if hashlib.sha256(data).hexdigest() != wanted:
                raise ValueError(f"it is damaged: its SHA-256 is not the one in {DOCUMENT}")
            shared = data if name == document.shared_object else shared
        if not shared:
            file = folder
            raise ValueError(
                f"it has no shared object among its hashed files, because there was no C compiler; compile it, as the "
                f"first lines of {document.name}.c say, and use it from C, or build the library where there is one"
            )
        return document, shared
    except ValidationError as error:
        fact = problems_of(error, content, model=Document)
    except (OSError, ValueError) as error:
        fact = reason(error)
    raise LibraryError(f"a library is a folder that `mltune library build` wrote, but {file}: {fact}.")
