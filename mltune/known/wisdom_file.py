"""The file of a wisdom: where it is, how it is read, written and locked."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import warnings
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from mltune.errors import MltuneWarning, WisdomError
from mltune.files.atomic import write_file_atomically
from mltune.files.folders import data_folder, page
from mltune.files.locks import HeldError, locked_file
from mltune.files.reading import open_regular, parse_json, read_file, reason
from mltune.files.text import printable
from mltune.files.validation import Kind, validated
from mltune.known.entry import Entry, Failure, Outcome

FORMAT = 1
"""The format that is written."""

VARIABLE = "MLTUNE_WISDOM"
"""The environment variable that names the user's file; ``none`` uses no wisdom."""

AUTO, NONE = "auto", "none"
"""Names in place of a file: the user's file on a GPU, and none."""

MAX_BYTES = 1 << 24
"""Largest file, bytes."""

MOST_ENTRIES = 20_000
"""Most entries of a file."""

_MOST_PARTS = 1_000  # of an object or a list in an entry: an error for each of a million takes gigabytes
_LOCK_TIMEOUT_S = 30.0


class Document(BaseModel):
    """What a file of a known format has."""

    model_config = ConfigDict(extra="forbid")

    format: Literal[1]


class _WisdomDocument(Document):
    entries: Annotated[list[Any], Field(max_length=MOST_ENTRIES)]


def default_file() -> Path | None:
    """Return the user's file, or None where the environment switches it off.

    ``$MLTUNE_WISDOM``, else ``$XDG_DATA_HOME/mltune/wisdom.json``, else ``~/.local/share/mltune/wisdom.json``. For a
    user who has neither, nor a home directory, it raises a WisdomError.
    """
    named = os.environ.get(VARIABLE, "")
    if named:
        return None if named == NONE else Path(named)
    try:
        return data_folder() / "wisdom.json"
    except OSError as error:
        raise WisdomError(f"no file of wisdom is known: {error}, or name a file.") from error


def file_of_run(option: Path | str, *, replayed: bool) -> Path | None:
    """Return a run's file: the named one, or for ``"auto"`` the user's, if they have one, but none in replay."""
    if str(option) != AUTO:
        return None if str(option) == NONE else Path(option)
    try:
        return None if replayed else default_file()
    except WisdomError as error:
        warnings.warn(f"no wisdom is used or kept: {error}", MltuneWarning, stacklevel=2)
        return None


def read(path: Path, *, inside: Path | None = None) -> list[Outcome]:
    """Read the entries of a file, behind no link below ``inside``; none where it does not exist."""
    with refusing(path, "wisdom of mltune"):
        document = read_document(path, _WisdomDocument, MAX_BYTES, inside=inside)
        return [] if document is None else [_entry(raw, number) for number, raw in enumerate(document.entries)]


def read_document(path: Path, kind: type[Kind], limit: int, *, inside: Path | None = None) -> Kind | None:
    """Read a document of the format that is written here; None where there is no file."""
    try:
        document = parse_json(read_file(path, limit, inside=inside))
    except FileNotFoundError:
        return None
    if isinstance(document, dict):
        if len(document) > _MOST_PARTS:
            raise ValueError(f"it has {len(document)} keys")
        if isinstance(document.get("format"), int) and document["format"] > FORMAT:
            raise ValueError(f"it is of format {document['format']}, and only {FORMAT} is known here: update mltune")
    return validated(kind, document)


@contextlib.contextmanager
def refusing(path: Path, kind: str) -> Iterator[None]:
    """Raise a WisdomError for what is wrong with a file that is read."""
    try:
        yield
    except (OSError, ValueError) as error:
        raise WisdomError(
            f"{printable(path, 300)} is no {kind}: {printable(reason(error), 600)}; "
            f"see {page('how-to/carry-wisdom.md')}."
        ) from None


def _entry(raw: Any, number: int) -> Outcome:
    if _widest(raw) > _MOST_PARTS:
        raise ValueError(f"an object or a list of entry {number + 1} has more than {_MOST_PARTS} parts")
    model = Failure if isinstance(raw, dict) and "failed" in raw else Entry
    return validated(model, raw, within=("entries", number))


def _widest(value: Any) -> int:
    """Return the number of parts of the largest object or list in a value."""
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return max(len(parts), max(map(_widest, parts), default=0))


def write(path: Path, entries: Sequence[Outcome]) -> None:
    """Write a file in place of an existing one; readers see the old content or the new."""
    document = {"format": FORMAT, "entries": [entry.to_json() for entry in entries]}
    data = (json.dumps(document, indent=1, allow_nan=False) + "\n").encode()
    if len(entries) > MOST_ENTRIES or len(data) > MAX_BYTES:
        raise WisdomError(
            f"{printable(path, 300)} would have {len(entries)} entries and {len(data)} bytes; a wisdom has at most "
            f"{MOST_ENTRIES} and {MAX_BYTES}: split it with `mltune wisdom export`."
        )
    try:
        write_file_atomically(path, data)
    except OSError as error:
        raise _unwritable(path, error) from error


@contextlib.contextmanager
def locked(path: Path, timeout_s: float = _LOCK_TIMEOUT_S, *, is_removed: bool = False) -> Iterator[Path]:
    """Hold the lock of a file, and yield its path without links: one process at a time reads it and writes it again.

    The lock is a file beside it, because the file itself is replaced; with ``is_removed`` it is removed in the end.
    Where another process holds it, the cause of the WisdomError is a :class:`~mltune.files.locks.HeldError`.
    """
    path = Path(os.path.realpath(path))
    with contextlib.ExitStack() as stack:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            stack.enter_context(locked_file(_lock_of(path), timeout_s, partial(_say, path), is_removed=is_removed))
        except HeldError as error:
            raise WisdomError(
                f"another process has held {printable(path, 300)} for {round(error.waited_s, 2):g} s, and one at a "
                f"time writes a wisdom: {error}; end it, or choose another file."
            ) from error
        except OSError as error:
            raise _unwritable(path, error) from error
        yield path


@contextlib.contextmanager
def locked_key(path: Path, key: str, timeout_s: float) -> Iterator[None]:
    """Hold the lock of a key, any text, of a file, while what the file will say of it is measured.

    The file itself can be written meanwhile, and other keys are not locked. Another process that holds the lock for too
    long is a HeldError.
    """
    path = Path(os.path.realpath(path))
    lock = path.with_name(f".{path.name}.{hashlib.sha256(key.encode()).hexdigest()[:16]}.lock")
    with contextlib.ExitStack() as stack:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            os.close(open_regular(_lock_of(path), os.O_RDWR | os.O_CREAT, inside=path.parent))  # needed in the end
            stack.enter_context(locked_file(lock, timeout_s, partial(_say, path), is_removed=True))
        except HeldError:
            raise
        except OSError as error:
            raise _unwritable(path, error) from error
        yield


def _lock_of(path: Path) -> Path:
    return path.with_name(f".{path.name}.lock")


def _say(path: Path, words: str) -> None:
    warnings.warn(f"the lock of {printable(path, 300)} is not free: {words}.", MltuneWarning, stacklevel=8)


def _unwritable(path: Path, error: OSError) -> WisdomError:
    return WisdomError(f"the wisdom {printable(path, 300)} cannot be written: {reason(error)}.")
