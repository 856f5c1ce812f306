"""A cache of cubins on disk, named by the hash of everything that they depend on.

A file is one build: the SHA-256 of the rest, a line of JSON with the name of the build, and the compressed cubin. Hash
and name can be made for any machine code: the folder is used only if nobody else can write to it.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import logging
import os
import re
import threading
import zlib
from collections.abc import Sequence
from pathlib import Path

from mltune.files.atomic import write_file_atomically
from mltune.files.folders import cache_folder
from mltune.files.reading import RefusedFileError, parse_json, read_file
from mltune.measure.compiler import CudaSource
from mltune.records.trial import Build, TrialState

LARGEST_CUBIN = 1 << 26
"""Largest cubin that is kept, bytes."""

_FORMAT = 2
_FIELDS: dict[str, tuple[type, ...]] = {
    "detail": (str,),
    **dict.fromkeys(("registers", "spill_bytes", "stack_bytes", "shared_bytes", "code_bytes"), (int, type(None))),
    "compile_s": (float,),
    "entry": (str,),
}
_LARGEST_FILE = LARGEST_CUBIN + (1 << 20)
_CACHED_STATES = (TrialState.OK, TrialState.COMPILE_ERROR)
_log = logging.getLogger(__name__)


def default_cache() -> Path | None:
    """Return ``$XDG_CACHE_HOME/mltune/cubins`` or ``~/.cache/mltune/cubins``; None, with a warning, without a home."""
    try:
        return cache_folder() / "cubins"
    except OSError as error:
        _log.warning("this run caches no cubins: %s", error)
        return None


def cache_key(source: CudaSource, definitions: str, compiler: str, options: Sequence[str] = ()) -> str:
    """Return the name of a build: a hash of all that NVRTC reads, and of the compiler's version."""
    parts = [_FORMAT, source_digest(source), definitions, compiler, *options]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def source_digest(source: CudaSource) -> str:
    """Return a hash of a source with its headers, options and controls."""
    headers, controls = (sorted(files.items()) for files in (source.headers, source.controls))
    places = [tuple(sorted(source.places.items()))] if source.places else []
    return _digest(source.text, source.entry, source.options, tuple(headers), *controls, *places)


@functools.lru_cache(maxsize=8)
def _digest(*source: object) -> str:
    """Return the hash of a source; its headers may be megabytes, and are the same for all configurations."""
    return hashlib.sha256(json.dumps(source, default=bytes.hex).encode()).hexdigest()


class CubinCache:
    """A folder of builds, safe for concurrent threads and processes.

    It keeps what depends on the source alone: cubins and compile errors, not timeouts and crashes. An error of writing
    ends the caching, not the run. Beyond `max_bytes` the least recently used files are deleted.
    """

    def __init__(self, directory: Path, *, max_bytes: int = 4 << 30) -> None:
        self._directory = directory
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._bytes: int | None = None
        self._trusted = self._writable = True
        try:
            _make_private(directory)
        except OSError as error:
            self._trusted = self._writable = False
            self._warn(error)

    def get(self, key: str) -> Build | None:
        """Return a build, marked as cached, or None."""
        if not self._trusted:
            return None
        path = self._path(key)
        try:
            build = _decode(read_file(path, _LARGEST_FILE, inside=self._directory), key)
            os.utime(path)
        except FileNotFoundError:
            return None
        except OSError:
            build = None
        if build is None:
            with contextlib.suppress(OSError):
                path.unlink()
        return build

    def put(self, key: str, build: Build) -> None:
        """Store a build, unless another attempt may end in another state."""
        if build.state not in _CACHED_STATES or not self._writable or len(build.cubin) > LARGEST_CUBIN:
            return
        content = _encode(build, key)
        try:
            write_file_atomically(self._path(key), content, inside=self._directory, durable=False)
            self._make_room(len(content))
        except OSError as error:
            self._writable = False
            self._warn(error)

    def _warn(self, error: OSError) -> None:
        _log.warning(
            "this run caches no more cubins: %s: %s; their cache must be a folder that its user alone can write",
            self._directory,
            error,
        )

    def _path(self, key: str) -> Path:
        return self._directory / key[:2] / key

    def _make_room(self, added: int) -> None:
        """Add to the size of the folder and, beyond the limit, delete files down to three quarters of it."""
        with self._lock:
            if self._bytes is not None:
                self._bytes += added
                if self._bytes <= self._max_bytes:
                    return
            files = []
            for path in filter(_is_own, self._directory.glob("??/*")):
                try:
                    status = path.lstat()
                except FileNotFoundError:
                    continue
                files.append((status.st_mtime, status.st_size, path))
            self._bytes = sum(size for _, size, _ in files)
            if self._bytes <= self._max_bytes:
                return
            for _, size, path in sorted(files):
                path.unlink(missing_ok=True)
                self._bytes -= size
                if self._bytes <= self._max_bytes * 3 // 4:
                    break


def _is_own(path: Path) -> bool:
    """Return whether a file in a folder of the cache has a name that the cache gives, or had while it was written."""
    return bool(re.fullmatch(rf"{path.parent.name}[0-9a-f]{{62}}|\.[0-9a-f]{{16}}\.partial", path.name))


def _make_private(directory: Path) -> None:
    """Make a folder for the user alone; refuse one that somebody else can write to."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = directory.stat()
    if status.st_uid != os.geteuid():
        raise RefusedFileError(f"it belongs to user {status.st_uid}; set XDG_CACHE_HOME to a folder of your own")
    if status.st_mode & 0o022:
        raise RefusedFileError(f"others can write to it; remove it with everything in it, or run chmod 700 {directory}")


def _encode(build: Build, key: str) -> bytes:
    header = {name: getattr(build, name) for name in _FIELDS} | {"key": key, "state": build.state.value}
    body = json.dumps(header).encode() + b"\n" + zlib.compress(build.cubin, 1)
    return hashlib.sha256(body).digest() + body


def _decode(content: bytes, key: str) -> Build | None:
    """Return the build in a file, or None if the file is damaged or that of another build."""
    digest, body = content[:32], content[32:]
    if hashlib.sha256(body).digest() != digest:
        return None
    header, _, compressed = body.partition(b"\n")
    unfolder = zlib.decompressobj()
    try:
        fields = parse_json(header)
        state = TrialState(fields.pop("state"))
        if fields.pop("key") != key or any(type(value) not in _FIELDS[name] for name, value in fields.items()):
            return None
        cubin = unfolder.decompress(compressed, LARGEST_CUBIN + 1)
        fits = unfolder.eof and len(cubin) <= LARGEST_CUBIN
        return Build(state, cubin=cubin, cached=True, **fields) if fits else None
    except (ValueError, LookupError, TypeError, AttributeError, zlib.error):
        return None
