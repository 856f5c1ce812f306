"""Values of the templates of examples that call a kernel of any kind: its arguments in C++."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from mltune.problem.array_values import scalar
from mltune.problem.problem import Examples

_FILES = ("example.py", "example.cpp")
_USAGE = """\
python example.py    needs CuPy; arrays have the initial values of the run, but random ones in place of files
g++ -O2 -std=c++17 example.cpp -I/usr/local/cuda/include -lcuda -o example && ./example
                     all arrays are zero; needs cuda.h (of a toolkit, or of `pip install nvidia-cuda-runtime`); with a
                     driver alone, link -l:libcuda.so.1 instead of -lcuda. Both examples time the kernel with a warm
                     cache, again and again on the same arrays; neither checks the result.
"""
_CPP_TYPES = {"float32": "float", "float64": "double"}
_CPP_TYPES |= {f"{sign}int{bits}": f"{sign}int{bits}_t" for sign in ("", "u") for bits in (8, 16, 32)}


def examples(problem: Any) -> Examples:
    """Return the examples of a :class:`mltune.problem.arrays.ArraysProblem`, whose module imports this one."""
    passed = [one for one in problem.arguments if one.role != "constant"]
    constants = [one for one in problem.arguments if one.role == "constant"]
    values = {
        "flops": problem.flops,
        "bytes": problem.bytes,
        "cpp_arguments": "\n".join(_declared(position, one) for position, one in enumerate(passed)),
        "cpp_constants": "\n".join(f'  constant(code, "{one.name}", {one.nbytes}ull);' for one in constants),
        "cpp_pointers": ", ".join(f"&argument_{position}" for position in range(len(passed))),
    }
    return Examples(_FILES, _USAGE, values)


def _declared(position: int, argument: Any) -> str:
    """Return the declaration of an argument in C++, with its name and type as a comment."""
    name = f"argument_{position}"
    if argument.shape is not None:
        extents = " x ".join(map(str, argument.shape))
        described = f"{argument.name}: {argument.dtype}, {extents}, {argument.role}"
        return f"  CUdeviceptr {name} = zeros({argument.nbytes}ull);  // {described}"
    value, described = scalar(argument.dtype, argument.value), f"{argument.name}: {argument.dtype}"
    if argument.dtype in _CPP_TYPES and math.isfinite(value):
        return f"  {_CPP_TYPES[argument.dtype]} {name} = {value.item()!r};  // {described}"
    words = np.array([value]).view(np.uint64 if value.nbytes >= 8 else f"uint{8 * value.nbytes}")
    bits = ", ".join(f"{hex(word)}u{'ll' * (value.nbytes >= 8)}" for word in words.tolist())
    return f"  uint{8 * words.itemsize}_t {name}[] = {{{bits}}};  // {described}, {argument.value}, as bits"
