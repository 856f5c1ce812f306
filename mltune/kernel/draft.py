"""The draft of a bundle from a CUDA source: what is plain is written, what is not is marked as to be filled in."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mltune.errors import UsageError
from mltune.files.reading import raising, read_source
from mltune.files.text import did_you_mean, printable
from mltune.kernel.cuda_file import Argument, CudaFile, Function, read_cuda
from mltune.kernel.includes import IncludeFolders, included
from mltune.kernel.indexing import Indexing
from mltune.kernel.schema import HEADER_PATH, MAX_PARAMETERS

BLANK = "FILL IN"
"""What stands where a person must write a value."""

MAX_DRAFT_BYTES = 2**20
"""Largest source from which a draft is made."""

_MAX_HEADER_BYTES = 2**24
_LARGEST = 1024  # a larger number is hardly a parameter
_GUESSED = "  # guessed: check it"
_SIZES = ((16_777_216, 100_003), (4096, 333), (1024, 129))  # by the number of sizes; the second to verify
_DTYPES = {
    "float32": "float|float[234]",
    "float64": "double|double[234]",
    "float16": "half|__half|half2|__half2",
    "bfloat16": "__nv_bfloat16|nv_bfloat16|__nv_bfloat162",
    "complex64": "cuFloatComplex|cuComplex",
    "complex128": "cuDoubleComplex",
    "int8": "signed char|char|int8_t|char4",
    "uint8": "unsigned char|uint8_t|uchar4|uchar",
    "int16": "short|short int|int16_t",
    "uint16": "unsigned short|unsigned short int|uint16_t",
    "int32": "int|signed|signed int|int32_t|int[234]",
    "uint32": "unsigned|unsigned int|uint32_t|uint|uint[234]",
    "int64": "long|long int|long long|long long int|int64_t|ptrdiff_t",
    "uint64": "size_t|unsigned long|unsigned long int|unsigned long long|unsigned long long int|uint64_t",
    "bool": "bool",
}


def draft_bundle(path: Path, name: str, entry: str | None = None) -> dict[str, bytes]:
    """Return the files of a new bundle of a name, from a CUDA source with one ``__global__`` function, or `entry`."""
    law = f"{printable(path, 300)} cannot be read as a CUDA source of a bundle, of at most {MAX_DRAFT_BYTES >> 20} MiB"
    with raising(UsageError, law):
        text = read_source(path, MAX_DRAFT_BYTES).replace("\r\n", "\n")
    source = read_cuda(text)
    function = _entry(source, path, entry)
    parameters = _parameters(source, function)
    if not parameters:
        raise UsageError(
            f"{printable(path, 300)} has no parameters. A kernel is tuned by numbers that mltune changes: macros such "
            "as `#define BLOCK_SIZE 128`, used in the kernel. Write one in place of a number, and repeat the command."
        )
    headers = _headers(path, text)
    document = "\n".join(_document(source, function, parameters, name, bool(headers)))
    guarded = source.with_guards(set(parameters))
    return {"kernel.cu": guarded.encode(), "kernel.toml": f"{document}\n".encode(), **headers}


def blanks_in(document: Any, text: str) -> list[str]:
    """Return what is to be filled in: the lines of a kernel.toml with the keys before the marks."""
    if not any(BLANK in value for value in _texts(document)):
        return []
    return [
        f"line {number}: {' '.join(line.partition('#')[0].split())}"
        for number, line in enumerate(text.splitlines(), 1)
        if BLANK in line.partition("#")[0]
    ]


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _texts(item)


def _entry(source: CudaFile, path: Path, entry: str | None) -> Function:
    functions = {function.name: function for function in source.functions}
    names = ", ".join(functions)
    if entry is None and len(functions) == 1:
        return source.functions[0]
    if entry in functions:
        return functions[entry]
    if not functions:
        fact = (
            "has no __global__ function that mltune can read; write `__global__ void NAME(...) {...}` without macros."
        )
    elif entry is None:
        first = next(iter(functions))
        fact = f"has {len(functions)} __global__ functions, {names}; name the one to tune, such as --entry {first}."
    else:
        fact = f"has no __global__ function {printable(entry, 60)}, but {names}{did_you_mean(entry, functions) or '.'}"
    raise UsageError(printable(f"{path} {fact}", 2000))


def _parameters(source: CudaFile, function: Function) -> dict[str, list[Any]]:
    """Return the values to try of each parameter, the source's own number first."""
    parameters: dict[str, list[Any]] = {}
    words = re.findall(r"\w+", source.code)
    for name, macro in source.macros.items():
        number, is_used = macro.number, words.count(name) > (2 if macro.is_guarded else 1)
        if number is None or not is_used or not re.fullmatch(r"[A-Za-z]\w{0,63}", name) or number > _LARGEST:
            continue
        values = _values(name, macro.value, number)
        if (macro.is_guarded or len(values) > 1) and len(parameters) < MAX_PARAMETERS - 3:
            parameters[name] = values
    for text in function.template:
        match = re.fullmatch(r"(?:const )?(int|unsigned|unsigned int|bool|size_t)\s+(\w{1,60})(?: ?= ?(\w+))?", text)
        if match:
            value = match[3] if match[3] and match[3].isdigit() else "true" if match[1] == "bool" else "4"
            parameters[f"{match[2]}_"] = _values(match[2], value, 1 if value == "true" else int(value))
    for axis in "xyz":
        if re.search(rf"\b(?:blockDim\.|block_size_){axis}\b", function.body):
            values = [128, 32, 64, 256, 512, 1024] if axis == "x" else [4, 1, 2, 8]
            parameters.setdefault(f"block_size_{axis}", values)
    return parameters


def _values(name: str, text: str, number: int) -> list[Any]:
    is_switch = re.match(r"(?i)(use|enable|with|has|do|no|is)_|.*_(enabled?|on|off)$", name)
    if text.strip("( )") in ("true", "false"):
        return [bool(number), not number]
    if number == 0 or (number == 1 and is_switch):
        return [number, 1 - number]
    if number & (number - 1) or re.fullmatch("(?i)warp_?(size|threads)?", name):
        return [number]
    powers = [number, number // 4, number // 2, number * 2, number * 4]
    return [value for value in powers if 1 <= value <= _LARGEST]


def _document(
    source: CudaFile, function: Function, parameters: dict[str, list[Any]], name: str, has_headers: bool
) -> Iterator[str]:
    """Yield the lines of kernel.toml."""
    own = {word: f"{word}_" for text in function.template for word in text.partition("=")[0].split()[-1:]}
    values = {key: f"({macro.value})" for key, macro in source.macros.items() if len(macro.value) < 100}
    scalars = [argument for argument in function.arguments if not argument.pointers]
    numbers = [scalar.name for scalar in scalars if _dtype(source, scalar) in ("int32", "uint32", "int64", "uint64")]
    indexing = Indexing(function, numbers, parameters.keys(), values | own)
    sizes = [number for number in numbers if number in indexing.bounds.values()]
    first, second = _SIZES[min(len(sizes), 3) - 1]
    yield f"# A draft from a CUDA source: what could not be read says {BLANK}; docs/your-kernel.md explains the rest."
    yield from ("", "[kernel]", f'name = "{name}"', 'problem = "arrays"', 'source = "kernel.cu"')
    yield from ['include = ["."]'] if has_headers else []
    yield f'entry = "{_entry_name(function, own, parameters)}"'
    if sizes:
        yield from ("", "[sizes]", *(f"{size} = {first}{_GUESSED}" for size in sizes))
    yield from ("", f"[arguments]  # in the order of the parameters of {function.name}")
    for place, argument in enumerate(function.arguments):
        named = argument if argument.name else argument._replace(name=f"argument_{place}")
        yield _argument(named, source, sizes, indexing)
    yield from ("", "[parameters]  # values to try: each is a macro of its name in kernel.cu")
    yield from (f"{key} = {_listed(sorted(values))}" for key, values in parameters.items())
    yield from ("", "[default]  # as in the source")
    yield from (f"{key} = {_toml(listed[0])}" for key, listed in parameters.items())
    block, grid = indexing.block(), indexing.grid()
    if block is not None:
        threads = " * ".join(extent for extent in block if extent != "1") or "1"
        yield from ("", "[restrictions]", f'"{threads} <= max_threads_per_block" = "the device\'s limit of threads"')
    if re.search(r"\bextern\s+__shared__\b", function.body):
        yield from ("", "[resources]", f'shared_bytes = "{BLANK}"  # bytes of dynamic shared memory')
    yield from ("", "[launch]", f"block = {_listed(block or [BLANK])}{'' if block else '  # threads of a block'}")
    yield f"grid = {_listed(grid or [BLANK])}{_GUESSED if grid else '  # blocks, such as ceil_div(n, BLOCK_SIZE)'}"
    yield from ("", "# The right outputs are those of [default]; a simple kernel of your own is a better [reference].")
    if sizes:
        yield from ("", "[[verify]]  # further sizes at which every configuration must be right")
        yield from (f"{size} = {second}" for size in sizes)


def _entry_name(function: Function, own: dict[str, str], parameters: dict[str, list[Any]]) -> str:
    names = [macro if macro in parameters else BLANK for macro in own.values()]
    return f"{function.name}<{', '.join(names)}>" if names else function.name


def _type(source: CudaFile, argument: Argument) -> str:
    """Return the type of an argument behind its aliases."""
    kind = argument.type
    for _ in range(8):
        kind = source.types.get(kind, kind)
    return re.sub(r"^(std)?::|^std::", "", kind)


def _dtype(source: CudaFile, argument: Argument) -> str:
    kind = _type(source, argument)
    return next((dtype for dtype, names in _DTYPES.items() if re.fullmatch(names, kind)), BLANK)


def _argument(argument: Argument, source: CudaFile, sizes: list[str], indexing: Indexing) -> str:
    dtype, kind = _dtype(source, argument), _type(source, argument)
    start = f'{argument.name} = {{ dtype = "{dtype}", '
    if not argument.pointers:
        if argument.name in sizes:
            return f'{start}value = "{argument.name}" }}'
        if dtype.startswith("float"):
            return f"{start}value = 1.5 }}{_GUESSED}"
        return f'{start}value = "{BLANK}" }}  # the value of {printable(kind, 60)} {argument.name}'
    shape, role = indexing.shape(argument.name), indexing.role(argument.name, argument.is_const)
    lanes = kind[-1:] if re.search("[a-z][234]$|(half|162)$", kind) and kind[-1:] in "234" else ""
    if shape and lanes and dtype != BLANK:
        shape = [*shape, lanes]
    role_text = "" if role == "in" else f', role = "{role}"'
    hint = _GUESSED if shape else f"  # the extents of {argument.name}, such as {_listed(sizes[:2] or ['1024'])}"
    return f"{start}shape = {_listed(shape or [BLANK])}{role_text} }}{hint}"


def _headers(path: Path, text: str) -> dict[str, bytes]:
    """Return the headers beside a source that it includes, by their paths there."""
    folder = path.parent
    if not any((folder / name).is_file() for mark, name in included(text) if mark == '"' and len(name) < 200):
        return {}
    with raising(UsageError, printable(path, 300), ValueError):
        headers = IncludeFolders(path.name, {".": folder}, folder, HEADER_PATH, _MAX_HEADER_BYTES).headers(text, {})
    paths = {headers.paths.get(name, name): header for name, header in headers.texts.items()}
    return {place: header.encode() for place, header in paths.items()}


def _toml(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else f'"{value}"' if isinstance(value, str) else str(value)


def _listed(values: list[Any]) -> str:
    return f"[{', '.join(map(_toml, values))}]"
