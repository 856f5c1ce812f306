"""A cache of cubins on disk, named by the hash of everything that they depend on.

A file is one build: the SHA-256 of the rest, a line of JSON, and the compressed cubin. It is written under another name
and renamed, so that readers see complete files only; a damaged one does not match its hash and counts as absent.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
import os
import tempfile
import threading
import zlib
from pathlib import Path

from mltune.measure.compiler import Source
from mltune.records.trial import Build, TrialState

_FORMAT = 2
_HEADER = ("detail", "registers", "spill_bytes", "stack_bytes", "shared_bytes", "code_bytes", "compile_s")
_CACHED_STATES = (TrialState.OK, TrialState.COMPILE_ERROR)
_log = logging.getLogger(__name__)


def default_cache() -> Path:
    """Return the user's cache folder: ``$XDG_CACHE_HOME/mltune/cubins``, or ``~/.cache/mltune/cubins``."""
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (base if base.is_absolute() else Path.home() / ".cache") / "mltune" / "cubins"


def cache_key(source: Source, definitions: str, compiler: str) -> str:
    """Return the name of a build: a hash of all that NVRTC reads, and of the compiler's version."""
    content = json.dumps([_FORMAT, dataclasses.asdict(source), definitions, compiler], sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()


class CubinCache:
    """A folder of builds, safe for concurrent threads and processes.

    It keeps the results that depend on the source alone: cubins and compile errors, not timeouts and crashes. A cache
    never fails a run: after an error of writing, nothing more is cached.

    Parameters
    ----------
    directory : pathlib.Path
        The folder; created when first needed.
    max_bytes : int
        Size of the folder beyond which the least recently used files are deleted.
    """

    def __init__(self, directory: Path, *, max_bytes: int = 4 << 30) -> None:
        self._directory = directory
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._bytes: int | None = None
        self._writable = True

    def get(self, key: str) -> Build | None:
        """Return a build, marked as cached, or None."""
        path = self._path(key)
        try:
            build = _decode(path.read_bytes())
            if build is not None:
                os.utime(path)
        except OSError:
            return None
        return build

    def put(self, key: str, build: Build) -> None:
        """Store a build, unless another attempt may end in another state."""
        if build.state not in _CACHED_STATES or not self._writable:
            return
        content = _encode(build)
        path = self._path(key)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            _write_atomically(path, content)
            self._make_room(len(content))
        except OSError as error:
            self._writable = False
            _log.warning(
                "the cache of cubins must be writable, but %s: %s; this run caches no more cubins",
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
            for path in self._directory.glob("??/*"):
                try:
                    status = path.stat()
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


def _encode(build: Build) -> bytes:
    header = {name: getattr(build, name) for name in _HEADER} | {"state": build.state.value}
    body = json.dumps(header).encode() + b"\n" + zlib.compress(build.cubin, 1)
    return hashlib.sha256(body).digest() + body


def _decode(content: bytes) -> Build | None:
    digest, body = content[:32], content[32:]
    if hashlib.sha256(body).digest() != digest:
        return None
    header, _, cubin = body.partition(b"\n")
    try:
        fields = json.loads(header)
        return Build(TrialState(fields.pop("state")), cubin=zlib.decompress(cubin), cached=True, **fields)
    except (ValueError, KeyError, TypeError, zlib.error):
        return None


def _write_atomically(path: Path, content: bytes) -> None:
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix="new-")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
