"""Versions of mltune and of the packages that decide a result."""

from __future__ import annotations

from contextlib import suppress

__version__ = "0.3.0.dev0"


def installed_versions(*packages: str) -> dict[str, str]:
    """Return the version of mltune, and those of packages that are installed."""
    import importlib.metadata

    installed = {"mltune": __version__}
    for package in packages:
        with suppress(importlib.metadata.PackageNotFoundError):
            installed[package] = importlib.metadata.version(package)
    return installed
