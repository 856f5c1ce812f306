"""Folders: the assets that come with mltune, and the user's folders for data and caches."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

FOLDERS = ("kernels", "search", "datasets", "models")


@cache
def assets(name: str) -> Path:
    """Return the folder of one kind of asset, one of :data:`FOLDERS`, or that of the pages, ``"docs"``."""
    if name not in (*FOLDERS, "docs"):
        raise ValueError(f"{name!r} is no asset folder, one of {FOLDERS}")
    package = Path(__file__).resolve().parent.parent
    installed = package / "_data" / name
    return installed if installed.is_dir() else package.parent / name


def page(name: str) -> str:
    """Return the path of a page of the documentation, which comes with mltune: ``"reference/plans.md"``."""
    path = assets("docs") / name
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)


class HomelessError(OSError):
    """The user has no folder for data or caches: no home directory, and no variable that names one."""


def data_folder() -> Path:
    """Return the folder for permanent data: ``$XDG_DATA_HOME/mltune``, or ``~/.local/share/mltune``."""
    return _folder("XDG_DATA_HOME", ".local/share")


def cache_folder() -> Path:
    """Return the folder for data that can be made again: ``$XDG_CACHE_HOME/mltune``, or ``~/.cache/mltune``."""
    return _folder("XDG_CACHE_HOME", ".cache")


def _folder(variable: str, default: str) -> Path:
    base = Path(os.environ.get(variable, ""))
    base = base if base.is_absolute() else Path(os.path.expanduser("~")) / default
    if not base.is_absolute():  # no HOME, and no entry in the list of users
        raise HomelessError(
            f"user {os.getuid()} has no home directory; set {variable} to a folder of your own, as an absolute path"
        )
    return base / "mltune"
