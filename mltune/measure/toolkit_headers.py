"""Headers of the CUDA toolkit that a source includes, as texts: a compile process opens no file.

The toolkit is the one that belongs to the installed packages, or that the system has (found by ``cuda.pathfinder``).
"""

from __future__ import annotations

import contextlib
import os
import posixpath
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

from mltune.kernel.includes import MAX_HEADERS, walk_includes

_MOST_BYTES = 1 << 26


def toolkit_headers(source: str, own: Mapping[str, str]) -> dict[str, str]:
    """Return the headers of the toolkit that a source and its own headers include, directly or not, by name.

    A header that the toolkit does not have is left out: the compiler says so, if it is needed.

    Parameters
    ----------
    source : str
    own : mapping of str to str
        The texts of its own headers by name.

    Examples
    --------
    >>> toolkit_headers("int x;", {})
    {}
    """
    found: dict[str, str] = {}

    def find(file: str, name: str, quoted: bool) -> tuple[str, str] | None:
        if name in own:
            return None
        for path in dict.fromkeys(map(posixpath.normpath, (posixpath.join(posixpath.dirname(file), name), name))):
            text = found.get(path) or _text(_include_folders(), path)
            if text is not None:
                return path, text
        return None

    size = 0
    for header in walk_includes({"": source, **own}, find):
        size += len(header.text) if header.path not in found else 0
        found.setdefault(header.name, header.text)  # NVRTC looks for it as it is written, also beside another header
        found[header.path] = header.text
        if size >= _MOST_BYTES or len(found) >= MAX_HEADERS:
            break
    return found


def _text(folders: Sequence[Path], name: str) -> str | None:
    """Return the text of a header in the first of some folders that has it; None where none has."""
    if name.startswith(("/", "..")):
        return None
    for folder in folders:
        with contextlib.suppress(OSError):
            if (folder / name).is_file():
                return (folder / name).read_text(errors="replace")
    return None


@cache
def _include_folders() -> tuple[Path, ...]:
    """Return the folders of the toolkit's headers: of the installed package, then of the system."""
    try:
        from cuda.pathfinder import find_nvidia_header_directory

        found = find_nvidia_header_directory("cudart")
    except Exception:  # each release has its own errors where nothing is found
        found = None
    roots = [found, *(f"{os.environ[name]}/include" for name in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(name))]
    roots.append("/usr/local/cuda/include")
    folders = [
        Path(root) / part for root in roots if root for part in ("", "cccl")
    ]  # where CUDA 13 has its C++ library
    return tuple(folder for folder in dict.fromkeys(folders) if folder.is_dir())
