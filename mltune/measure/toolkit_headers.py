"""Headers of the CUDA toolkit that a source includes, as texts: a compile process opens no file.

The toolkit is the one that belongs to the installed packages, or that the system has (found by ``cuda.pathfinder``).
"""

from __future__ import annotations

import contextlib
import os
import posixpath
import re
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*[<"]([^>"\n]{1,200})[>"]', re.MULTILINE)
_COMPUTED = re.compile(r"^[ \t]*#[ \t]*include[ \t]+__THRUST_(HOST|DEVICE)_SYSTEM_(\w+)_HEADER", re.MULTILINE)
_COLLECTIVES = (
    *(f"cub/block/block_{name}.cuh" for name in ("adjacent_difference", "discontinuity", "exchange", "histogram")),
    *(f"cub/block/block_{name}.cuh" for name in ("load", "merge_sort", "radix_sort", "reduce", "run_length_decode")),
    *(f"cub/block/block_{name}.cuh" for name in ("scan", "shuffle", "store")),
    *(f"cub/warp/warp_{name}.cuh" for name in ("exchange", "load", "merge_sort", "reduce", "scan", "store")),
)
_OWN = dict.fromkeys(("assert.h", "math.h", "stdio.h", "stdlib.h", "string.h", "cassert", "cstdio", "cstdlib"), "")
_OWN |= dict.fromkeys(("stdint.h", "cstdint"), "#include <cuda/std/cstdint>\n")
_OWN["cub/cub.cuh"] = "".join(f"#include <{name}>\n" for name in _COLLECTIVES)
"""Texts in place of headers that NVRTC cannot compile, as sources include them that are compiled with nvcc, too. Most
functions of the C library are built into NVRTC; of CUB, kernels use what works on warps and blocks."""

_MOST_BYTES = 1 << 26
_MOST_FILES = 3000


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
    wanted = [("", name) for text in (source, *own.values()) for name in _included(text) if name not in own]
    folders = _include_folders() if wanted else ()
    found: dict[str, str] = {}
    visited: set[str] = set()
    size = 0
    while wanted and size < _MOST_BYTES and len(found) < _MOST_FILES:
        where, name = wanted.pop()
        for candidate in dict.fromkeys((posixpath.normpath(posixpath.join(where, name)), posixpath.normpath(name))):
            text = found.get(candidate) or _text(folders, candidate)
            if text is None:
                continue
            found.setdefault(name, text)  # NVRTC looks for it as it is written, also beside another header
            if candidate not in visited:
                visited.add(candidate)
                found[candidate] = text
                size += len(text)
                wanted += [(posixpath.dirname(candidate), other) for other in _included(text)]
            break
    return found


def _included(text: str) -> list[str]:
    """Return the names that a text includes; macros of Thrust stand for headers of its host and device systems."""
    systems = [
        f"thrust/system/{'cpp' if where == 'HOST' else 'cuda'}/detail/{name}.h"
        for where, part in _COMPUTED.findall(text)
        for name in ["execution_policy" if part == "TAG" else part.lower()]
    ]
    return _INCLUDE.findall(text) + systems


def _text(folders: Sequence[Path], name: str) -> str | None:
    """Return the text of a header in the first of some folders that has it; None where none has."""
    if name.startswith(("/", "..")):
        return None
    if name in _OWN:
        return _OWN[name]
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
