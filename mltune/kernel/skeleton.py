"""New kernel bundles: a complete small example, to be edited."""

from __future__ import annotations

import re
from importlib import resources
from pathlib import Path
from string import Template

from mltune.errors import UsageError
from mltune.files.atomic import replace_folder_atomically, write_file_atomically
from mltune.files.reading import reason
from mltune.files.text import printable

FILES = ("kernel.cu", "kernel.toml")
"""The files of a new bundle; their templates are in ``templates/``."""

_LONGEST_NAME = 64


def new_bundle(folder: Path) -> str:
    """Write a new bundle, and return the name of its kernel, which is made from that of the folder."""
    name = kernel_name(folder.resolve().name)
    templates = resources.files("mltune.kernel") / "templates"
    files = {file: Template((templates / f"{file}.txt").read_text()).substitute(name=name).encode() for file in FILES}
    try:
        if folder.is_symlink() or folder.exists():
            _check_empty(folder)
            for file, content in files.items():  # not exchanged: it may be the working directory of somebody
                write_file_atomically(folder / file, content)
        else:
            replace_folder_atomically(folder, files)
    except OSError as error:
        raise UsageError(
            f"a new bundle is written to a folder, but {printable(folder, 300)} cannot be: {reason(error)}."
        ) from error
    return name


def kernel_name(folder_name: str) -> str:
    """Return the name of a kernel made from that of a folder."""
    words = re.sub(r"[^a-z0-9]+", "_", folder_name.lower()).strip("_")
    name = words if words[:1].isalpha() else f"kernel_{words}"
    return name[:_LONGEST_NAME].rstrip("_")


def _check_empty(folder: Path) -> None:
    if not folder.is_dir() or any(folder.iterdir()):
        fact = "holds files" if folder.is_dir() else "is something else"
        raise UsageError(
            f"a new bundle is written to a new or empty folder, but {printable(folder, 300)} {fact}; "
            "choose another name."
        )
