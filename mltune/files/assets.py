"""Folders of assets: in the repository root in a checkout, in ``mltune/_data`` in a wheel."""

from functools import cache
from pathlib import Path

FOLDERS = ("kernels", "search", "datasets", "models")


@cache
def folder(name: str) -> Path:
    """Return the folder of one kind of asset, one of :data:`FOLDERS`."""
    if name not in FOLDERS:
        raise ValueError(f"an asset folder is one of {FOLDERS}, got {name!r}")
    package = Path(__file__).resolve().parent.parent
    installed = package / "_data" / name
    return installed if installed.is_dir() else package.parent / name
