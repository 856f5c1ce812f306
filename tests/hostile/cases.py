"""Cases: hostile inputs with a name, each built into a folder."""

from __future__ import annotations

import shutil
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

from tests.hostile.values import MARK

SEED = 20_260
"""Seed of the generated cases of CI."""


@dataclass(frozen=True, slots=True)
class Place:
    """The folders of one input.

    Attributes
    ----------
    folder : pathlib.Path
        Holds ``named``, the folder that the user names; ``canary``, which nothing may open; and ``elsewhere``, which
        may be opened because an input names it, but not shown.
    base : pathlib.Path
        Honest inputs to start from; see :mod:`tests.hostile.base`.
    rng : random.Random
    """

    folder: Path
    base: Path
    rng: Random

    @property
    def named(self) -> Path:
        return self.folder / "named"

    @property
    def canary(self) -> Path:
        return self.folder / "canary"

    def copy(self, name: str, to: str) -> Path:
        """Copy an honest input into the named folder."""
        source, target = self.base / name, self.named / to
        if source.is_dir():
            shutil.copytree(source, target, symlinks=True)
        else:
            shutil.copy(source, target)
        return target

    def write(self, name: str, content: bytes | str) -> Path:
        """Write a file into the named folder."""
        path = self.named / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8", "surrogatepass"))
        return path

    def prepare(self) -> None:
        """Make the folders, and the canaries."""
        self.named.mkdir(parents=True)
        (self.canary / "kept").mkdir(parents=True)
        (self.canary / "secret.txt").write_text(f"{MARK}\n")
        (self.canary / "secret.toml").write_text(f'[kernel]\nname = "{MARK}"\n= {MARK}\n')
        (self.canary / "secret.json").write_text(f'{{"{MARK}": 1}}\n')
        (self.canary / "secret.h").write_text(f"#error {MARK}\n")
        (self.canary / "kept" / "one.txt").write_text(f"{MARK}\n")
        (self.folder / "elsewhere").mkdir()
        (self.folder / "elsewhere" / "secret.json").write_text(f'{{"{MARK}": 1}}\n')


Build = Callable[[Place], None]


@dataclass(frozen=True, slots=True)
class Case:
    """A hostile input.

    Attributes
    ----------
    kind : str
        One of :data:`tests.hostile.commands.COMMANDS_OF`.
    name : str
        Unique in its kind.
    build : callable
        Builds the input.
    commands : tuple of str
        The commands that it is run through in any case; empty leaves the choice to the suite.
    seed : int
    """

    kind: str
    name: str
    build: Build
    commands: tuple[str, ...] = ()
    seed: int = SEED

    @property
    def id(self) -> str:
        return f"{self.kind}/{self.name}".replace(" ", "-")

    def place(self, folder: Path, base: Path) -> Place:
        """Return the folders for the input, with the canaries, before it is built."""
        place = Place(folder, base, Random(f"{self.id}/{self.seed}"))
        place.prepare()
        return place

    def with_commands(self, commands: tuple[str, ...]) -> Case:
        """Return the same input for these commands; without any for its own."""
        return replace(self, commands=commands or self.commands)

    def chosen(self, commands: tuple[str, ...], count: int) -> tuple[str, ...]:
        """Return the commands of the case: its own, else so many of those of its kind, which ones by its name."""
        if self.commands or count >= len(commands):
            return self.commands or commands
        first = zlib.crc32(self.id.encode())
        return tuple(dict.fromkeys(commands[(first + step) % len(commands)] for step in range(count)))


CORPUS: list[Case] = []
"""The cases with a name of their own."""


def corpus(kind: str, *commands: str, name: str = "") -> Callable[[Build], Build]:
    """Add a function to the corpus as a case, named after the function."""

    def add(build: Build) -> Build:
        CORPUS.append(Case(kind, name or build.__name__.strip("_").replace("_", "-"), build, commands))
        return build

    return add


def add(kind: str, name: str, build: Build, *commands: str) -> None:
    """Add a case to the corpus."""
    CORPUS.append(Case(kind, name, build, commands))


def generated(kind: str, build: Build, count: int, seed: int) -> Iterator[Case]:
    """Yield cases that differ in their random generator."""
    for number in range(count):
        yield Case(kind, f"generated-{seed}-{number:04}", build, seed=seed)
