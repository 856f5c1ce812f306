"""Folders: the assets that come with mltune, and the user's folders for data and caches."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

FOLDERS = ("kernels", "search", "datasets", "models")


@cache
def assets(name: str) -> Path:
    """Return the folder of one kind of asset, one of :data:`FOLDERS`."""
    if name not in FOLDERS:
        raise ValueError(f"an asset folder is one of {FOLDERS}, got {name!r}")
    package = Path(__file__).resolve().parent.parent
    installed = package / "_data" / name
    return installed if installed.is_dir() else package.parent / name


def data_folder() -> Path:
    """Return the folder for data that is kept: ``$XDG_DATA_HOME/mltune``, or ``~/.local/share/mltune``."""
    return _folder("XDG_DATA_HOME", ".local/share")


def cache_folder() -> Path:
    """Return the folder for data that can be made again: ``$XDG_CACHE_HOME/mltune``, or ``~/.cache/mltune``."""
    return _folder("XDG_CACHE_HOME", ".cache")


def _folder(variable: str, default: str) -> Path:
    base = Path(os.environ.get(variable, ""))
    return (base if base.is_absolute() else Path.home() / default) / "mltune"
