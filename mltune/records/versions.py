"""Versions of mltune and of the packages that decide a result; the import of packages that not everybody needs."""

from __future__ import annotations

import importlib
from contextlib import suppress
from typing import Any

from mltune.errors import UsageError

__version__ = "0.3.0.dev0"


def installed_versions(*packages: str) -> dict[str, str]:
    """Return the version of mltune, and those of packages that are installed."""
    import importlib.metadata

    installed = {"mltune": __version__}
    for package in packages:
        with suppress(importlib.metadata.PackageNotFoundError):
            installed[package] = importlib.metadata.version(package)
    return installed


def import_package(module: str, user: str, package: str) -> Any:
    """Import a module; a UsageError says who needs it, and how to install its package."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise UsageError(
            f"{user} needs {module}, which cannot be imported ({error}): pip install '{package}'."
        ) from error
