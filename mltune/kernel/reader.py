"""Reader of kernel bundles: finds a bundle, reads its files with limits, and makes it; writer of new bundles."""

from __future__ import annotations

import contextlib
import functools
import os
import re
import shlex
from collections.abc import Callable, Mapping
from importlib import resources
from pathlib import Path
from string import Template
from typing import Any

from pydantic import ValidationError

from mltune.errors import BundleError, UsageError
from mltune.files import folders
from mltune.files.atomic import replace_folder_atomically, write_file_atomically
from mltune.files.reading import check_folder, parse_toml, raising, read_file, read_source
from mltune.files.text import many, no_such, printable
from mltune.files.validation import problems_of
from mltune.kernel.bundle import Kernel
from mltune.kernel.compiler_parameters import MOST_CONTROLS_BYTES, controls_in
from mltune.kernel.document import BundleFiles, make_kernel, make_presets
from mltune.kernel.draft import blanks_in, draft_bundle
from mltune.kernel.includes import Headers, IncludeFolders
from mltune.kernel.schema import HEADER_PATH, KernelDocument

MAX_DOCUMENT_BYTES = 2**20
"""Largest size of a kernel.toml."""

MAX_SOURCE_BYTES = 2**24
"""Largest size of a kernel source and its headers together."""


def load_kernel(name_or_path: str | Path, *, source: str | Path | None = None) -> Kernel:
    """Load a kernel bundle.

    Parameters
    ----------
    name_or_path : str or pathlib.Path
        The name of a built-in kernel, or the path of a folder; followed by ``:NAME``, one of its presets, a part of its
        space.
    source : str or pathlib.Path, optional
        A CUDA source that takes the place of the bundle's.

    Raises
    ------
    BundleError
        There is no such bundle or preset, or it is malformed. The message names the file and the key.

    Examples
    --------
    >>> load_kernel("gemm_simt").space.launch_parameters
    {'RASTER_GROUP': (1, 2, 4, 8, 16)}
    """
    bundle, preset = _with_preset(name_or_path)
    path = _find_bundle(bundle) / "kernel.toml"
    document = _validated(path, _read(path, MAX_DOCUMENT_BYTES))
    files = _files(path, document, None if source is None else Path(source))
    try:
        whole = make_kernel(document, files)
        presets = make_presets(document, whole)  # all of them are checked
    except BundleError as error:
        raise _refused(path, error) from error
    if preset and preset not in presets:
        law = f"Its presets are {', '.join(presets)}" if presets else "It has none"
        raise BundleError(no_such(f"preset of {whole.name}", preset, presets, law))
    return presets[preset] if preset else whole


def is_bundle(name_or_path: str | Path) -> bool:
    """Return whether there is a built-in kernel of a name, or a bundle in a folder."""
    return _located(_with_preset(name_or_path)[0]) is not None


def built_in() -> list[str]:
    """Return the names of the built-in kernels."""
    return sorted(path.parent.name for path in folders.assets("kernels").glob("*/kernel.toml"))


def _with_preset(name_or_path: str | Path) -> tuple[str | Path, str]:
    """Split a name into that of a bundle and that of a preset, which is empty where none is named."""
    bundle, colon, preset = str(name_or_path).rpartition(":")
    if colon and _located(name_or_path) is None and _located(bundle) is not None:
        return bundle, preset
    return name_or_path, ""


def _located(name_or_path: str | Path) -> Path | None:
    if isinstance(name_or_path, str) and name_or_path in built_in():
        return folders.assets("kernels") / name_or_path
    folder = Path(name_or_path)
    return folder.resolve() if name_or_path != "" and os.path.lexists(folder / "kernel.toml") else None


def _find_bundle(name_or_path: str | Path) -> Path:
    folder, names = _located(name_or_path), built_in()
    if folder is not None:
        return folder
    if advice := advice_on_source(name_or_path):
        raise BundleError(advice)
    law = (
        f"A kernel is a built-in one ({', '.join(names) or 'none are installed'}) or a folder that holds a kernel.toml"
    )
    raise BundleError(no_such("kernel", str(name_or_path), names, law))


def advice_on_source(name: str | Path) -> str:
    """Return what to do with a file where a bundle is needed; empty where the name is that of no file of CUDA code."""
    path = Path(name)
    if path.suffix not in (".cu", ".cuh", ".cpp", ".c"):
        return ""
    if not path.is_file():
        return f"there is no file {printable(path, 300)}; a kernel is a built-in one or the folder of a bundle."
    if _located(path.parent) is not None:
        return f"{printable(path, 300)} is the source of a bundle; name its folder, {printable(path.parent, 300)}."
    words = shlex.join(["mltune", "init", "--from", str(path), str(path.with_suffix(""))])
    return (
        f"{printable(path, 300)} is a source, and what is tuned is a bundle: a folder that also says which arguments "
        f"and sizes the kernel has. This command makes one of it: {printable(words, 600)}"
    )


def _refused(path: Path, message: object) -> BundleError:
    text = printable(message, 600).removesuffix(".")
    end = "" if text.endswith("?") else "."
    return BundleError(f"{printable(path, 300)}: {text}{end} See {folders.page('reference/kernel-toml.md')}.")


def _read(path: Path, limit: int, read: Callable[[Path, int], Any] = read_source) -> Any:
    """Read a file of a bundle, whose links lead to nothing outside the bundle."""
    if not Path(os.path.realpath(path)).is_relative_to(os.path.realpath(path.parent)):
        raise _refused(path, "a file of a bundle must be in its folder, but this is a link that leads out of it")
    with raising(functools.partial(_refused, path), "this file of the bundle cannot be read"):
        return read(path, limit)


@functools.lru_cache(maxsize=64)
def _validated(path: Path, text: str) -> KernelDocument:
    """Return the document of a text; commands load a kernel several times."""
    try:
        document = parse_toml(text)
        if blanks := blanks_in({**document, "parameters": {}}, text):
            raise BundleError(
                f"{printable(path, 300)} is to be filled in at {many(len(blanks), 'line')}: {'; '.join(blanks)}"
            )
        return KernelDocument.model_validate(document)
    except ValidationError as error:
        raise _refused(path, problems_of(error, document, model=KernelDocument)) from error
    except ValueError as error:
        raise _refused(path, f"this is no valid TOML: {error}") from error


def _files(path: Path, document: KernelDocument, source_file: Path | None) -> BundleFiles:
    """Read the files that a document names."""
    table, folder = document.kernel, path.parent
    source = None if table.source is None else _read(source_file or folder / table.source, MAX_SOURCE_BYTES)
    texts: dict[str, str] = {}
    for name in table.headers:
        free_bytes = MAX_SOURCE_BYTES - sum(len(text.encode()) for text in texts.values())
        texts[name] = _read(folder / name, free_bytes)
    initial = [argument.initial for argument in document.arguments.values()]
    named = [*(value for value in initial if isinstance(value, str)), *document.reference.answer.values()]
    arrays = {name: file for name in named if (file := _array_file(folder, name))}
    controls = {name: _read(folder / name, MOST_CONTROLS_BYTES, read_file) for name in controls_in(document.compiler)}
    return BundleFiles(folder, source, _headers(path, document, source or "", texts), arrays, controls)


def _headers(path: Path, document: KernelDocument, source: str, listed: Mapping[str, str]) -> Headers:
    """Return the headers that are listed, and those that the source includes from folders of the bundle."""
    table, root, refused = document.kernel, path.parent, functools.partial(_refused, path)
    with raising(refused, "kernel.include", ValueError):
        for name in table.include:
            with raising(refused, f"kernel.include: {name} is no folder in that of the bundle"):
                check_folder(root / name, inside=root)  # lies in the bundle, behind no link
        folders = {name: root / name for name in table.include}
        finder = IncludeFolders(table.source or "", folders, root, HEADER_PATH, MAX_SOURCE_BYTES)
        return finder.headers(source, listed)


def _array_file(folder: Path, name: str) -> Path | None:
    """Return the path of a file of an array in the bundle's folder; None where there is none."""
    with contextlib.suppress(OSError, ValueError):  # a name that is too long, or has a zero byte
        path = Path(os.path.realpath(folder / name))
        if path.is_relative_to(os.path.realpath(folder)) and path.is_file():
            return path
    return None


FILES = ("kernel.cu", "kernel.toml")
"""The files of a new bundle; their templates are in ``templates/``."""

_LONGEST_NAME = 64


def new_bundle(folder: Path, source: Path | None = None, entry: str | None = None) -> str:
    """Write a new bundle, and return the name of its kernel, which is made from that of the folder.

    It is an example, or a draft for `source`, of which `entry` is tuned (:func:`~mltune.kernel.draft.draft_bundle`).
    """
    name = kernel_name(folder.resolve().name)
    with raising(UsageError, f"no bundle can be written to {printable(folder, 300)}"):
        if is_used := folder.is_symlink() or folder.exists():
            _check_empty(folder)
        files = _example(name) if source is None else draft_bundle(source, name, entry)
        if is_used:
            for file, content in files.items():  # not exchanged: it may be the working directory of somebody
                check_folder((folder / file).parent, inside=folder, create=True)
                write_file_atomically(folder / file, content)
        else:
            replace_folder_atomically(folder, files)
    return name


def _example(name: str) -> dict[str, bytes]:
    templates = resources.files("mltune.kernel") / "templates"
    texts = {file: (templates / f"{file}.txt").read_text("utf-8") for file in FILES}
    return {file: Template(text).substitute(name=name).encode() for file, text in texts.items()}


def kernel_name(folder_name: str) -> str:
    """Return the name of a kernel made from that of a folder."""
    words = re.sub(r"[^a-z0-9]+", "_", folder_name.lower()).strip("_")
    name = words if words[:1].isalpha() else f"kernel_{words}"
    return name[:_LONGEST_NAME].rstrip("_")


def _check_empty(folder: Path) -> None:
    if not folder.is_dir() or any(folder.iterdir()):
        fact = "holds files" if folder.is_dir() else "is something else"
        raise UsageError(
            f"{printable(folder, 300)} {fact}; a bundle is written to a new or empty folder: choose another name."
        )
