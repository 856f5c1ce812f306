"""Kernels given in Python: a source, arguments and parameters as Kernel Tuner's ``tune_kernel`` takes them."""

from __future__ import annotations

import hashlib
import json
import math
import re
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from mltune.device.gpu_arrays import on_host
from mltune.errors import ExpressionError, UsageError
from mltune.files.reading import raising, read_file
from mltune.files.text import printable
from mltune.kernel.arrays import ArgumentDefinition, ArraysDefinition, arithmetic_of
from mltune.kernel.bundle import Kernel
from mltune.kernel.coding import (
    LARGEST_INTEGER,
    CodedValues,
    check_macro_name,
    code_default,
    code_values,
    spanned,
)
from mltune.kernel.compiler_parameters import CONTROLS, MOST_CONTROLS_BYTES, code_compiler_parameters, controls_in
from mltune.kernel.configurations import combinations, plain
from mltune.kernel.expressions import parse
from mltune.kernel.includes import Headers, IncludeFolders
from mltune.kernel.launch import Launch, plain_entry
from mltune.kernel.parts import CompilerSpace, KernelSource, KernelSpace, LaunchRule, Restriction, generated
from mltune.problem.array_values import DTYPES
from mltune.problem.arrays import ArraysProblem, default_tolerance

BLOCK_NAMES = ("block_size_x", "block_size_y", "block_size_z")
"""Parameters that are the threads of a block along x, y and z."""

DEFAULT_BLOCK = (256, 1, 1)
"""Threads of a block along x, y and z where no parameter gives them."""

_GRID_NAMES = ("grid_size_x", "grid_size_y", "grid_size_z")
RESERVED = (
    *(*_GRID_NAMES, "kernel_tuner", "problem_size_x", "problem_size_y", "problem_size_z"),
    *("time", "times", "compile_time", "verification_time", "benchmark_time", "strategy_time", "framework_time"),
    "timestamp",
)
"""Names that no parameter has: macros, sizes and columns of results that are defined here."""

MOST_THREADS = 1024
"""Most threads of a block, on every GPU."""

MOST_CHARACTERS = 200
"""Longest value of a parameter that is a text."""

MAX_HEADER_BYTES = 1 << 26
"""Largest size of all headers that a source includes together."""

MOST_ENUMERATED = 2_000_000
"""Most combinations of values that Python functions are asked about."""

_HEADER = re.compile(r"[ -~]+")
"""The path of a header in the folders that a caller names."""

Size = int | float | str | Callable[[dict[str, Any]], Any]
Divisors = Sequence[str | int] | Callable[[dict[str, Any]], Any] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PythonLaunch(LaunchRule):
    """A launch that is computed in Python, as Kernel Tuner computes it.

    `divisors` of the problem's sizes are expressions over the parameters, multiplied.
    """

    problem_size: tuple[Size, ...] = (1,)
    divisors: tuple[Divisors, ...] = (None, None, None)
    block_names: tuple[str, ...] = BLOCK_NAMES
    dynamic_shared: int | Callable[[dict[str, Any]], Any] = 0
    defines: Mapping[str, Any] = field(default_factory=dict)

    has_formulas: ClassVar[bool] = False

    def launch(self, space: KernelSpace, configuration: Mapping[str, int], variables: Mapping[str, int]) -> Launch:
        """Return the launch of one configuration."""
        values = space.values_of(configuration)
        shared = _whole(_called(self.dynamic_shared, values, "smem_args"), "smem_args: size", values, least=0)
        return Launch(self._grid(values), self._block(values), shared, ())

    def macros(self, values: dict[str, int | float | str]) -> dict[str, int | float | str]:
        """Return the values, the shape of the launch, and further macros, as Kernel Tuner defines them."""
        shape = dict(zip(_GRID_NAMES, self._grid(values), strict=True))
        block = dict(zip(self.block_names, self._block(values), strict=False))
        defines = {name: _define(name, value, values) for name, value in self.defines.items()}
        return shape | block | values | defines | {"kernel_tuner": 1}

    def _block(self, values: Mapping[str, Any]) -> tuple[int, int, int]:
        x, y, z = (int(values.get(name, usual)) for name, usual in zip(self.block_names, DEFAULT_BLOCK, strict=True))
        return x, y, z

    def _grid(self, values: dict[str, Any]) -> tuple[int, int, int]:
        sizes = [_called(size, values, "problem_size") for size in self.problem_size]
        sizes += [1] * (3 - len(sizes))
        if len(self.problem_size) == 1 and isinstance(sizes[0], Sequence | np.ndarray):  # a function of all sizes
            sizes = [*sizes[0], 1, 1][:3]
        x, y, z = (
            math.ceil(_whole(size, "problem_size", values) / self._divisor(axis, values))
            for axis, size in enumerate(sizes)
        )
        return x, y, z

    def _divisor(self, axis: int, values: dict[str, Any]) -> float:
        name, divisor = f"grid_div_{'xyz'[axis]}", self.divisors[axis]
        if divisor is None:
            return float(values.get(self.block_names[axis], 1))
        factors = [divisor] if callable(divisor) else divisor
        product = math.prod(float(_called(factor, values, name)) for factor in factors)
        if not 0 < product < math.inf:
            raise ExpressionError(f"{name} is {product:g} for {printable(values, 300)}; it must be positive")
        return product


@dataclass(frozen=True, slots=True)
class KernelCall:
    """A kernel as :func:`mltune.tune_kernel` is given it, under mltune's names.

    `headers` are texts by the names under which the source includes them, `include` folders of headers. `absolute` is
    added to the tolerance of every output; `flops` and `bytes` are 0 where they are unknown.
    """

    name: str
    source: Any
    problem_size: Any
    arguments: Sequence[Any]
    parameters: Mapping[str, Sequence[Any]]
    grid_divisors: Sequence[Divisors] = (None, None, None)
    restrictions: Any = None
    answer: Any = None
    verify: Callable[..., Any] | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    absolute: float = 0.0
    shared: int | Callable[[dict[str, Any]], Any] = 0
    constants: Mapping[str, Any] = field(default_factory=dict)
    defines: Mapping[str, Any] = field(default_factory=dict)
    block_names: Sequence[str] = ()
    default: Mapping[str, Any] | None = None
    options: Sequence[str] = ()
    compiler: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    include: Sequence[Path] = ()
    flops: int = 0
    bytes: int = 0


def make_kernel(call: KernelCall, folder: Path | None) -> Kernel:
    """Make the kernel of a call, whose source is a text or a function that returns one.

    Its arrays are kept in a folder for the process that runs it; without one, content and scalars are unknown, and only
    types and shapes count.
    """
    coded = _checked(call)
    with raising(UsageError, "default", ValueError):
        default = {} if call.default is None else code_default(call.default, coded)
    lists = {key: list(values.listed) for key, values in coded.items()}
    expressions, functions = _split(call.restrictions)
    threads = (*call.block_names, *BLOCK_NAMES[len(call.block_names) :])
    _check_threads(threads, lists)
    generator = call.source if callable(call.source) else None
    text = call.source
    if generator is not None:
        generator = partial(result_of, call.source, "kernel_source")
        text = generated(generator, {key: values[0] for key, values in lists.items()})
    folders = {f"include{position or ''}": path for position, path in enumerate(call.include)}
    included = _headers(text, call.headers, folders)
    varied, controls = _compiler_parameters(call.compiler, [*coded], [text, *included.texts.values()], call.name)
    rule = PythonLaunch(
        problem_size=_sizes(call.problem_size),
        divisors=tuple(map(_divisors, ("grid_div_x", "grid_div_y", "grid_div_z"), call.grid_divisors)),
        block_names=threads,
        dynamic_shared=call.shared,
        defines=dict(call.defines),
    )
    kernel = Kernel(
        name=_plain_name(call.name),
        problem="arrays",
        source=KernelSource(
            text=text,
            entry=call.name,
            headers=included.texts,
            header_paths=included.paths,
            include=tuple(folders),
            options=tuple(call.options),
            generator=generator,
        ),
        space=KernelSpace(
            **spanned(coded),
            restrictions=(
                *(Restriction(expression, "a restriction of the call") for expression in expressions),
                *_fits(threads, coded),
            ),
            default=default,
            sha256=hashlib.sha256(repr((lists, [expression.text for expression in expressions])).encode()).hexdigest(),
        ),
        compiler=CompilerSpace(**spanned(varied), controls=controls),
        launch_rule=rule,
    )
    kernel = with_arguments(_hashed(kernel, rule, rule.problem_size), call, folder)
    return _restricted(kernel, functions) if functions else kernel


def with_arguments(kernel: Kernel, call: KernelCall, folder: Path | None) -> Kernel:
    """Return a kernel with the arguments of a call and with what its outputs must be; see :func:`make_kernel`."""
    answers = _answers(call)
    verification = _pickled(call.verify, answers, call.absolute) if call.verify else b""
    definition = _definition(call, None if call.verify else answers, folder)
    return replace(kernel, arrays=definition, verify=verification)


def _answers(call: KernelCall) -> list[Any] | None:
    """Return the right content of each argument on the host, None for inputs; None where no answer is given."""
    try:
        answer = call.answer(*call.arguments) if callable(call.answer) else call.answer
    except Exception as error:  # of a function of the caller's
        raise UsageError(f"answer raised {type(error).__name__}: {error!s:.300}.") from error
    if answer is None:
        return None
    if not isinstance(answer, Sequence):
        raise UsageError(f"answer cannot be {answer!r:.100}: it is a list with the content of each argument.")
    answers = [on_host(array) for array in answer]
    if len(answers) != len(call.arguments):
        raise UsageError(
            f"answer has {len(answers)} entries for {len(call.arguments)} arguments: give one for each, None for "
            "inputs."
        )
    return answers


def _hashed(kernel: Kernel, rule: PythonLaunch, problem_size: Sequence[Size]) -> Kernel:
    """Return a kernel with the hash of source, headers, launch, macros and options; functions count by type."""

    def named(value: Any) -> Any:
        return value.item() if isinstance(value, np.generic) else type(value).__name__

    source = kernel.source
    controls = sorted(kernel.compiler.controls.items()) or ""
    text = f"{source.entry}\n{source.text}\n{sorted(source.headers.items())}{controls}"
    further = [problem_size, rule.divisors, rule.block_names, rule.dynamic_shared, source.options]
    launch = json.dumps([*further, dict(rule.defines)], sort_keys=True, default=named)
    sha256 = hashlib.sha256((hashlib.sha256(text.encode()).hexdigest() + launch).encode()).hexdigest()
    return replace(kernel, source=replace(source, sha256=sha256))


def with_sizes(kernel: Kernel) -> tuple[Kernel, ArraysProblem]:
    """Return a kernel and its problem with named sizes: problem size, and elements of arrays, not part of its hash."""
    rule = kernel.launch_rule
    assert kernel.arrays is not None and isinstance(rule, PythonLaunch)  # noqa: S101, PT018 - of a call
    axes = zip(("problem_size_x", "problem_size_y", "problem_size_z"), rule.problem_size, strict=False)
    sizes = {name: int(extent) for name, extent in axes if isinstance(extent, int | float)}
    arrays = (array for array in kernel.arrays.problem().arrays if array.role != "constant")
    sizes |= {array.name: math.prod(array.shape or ()) for array in arrays}
    texts = [text for text in rule.problem_size if isinstance(text, str)]
    definition = replace(kernel.arrays, sizes=sizes)
    return replace(_hashed(kernel, rule, texts), arrays=definition), definition.problem()


def _compiler_parameters(
    values_of: Mapping[str, Sequence[Any]], taken: Sequence[str], texts: Sequence[str], name: str
) -> tuple[dict[str, CodedValues], dict[str, bytes]]:
    """Return the compiler parameters of a call, and by their names the files of controls, which are given by paths."""
    paths = values_of.get(CONTROLS, ())
    names = [Path(path).name if isinstance(path, str | Path) else path for path in paths]
    named = {**values_of, CONTROLS: names} if CONTROLS in values_of else values_of
    legal = controls_in(named)
    try:
        places = [(file, path) for file, path in zip(names, paths, strict=True) if file in legal]
        files = {file: read_file(path, MOST_CONTROLS_BYTES) for file, path in places}
        return code_compiler_parameters(named, taken, texts, plain_entry(name)), files
    except OSError as error:
        raise UsageError(f"compiler: a file of controls cannot be read: {printable(error, 300)}.") from error
    except ValueError as error:
        raise UsageError(f"compiler: {error}.") from error


def _headers(source: str, texts: Mapping[str, str], folders: Mapping[str, Path]) -> Headers:
    """Return the headers that are given by name, and those that a source includes from folders of the caller."""
    with raising(UsageError, "compiler_options", ValueError):
        included = IncludeFolders("", folders, None, _HEADER, MAX_HEADER_BYTES).headers(source, texts)
    elsewhere = {name: Path(name).name for name in texts if not {"", ".", ".."}.isdisjoint(name.split("/"))}
    return Headers(included.texts, {**included.paths, **elsewhere})


def _definition(call: KernelCall, answers: Sequence[Any] | None, folder: Path | None) -> ArraysDefinition:
    keys, files = [f"argument_{position}" for position in range(len(call.arguments))], {}
    with ThreadPoolExecutor() as threads:  # of large arrays each second counts
        read = partial(_argument, role="inout", folder=folder, absolute=call.absolute)
        definitions = [*threads.map(read, keys, call.arguments)]
    for key, value, right in zip(keys, call.arguments, answers or [None] * len(keys), strict=True):
        if right is not None and folder is not None:
            array = np.asarray(on_host(value))
            right = np.asarray(right, dtype=array.dtype)
            if right.size != array.size:
                raise UsageError(f"the answer of {key} has {right.size} elements, but the argument {array.size}.")
            files[key] = _kept(folder, right.reshape(-1))
    definitions += [_argument(key, value, "constant", folder, 0.0) for key, value in call.constants.items()]
    flops, work_bytes = (parse(str(int(amount))) if amount else None for amount in (call.flops, call.bytes))
    work = {"flops": flops, "bytes": work_bytes, "arithmetic": arithmetic_of(definitions)}
    return ArraysDefinition(_plain_name(call.name), {}, tuple(definitions), answer=files, **work)  # type: ignore[arg-type]


def _argument(key: str, value: Any, role: Any, folder: Path | None, absolute: float) -> ArgumentDefinition:
    value = on_host(value)
    array = np.asarray(value)
    if isinstance(value, int | float | complex) and not isinstance(value, np.generic):
        raise UsageError(
            f"{key} is {value!r}, a number without a NumPy type, which tells that of the kernel's parameter; "
            "write numpy.int32(...) or numpy.float32(...)."
        )
    if array.dtype.name not in DTYPES:
        raise UsageError(
            f"{key} has the type {array.dtype}; an argument is an array or a scalar of {', '.join(DTYPES)}."
        )
    if array.ndim == 0 and isinstance(value, np.generic):
        number = value.item()
        if isinstance(number, complex):
            raise UsageError(f"{key} is {value!r}, but a scalar argument is a real number; pass an array.")
        if not math.isfinite(number):
            raise UsageError(f"{key} is {value!r}, but a scalar argument is finite; define a macro or pass an array.")
        return ArgumentDefinition(key, array.dtype.name, None, "in", 0, None if folder is None else number, 0.0)
    if not array.size:
        raise UsageError(f"{key} has the shape {array.shape}, but an array has at least one element.")
    shape = tuple(parse(str(extent)) for extent in array.shape or (1,))
    file = "uniform" if folder is None else _kept(folder, np.ascontiguousarray(array).reshape(-1))
    return ArgumentDefinition(
        key, array.dtype.name, shape, role, file, None, default_tolerance(array.dtype.name), absolute
    )


def _kept(folder: Path, array: Any) -> str:
    """Write an array into a folder, under a name that belongs to its content; return the path."""
    unnamed = folder / f".{secrets.token_hex(8)}.npy"
    with ThreadPoolExecutor(1) as thread:
        writing = thread.submit(lambda: np.save(unnamed, array, allow_pickle=False))
        digest = hashlib.sha256(f"{array.dtype} {array.shape}".encode())
        digest.update(array.view(np.uint8))
        writing.result()
    path = folder / f"{digest.hexdigest()[:40]}.npy"
    unnamed.replace(path)
    return str(path)


def _pickled(*function: Any) -> bytes:
    """Return a function that decides on outputs, with its arguments, for the process that runs the kernel."""
    import cloudpickle

    try:
        pickled: bytes = cloudpickle.dumps(function)
    except Exception as error:  # pickling calls code of every object
        raise UsageError(
            f"verify cannot be sent to the process of the kernel: {error!s:.300}. It must not use what only this "
            "process has, such as open files."
        ) from error
    return pickled


def _fits(threads: Sequence[str], coded: Mapping[str, CodedValues]) -> list[Restriction]:
    """Return the restriction of the threads of a block, where some configurations break it."""
    names = [name for name in threads if name in coded and coded[name].labels is None]
    if math.prod(max(coded[name].integers) for name in names) <= MOST_THREADS:
        return []
    limit = parse(f"{' * '.join(names)} <= {MOST_THREADS}")
    return [Restriction(limit, f"a block has at most {MOST_THREADS} threads")]


def _restricted(kernel: Kernel, functions: Sequence[Callable[..., Any]]) -> Kernel:
    """Return a kernel whose valid configurations are listed, because Python functions restrict them."""
    space = kernel.space
    count = math.prod(map(len, space.parameters.values()))
    if count > MOST_ENUMERATED:
        raise UsageError(
            f"{count:,} combinations are too many for a function, which is asked about each: at most "
            f"{MOST_ENUMERATED:,}; write the restrictions as texts, such as 'block_size_x * block_size_y <= 1024'."
        )
    lists = {name: space.labels.get(name, values) for name, values in space.parameters.items()}
    predicates = [partial(_holds, function) for function in functions]
    positions = combinations(lists, [restriction.expression for restriction in space.restrictions], predicates)
    chosen = zip(space.parameters.items(), positions.T, strict=True)
    columns = {name: np.array(values, dtype=np.int64)[at] for (name, values), at in chosen}
    return replace(kernel, space=replace(space, configurations=columns))


def _holds(function: Callable[..., Any], values: dict[str, Any]) -> bool:
    """Ask a function about a configuration: it takes a mapping, or the parameters by name."""
    import inspect

    names = list(inspect.signature(function).parameters)
    by_name = {*names} <= {*values}
    call = (lambda every: function(**{name: every[name] for name in names})) if by_name else function
    return bool(result_of(call, f"the restriction {getattr(function, '__name__', '')}".strip(), values))


def _split(restrictions: Any) -> tuple[list[Any], list[Callable[..., Any]]]:
    """Return the expressions and the functions among restrictions."""
    several = isinstance(restrictions, Iterable) and not isinstance(restrictions, str)
    entries = list(restrictions) if several else [] if restrictions is None else [restrictions]
    for entry in entries:
        if not isinstance(entry, str) and not callable(entry):
            raise UsageError(f"{entry!r:.100} is no restriction, which is a text or a function.")
    return [parse(entry) for entry in entries if isinstance(entry, str)], [*filter(callable, entries)]


def _sizes(problem_size: Any) -> tuple[Size, ...]:
    """Return a size for each dimension; one number, text or function is that of x."""
    several = isinstance(problem_size, Sequence | np.ndarray) and not isinstance(problem_size, str)
    extents = tuple(problem_size) if several else (problem_size,)
    if not 1 <= len(extents) <= 3:
        raise UsageError(f"{len(extents)} sizes were given, but a problem has one to three.")
    whole = partial(_whole, name="problem_size", values={})
    return tuple(size if callable(size) or isinstance(size, str) else whole(size) for size in extents)


def _define(name: str, value: Any, values: dict[str, Any]) -> int | float | str:
    """Return the value of a macro that may be given by a function; a text stands as it is."""
    value = result_of(value, f"the function of the macro {name}", values) if callable(value) else value
    result: int | float | str = plain(value)
    return result


def _called(value: Any, values: dict[str, Any], name: str) -> Any:
    """Return a number that may be given by a function or an expression over the parameters."""
    if callable(value):
        return result_of(value, name, values)
    if isinstance(value, str):
        return parse(value).evaluate(values)
    return value


def result_of(function: Callable[[dict[str, Any]], Any], name: str, values: dict[str, Any]) -> Any:
    """Call a function of the caller's with a configuration; an error names both."""
    try:
        return function(values)
    except Exception as error:
        raise UsageError(
            f"{name} raised {type(error).__name__}: {error!s:.300}, for the configuration {printable(values, 500)}."
        ) from error


def _whole(number: Any, name: str, values: Mapping[str, Any], least: int = 1) -> int:
    """Return a size that is an integer, of any type."""
    is_number = isinstance(number, int | float | np.integer | np.floating) and not isinstance(number, bool)
    if not (is_number and least <= number < LARGEST_INTEGER and number == int(number)):
        where = f" for {printable(values, 300)}" if values else ""
        raise ExpressionError(f"{name} cannot be {printable(repr(number), 100)}{where}: it is an integer >= {least}")
    return int(number)


def _divisors(name: str, divisor: Any) -> Divisors:
    """Return a divisor as Kernel Tuner takes it: a number, a text or a function, or several that are multiplied."""
    factors = divisor if isinstance(divisor, list | tuple) else [divisor]
    for factor in factors:
        if callable(factor) or isinstance(factor, str) or (factor is None and divisor is None):
            continue
        if not isinstance(factor, int | float | np.integer | np.floating) or not 0 < factor < math.inf:
            raise UsageError(
                f"{name} cannot be {divisor!r:.100}: it has positive numbers, texts over the parameters such as "
                "'block_size_x', or functions."
            )
    return divisor if divisor is None or callable(divisor) else [*map(plain, factors)]


def _plain_name(name: str) -> str:
    """Return the name of a kernel without template arguments."""
    return re.sub(r"[^A-Za-z0-9_]+", "_", name.partition("<")[0]).strip("_") or "kernel"


def _checked(call: KernelCall) -> dict[str, CodedValues]:
    """Check the parameters and macros of a call; return the values of the parameters."""
    if not isinstance(call.parameters, Mapping):
        raise UsageError(
            f"{call.parameters!r:.100} cannot be the parameters, a dict of lists such as {{'TILE': [1, 2]}}."
        )
    if not call.parameters:
        raise UsageError("there are no parameters; give one at least, such as {'block_size_x': [64, 128]}.")
    for key in (*call.parameters, *call.defines):
        check_macro_name(key)
    for key, values in call.parameters.items():
        if key in RESERVED or re.fullmatch(r"argument_\d+", key):
            raise UsageError(
                f"{key} cannot name a parameter: mltune defines {', '.join(RESERVED)}, argument_0 and so on; rename it."
            )
        if key in call.defines:
            raise UsageError(f"{key} is both a parameter and in defines; leave one out.")
        if isinstance(values, str | Mapping) or not hasattr(values, "__iter__"):
            raise UsageError(f"{key}={values!r:.100} is no list of values; a parameter has one, such as [64, 128].")
    return {key: _coded(key, list(values)) for key, values in call.parameters.items()}


def _check_threads(threads: Sequence[str], lists: Mapping[str, Sequence[Any]]) -> None:
    for name in threads:
        for value in lists.get(name, ()):
            if isinstance(value, str) and value.isdecimal():
                value = int(value)
            _whole(value, f"{name}, the threads of a block,", {})


def _coded(name: str, values: Sequence[Any]) -> CodedValues:
    """Check and code the values of a parameter, which become macros."""
    shown = f"{name} cannot have the values {printable(values, 200)}:"
    for value in values:
        if not isinstance(value, int | float | str | np.integer | np.floating | np.bool_):
            raise UsageError(f"{shown} they are numbers or texts.")
        if isinstance(value, str):
            legal = 0 < len(value) <= MOST_CHARACTERS and value.isascii() and value.isprintable()
            law = f"a text has at most {MOST_CHARACTERS} printable ASCII characters"
        else:
            legal = bool(-LARGEST_INTEGER < value < LARGEST_INTEGER)
            law = "numbers stay below 2**53 in size"
        if not legal:
            raise UsageError(f"{shown} {law}.")
    with raising(UsageError, name, ValueError):
        return code_values(values)
