"""Locations of the four asset folders: the repository root in a checkout, ``mltune/_data`` in a wheel."""

from functools import cache
from pathlib import Path

FOLDERS = ("kernels", "search", "datasets", "models")


@cache
def folder(name: str) -> Path:
    """Return the folder of one kind of asset.

    Parameters
    ----------
    name : {"kernels", "search", "datasets", "models"}

    Returns
    -------
    pathlib.Path
        ``mltune/_data/<name>`` in a wheel, ``<root>/<name>`` in a checkout.
    """
    if name not in FOLDERS:
        raise ValueError(f"an asset folder is one of {FOLDERS}, got {name!r}")
    package = Path(__file__).resolve().parent.parent
    installed = package / "_data" / name
    return installed if installed.is_dir() else package.parent / name
