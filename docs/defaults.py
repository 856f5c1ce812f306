"""Extension of mkdocstrings: signatures show the values of defaults in place of names of constants."""

import re
from importlib import import_module
from operator import attrgetter
from typing import Any

import griffe

CONSTANT = re.compile(r"(?!None$|True$|False$)[A-Z]\w+(\.\w+)?")


class Values(griffe.Extension):
    """Replace a default such as ``MOST`` or ``RunOptions.search`` by its value."""

    def on_function(self, *, func: griffe.Function, **_: Any) -> None:
        """Look at the defaults of a function that was read."""
        for parameter in func.parameters:
            if CONSTANT.fullmatch(str(parameter.default)):
                value = attrgetter(str(parameter.default))(import_module(func.module.path))
                if isinstance(value, str | int | float | tuple | None):
                    parameter.default = repr(value)
