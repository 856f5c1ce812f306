"""A call of Kernel Tuner's ``tune_kernel`` or ``run_kernel``: what mltune does with each argument, what it refuses."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from mltune.errors import UsageError
from mltune.files.reading import raising, read_text
from mltune.files.text import did_you_mean, printable
from mltune.kernel.bundle import Kernel
from mltune.kernel.compiler_parameters import COMPILER_OPTION, COMPILER_OPTION_LAW
from mltune.kernel.expressions import parse
from mltune.kernel.python_kernel import RESERVED, KernelCall, make_kernel, result_of
from mltune.kernel.reader import MAX_SOURCE_BYTES

Metric = Callable[[dict[str, Any]], Any]


@dataclass(frozen=True, slots=True)
class CallOptions:
    """What a call of Kernel Tuner's function asks for besides its kernel."""

    trials: int | None = None
    time_s: float | None = None
    options: tuple[str, ...] = ()
    defines: Mapping[str, str] = field(default_factory=dict)
    include: tuple[Path, ...] = ()
    metrics: Mapping[str, Metric] = field(default_factory=dict)


_OWN = ("trials", "time", "seed", "run", "device")
"""Arguments of mltune's own, which a wrong name may have meant."""

_WITHOUT_EFFECT = {
    *("platform", "iterations", "strategy", "log", "cache", "objective_higher_is_better", "compiler"),
    *("parallel", "parallel_workers"),
}
"""Arguments of Kernel Tuner that change no result here: mltune has a search and a timing of its own."""

_DEFINITION = re.compile(r"-D\s*([A-Za-z_]\w*)(?:=(.*))?")
_READ = ("lang", "objective", "objectives", "smem_args", "metrics", "compiler_options")
_SAME = ("problem_size", "arguments", "restrictions", "answer", "verify", "default")

_REFUSED = {
    "texmem_args": "textures are not supported; read the array itself",
    "observers": "observers are not supported; clocks, temperature and power are on record",
    "simulation_mode": "recorded timings are searched by mltune.compare or mltune.tune(device='replay:...')",
}
_IGNORED_OPTIONS = re.compile(
    r"-O[0-3]|-?-std=c\+\+(03|11|14|17)|-?-generate-line-info|-w|-lineinfo|-?-dopt=on|-?-expt-relaxed-constexpr"
    r"|(-arch|--gpu-architecture|-gencode|--generate-code|-Xptxas|-Xcompiler|-ccbin).*"
)
"""Options of the compiler that change nothing: sources are compiled as C++17 for the GPU at hand."""

_INCLUDE_OPTION = re.compile(r"(?:-I|--include-path=?)\s*(.*)")


def check_call(arguments: Mapping[str, Any], strategy_options: Mapping[str, Any] | None) -> CallOptions:
    """Check arguments of Kernel Tuner that mltune does not have; return what it asks for."""
    for name, value in arguments.items():
        if name == "lang" and str(value or "CUDA").upper() not in ("CUDA", "CUPY", "NVCUDA"):
            raise UsageError(f"lang cannot be {value!r:.60}: mltune tunes CUDA kernels.")
        if name == "objective" and value not in (None, "time"):
            raise UsageError(f"objective cannot be {value!r:.60}: mltune minimises the time; give it as a metric.")
        if name == "objectives" and value:
            raise UsageError(f"objectives cannot be {value!r:.60}: mltune minimises the time; give them as metrics.")
        if name == "smem_args" and value and set(value) != {"size"}:
            raise UsageError(f"smem_args cannot have {printable(list(value), 120)}: its key is size.")
        if value and name in _REFUSED:
            raise UsageError(f"{name}={value!r:.60}: {_REFUSED[name]}.")
        if name not in {*_WITHOUT_EFFECT, *_REFUSED, *_READ}:
            raise UsageError(
                f"tune_kernel has no argument {name!r}{did_you_mean(name, [*_WITHOUT_EFFECT, *_OWN]) or '.'}"
            )
    options = dict(strategy_options or {})
    if isinstance(arguments.get("compiler_options"), str):
        text = arguments["compiler_options"]
        raise UsageError(
            f"compiler_options cannot be {text!r:.100}: it is a list of texts, such as {text.split()!r:.100}."
        )
    include, other_options = _include_folders(arguments.get("compiler_options") or ())
    heeded = [option for option in other_options if not _IGNORED_OPTIONS.fullmatch(option)]
    defines = {
        definition[1]: definition[2] or "1" for option in heeded if (definition := _DEFINITION.fullmatch(option))
    }
    passed = tuple(option for option in heeded if not _DEFINITION.fullmatch(option))
    for option in passed:
        if not COMPILER_OPTION.fullmatch(option):
            raise UsageError(
                f"{printable(option, 80)!r} cannot be an option of the compiler, which must {COMPILER_OPTION_LAW}."
            )
    if reserved := {*RESERVED} & {*(arguments.get("metrics") or {})}:
        raise UsageError(
            f"{', '.join(sorted(reserved))} cannot name a metric: a result has a value of that name; rename it."
        )
    metrics = {name: _metric(name, metric) for name, metric in (arguments.get("metrics") or {}).items()}
    return CallOptions(options.get("max_fevals"), options.get("time_limit"), passed, defines, include, metrics)


def _include_folders(options: Sequence[str]) -> tuple[tuple[Path, ...], list[str]]:
    """Return the folders of headers among options of the compiler, and the other options."""
    folders, rest, remaining = [], [], iter(options)
    for option in remaining:
        match = _INCLUDE_OPTION.fullmatch(option)
        if match is None:
            rest.append(option)
            continue
        folder = match[1] or next(remaining, "")
        if not folder or not Path(folder).is_dir():
            raise UsageError(f"{printable(folder, 200)!r} is no folder, and -I names one of headers.")
        folders.append(Path(folder).resolve())
    return tuple(folders), rest


def _metric(name: str, metric: Any) -> Metric:
    """Return a metric as a function of a result: it is one, or an expression over the numbers of the result."""
    if callable(metric):
        return lambda entry: result_of(metric, f"the metric {name}", entry)
    if not isinstance(metric, str):
        raise UsageError(
            f"{name}={metric!r:.60} is no metric, which is a function of a result, or an expression over its numbers, "
            "such as '1e-6 * work / time'."
        )
    expression = parse(metric)

    def evaluate(entry: dict[str, Any]) -> Any:
        return expression.evaluate({name: entry[name] for name in expression.names})

    return lambda entry: result_of(evaluate, f"the metric {name}", entry)


def read_sources(source: Any) -> tuple[str | Callable[[dict[str, Any]], str], dict[str, str], tuple[Path, ...]]:
    """Return a text or its function, the texts that it may include by name, and the folder of its file.

    A source is given as a text, a file, a function, or a list: the source and the files that it includes.
    """
    if isinstance(source, list | tuple) and not source:
        raise UsageError("the list of sources is empty; give at least one.")
    first, *included = source if isinstance(source, list | tuple) else [source]
    headers = {str(name): _text(name) for name in included}
    if callable(first):
        return first, headers, ()
    text = _text(first)
    return text, headers, () if text is first else (Path(first).resolve().parent,)


def read_call(arguments: Mapping[str, Any], extra: Mapping[str, Any]) -> tuple[KernelCall, CallOptions]:
    """Read a call: the arguments that a function has by Kernel Tuner's names, and the others that it was given."""
    checked = {name: arguments[name] for name in _READ if name in arguments}
    options = check_call({**checked, **extra}, arguments.get("strategy_options"))
    compiler = arguments.get("compiler")
    same: dict[str, Any] = {name: arguments.get(name) for name in _SAME}
    call = KernelCall(
        name=arguments["kernel_name"],
        source=arguments["kernel_source"],
        parameters=arguments["tune_params"],
        grid_divisors=tuple(arguments.get(f"grid_div_{axis}") for axis in "xyz"),
        absolute=arguments.get("atol", 0.0),
        shared=(arguments.get("smem_args") or {}).get("size", 0),
        constants=arguments.get("cmem_args") or {},
        defines={**options.defines, **(arguments.get("defines") or {})},
        block_names=arguments.get("block_size_names") or (),
        options=options.options,
        compiler=compiler if isinstance(compiler, Mapping) else {},
        include=options.include,
        flops=arguments.get("flops", 0),
        bytes=arguments.get("bytes", 0),
        **same,
    )
    return call, options


@contextmanager
def kernel_of_call(call: KernelCall) -> Iterator[Kernel]:
    """Make the kernel of a call; the content of its arguments is kept as files until the end of the context."""
    with tempfile.TemporaryDirectory(prefix="mltune-") as folder:
        yield make_of_call(call, Path(folder))


def make_of_call(call: KernelCall, folder: Path | None = None) -> Kernel:
    """Make the kernel of a call; without a folder for its arguments only their types and shapes count."""
    text, headers, include = read_sources(call.source)
    return make_kernel(replace(call, source=text, headers=headers, include=(*include, *call.include)), folder)


def _text(source: str | Path) -> str:
    """Return the text of a source, given itself or as the name of a file."""
    if isinstance(source, str) and ("\n" in source or "{" in source):
        return source
    if not isinstance(source, str | os.PathLike):
        raise UsageError(
            f"kernel_source cannot be {printable(repr(source), 200)}: it is CUDA text, a file, a function that returns "
            "text, or a list of these."
        )
    with raising(UsageError, f"{printable(source, 200)!r} is neither CUDA text nor a readable file"):
        return read_text(Path(source), MAX_SOURCE_BYTES)
