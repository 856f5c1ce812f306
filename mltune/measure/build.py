"""Build configurations of a kernel with NVRTC on all cores, with the toolkit of the packages or of the system."""

from __future__ import annotations

import contextlib
import math
import operator
import os
import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from mltune.errors import BundleError, DeviceError, ExpressionError, SpaceError
from mltune.kernel.bundle import Kernel
from mltune.kernel.coding import check_macro_name
from mltune.kernel.compiler_parameters import variant_of
from mltune.kernel.includes import MAX_HEADERS, included, macro_places, walk_includes, with_macros
from mltune.kernel.launch import APPLY
from mltune.kernel.placed import PlacedKernel
from mltune.measure.compile_pool import CompilePool
from mltune.measure.compiler import CudaSource, accepts_option, compiles_with, nvrtc_version, supported_architectures
from mltune.measure.cubin_cache import default_cache
from mltune.problem.problem import RunnableProblem
from mltune.process.child import available_cores, done_until, fulfilled
from mltune.records.trial import Build, TrialState

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
"""Texts in place of headers that NVRTC cannot compile; of CUB, what kernels use on warps and blocks."""

_MOST_BYTES = 1 << 26


def toolkit_headers(source: str, own: Mapping[str, str]) -> dict[str, str]:
    """Return the headers of the toolkit that a source includes, directly or not, by name; without those it lacks.

    >>> toolkit_headers("int x;", {})
    {}
    """
    headers: dict[str, str] = {}

    def find(file: str, name: str, quoted: bool) -> tuple[str, str] | None:
        if name in own:
            return None
        for path in dict.fromkeys(map(posixpath.normpath, (posixpath.join(posixpath.dirname(file), name), name))):
            text = headers.get(path) or _text(_include_folders(), path)
            if text is not None:
                return path, text
        return None

    size = 0
    for header in walk_includes({"": source, **own}, find, _included):
        size += len(header.text) if header.path not in headers else 0
        headers.setdefault(header.name, header.text)  # NVRTC looks for it as it is written, also beside another header
        headers[header.path] = header.text
        if size >= _MOST_BYTES or len(headers) >= MAX_HEADERS:
            break
    return headers


def _included(text: str) -> Iterator[tuple[str, str]]:
    """Yield what a text includes; macros of Thrust stand for headers of its host and device systems."""
    yield from included(text)
    for match in _COMPUTED.finditer(text):
        name = "execution_policy" if match[2] == "TAG" else match[2].lower()
        yield "<", f"thrust/system/{'cpp' if match[1] == 'HOST' else 'cuda'}/detail/{name}.h"


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

        directory = find_nvidia_header_directory("cudart")
    except Exception:  # each release has its own errors where nothing is found
        directory = None
    roots = [directory, *(f"{os.environ[name]}/include" for name in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(name))]
    roots.append("/usr/local/cuda/include")
    # where CUDA 13 has its C++ library, too
    folders = [Path(root) / part for root in roots if root for part in ("", "cccl")]
    return tuple(folder for folder in dict.fromkeys(folders) if folder.is_dir())


__all__ = ["NvrtcBuilder", "available_cores", "compile_options", "default_cache", "nvrtc_version"]

_ARCHITECTURE = re.compile(r"sm_(\d+)a?")


def compile_options(architecture: str) -> tuple[str, ...]:
    """Return the options of NVRTC for a real architecture, such as ``"sm_90"``; the driver never compiles PTX.

    They are made from typed values only, because some options of NVRTC read and write files. NVRTC's cache is off so
    that a compile time is that of a compile. (The oldest supported NVRTC lacks the last two options.)
    """
    match = _ARCHITECTURE.fullmatch(architecture)
    if match is None:
        raise DeviceError(f"{architecture!r} is no architecture, such as sm_90 or sm_90a.")
    if int(match[1]) not in supported_architectures():
        listed = ", ".join(f"sm_{number}" for number in supported_architectures())
        raise DeviceError(
            f"NVRTC {nvrtc_version()} compiles for {listed}, but not for {architecture}; install an NVRTC that does."
        )
    required = [f"--gpu-architecture={architecture}", "--std=c++17", "-default-device", "--ptxas-options=-v"]
    return (*required, *(option for option in ("--no-cache", "--no-source-include") if accepts_option(option)))


def with_known_options(kernel: Kernel, architecture: str) -> tuple[Kernel, list[str]]:
    """Return a kernel without values of compiler parameters that this NVRTC does not know, and messages of them.

    A default stays: without it nothing can be compiled, and the compiler says why.
    """
    values, notices = {}, []
    for name in kernel.compiler.varied:
        default, *variants = kernel.compiler.parameters[name]
        values[name] = [default]
        for code in variants:
            labelled = kernel.space.labelled({name: code})
            refusal = _refusal(kernel, architecture, variant_of(labelled).options)
            if refusal:
                notices.append(f"{refusal}: {name} = {labelled[name]} is left out")
            else:
                values[name].append(code)
    return kernel.with_values(values), notices


def _refusal(kernel: Kernel, architecture: str, options: tuple[str, ...]) -> str:
    """Return why options cannot be used, empty if they can; files of controls are tried in a process of their own."""
    if not any(option.startswith(APPLY) for option in options):
        compiles = compiles_with(architecture, options)
        return "" if compiles else f"NVRTC {nvrtc_version()} does not know {' '.join(options)}"
    source = 'extern "C" __global__ void nothing() {}', "nothing", compile_options(architecture)
    with CompilePool(CudaSource(*source, controls=kernel.compiler.controls), workers=1) as pool:
        return pool.build("", options).result().detail


def definitions(macros: Mapping[str, int | float | str]) -> str:
    r"""Return the lines that define macros at the head of a source; a text stands as it is.

    Options of NVRTC would apply to its own declarations, too, which a macro ``width`` would break.
    """
    return "".join(f"#define {name} {_macro_value(name, value)}\n" for name, value in macros.items())


class NvrtcBuilder(CompilePool):
    """Compile configurations of a kernel to cubins, with one compile process per core. A context manager.

    Configurations that differ only in launch parameters, or in macros that no text mentions, share one build.
    """

    def __init__(self, kernel: Kernel, problem: RunnableProblem, architecture: str, **compilers: Any) -> None:
        source = _source(kernel, compile_options(kernel.architecture_on(architecture)))
        self._kernel = kernel
        self._problem_macros = dict(problem.macros())
        definitions(self._problem_macros | dict.fromkeys(kernel.space.parameters, 0))
        super().__init__(source, **compilers)
        texts = (source.text, source.entry, *source.headers.values())
        pastes = kernel.source.generator is not None or any("##" in text or "%:" in text for text in texts)
        self._mentions = None if pastes else cache(lambda name: any(name in text for text in texts))

    def submit(self, configuration: Mapping[str, int]) -> Future[Build]:
        """Queue one configuration, which has an integer for every parameter; other entries are ignored.

        A compiler parameter that it lacks has its default.
        """
        try:
            return self.build(self._mentioned(self.definitions(configuration)), self.options(configuration))
        except ExpressionError as error:  # of a macro that follows from a size of the launch
            return fulfilled(Build(TrialState.COMPILE_ERROR, str(error)))

    def foresee(self, configuration: Mapping[str, int]) -> None:
        """Begin to build a configuration that will be submitted."""
        with contextlib.suppress(ExpressionError):
            self.expect(self._mentioned(self.definitions(configuration)), self.options(configuration))

    def options(self, configuration: Mapping[str, int]) -> tuple[str, ...]:
        """Return the options of the compiler that a configuration asks for, besides those of the kernel."""
        return self._kernel.compiler.variant(configuration).options

    def definitions(self, configuration: Mapping[str, int]) -> str:
        """Return the text before the source: macros, another name of the kernel, and what is generated."""
        macros = definitions(self._macros(configuration) | self._kernel.renaming(configuration))
        if self._kernel.source.generator is not None:
            text = self._kernel.source_of(configuration)
            return with_macros(text, macros, places_of(self._kernel, text)) + "\n"
        return macros

    def _mentioned(self, definitions: str) -> str:
        """Return definitions without macros that neither the source mentions nor another macro's value."""
        mentions = self._mentions
        if mentions is None:
            return definitions
        lines = [(line, *line.split(maxsplit=2)[1:]) for line in definitions.splitlines(keepends=True)]
        values = " ".join(value for _, _, *rest in lines for value in rest)
        return "".join(line for line, name, *_ in lines if mentions(name) or name in values)

    def _macros(self, configuration: Mapping[str, int]) -> dict[str, int | float | str]:
        if missing := [name for name in self._kernel.space.parameters if name not in configuration]:
            raise SpaceError(f"the configuration lacks {', '.join(missing)}; it must contain every parameter.")
        return self._kernel.macros(configuration) | self._problem_macros


def build_all(
    placed: PlacedKernel, configurations: Sequence[Mapping[str, int]], *, until: float = math.inf
) -> list[Build | None]:
    """Compile configurations side by side, or take them from the cache of cubins; None where one lacks at `until`.

    That is a time of the clock of :func:`time.perf_counter`.
    """
    kernel, workers = placed.kernel, min(len(configurations), available_cores())
    compilers = {"cache": default_cache(), "workers": workers}
    with NvrtcBuilder(kernel, placed.runnable, placed.device.architecture, **compilers) as builder:
        builds = [builder.submit(configuration) for configuration in configurations]
        done = done_until(builds, until)
        return [build.result() if build in done else None for build in builds]


def build_one(placed: PlacedKernel, configuration: Mapping[str, int]) -> Build:
    """Compile one configuration, or take it from the cache of cubins."""
    (build,) = build_all(placed, [configuration])
    assert build is not None  # noqa: S101 - there is no limit of time
    return build


def _source(kernel: Kernel, options: tuple[str, ...]) -> CudaSource:
    """Return the source of a kernel with its headers and options."""
    if kernel.source.text is None or kernel.source.entry is None:
        raise BundleError(
            f"the bundle {kernel.name!r} has no source to build: it describes timings that were recorded elsewhere; "
            "use it in replay."
        )
    headers = {**toolkit_headers(kernel.source.text, kernel.source.headers), **kernel.source.headers}
    text = "" if kernel.source.generator is not None else kernel.source.text
    options = (*options, *kernel.source.options)
    return CudaSource(text, kernel.source.entry, options, headers, kernel.compiler.controls, places_of(kernel, text))


def places_of(kernel: Kernel, text: str) -> Mapping[str, int]:
    """Return the places in a text of a kernel where its parameters are defined; the others are at its head."""
    return _places(text, (*kernel.source.headers.items(),), (*kernel.space.parameters,))


@lru_cache(maxsize=16)
def _places(text: str, headers: tuple[tuple[str, str], ...], names: tuple[str, ...]) -> Mapping[str, int]:
    return macro_places(text, dict(headers), names)  # a library asks again at each of its sizes


def _macro_value(name: str, value: int | float | str) -> int | float | str:
    check_macro_name(name)
    if isinstance(value, str) and (not value.isprintable() or value.endswith("\\")):
        raise SpaceError(f"{name}={value!r:.200} is no macro: one line of printable text without a \\ at its end.")
    if isinstance(value, float | str):
        return value
    try:
        return operator.index(value)
    except TypeError:
        raise SpaceError(f"{name}={value!r} is no integer, which a parameter must be.") from None
