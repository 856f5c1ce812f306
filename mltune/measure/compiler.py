"""Compilation with NVRTC: the function that a compile process serves, and the properties of the compiler.

A source is compiled to a cubin without a GPU or a driver; ``ptxas`` alone reports spills, in its log. There is one such
process per core, so nothing heavier than ``cuda.bindings.nvrtc`` is imported. Sources may come from strangers, and
NVRTC opens the absolute paths that they include: a process opens no file once it has loaded NVRTC.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import resource
import struct
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from types import MappingProxyType
from typing import Any

from mltune.device.packages import extra, major
from mltune.errors import DeviceError
from mltune.files.text import printable
from mltune.kernel.includes import with_macros
from mltune.kernel.launch import APPLY, plain_entry
from mltune.measure.assembler import MOST_FILES, assemble, in_memory, nvjitlink_version, to_ptx
from mltune.process.bounded import limit
from mltune.records.trial import Build, TrialState

_FILE_NAME = b"kernel.cu"
_NVRTC_SUCCESS, _NVRTC_ERROR_INVALID_OPTION, _NVRTC_ERROR_COMPILATION = 0, 5, 6
_DETAIL_LINES, _LINE_CHARACTERS, _DETAIL_CHARACTERS = 4, 200, 600
_LOG_CHARACTERS = 1 << 20
_NAME_MAP = "__nv_name_map"  # where NVRTC looks up the name of the kernel
_WARM_UP = 'extern "C" __global__ void warm_up() {}'
_HEADERS_ONLY = (
    "a source includes headers of the CUDA toolkit, those that kernel.toml lists under `headers`, and those below the "
    "folders that it lists under `include` (in Python: -I in compiler_options)"
)
_INSTALL = "install one with `pip install 'cuda-bindings>=13.0,<14' 'nvidia-cuda-nvrtc>=13.0,<14'`"


@cache
def nvrtc_version() -> str:
    """Return the version of NVRTC, such as ``"13.0.88"``, from PTX that it makes: ``nvrtcVersion`` lacks the patch."""
    nvrtc = _nvrtc()
    with _program(nvrtc, b"") as program:
        options = [f"--gpu-architecture=compute_{supported_architectures()[0]}".encode()]
        if int(nvrtc.nvrtcCompileProgram(program, len(options), options)[0]) == _NVRTC_SUCCESS:
            ptx = _text(nvrtc.nvrtcGetPTXSize, nvrtc.nvrtcGetPTX, program)
            match = re.search(r"Cuda compilation tools, release [\d.]+, V([\d.]+)", ptx)
            if match:
                return match[1]
    return ".".join(map(str, nvrtc.nvrtcVersion()[1:]))


def check_fits_driver(cuda: str) -> None:
    """Check that a driver with some newest CUDA version, such as ``"13.0"``, loads what NVRTC compiles.

    It loads machine code of every compiler of its own major version, also of a newer minor one ("minor version
    compatibility" in NVIDIA's CUDA Compatibility guide), and of older major versions.
    """
    if major(nvrtc_version()) > major(cuda):
        raise DeviceError(
            f"NVRTC {nvrtc_version()} ({loaded_library('nvrtc')}) is of a newer major version than CUDA {cuda} of the "
            f"driver; install a newer driver, or `pip install {extra(major(cuda))}` in an environment without NVRTC "
            f"{nvrtc_version()}."
        )


def loaded_library(name: str) -> str:
    """Return the path of a library that this process has loaded, such as ``"nvrtc"``; empty if it is not loaded."""
    with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as file:
        paths = (line.split(maxsplit=5)[-1].strip() for line in file if f"/lib{name}.so" in line)
        return next(paths, "")


@cache
def supported_architectures() -> tuple[int, ...]:
    """Return the compute capabilities that NVRTC supports, ascending, such as ``(75, 80, ..., 121)``."""
    return tuple(sorted(int(number) for number in _nvrtc().nvrtcGetSupportedArchs()[1]))


@cache
def accepts_option(option: str) -> bool:
    """Return whether this NVRTC knows an option."""
    nvrtc = _nvrtc()
    with _program(nvrtc, b"") as program:
        return int(nvrtc.nvrtcCompileProgram(program, 1, [option.encode()])[0]) != _NVRTC_ERROR_INVALID_OPTION


@cache
def compiles_with(architecture: str, options: tuple[str, ...]) -> bool:
    """Return whether this NVRTC and its assembler know options, such as those of a compiler parameter.

    Only the status counts: NVRTC may take the program from its own cache, and has no log of the assembler then.
    """
    nvrtc, encoded = _nvrtc(), [option.encode() for option in (f"--gpu-architecture={architecture}", *options)]
    with _program(nvrtc, _WARM_UP.encode()) as program:
        return int(nvrtc.nvrtcCompileProgram(program, len(encoded), encoded)[0]) == _NVRTC_SUCCESS


@dataclass(frozen=True, slots=True)
class CudaSource:
    """Everything that NVRTC compiles for a configuration, except its macros.

    `entry` is the name of the kernel in the text. `headers` have the names with which they are included; nothing else
    is found. `controls` are the files of controls that options name. `places` are those of macros that are not defined
    at the head of the text (:func:`~mltune.kernel.includes.macro_places`).
    """

    text: str
    entry: str
    options: tuple[str, ...]
    headers: Mapping[str, str] = field(default_factory=dict)
    controls: Mapping[str, bytes] = field(default_factory=dict)
    places: Mapping[str, int] = field(default_factory=dict)

    def expression(self, definitions: str) -> str:
        r"""Return the C++ name of the kernel, with the values of macros; empty where it is ``extern "C"``.

        Where that is not seen, as in a block, NVRTC is asked all the same: the name is then that of the entry.
        """
        entry, c = rf"\b{re.escape(self.entry)}\s*\(", r'extern\s+"C"'
        text = definitions + self.text
        if re.search(rf"{c}[^;{{}}]*{entry}", text) or (
            re.search(c, text) and re.fullmatch(r"\w+", self.entry) and not re.search(entry, text)
        ):
            return ""
        return self.name(definitions)

    def name(self, definitions: str) -> str:
        """Return the name of the kernel, the changed one if a macro gives it, and its arguments with macros' values."""
        macros: dict[str, str] = dict(re.findall(r"^#define (\w+) (.*)$", definitions, re.MULTILINE))
        plain = plain_entry(self.entry)
        changed = macros.get(plain, plain)
        name, *arguments = re.split(r"(<)", self.entry, maxsplit=1)
        values = re.sub(r"[A-Za-z_]\w*", lambda match: macros.get(match[0], match[0]), "".join(arguments))
        return name.removesuffix(plain) + (changed if changed.startswith(plain) else plain) + values


def make_compiler(source: CudaSource, memory_bytes: int) -> Callable[[tuple[str, tuple[str, ...]]], Build]:
    """Return the function that a compile process serves: from macros and further options to a build.

    The process has a low priority, is the first to be killed when memory runs out, leaves no core dumps and opens no
    files. Beyond `memory_bytes` the compiler fails or dies.
    """
    os.nice(5)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    limit(resource.RLIMIT_DATA, memory_bytes)
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
        file.write("1000")
    nvrtc = _nvrtc()
    # loads the libraries that NVRTC opens when needed
    _compile(nvrtc, CudaSource(_WARM_UP, "warm_up", source.options), "")
    controls = in_memory(source.controls)
    if controls:
        nvjitlink_version()  # loads it
    _open_no_more_files(MOST_FILES if controls else 0)

    def compile_one(job: tuple[str, tuple[str, ...]]) -> Build:
        started = time.perf_counter()
        definitions, options = job
        build = _compile(nvrtc, source, definitions, [controls.get(option, option) for option in options])
        return replace(build, compile_s=time.perf_counter() - started)

    return compile_one


def _open_no_more_files(most: int = 0) -> None:
    """Make every later attempt of this process to open a file fail; it can allow itself `most` files again.

    Without a free descriptor nothing can be opened, by whatever path and system call; the open ones can be used.
    """
    os.chdir("/")  # NVRTC looks at files beside the process without opening them
    os.close(free := os.open(os.devnull, os.O_RDONLY))
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, free + most if most else 0))
    try:
        os.close(os.open(os.devnull, os.O_RDONLY))
    except OSError:
        return
    raise DeviceError("this system does not enforce RLIMIT_NOFILE, and a compile process must not open files")


def parse_ptxas_log(log: str, entry: str) -> dict[str, Any] | None:
    """Read the resources of a kernel, fields of a build, from the log of ``ptxas -v``; None where it has none.

    Spills are stores plus loads, counted in the code; shared memory is the static part.
    """
    start = re.search(rf"^ptxas info\s*: Compiling entry function '{re.escape(entry)}'", log, re.MULTILINE)
    if start is None:
        return None
    block = log[start.end() :].partition("Compiling entry function")[0]
    frame = re.search(
        rf"Function properties for {re.escape(entry)}\s.*?"
        r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads",
        block,
        re.DOTALL,
    )
    used = re.search(r"Used (\d+) registers.*", block)
    if frame is None or used is None:
        return None
    shared = re.search(r"(\d+) bytes smem", used[0])
    return {
        "registers": int(used[1]),
        "stack_bytes": int(frame[1]),
        "spill_bytes": int(frame[2]) + int(frame[3]),
        "shared_bytes": int(shared[1]) if shared else 0,
    }


def code_bytes(cubin: bytes, entry: str) -> int | None:
    """Return the size of a kernel's machine code: that of section ``.text.<entry>`` of the ELF; None without one."""
    if len(cubin) < 64 or cubin[:5] != b"\x7fELF\x02":
        return None
    (table,) = struct.unpack_from("<Q", cubin, 0x28)
    size, count, names_index = struct.unpack_from("<HHH", cubin, 0x3A)
    marker = f".text.{entry}".encode() + b"\0"
    try:
        (names,) = struct.unpack_from("<Q", cubin, table + size * names_index + 24)
        for section in range(table, table + size * count, size):
            (name,) = struct.unpack_from("<I", cubin, section)
            if cubin.startswith(marker, names + name):
                return int(struct.unpack_from("<Q", cubin, section + 32)[0])
    except (struct.error, OverflowError):
        return None
    return None


def _compile(nvrtc: Any, source: CudaSource, definitions: str, further: Sequence[str] = ()) -> Build:
    all_options = (*source.options, *further)
    by_controls = any(option.startswith(APPLY) for option in all_options)
    options = [option.encode() for option in (to_ptx(all_options) if by_controls else all_options)]
    expression = source.expression(definitions)
    with _program(nvrtc, with_macros(source.text, definitions, source.places).encode(), source.headers) as program:
        if expression:
            nvrtc.nvrtcAddNameExpression(program, expression.encode())
        (status,) = nvrtc.nvrtcCompileProgram(program, len(options), options)
        log = _text(nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog, program)
        if int(status) == _NVRTC_ERROR_COMPILATION and "error: out of memory" not in log:
            return Build(TrialState.COMPILE_ERROR, _of_headers(log, source, definitions) + _errors(log))
        if int(status) != _NVRTC_SUCCESS:
            return Build(TrialState.CRASHED, f"NVRTC failed: {status.name}: {_errors(log)}")
        if by_controls:
            cubin, log = assemble(_bytes(nvrtc.nvrtcGetPTXSize, nvrtc.nvrtcGetPTX, program).rstrip(b"\0"), all_options)
            if not cubin:
                return Build(TrialState.COMPILE_ERROR, _errors(log))
        else:
            cubin = _bytes(nvrtc.nvrtcGetCUBINSize, nvrtc.nvrtcGetCUBIN, program)
        entry = source.name(definitions)
        if expression:
            lowered, name = nvrtc.nvrtcGetLoweredName(program, expression.encode())
            entry = "" if int(lowered) else name.decode()
    resources = parse_ptxas_log(log, entry)
    size = code_bytes(cubin, entry)
    if resources is None or size is None:
        detail = f"the cubin does not contain the kernel {source.entry!r}, which the source must define"
        return Build(TrialState.COMPILE_ERROR, detail)
    own_name = entry if expression or entry != source.entry else ""
    return Build(TrialState.OK, cubin=cubin, code_bytes=size, entry=own_name, **resources)


def _of_headers(log: str, source: CudaSource, definitions: str) -> str:
    """Return which macros may break a header in which the first error of a log is; empty if that is elsewhere."""
    error = re.search(r"^(\S+)\((\d+)\): error", log, re.MULTILINE)
    texts = [text for name, text in source.headers.items() if error and name.endswith(error[1].rpartition("/")[2])]
    macros = {*re.findall(r"^#define (\w+) ", definitions, re.MULTILINE)} - source.places.keys()
    for text in texts:
        line = text.split("\n")[int(error[2]) - 1 : int(error[2])] if error else []
        names = macros & {*re.findall(r"\w+", "".join(line))} or macros & {*re.findall(r"\w+", text)}
        if names:
            shown = ", ".join(sorted(names))
            return f"a header uses a name that is a macro here, so rename the parameter {printable(shown, 150)}: "
    return ""


def _errors(log: str) -> str:
    """Return the error messages of a log, shortened."""
    lines = [line.strip() for line in log[:_LOG_CHARACTERS].splitlines()]
    errors = [line for line in lines if re.search(r"\b(error|fatal)\b", line)] or [line for line in lines if line]
    detail = printable(
        "; ".join(printable(line, _LINE_CHARACTERS) for line in errors[:_DETAIL_LINES]), _DETAIL_CHARACTERS
    )
    if "open source file" in detail:
        for untrue in (f": {os.strerror(errno.EMFILE)}", " (no directories in search list)"):
            detail = detail.replace(untrue, "")
        detail = f"{detail}; {_HEADERS_ONLY}"
    return f"the source does not define the kernel: {detail}" if detail.startswith(_NAME_MAP) else detail


@cache
def _nvrtc() -> Any:
    """Import the bindings of NVRTC and load the library."""
    try:
        from cuda.bindings import nvrtc

        nvrtc.nvrtcVersion()
    except Exception as error:  # each release of the bindings has its own error for a missing library
        raise DeviceError(f"NVRTC, which compiles, cannot be loaded: {printable(error, 300)}; {_INSTALL}") from error
    return nvrtc


@contextlib.contextmanager
def _program(nvrtc: Any, source: bytes, headers: Mapping[str, str] = MappingProxyType({})) -> Any:
    texts, names = ([text.encode() for text in part] for part in (headers.values(), headers))
    status, program = nvrtc.nvrtcCreateProgram(source, _FILE_NAME, len(names), texts, names)
    if int(status):
        raise MemoryError(f"nvrtcCreateProgram: {status.name}")
    try:
        yield program
    finally:
        nvrtc.nvrtcDestroyProgram(program)


def _bytes(size: Callable[[Any], Any], get: Callable[[Any, bytes], Any], program: Any) -> bytes:
    """Read a buffer of NVRTC: one call returns its size, another fills it in place."""
    _, count = size(program)
    buffer = bytes(count)  # of zeros: Python shares its one-byte objects, and what NVRTC writes into one is a zero
    get(program, buffer)
    return buffer


def _text(size: Callable[[Any], Any], get: Callable[[Any, bytes], Any], program: Any) -> str:
    return _bytes(size, get, program).replace(b"\0", b"\n").decode(errors="replace")
