"""Modules that are named as those of Python and of all packages, and note that they were executed."""

import sys
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

HOSTILE = "open({marker!r}, 'a').write(__name__ + ' ')\n"


def plant(folder: Path, names: Iterable[str] | None = None) -> Path:
    """Write modules into a new folder, by default under every name that can be imported here; return the folder.

    One that is executed leaves its name in a file beside it (:func:`executed`).
    """
    folder.mkdir(parents=True)
    if names is None:
        packages = {name for name in metadata.packages_distributions() if name.isidentifier()}
        names = {*sys.stdlib_module_names, *packages, "mltune"} - set(sys.builtin_module_names)
    for name in names:
        (folder / f"{name}.py").write_text(HOSTILE.format(marker=str(_marker(folder))))
    return folder


def executed(folder: Path) -> list[str]:
    """Return the names of the modules of a folder that were executed."""
    return _marker(folder).read_text().split() if _marker(folder).exists() else []


def _marker(folder: Path) -> Path:
    return folder.with_name(f"executed-in-{folder.name}")
