"""The base of the adapters: how a host is imported, and tables of a host's configurations.

Every adapter but Triton's asks a :class:`mltune.search.plain_search.PlainSearch`. All adapters promise, and the same
tests check in every host:

- A host is given configurations of its own space only, and none twice.
- Whatever goes wrong with a configuration, in compiling, launching or checking it, is a failure of that one alone.
- The same seed and the same results give the same proposals.
- A budget of measurements is not exceeded. Once a budget of seconds is spent nothing new begins; the first
  configuration, or the first batch, is always measured.
"""

from __future__ import annotations

import importlib
from collections.abc import Hashable, Mapping, Sequence
from importlib import metadata
from typing import Any

from mltune.errors import UsageError
from mltune.kernel.configurations import ConfigurationTable

QUICK = 25
"""Most configurations that are measured with ``MLTUNE_EFFORT=quick`` where they are listed."""


def require(module: str, package: str, tested: str = "") -> Any:
    """Import a host; a UsageError tells that its package is not installed, or not of the version that was `tested`."""
    try:
        host = importlib.import_module(module)
    except ImportError as error:
        raise UsageError(
            f"the search needs {module}, which cannot be imported ({error}): pip install '{package}'."
        ) from error
    version = getattr(host, "__version__", "") or (metadata.version(package.partition("=")[0]) if tested else "")
    if not version.startswith(tested):
        raise UsageError(
            f"{module} {version} is installed, but the search was tested with {tested}*: pip install '{package}'."
        )
    return host


def check_least(**numbers: tuple[float | None, float]) -> None:
    """Raise a UsageError if a number, unless it is None, is below its least."""
    for name, (value, least) in numbers.items():
        if value is not None and not value >= least:
            raise UsageError(f"{name} cannot be {value}: it is at least {least}.")


def leaves(value: Any, name: str = "") -> dict[str, Hashable]:
    """Return the parameters in nested mappings and sequences by their paths, such as ``block.0``."""
    if isinstance(value, str | bool | int | float | None):
        return {name: value}
    if not isinstance(value, Mapping | list | tuple):
        return leaves(vars(value), name) if hasattr(value, "__dict__") else {name: repr(value)}
    parts = value.items() if isinstance(value, Mapping) else enumerate(value)
    return {
        path: leaf for key, part in parts for path, leaf in leaves(part, f"{name}.{key}" if name else f"{key}").items()
    }


def table_of(configurations: Sequence[Mapping[str, Hashable]]) -> ConfigurationTable:
    """Return the table of distinct configurations, in their order: None is the value of a parameter that one lacks."""
    names = dict.fromkeys(name for configuration in configurations for name in configuration)
    values = {name: list(dict.fromkeys(configuration.get(name) for configuration in configurations)) for name in names}
    return ConfigurationTable.from_rows(
        values, [tuple(configuration.get(name) for name in values) for configuration in configurations]
    )
