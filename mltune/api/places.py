"""Refuse, before any work, to write where a file lies that mltune did not write."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from mltune.errors import UsageError
from mltune.files.owned import ForeignFileError, Product, check_replaceable


def check_places(files: Mapping[Path, Product], *, overwrite: bool) -> None:
    """Check that files can be written; with ``overwrite`` in place of any.

    Raises
    ------
    UsageError
        Something that mltune did not write is in the place of one of them.
    """
    try:
        check_replaceable({} if overwrite else files)
    except ForeignFileError as error:
        raise UsageError(f"{error}.") from None
