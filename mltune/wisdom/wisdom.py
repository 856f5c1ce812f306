"""The wisdom: a set of entries that can be merged in any order, and looked up by kernel, problem, GPU and driver."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mltune.wisdom.entry import Entry, Failure, Gpu, Outcome, canonical, choose
from mltune.wisdom.file import default_file, locked, read, write

if TYPE_CHECKING:
    from mltune.device.facts import Device
    from mltune.kernel.bundle import Kernel
    from mltune.problem.problem import Problem

_Case = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Match:
    """An entry that a lookup has found.

    Attributes
    ----------
    entry : Entry
    distance : float
        Sum of the logarithms (base 2) of the ratios of all sizes to those that were looked up; 0 for the same problem.
    same_problem : bool
        Whether the entry is of the problem that was looked up; otherwise it is of the same case at the nearest size.
    same_driver : bool
    """

    entry: Entry
    distance: float
    same_problem: bool
    same_driver: bool

    def __str__(self) -> str:
        """Return in words how the entry was found, such as ``"the nearest size, sgemm NT 4096"``."""
        where = "the same problem" if self.same_problem else f"the nearest size, {self.entry.to_problem().label}"
        return where if self.same_driver else f"{where}, measured with driver {self.entry.driver or 'unknown'}"


class Wisdom:
    """The best known configurations, by kernel, problem, GPU and driver.

    Of each configuration the newest outcome is kept, so that merging is commutative, associative and idempotent.
    Which configuration is the best is decided when it is looked up (:func:`mltune.wisdom.entry.choose`): from the same
    entries every process chooses the same one.

    Parameters
    ----------
    entries : iterable of Entry and Failure
        In any order.

    Examples
    --------
    >>> import mltune, tempfile
    >>> dataset, path = "h200-sgemm-nt-4096-random", tempfile.mkdtemp() + "/wisdom.json"
    >>> result = mltune.tune(trials=20, device=f"replay:{dataset}", run=tempfile.mkdtemp(), wisdom=path)
    >>> wisdom = mltune.Wisdom.load(path)
    >>> kernel = mltune.load_kernel("gemm_simt")
    >>> (match,) = wisdom.lookup(kernel, result.problem, result.device)
    >>> match.entry.configuration == result.best_config
    True
    >>> wisdom.merge(wisdom) == wisdom
    True
    """

    def __init__(self, entries: Iterable[Outcome] = ()) -> None:
        newest: dict[tuple[str, str], Outcome] = {}
        for entry in entries:
            identity = entry.key, entry.named
            known = newest.get(identity)
            if known is None or (known.measured_at, known.text) < (entry.measured_at, entry.text):
                newest[identity] = entry
        self.entries = tuple(newest[identity] for identity in sorted(newest))

    @classmethod
    def load(cls, path: Path | str | None = None) -> Wisdom:
        """Read a file; by default that of the user. A file that does not exist holds no entries.

        Raises
        ------
        WisdomError
            The file cannot be read, or is no wisdom.
        """
        path = default_file() if path is None else Path(path)
        return cls() if path is None else cls(read(path))

    def save(self, path: Path | str) -> None:
        """Write a file with exactly these entries, in place of an existing one.

        Raises
        ------
        WisdomError
            The file cannot be written.
        """
        write(Path(path), self.entries)

    def add_to(self, path: Path | str) -> None:
        """Merge these entries into a file, which need not exist. Several processes may do so at the same time.

        Raises
        ------
        WisdomError
            The file cannot be read or written, or is no wisdom.
        """
        with locked(Path(path)) as target:
            write(target, Wisdom(chain(read(target), self.entries)).entries)

    def merge(self, *others: Wisdom) -> Wisdom:
        """Return a wisdom with the entries of all."""
        return Wisdom(chain(self.entries, *(other.entries for other in others)))

    def of_kernel(self, name: str) -> Wisdom:
        """Return the part that is of one kernel."""
        return Wisdom(entry for entry in self.entries if entry.kernel == name)

    def best(self) -> list[Entry]:
        """Return the entries that are chosen: one for each kernel, problem, GPU and driver."""
        good = (entry for entry in self.entries if isinstance(entry, Entry))
        return [choose(group) for _, group in groupby(good, key=lambda entry: entry.key)]

    def lookup(
        self, kernel: Kernel, problem: Problem, device: Device, driver: str | None = None, *, most: int = 1
    ) -> list[Match]:
        """Look up configurations of a kernel for a problem on a GPU.

        Only entries of the same source and the same GPU are found. Those of the same problem come first, then those of
        the same case at the nearest size; at the same distance those of the same driver. No configuration
        is found that has failed for this problem with this driver.

        Parameters
        ----------
        kernel : Kernel
        problem : Problem
        device : Device
        driver : str, optional
            None where it does not matter.
        most : int
            Most matches; their configurations differ.

        Returns
        -------
        list of Match
            The best first; empty where nothing is known.
        """
        gpu, wanted, (case, sizes) = Gpu.of(device), canonical(problem.to_json()), _case_and_sizes(problem)
        source = kernel.name, kernel.source_hash, gpu
        here = [one for one in self.entries if (one.kernel, one.source_hash, one.device) == source]
        failed = {
            one.named
            for one in here
            if isinstance(one, Failure) and canonical(one.problem) == wanted and driver in (None, one.driver)
        }
        found: list[Match] = []
        for entry in Wisdom(one for one in here if one.named not in failed).best():
            same, other = canonical(entry.problem) == wanted, _case_and_sizes(entry.to_problem())
            if same or (sizes and other[0] == case and other[1].keys() == sizes.keys()):
                found.append(Match(entry, _distance(sizes, other[1]), same, driver in (None, entry.driver)))
        found.sort(key=lambda one: (not one.same_problem, one.distance, not one.same_driver, one.entry.text))
        distinct: dict[str, Match] = {}
        for match in found:
            distinct.setdefault(match.entry.named, match)
        return list(distinct.values())[:most]

    def __len__(self) -> int:
        """Return the number of entries."""
        return len(self.entries)

    def __iter__(self) -> Iterator[Outcome]:
        """Return the entries in their canonical order."""
        return iter(self.entries)

    def __eq__(self, other: object) -> bool:
        """Return whether the entries are the same."""
        return isinstance(other, Wisdom) and [entry.text for entry in self] == [entry.text for entry in other]

    __hash__ = None  # type: ignore[assignment]


def _case_and_sizes(problem: Problem) -> tuple[_Case, dict[str, int]]:
    """Return what two problems have in common that differ in their sizes only, and the sizes."""
    variables = problem.variables()
    names = problem.size_names or tuple(variables)
    case = problem.kind, problem.name, sorted(variables.items() - {(name, variables[name]) for name in names})
    return case, {name: variables[name] for name in names}


def _distance(one: dict[str, int], other: dict[str, int]) -> float:
    return math.fsum(abs(math.log2((1 + abs(one[name])) / (1 + abs(other[name])))) for name in sorted(one))
