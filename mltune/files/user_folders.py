"""The user's folders for data and caches, where the XDG base directory specification has them."""

from __future__ import annotations

import os
from pathlib import Path


def data_folder() -> Path:
    """Return the folder for data that is kept: ``$XDG_DATA_HOME/mltune``, or ``~/.local/share/mltune``."""
    return _folder("XDG_DATA_HOME", ".local/share")


def cache_folder() -> Path:
    """Return the folder for data that can be made again: ``$XDG_CACHE_HOME/mltune``, or ``~/.cache/mltune``."""
    return _folder("XDG_CACHE_HOME", ".cache")


def _folder(variable: str, default: str) -> Path:
    base = Path(os.environ.get(variable, ""))
    return (base if base.is_absolute() else Path.home() / default) / "mltune"
