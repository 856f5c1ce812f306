"""The winners of Triton's kernels, in the file of the wisdom: the same choice in every process that reads it."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import math
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from mltune.errors import MltuneWarning, WisdomError
from mltune.known.entry import LONGEST_TEXT, Entry, Failure, Gpu, Outcome, canonical, choose
from mltune.known.triton_winners import PREFIX
from mltune.known.wisdom import Wisdom, WisdomFile
from mltune.known.wisdom_file import file_of_run, locked_key

LOCK_TIMEOUT_S = 600.0
"""Seconds for which a process waits while another one tunes the same kernel for the same key."""

_RECORDED = {"kind": "recorded", "flops": 1, "arithmetic": "fp32", "values": {}}
_SHOWN = 70  # characters of a key that are shown; all are in its hash


@dataclass(frozen=True, slots=True)
class Winners:
    """The outcomes of one kernel for one key: what won, and what must not be launched again.

    A `path` of None keeps nothing. All entries share the `fields`: kernel, hash of the source, problem, GPU and driver.
    """

    path: Path | None
    fields: Mapping[str, Any]
    key: str = ""
    """That of its entries (:attr:`Outcome.key`)."""

    @classmethod
    def of(
        cls,
        file: Path | str,
        kernel: Any,
        text: str,
        configs: Sequence[Any],
        gpu: Any,
        driver: str,
        checked: str = "",
    ) -> Winners:
        """Return those of a call: by the text of its key, and by what there is to choose.

        What is `checked` of a winner is a part of its key: one that was not found that way is not taken.
        """
        path = file_of_run(file, replayed=False)
        if path is None or gpu is None or not hasattr(kernel, "cache_key"):
            return cls(None, {})
        import triton

        choice = triton.__version__, [sorted(configuration(config).items()) for config in configs]
        hooks = [config.pre_hook and getattr(config.pre_hook, "__qualname__", "") for config in configs]
        name = re.sub(r"[^a-z0-9_-]", "-", kernel.fn.__name__.lower())[:50]
        size = _size(text, *choice, hooks, *([checked] if checked else []))
        fields = {
            "kernel": f"{kernel.fn.__module__}.{kernel.fn.__qualname__}"[-LONGEST_TEXT:],
            "source_hash": kernel.cache_key,
            "problem": {**_RECORDED, "name": f"{PREFIX}{name}", "size": size},
            "device": Gpu.of(gpu),
            "driver": driver,
        }
        parts = fields["kernel"], fields["source_hash"], fields["problem"], fields["device"].model_dump(), driver
        return cls(path, fields, canonical(parts))

    def __bool__(self) -> bool:
        return self.path is not None

    def best(self, configs: Sequence[Any]) -> dict[Any, list[float]]:
        """Return the winner with quantiles of its milliseconds; empty where none is known."""
        won = [outcome for outcome in self._fitting() if isinstance(outcome, Entry)]
        if not won:
            return {}
        best = choose(won)
        times = [1e3 * value for value in (best.median_s, best.low_s, best.high_s)]
        return dict.fromkeys([config for config in configs if configuration(config) == best.configuration][:1], times)

    def allowed(self, configs: Sequence[Any]) -> list[Any]:
        """Return all configurations but those that must not be launched again; the first if there are no others."""
        failed = [outcome.configuration for outcome in self._fitting() if isinstance(outcome, Failure)]
        return [config for config in configs if configuration(config) not in failed] or [*configs[:1]]

    def _fitting(self) -> list[Outcome]:
        outcomes: list[Outcome] = []
        if self.path is not None:
            with _warning():
                outcomes = list(_file_at(self.path).read())
        return [outcome for outcome in outcomes if outcome.key == self.key]

    def keep(self, times: Mapping[Any, Sequence[float]], *, is_verified: bool) -> None:
        """Add the fastest of the configurations whose milliseconds are given, if one could be timed."""
        best = min(times, key=lambda config: times[config][0])
        median_s, low_s, high_s = (1e-3 * value for value in times[best])
        first_s = 1e-3 * next(iter(times.values()))[0]
        default_s = first_s if math.isfinite(first_s) else None
        if math.isfinite(median_s) and median_s > 0:
            seconds = {"median_s": median_s, "low_s": low_s, "high_s": high_s, "default_s": default_s}
            self.add(best, **seconds, trials=len(times), verified=is_verified)

    def add(self, config: Any, **outcome: Any) -> None:
        """Add a winner with its times, or a failure with its reason (:mod:`mltune.known.entry`)."""
        if self.path is None:
            return
        import triton

        kind = Failure if "failed" in outcome else Entry
        now = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%S.%f}Z"
        fields = {**self.fields, "configuration": configuration(config), "measured_at": now, **outcome}
        with _warning():
            Wisdom([kind(versions={"triton": triton.__version__}, **fields)]).add_to(self.path)

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the lock of the key: one process tunes, others read the winner, or tune where it takes too long."""
        with contextlib.ExitStack() as stack:
            if self.path is not None:
                try:
                    with _warning():
                        stack.enter_context(locked_key(self.path, repr(sorted(self.fields.items())), LOCK_TIMEOUT_S))
                except OSError as error:  # of a lock that is held
                    kernel = self.fields["kernel"]
                    law = "one process at a time tunes a kernel for a key"
                    warnings.warn(
                        f"this process tunes {kernel}, too, whose lock is held by {error}; {law}.",
                        MltuneWarning,
                        stacklevel=3,
                    )
            yield


@functools.lru_cache(maxsize=16)
def _file_at(path: Path) -> WisdomFile:
    """Return the file, which is read again when it has changed: a library may make a new tuner at each call."""
    return WisdomFile(path)


def _size(text: str, *choice: Any) -> str:
    """Return the begin of a text, and a hash of all that is to be told apart."""
    digest = hashlib.sha256(repr((text, *choice)).encode()).hexdigest()[:16]
    shown = "".join(letter for letter in text[:_SHOWN] if letter.isprintable())
    return f"{shown} {digest}"


def configuration(config: Any) -> dict[str, Any]:
    """Return the parameters of a ``triton.Config`` as numbers and text."""
    return {name: value if type(value) in (int, float) else str(value) for name, value in config.all_kwargs().items()}


@contextlib.contextmanager
def _warning() -> Iterator[None]:
    """Go on without the file where it cannot be used."""
    try:
        yield
    except (WisdomError, ValueError) as error:
        warnings.warn(MltuneWarning(f"winners of Triton's kernels are not kept: {error}"), stacklevel=3)
