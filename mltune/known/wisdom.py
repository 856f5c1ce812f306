"""The wisdom: a set of entries that can be merged in any order, and looked up by kernel, problem, GPU and driver."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import chain, groupby, islice
from operator import attrgetter
from pathlib import Path
from typing import Any, Literal, get_args

from mltune.device.facts import NO_CUDA, Device
from mltune.errors import WisdomError
from mltune.files.arguments import checked
from mltune.files.reading import stamp_of
from mltune.files.text import many, printable
from mltune.kernel.bundle import Kernel
from mltune.kernel.space import SearchSpace, find
from mltune.known.entry import Entry, Failure, Gpu, Outcome, canonical, choose
from mltune.known.wisdom_file import default_file, locked, read, write
from mltune.problem.problem import Problem, accepts

MOST_OF_CASE = 3
"""Most matches of the case that is looked up: the same transposition and precision, at any size."""

MOST_OF_PRECISIONS = 2
"""Most matches of other precisions."""

Relation = Literal["problem", "size", "case", "gpu", "precision"]
"""Relations of an entry to the problem that was looked up, the closest first: :attr:`Match.relation`."""

_ORDER: tuple[Relation, ...] = get_args(Relation)


@dataclass(frozen=True, slots=True)
class Match:
    """The result of a lookup: an entry and its relation to the problem.

    Attributes
    ----------
    entry : Entry
    relation : {"problem", "size", "case", "gpu", "precision"}
        ``"problem"``: the same problem; ``"size"``: the same case at another size; ``"case"``: another case, such as
        another transposition; ``"gpu"``: the same problem on another GPU of the architecture; ``"precision"``: another
        precision.
    distance : float
        Sum over all sizes of the absolute log2 of their ratio to those that were looked up; 0 for the same size.
    differences : int
        Number of facts besides the sizes in which the problems differ: 1 for sgemm NN and sgemm NT.
    same_driver : bool
    """

    entry: Entry
    relation: Relation
    distance: float = 0.0
    differences: int = 0
    same_driver: bool = True

    @property
    def rank(self) -> tuple[Any, ...]:
        """Sort key of matches, which does not depend on the order of the entries."""
        place = _ORDER.index(self.relation), self.distance, self.differences, not self.same_driver
        return *place, self.entry.text

    def __str__(self) -> str:
        """Return the relation in words, such as ``"the nearest size, sgemm NT 4096"``."""
        label, gpu = self.entry.to_problem().label, self.entry.device
        where = {
            "problem": "the same problem",
            "size": f"the nearest size, {label}",
            "case": f"another case, {label}",
            "gpu": f"the same problem, from a {gpu.name} with {gpu.sm_count} multiprocessors",
            "precision": f"another precision, {label}",
        }[self.relation]
        return where if self.same_driver else f"{where}, measured with driver {self.entry.driver or 'unknown'}"


refusing = partial(checked, refusal=WisdomError)


class Wisdom:
    """The best known configurations, by kernel, problem, GPU and driver.

    A wisdom keeps the newest outcome of each configuration, so merging is commutative, associative and idempotent. A
    lookup chooses the best configuration (:func:`mltune.known.entry.choose`): from the same entries every process
    chooses the same one.

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
            stored = newest.get(identity)
            if stored is None or (stored.measured_at, stored.text) < (entry.measured_at, entry.text):
                newest[identity] = entry
        self.entries = tuple(newest[identity] for identity in sorted(newest))

    def __repr__(self) -> str:
        return f"Wisdom({many(len(self.entries), 'entry')})"

    @classmethod
    @refusing
    def load(cls, path: Path | str | None = None) -> Wisdom:
        """Read a file; by default that of the user. A file that does not exist holds no entries.

        Raises
        ------
        WisdomError
            The file cannot be read, or is no wisdom.
        """
        path = default_file() if path is None else Path(path)
        return cls() if path is None else cls(read(path))

    @refusing
    def save(self, path: Path | str, *, overwrite: bool = False) -> None:
        """Write a file with exactly these entries.

        Parameters
        ----------
        overwrite : bool
            Whether to replace an existing file that has other entries, or is no wisdom.

        Raises
        ------
        WisdomError
            The file cannot be written, or entries of an existing one would be lost.
        """
        with locked(Path(path)) as target:  # not between another process's reading and writing
            if not overwrite and Wisdom(chain(read(target), self.entries)) != self:
                raise WisdomError(
                    f"{printable(path, 300)} has entries that would be lost; keep them with `add_to`, or replace them "
                    "with `overwrite=True`."
                )
            write(target, self.entries)

    @refusing
    def add_to(self, path: Path | str) -> Wisdom:
        """Merge these entries into a file, which need not exist, and return all that it then holds.

        Several processes may do so at the same time.

        Raises
        ------
        WisdomError
            The file cannot be read or written, or is no wisdom.
        """
        return WisdomFile(Path(path)).add(self)

    @classmethod
    @refusing
    def merge_files(cls, files: Iterable[Path | str], out: Path | str) -> Wisdom:
        """Merge files into another, which need not exist, and return what is in it.

        Several processes may do so at the same time.

        Raises
        ------
        WisdomError
            A file cannot be read or written, or is no wisdom.
        """
        return cls(chain.from_iterable(read(Path(file)) for file in files)).add_to(out)

    def merge(self, *wisdoms: Wisdom) -> Wisdom:
        """Return a wisdom with the entries of all."""
        return Wisdom(chain(self.entries, *(other.entries for other in wisdoms)))

    def of_kernel(self, name: str) -> Wisdom:
        """Return the entries of one kernel."""
        return Wisdom(entry for entry in self.entries if entry.kernel == name)

    def of_accuracy(self, accuracy: str) -> Wisdom:
        """Return the entries of kernels of an accuracy class, and of stricter ones."""
        return Wisdom(entry for entry in self.entries if accepts(accuracy, entry.accuracy))

    @property
    def best(self) -> list[Entry]:
        """The chosen entries: one for each kernel, problem, GPU and driver."""
        good = (entry for entry in self.entries if isinstance(entry, Entry))
        return [choose(group) for _, group in groupby(good, key=lambda entry: entry.key)]

    def lookup(
        self,
        kernel: Kernel,
        problem: Problem,
        device: Device,
        driver: str | None = None,
        *,
        most: int = 1,
        space: SearchSpace | None = None,
    ) -> list[Match]:
        """Look up configurations of a kernel for a problem on a GPU.

        Only entries of the same source count. They are returned in this order:

        1. the same problem, and the same case at the nearest sizes: at most :data:`MOST_OF_CASE`;
        2. other cases, such as other transpositions, of the same precision: the nearest size first, then the least
           different case;
        3. the same problem on other GPUs of the same architecture;
        4. other precisions, in the order of 2: at most :data:`MOST_OF_PRECISIONS`.

        All but those of 3 are of the same GPU. At the same distance those of the same driver come first. Configurations
        that have failed for this problem with this driver on this GPU are left out.

        Parameters
        ----------
        kernel : Kernel
        problem : Problem
        device : Device
        driver : str, optional
            None where it does not matter.
        most : int
            Most matches; their configurations differ.
        space : SearchSpace, optional
            Leaves out configurations that it does not contain.

        Returns
        -------
        list of Match
            The best first; empty where nothing is known.
        """
        gpu, document = Gpu.of(device), canonical(problem.to_json())
        of_kernel = [entry for entry in self.entries if entry.kernel == kernel.name]
        of_source = [entry for entry in of_kernel if kernel.source.is_version(entry.source_hash)]
        failed = {
            entry.named
            for entry in of_source
            if isinstance(entry, Failure)
            and (entry.device, canonical(entry.problem)) == (gpu, document)
            and driver in (None, entry.driver)
        }
        related = _Relations(problem, document, gpu, driver)
        matches = map(related.match, Wisdom(entry for entry in of_source if entry.named not in failed).best)
        distinct: dict[str, Match] = {}
        for match in sorted(filter(None, matches), key=attrgetter("rank")):
            if match.entry.named not in distinct and (space is None or _is_in(space, match.entry, kernel)):
                distinct[match.entry.named] = match
        limits = {("problem", "size"): MOST_OF_CASE, ("case", "gpu"): most, ("precision",): MOST_OF_PRECISIONS}
        groups = (
            islice((match for match in distinct.values() if match.relation in relations), limit)
            for relations, limit in limits.items()
        )
        return list(islice(chain.from_iterable(groups), most))

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


class WisdomFile:
    """A file of which each content is read once: again only after another process has written it.

    Without a path there is no file, and nothing is known.
    """

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self._content: tuple[Any, Wisdom] = (), Wisdom()  # the stamp of the file and what it held: threads see both

    def read(self) -> Wisdom:
        """Return what the file holds now; errors are those of :meth:`Wisdom.load`."""
        stamp_read, wisdom = self._content
        if self.path is not None and (stamp := stamp_of(self.path)) != stamp_read:
            wisdom = Wisdom(read(self.path))
            self._content = stamp, wisdom
        return wisdom

    def add(self, wisdom: Wisdom) -> Wisdom:
        """Merge entries into the file; see :meth:`Wisdom.add_to`."""
        assert self.path is not None  # noqa: S101
        with locked(self.path) as target:
            merged = self.read().merge(wisdom)
            write(target, merged.entries)
            self._content = stamp_of(target), merged
        return merged


class _Relations:
    """The relations of entries to a problem on a GPU."""

    def __init__(self, problem: Problem, document: str, gpu: Gpu, driver: str | None) -> None:
        self._problem, self._document, self._gpu, self._driver = problem, document, gpu, driver
        self._case, self._sizes = _case_and_sizes(problem)

    def match(self, entry: Entry) -> Match | None:
        """Return the match of an entry; None where it is of no use for the problem."""
        same_driver = self._driver in (None, entry.driver)
        if canonical(entry.problem) == self._document:
            if entry.device == self._gpu:
                return Match(entry, "problem", same_driver=same_driver)
            is_near = entry.device.architecture == self._gpu.architecture != NO_CUDA
            return Match(entry, "gpu", same_driver=same_driver) if is_near else None
        other = entry.to_problem()
        case, sizes = _case_and_sizes(other)
        if (
            entry.device != self._gpu
            or other.kind != self._problem.kind
            or not sizes
            or sizes.keys() != self._sizes.keys()
        ):
            return None
        differences = sum(case.get(name) != value for name, value in self._case.items())
        relation: Relation = "case" if differences else "size"
        if other.name != self._problem.name:
            if other.precision == self._problem.precision:
                return None
            relation = "precision"
        return Match(entry, relation, _distance(self._sizes, sizes), differences, same_driver)


def _is_in(space: SearchSpace, entry: Entry, kernel: Kernel) -> bool:
    """Return whether a search space contains the configuration of an entry."""
    codes = entry.codes(kernel)
    return codes is not None and find(space, codes) >= 0


def _case_and_sizes(problem: Problem) -> tuple[dict[str, int], dict[str, int]]:
    """Return the variables of a problem that are no sizes, and its sizes."""
    variables = problem.variables
    names = problem.size_names or tuple(variables)
    sizes = {name: variables.pop(name) for name in names}
    return variables, sizes


def _distance(first: dict[str, int], other: dict[str, int]) -> float:
    return math.fsum(abs(math.log2((1 + abs(first[name])) / (1 + abs(other[name])))) for name in sorted(first))
