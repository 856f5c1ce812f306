"""The check of a source: its kernels take the arguments of their launches, and it takes its macros as they are given.

The compiler answers in its errors. Code behind the source makes an error that lists the types of a kernel's parameters,
each as a number: four times the size, plus 0 of a structure, 1 of an integer, 2 of a float, 3 of ``void``; negative of
a pointer to such. A macro that is redefined is an error as well. So no code is generated for an answer.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from mltune.files.text import printable
from mltune.kernel.bundle import Kernel
from mltune.kernel.launch import plain_entry
from mltune.measure.compiler import code_bytes
from mltune.problem.array_values import STORAGE
from mltune.problem.problem import Buffer, RunnableProblem
from mltune.records.trial import Build, TrialState

_STRUCTURE, _INTEGER, _FLOAT, _VOID = range(4)
_ANYTHING = Buffer("", "inout", "")  # behind the pointer to a workspace
_TENSOR_MAP = np.void(128)
_PROBE = """
#ifdef __mltune_entry
template <class T> struct __mltune_code { enum { of = 4 * sizeof(T) + !(__is_class(T) || __is_union(T)) }; };
template <> struct __mltune_code<float> { enum { of = 18 }; };
template <> struct __mltune_code<double> { enum { of = 34 }; };
template <> struct __mltune_code<void> { enum { of = 3 }; };
template <class T> struct __mltune_code<const T> : __mltune_code<T> {};
template <class T> struct __mltune_code<volatile T> : __mltune_code<T> {};
template <class T> struct __mltune_code<const volatile T> : __mltune_code<T> {};
template <class T> struct __mltune_code<T*> { enum { of = __mltune_code<T>::of < 0 ? -32 : -__mltune_code<T>::of }; };
template <int... codes> struct __mltune_types {};
template <class... T> __mltune_types<sizeof...(T), __mltune_code<T>::of...> __mltune_parameters(void (*)(T...));
typedef decltype(__mltune_parameters(&__mltune_entry))::nothing __mltune_nothing;
#endif
"""
_NOT_NAMES = re.compile(r'//[^\n]*|/\*[\s\S]*?(?:\*/|\Z)|"(?:\\.|[^"\\\n])*"?')

Probe = tuple[str, Callable[[Build, Build], Iterator[str]]]
"""A text that is put before a source, and what reads faults from its build and that of the unchanged configuration."""


def with_probe(kernel: Kernel) -> Kernel:
    """Return a kernel with the code that answers probes behind its source; without a probe it changes nothing."""
    return replace(kernel, source=replace(kernel.source, text=f"{kernel.source.text}{_PROBE}"))


def unused_at_launch(kernel: Kernel) -> list[str]:
    """Return the faults of parameters that are passed at launch, whose values no argument and no expression uses."""
    idle = kernel.space.launch_parameters.keys() - _used(kernel) - set(kernel.launch_rule.arguments)
    fault = "no argument or expression uses it; a parameter must change the launch or the restrictions"
    return [f"launch.parameters.{name}: {fault}" for name in sorted(idle)]


def missing_constants(kernel: Kernel, build: Build) -> list[str]:
    """Return the faults of arrays for ``__constant__`` variables that a machine code has not."""
    arrays = () if kernel.arrays is None or build.state is not TrialState.OK else kernel.arrays.arguments
    names = [
        array.name for array in arrays if array.role == "constant" and f"\0{array.name}\0".encode() not in build.cubin
    ]
    law = 'the source must define and use `extern "C" __constant__` memory of this name'
    return [f"arguments.{name}: the machine code has no such memory; {law}" for name in names]


def entry_probes(kernel: Kernel, problem: RunnableProblem, definitions: str) -> Iterator[Probe]:
    """Yield the probes of the parameters of a kernel and of its reference, for one configuration."""
    values = problem.kernel_arguments({buffer.name: buffer for buffer in problem.buffers})
    key = "arguments" if kernel.arrays is not None else "kernel.entry"
    further: dict[str, Any] = dict.fromkeys(kernel.launch_rule.arguments, np.int32(0))
    further |= {} if kernel.launch_rule.workspace is None else {"workspace": _ANYTHING}
    further |= {f"tensor map {number}": _TENSOR_MAP for number, _ in enumerate(kernel.launch_rule.tensor_maps)}
    reference = kernel.reference_kernel
    for probed, place, arguments in ((kernel, key, values | further), (reference, "reference.entry", values)):
        if probed is not None:
            read = partial(_entry_faults, probed, place, arguments)
            yield f"{definitions}#define __mltune_entry {probed.source.entry}\n", read


def macro_probes(kernel: Kernel, definitions: str) -> Iterator[Probe]:
    """Yield the probes of the macros that the source seems to define itself, or not to use, for one configuration."""
    text = _NOT_NAMES.sub(
        " ", "\n".join((kernel.source.text or "", *kernel.source.headers.values(), kernel.source.entry or ""))
    )
    used, own = _used(kernel), {} if kernel.arrays is None else kernel.arrays.definitions
    for key, names in (("parameters", kernel.space.parameters), ("macros", own)):
        for name in names:
            again = re.search(rf"^[ \t]*#[ \t]*define[ \t]+{name}\b", text, re.MULTILINE)
            idle = name not in used and not re.search(rf"\b{name}\b", text)
            idle = idle or bool(again and re.search(rf"^[ \t]*#[ \t]*undef[ \t]+{name}\b", text, re.MULTILINE))
            if again or idle:
                other = re.sub(rf"^#define {name} .*$", f"#define {name} __mltune_value", definitions, flags=re.M)
                yield f"#pragma nv_diag_error 47\n{other}", partial(_macro_faults, f"{key}.{name}", name, idle)


def _used(kernel: Kernel) -> frozenset[str]:
    """Return the parameters that a launch or a restriction depends on."""
    rule, needed = kernel.launch_rule, [restriction.expression for restriction in kernel.space.restrictions]
    expressions = [*rule.grid, *rule.block, rule.shared_bytes, *needed, *filter(None, [rule.workspace])]
    expressions += (field for _, fields in rule.tensor_maps for field in fields)
    return kernel.space.parameters_of(name for expression in expressions for name in expression.names)


def _entry_faults(kernel: Kernel, key: str, arguments: Mapping[str, Any], build: Build, plain: Build) -> Iterator[str]:
    entry = kernel.source.entry or ""
    if key == "reference.entry" and plain.cubin and code_bytes(plain.cubin, entry) is None:
        law = 'the source must define it as extern "C"'
        yield f"{key}: the machine code does not contain the kernel {entry!r}; {law}"
        return
    answer = re.search(r"__mltune_types<(\d+)((?:, -?\d+(?=[,>]))*)", build.detail)
    if answer is None:
        return
    codes = [int(code) for code in answer[2].split(", ")[1:]]  # of very many parameters only the first ones
    if int(answer[1]) != len(arguments):
        fault = f"{entry} has {answer[1]} parameters, not one for each of {len(arguments)} arguments"
        yield printable(f"{key}: {fault}: {', '.join(arguments)}", 300)
        return
    names = _names(kernel) if kernel.arrays is not None else []
    if len(names) == len(arguments):
        for name, parameter in zip(arguments, names, strict=True):
            if name != parameter and name in names and parameter in arguments:
                law = f"the order must be that of the parameters of {entry}: {', '.join(names)}"
                yield f"{key}: the argument {name} stands in the place of {parameter}; {printable(law, 300)}"
                return
    for position, (name, code) in enumerate(zip(arguments, codes, strict=False), 1):
        if not _fits(arguments[name], code):
            value = arguments[name]
            kind = f"a pointer to {value.dtype or 'memory'}" if isinstance(value, Buffer) else value.dtype
            fault = f"parameter {position} of {entry} is {_words(code)}, not {kind}, as the argument {name}"
            yield f"{key}.{name}: {fault}" if key == "arguments" else f"{key}: {fault}"


def _names(kernel: Kernel) -> list[str]:
    """Return the names of the parameters of a kernel as the source tells them; empty where it does not."""
    name = re.escape(plain_entry(kernel.source.entry or ""))
    definition = re.search(rf"\b{name}\s*\(([^(){{}};#]*)\)\s*\{{", _NOT_NAMES.sub(" ", kernel.source.text or ""))
    parts = definition[1].split(",") if definition else []
    words = [re.search(r"(\w+)\s*(?:\[\w*\])?\s*$", part) for part in parts]
    return [word[1] for word in words if word]


def _fits(value: Any, code: int) -> bool:
    """Return whether an argument can be passed to a parameter. What is behind a pointer may be packed or vectors."""
    size, kind = divmod(abs(code), 4)
    if (code < 0) != isinstance(value, Buffer):
        return False
    if value is _TENSOR_MAP:
        return code == 4 * 128
    if not isinstance(value, Buffer):
        numbers = {kind, _kind(value.dtype)} == {_INTEGER, _FLOAT}
        return bool(size == value.dtype.itemsize and not numbers)
    if value is _ANYTHING or kind == _VOID:
        return True
    dtype = STORAGE[value.dtype]
    if kind == _FLOAT:
        return dtype.kind in "fc" and size == dtype.itemsize // (2 if dtype.kind == "c" else 1)
    if kind == _INTEGER:
        return dtype.itemsize < 4 or size in (1, dtype.itemsize)
    return max(size, dtype.itemsize) % min(size, dtype.itemsize) == 0


def _kind(dtype: Any) -> int:
    """Return how a compiler sees a scalar; numbers of 16 bits are structures or integers."""
    kinds = {"f": _FLOAT if dtype.itemsize >= 4 else _STRUCTURE, "c": _STRUCTURE}
    return kinds.get(dtype.kind, _INTEGER)


def _words(code: int) -> str:
    size, kind = divmod(abs(code), 4)
    what = (f"a structure of {size} bytes", f"an integer of {8 * size} bits", f"a float of {8 * size} bits", "void")
    return f"{'a pointer to ' if code < 0 else ''}{what[kind]}"


def _macro_faults(key: str, name: str, idle: bool, build: Build, plain: Build) -> Iterator[str]:
    again = re.search(rf'(\S+\(\d+\)): error: [^;]*macro "{name}"', build.detail)
    if again:
        yield f"{key}: {again[1]} defines {name} again; the source must take it as it is given"
    elif idle and build.state is plain.state is TrialState.OK and build.cubin == plain.cubin:
        law = "a macro must change one of them"
        yield f"{key}: another value of {name} changes neither machine code nor launch nor restrictions; {law}"
