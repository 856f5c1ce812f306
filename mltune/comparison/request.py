"""Request for a comparison, and its form as the options of a command line."""

from __future__ import annotations

import hashlib
import json
import os
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from mltune.comparison.journal import Job
from mltune.comparison.recording import Source
from mltune.comparison.strategies import available, strategy
from mltune.errors import UsageError
from mltune.records.versions import __version__

EVERY = "all"
"""The name for every strategy, or every dataset."""

DEFAULT_STRATEGIES = ("mltune", "tpe", "random")


@dataclass(frozen=True, slots=True)
class CompareRequest:
    """A request for a comparison.

    Attributes
    ----------
    strategies : tuple of str
        See :func:`mltune.comparison.strategies.strategy`.
    evaluations : int
        Distinct configurations that each run may evaluate.
    seeds : int
        Each strategy searches each dataset with the seeds from 0 on.
    output : pathlib.Path
        Directory of the journal: runs that it holds are not repeated.
    share : tuple of (int, int)
        Part and number of parts of the jobs: ``(2, 4)`` is the second of four.
    fewer_seeds : mapping of str to int
        Number of seeds of each strategy that has fewer than the others, because it is slow.

    Raises
    ------
    UsageError
        A strategy is not known, or a number is out of its bounds.
    """

    strategies: tuple[str, ...]
    sources: tuple[Source, ...]
    evaluations: int
    seeds: int
    processes: int
    output: Path
    share: tuple[int, int] = (1, 1)
    fewer_seeds: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for text in self.strategies:
            strategy(text)
        part, parts = self.share
        if not 1 <= part <= parts:
            raise UsageError(f"a share is PART/PARTS with 1 <= PART <= PARTS, got {part}/{parts}.")
        for kind, names in (("strategy", self.strategies), ("dataset", [source.name for source in self.sources])):
            if not names or len(set(names)) != len(names):
                raise UsageError(
                    f"a comparison needs at least one {kind} and each once, got {', '.join(names) or 'none'}."
                )

    def jobs(self) -> list[Job]:
        """Return the jobs of this share, all of a seed before those of the next."""
        part, parts = self.share
        every = (
            Job(name, source.name, seed)
            for seed in range(self.seeds)
            for source in self.sources
            for name in self.strategies
            if seed < self.fewer_seeds.get(name, self.seeds)
        )
        return [job for job in every if zlib.crc32("\n".join(map(str, job)).encode()) % parts == part - 1]


def compare_request(
    *,
    strategies: str | None,
    datasets: str | None,
    table: Path | None,
    parameters: str | None,
    times: str | None,
    evaluations: int,
    seeds: int,
    processes: int | None,
    output: Path | None,
    share: str,
    aggregate: bool = False,
) -> CompareRequest:
    """Return the request of the options of a command line; :func:`mltune.api.compare` describes them.

    Raises
    ------
    UsageError
        An option is malformed, contradicts another, or names a strategy that does not exist.
    """
    if table is not None and datasets is not None:
        raise UsageError("a comparison is over datasets or over a table, but both --datasets and --table were given.")
    if table is None and (parameters or times or aggregate):
        raise UsageError("--parameters, --time and --aggregate are for a table, but there is no --table.")
    names = _split(strategies) or DEFAULT_STRATEGIES
    limits = _limits(available() if names == (EVERY,) else names)
    if table is None:
        sources = _datasets(datasets)
    else:
        sources = (Source(table.stem, table, _split(parameters), times, aggregate),)
    return CompareRequest(
        strategies=tuple(limits),
        sources=sources,
        evaluations=evaluations,
        seeds=seeds,
        processes=processes or os.cpu_count() or 1,
        output=output or default_output(limits, sources, evaluations),
        share=_share(share),
        fewer_seeds={name: limit for name, limit in limits.items() if limit is not None},
    )


def default_output(strategies: Iterable[str], sources: Sequence[Source], evaluations: int) -> Path:
    """Return the directory that belongs to a comparison: the same command finds what it has done before.

    The number of seeds is not part of it: more seeds add to fewer.
    """
    tables = [[source.name, source.table and str(source.table.absolute())] for source in sources]
    columns = [[source.parameters, source.time, source.aggregate] for source in sources]
    facts = [sorted(strategies), tables, columns, evaluations, __version__]
    return Path("runs") / f"compare-{hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:10]}"


def _split(text: str | None) -> tuple[str, ...]:
    return tuple(part.strip() for part in (text or "").split(",") if part.strip())


def _limits(names: Sequence[str]) -> dict[str, int | None]:
    """Return the names of strategies, and the seeds of those that are given with some."""
    limits: dict[str, int | None] = {}
    for text in names:
        name, at, limit = text.partition("@")
        if name in limits or (at and not (limit.isdecimal() and int(limit))):
            raise UsageError(f"strategies are given once each, as NAME or NAME@SEEDS, got {', '.join(names)}.")
        limits[name] = int(limit) if at else None
    return limits


def _datasets(text: str | None) -> tuple[Source, ...]:
    """Return the datasets of some names, paths and folders; a shipped dataset comes before a folder of its name."""
    from mltune.dataset.dataset import datasets_in, list_datasets, shipped_datasets

    names: Sequence[str] = _split(text) or (EVERY,)
    if tuple(names) == (EVERY,):
        return tuple(Source(manifest.name) for manifest in list_datasets())
    shipped = shipped_datasets()
    folders = {name: datasets_in(Path(name)) for name in names if name not in shipped and Path(name).is_dir()}
    return tuple(Source(str(found)) for name in names for found in folders.get(name, (name,)))


def _share(text: str) -> tuple[int, int]:
    part, _, parts = text.partition("/")
    if not (part.isdecimal() and parts.isdecimal()):
        raise UsageError(f"a share is PART/PARTS, such as 2/4 for the second of four, got {text!r}.")
    return int(part), int(parts)
