"""The strategies of a comparison: those that come with mltune, by name, and those of a user."""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import inspect
import math
import os
import pickle
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from importlib.metadata import entry_points
from pathlib import Path
from typing import TypeAlias, cast

from mltune.comparison.baselines import Astra, Random, ShippedSearch, StockTpe
from mltune.comparison.peers import ALGORITHMS, KernelTuner, OptunaGp, Pymoo
from mltune.comparison.simulation import Strategy
from mltune.errors import UsageError
from mltune.files.text import no_such, printable

MOST_CORES = 4096
"""Largest number of compile cores of a simulated clock."""

COMPILERS = ":compilers="
"""Separator of the name of a strategy and the number of compile cores with which it searches."""

Given: TypeAlias = str | Strategy | type[Strategy]
"""A strategy: a name, ``module:Class``, an object or a class."""

GROUP = "mltune.strategies"
"""The group of entry points with which other packages give their strategies a name."""

KERNEL_TUNER, PYMOO = "kernel_tuner:", "pymoo:"
"""Prefixes of the names of Kernel Tuner's and pymoo's strategies."""

OURS: dict[str, Callable[..., Strategy]] = {
    "mltune": ShippedSearch,
    "mltune-noskip": partial(ShippedSearch, skip=False),
    "mltune-nobuild": partial(ShippedSearch, build=False),
    "mltune-raw": partial(ShippedSearch, build=False, resources=False),
    "mltune-tpe": partial(ShippedSearch, proposer="tpe"),
    "tpe": StockTpe,
    "astra": Astra,
    "random": Random,
}
"""The strategies that need no further package."""

PEERS: dict[str, Callable[..., Strategy]] = {
    name: partial(KernelTuner, strategy=name)
    for name in ("hybrid_vndx", "adaptive_tabu_greywolf", "genetic_algorithm", "simulated_annealing", "bayes_opt")
} | {"gp": OptunaGp}
"""The strategies of other tools. They need the extra ``peers``."""

_NUMBER = re.compile("[0-9]{1,18}")

_OPTIONS = {"batch": (1, 4096), "in_flight": (1, 64), "compilers": (1, MOST_CORES)}
_OPTIONS |= dict.fromkeys(("skip", "build", "resources"), (0, 1))
"""The options of mltune's own strategies, and their bounds; besides, ``prior`` is a text."""


def strategy(source: Given) -> Strategy:
    """Return a strategy: an object as it is, a class without arguments, a text by its name.

    A name is in :data:`OURS` or :data:`PEERS`, ``"kernel_tuner:NAME"``, ``"pymoo:NAME"``, an entry point of an
    installed package (:data:`GROUP`), or ``"module:Class"``, a class of the user. Options follow the name:
    ``"mltune:batch=4:in_flight=1"``, ``"module:Class:step=2"``.
    """
    if not isinstance(source, str):
        text = _text_of(source if isinstance(source, type) else type(source))
        return _checked(_made(source, text, {}) if isinstance(source, type) else source, text)
    if source.startswith(KERNEL_TUNER):
        return KernelTuner(name=source, strategy=source.removeprefix(KERNEL_TUNER))
    if source.startswith(PYMOO):
        return Pymoo(name=source, algorithm=source.removeprefix(PYMOO))
    name, *pairs = source.split(":")
    factories = OURS | PEERS
    if name in factories:
        return factories[name](name=source, **dict(_option(name, pair) for pair in pairs))
    for entry in entry_points(group=GROUP, name=name):
        return _of_user(entry.module, entry.attr, *pairs)
    if pairs and "=" not in pairs[0]:
        return _of_user(name, *pairs)
    names = [*factories, *entry_points(group=GROUP).names]
    law = f"A strategy is one of {', '.join(names)}, {KERNEL_TUNER}NAME, {PYMOO}NAME or MODULE:CLASS"
    raise UsageError(no_such("strategy", name, names, law))


def named(sources: Iterable[Given]) -> tuple[dict[str, Strategy], dict[str, int]]:
    """Return strategies by name, and the number of seeds of each ``"NAME@SEEDS"``."""
    strategies: dict[str, Strategy] = {}
    seeds: dict[str, int] = {}
    for source in sources:
        text, at, limit = source.partition("@") if isinstance(source, str) else ("", "", "")
        instance = strategy(text if isinstance(source, str) else source)
        name = text or instance.name
        if name in strategies or (at and not (_NUMBER.fullmatch(limit) and int(limit))):
            raise UsageError(
                f"{name}{at}{limit} is there twice, or its SEEDS is no number; write NAME or NAME@SEEDS once."
            )
        strategies[name] = instance
        if at:
            seeds[name] = int(limit)
    return strategies, seeds


def with_cores(strategies: Mapping[str, Strategy], cores: Iterable[int]) -> dict[str, Strategy]:
    """Return strategies; those whose proposals depend on compile cores once more for each number of cores."""
    shipped = {name: instance for name, instance in strategies.items() if isinstance(instance, ShippedSearch)}
    free = {name: instance for name, instance in shipped.items() if math.isinf(instance.compilers)}
    depend = [(name, tuner) for name, tuner in free.items() if tuner.adapts or (tuner.skip and tuner.build)]
    variants = {f"{name}{COMPILERS}{n}": replace(instance, compilers=n) for name, instance in depend for n in cores}
    return {**strategies, **variants}


def available() -> tuple[str, ...]:
    """Return the names of all strategies; those of packages that are not installed are missing."""

    def is_installed(name: str) -> bool:
        try:
            strategy(name)
        except UsageError:
            return False
        return True

    of_peers = [*PEERS, *(PYMOO + name for name in ALGORITHMS), *sorted(entry_points(group=GROUP).names)]
    return (*OURS, *filter(is_installed, of_peers))


def fingerprint(strategy: Strategy) -> str:
    """Return a hash of the source file and the attributes of a user's strategy; empty for one of mltune's."""
    kind = type(strategy)
    if kind.__module__.startswith("mltune."):
        return ""
    try:
        source = inspect.getsource(inspect.getmodule(kind) or kind)
    except (OSError, TypeError):
        source = ""  # made in an interactive session
    has_own = kind.__repr__ is not object.__repr__
    try:
        attributes = repr(strategy) if has_own else repr(sorted(getattr(strategy, "__dict__", {}).items()))
    except Exception as error:  # theirs, or those of an attribute
        raise _failed(_text_of(kind), "told from another by its repr", error) from error
    text = re.sub(" at 0x[0-9a-f]+", "", f"{source}\n{attributes}")
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def pickled(strategy: Strategy) -> tuple[str, bytes] | None:
    """Return a strategy and the folder of its class, for another process; None for a script's or notebook's class."""
    kind = type(strategy)
    module = sys.modules.get(kind.__module__)
    if kind.__module__ == "__main__" or module is None:
        return None
    try:
        content = pickle.dumps(strategy)
    except Exception:  # pickling calls code of the strategy
        return None
    file = Path(getattr(module, "__file__", None) or "")
    levels = kind.__module__.count(".") + (file.name == "__init__.py")
    return str(file.absolute().parents[levels]), content


def unpickled(content: bytes) -> Strategy:
    """Return the strategy of :func:`pickled` in another process, which can import its class."""
    instance: Strategy = pickle.loads(content)  # noqa: S301 - the parent has made it
    return instance


def _of_user(module: str, name: str, *pairs: str) -> Strategy:
    """Return an object of the class ``module:Class``; the working directory is searched last."""
    text = f"{module}:{name}"
    with _importing_from(os.getcwd()):
        try:
            kind = getattr(importlib.import_module(module), name)
        except Exception as error:  # a module may raise anything when it is imported
            reason = printable(f"{type(error).__name__}: {error}", 300)
            raise UsageError(f"the strategy {text} cannot be imported as MODULE:CLASS: {reason}.") from error
    options = dict(pair.partition("=")[::2] for pair in pairs)
    if not all(map(_NUMBER.fullmatch, options.values())):
        raise UsageError(f"{', '.join(pairs)} is not of the form {text}:NAME=NUMBER, in which an option is given.")
    return _checked(_made(kind, text, {key: int(value) for key, value in options.items()}), text)


def _text_of(kind: type) -> str:
    """Return a class as ``module:Class``."""
    return f"{kind.__module__}:{kind.__qualname__}"


def _made(kind: Callable[..., object], text: str, options: Mapping[str, int]) -> object:
    """Return an object of a user's class."""
    try:
        return kind(**options)
    except Exception as error:  # its constructor may raise anything
        raise _failed(text, "made by calling its class with its options", error) from error


def _failed(text: str, law: str, error: Exception) -> UsageError:
    """Return the error of a strategy whose code has raised an error, whose own text may fail, too."""
    fact = type(error).__name__
    with contextlib.suppress(Exception):
        fact = f"{fact}: {error}"
    return UsageError(f"{printable(text, 200)} raises {printable(fact, 300)}; a strategy is {law}.")


def _checked(instance: object, text: str) -> Strategy:
    try:
        is_strategy = isinstance(instance, Strategy)
    except Exception as error:  # of an attribute that is computed
        raise _failed(text, "an object with a name and a method search(simulation, seed)", error) from error
    if not is_strategy:
        raise UsageError(
            f"{printable(text, 200)} lacks {'a name' if hasattr(instance, 'search') else 'the method'}; a strategy has "
            "a name and a method search(simulation, seed)."
        )
    return cast("Strategy", instance)


@contextlib.contextmanager
def _importing_from(folder: str) -> Iterator[None]:
    """Search a folder for modules, after all others."""
    if folder in sys.path:
        yield
        return
    sys.path.append(folder)
    try:
        yield
    finally:
        sys.path.remove(folder)


def _option(name: str, pair: str) -> tuple[str, int | str]:
    """Return an option of one of our strategies and its value."""
    options = [*_OPTIONS, "prior"] if name.startswith("mltune") else []
    key, _, value = pair.partition("=")
    if key == "prior" in options:
        return key, value
    if key not in options:
        raise UsageError(no_such(f"option of {name}", key, options, f"It has {', '.join(options) or 'none'}"))
    least, most = _OPTIONS[key]
    if not (_NUMBER.fullmatch(value) and least <= int(value) <= most):
        raise UsageError(f"{pair!r} cannot be: write {name}:{key}=NUMBER with {least} <= NUMBER <= {most}.")
    return key, int(value)


def split(sources: str | Sequence[Given] | Given) -> Sequence[Given]:
    """Return a sequence of strategies, also of the text ``all`` or of names with commas between them."""
    if not isinstance(sources, str):
        return sources if isinstance(sources, Sequence) else [sources]
    names = [part.strip() for part in sources.split(",") if part.strip()]
    return available() if names == ["all"] else names
