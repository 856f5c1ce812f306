"""Headers of the CUDA toolkit that a source includes, as texts: a compile process opens no file.

The toolkit is the one that belongs to the installed packages, or that the system has (found by ``cuda.pathfinder``).
"""

from __future__ import annotations

import contextlib
import os
import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path

from mltune.kernel.includes import MAX_HEADERS, included, walk_includes

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


def toolkit_headers(source: str, own: Mapping[str, str]) -> dict[str, str]:
    """Return the headers of the toolkit that a source and its own headers include, directly or not, by name.

    A header that the toolkit does not have is left out: the compiler says so, if it is needed.

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
    for header in walk_includes({"": source, **own}, find, _included):
        size += len(header.text) if header.path not in found else 0
        found.setdefault(header.name, header.text)  # NVRTC looks for it as it is written, also beside another header
        found[header.path] = header.text
        if size >= _MOST_BYTES or len(found) >= MAX_HEADERS:
            break
    return found


def _included(text: str) -> Iterator[tuple[str, str]]:
    """Yield what a text includes; macros of Thrust stand for headers of its host and device systems."""
    yield from included(text)
    for found in _COMPUTED.finditer(text):
        name = "execution_policy" if found[2] == "TAG" else found[2].lower()
        yield "<", f"thrust/system/{'cpp' if found[1] == 'HOST' else 'cuda'}/detail/{name}.h"


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
