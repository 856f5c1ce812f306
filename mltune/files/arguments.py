"""Refuse an argument of another type than its parameter, before a function does anything."""

from __future__ import annotations

import functools
import inspect
import re
import reprlib
from collections.abc import Mapping, Sequence
from numbers import Integral, Real
from os import PathLike
from types import NoneType
from typing import Any, TypeVar

from mltune.files.text import printable

Offered = TypeVar("Offered")

_KINDS: Mapping[str, tuple[Any, str]] = {
    "str": (str, "a text"),
    "Path": (PathLike, "a path"),
    "bool": (bool, "True or False"),
    "int": (Integral, "a whole number"),
    "float": (Real, "a number"),
    "Mapping": (Mapping, "a dict"),
    "Sequence": (Sequence, "a list"),
    "None": (NoneType, "None"),
}
"""The classes of the alternatives of an annotation, and their names in messages."""

_EXPLAINED = ("compiler_options", "device", "enough", "problem")
"""Parameters whose own check has an example."""


def checked(offered: Offered, refusal: type[Exception]) -> Offered:
    """Return a function that first refuses an argument of another type; anything else is returned as it is.

    Messages name the options of commands; those of its errors become its arguments.
    """
    if not inspect.isfunction(offered):
        return offered
    annotations = dict(offered.__annotations__)
    for further in re.findall(r"Unpack\[(\w+)\]", str(annotations)):  # keywords that a dictionary declares
        declared = offered.__globals__[further].__annotations__
        annotations |= {name: kind.__forward_arg__ for name, kind in declared.items()}
    names = inspect.signature(offered).parameters

    @functools.wraps(offered)
    def check_and_call(*arguments: Any, **options: Any) -> Any:
        for name, value in (*zip(names, arguments, strict=False), *options.items()):
            if name not in _EXPLAINED and (wrong := _wrong(value, annotations.get(name, "Any"))):
                raise refusal(f"{name} cannot be {wrong}; see help(mltune.{offered.__qualname__}).")
        try:
            return offered(*arguments, **options)
        except refusal.__bases__ as error:  # type: ignore[misc] # of mltune
            error.args = (_OPTION.sub(functools.partial(_argument, annotations), str(error)),)
            raise

    check_and_call.__module__ = "mltune"  # where pickle finds it
    return check_and_call  # type: ignore[return-value]


_OPTION = re.compile(
    r"`[^`]*`|(?<![\w-])--([a-z]+(?:-[a-z]+)*)(?![\w=-])(?: ((?=\S*[A-Z0-9:=/])[^\s;()`]*[^\s;()`.,:]|none|replay))?"
)
"""A command, which stays as it is, or an option with its value."""


def _argument(annotations: Mapping[str, str], option: re.Match[str]) -> str:
    """Write an option of a command as the argument of a call: ``--size n=64`` becomes ``size={'n': 64}``."""
    name, value = (option[1] or "").replace("-", "_"), option[2]
    if not name or (name not in annotations and annotations.get("options") != "Any"):
        return option[0]
    if value is None:
        return f"{name}=True" if annotations.get(name) == "bool" else name
    key, equals, of_key = value.partition("=")
    if equals:
        return f"{name}={{{key!r}: {f'[{of_key}]' if ',' in of_key else of_key}}}"
    return f"{name}={value if value.isdigit() else repr(value)}"


def _wrong(value: Any, annotation: str) -> str:
    """Say that a value is none of the alternatives of an annotation, or an empty list where one is needed."""
    alternatives = re.sub(r"\[.*?\]+", "", annotation).split(" | ")
    checkable = [kind for kind in alternatives if kind in _KINDS]
    if checkable != alternatives and "Path" not in checkable:
        return ""
    classes = () if isinstance(value, str | bytes) else tuple(_KINDS[kind][0] for kind in checkable)
    fits = isinstance(value, classes) or any(kind.__name__ in alternatives for kind in type(value).__mro__)
    if fits and (not isinstance(value, list | tuple) or value or "None" in alternatives):
        return ""
    kinds = [_KINDS.get(kind, (None, f"a {kind}"))[1] for kind in alternatives if kind != "None"]
    law = "has at least one entry" if fits else f"is {' or '.join(kinds)}"
    return f"{printable(reprlib.repr(value))}: it {law}"
