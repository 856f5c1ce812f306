"""Assembly of PTX with nvJitLink, which applies a file of controls to it.

NVRTC would open such a file in the call that reads the source, and the source could then include any file. So NVRTC
makes PTX, which includes nothing, while no file can be opened.
"""

from __future__ import annotations

import os
import re
import resource
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from mltune.files.text import printable
from mltune.kernel.launch import APPLY

MOST_FILES = 4
"""Most files that an assembler may have open: it reads one, but nobody has seen all of its releases."""

_EMPTY = b".version 7.0\n.target sm_80\n.address_size 64\n"
_ARCHITECTURE, _ASSEMBLER = "--gpu-architecture=", "--ptxas-options="
_OF_NVJITLINK = {_ARCHITECTURE: "-arch=", _ASSEMBLER: "-Xptxas=", "-lineinfo": "-lineinfo"}
_OF_NVJITLINK |= dict.fromkeys(("--maxrregcount=", "-maxrregcount="), "-maxrregcount=")
"""Beginnings of the options of NVRTC that are for the assembler, and those of nvJitLink's."""


@cache
def nvjitlink_version() -> str:
    """Return the version of nvJitLink, such as ``"13.0.88"``, as it stands in its machine code; empty without it."""
    cubin, _ = assemble(_EMPTY, ["--gpu-architecture=sm_80"])
    match = re.search(rb"Cuda compilation tools, release [\d.]+, V([\d.]+)", cubin)
    return match[1].decode() if match else ""


def in_memory(controls: Mapping[str, bytes]) -> dict[str, str]:
    """Write files of controls to memory; return for the option that names one the option that has its path."""
    paths = {}
    for name, content in controls.items():
        with os.fdopen(os.memfd_create(name), "wb", closefd=False) as file:
            file.write(content)
            paths[f"{APPLY}{name}"] = f"{APPLY}/proc/self/fd/{file.fileno()}"
    return paths


def to_ptx(options: Sequence[str]) -> list[str]:
    """Return the options of NVRTC with which it makes PTX, without those for the assembler."""
    kept = [option for option in options if not option.startswith(_ASSEMBLER)]
    return [option.replace(f"{_ARCHITECTURE}sm_", f"{_ARCHITECTURE}compute_") for option in kept]


def from_ptx(options: Sequence[str]) -> list[str]:
    """Return the options of nvJitLink that are those of NVRTC for the assembler."""
    pairs = ((option, *pair) for option in options for pair in _OF_NVJITLINK.items())
    return [
        replacement + option.removeprefix(prefix) for option, prefix, replacement in pairs if option.startswith(prefix)
    ]


def assemble(ptx: bytes, options: Sequence[str]) -> tuple[bytes, str]:
    """Assemble PTX with options of NVRTC; return the cubin, empty after an error, and the log.

    A compile process can open no file otherwise: it is allowed to meanwhile, as far as its hard limit allows.
    """
    nvjitlink, passed = _nvjitlink(), from_ptx(options)
    if isinstance(nvjitlink, str):
        return b"", nvjitlink

    def read(what: str) -> bytes:
        buffer = bytearray(getattr(nvjitlink, f"get_{what}_size")(linker))
        if buffer:
            getattr(nvjitlink, f"get_{what}")(linker, buffer)
        return bytes(buffer)

    linker, cubin = nvjitlink.create(len(passed), passed), b""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft or hard, hard))
        nvjitlink.add_data(linker, nvjitlink.InputType.PTX, ptx, len(ptx), "kernel.ptx")
        nvjitlink.complete(linker)
        cubin = read("linked_cubin")
    except nvjitlink.nvJitLinkError:
        pass  # the log says why
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        if soft == 0:
            os.closerange(hard - MOST_FILES, hard)  # if the assembler left one open
    log = read("info_log" if cubin else "error_log").replace(b"\0", b"\n").decode(errors="replace")
    nvjitlink.destroy(linker)
    return cubin, log


@cache
def _nvjitlink() -> Any:
    """Return the bindings of nvJitLink after loading the library, or the reason why there is none."""
    try:
        from cuda.bindings import nvjitlink

        nvjitlink.version()
    except Exception as error:  # each release of the bindings has its own error for a missing library
        install = "files of controls need nvJitLink: `pip install 'nvidia-nvjitlink>=13.3,<14'`"
        return f"error: {install}; it cannot be loaded: {printable(error, 100)}"
    return nvjitlink
