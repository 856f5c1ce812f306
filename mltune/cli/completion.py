"""Completion of values in the shell: each function returns the words that begin as the incomplete one.

Only the names in one folder are read, and only names that need no quotes in a shell are returned.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from typing import TypeAlias

from mltune.files.folders import assets
from mltune.records.directory import FILE, PLAN_FILE, POINTER, RUNS
from mltune.records.header import REPLAY

Complete: TypeAlias = Callable[[str], list[str]]

COMPLETING = "_MLTUNE_COMPLETE"
"""The environment variable of a shell's request."""

GEMMS = (
    *("sgemm", "dgemm", "cgemm", "zgemm", "hgemm", "bgemm", "hsgemm", "bsgemm"),
    *(f"{operands}{result}gemm" for operands in ("e", "e45", "e54") for result in ("b", "h", "s", "bf")),
    "ddgemm",
)
STRATEGIES = (
    *("mltune", "mltune-noskip", "mltune-nobuild", "mltune-raw", "mltune-tpe", "tpe", "astra", "random"),
    *("hybrid_vndx", "adaptive_tabu_greywolf", "genetic_algorithm", "simulated_annealing", "bayes_opt", "gp"),
)
"""The named problems, and strategies of a comparison, without a slow import; a test compares them."""

MOST_SEEN = 1000
"""Most entries of a folder that are examined."""


def problems(incomplete: str) -> list[str]:
    """Return the names of problems, and what :func:`kernels` returns."""
    return [*GEMMS, *kernels(incomplete)]


def kernels(incomplete: str) -> list[str]:
    """Return the built-in kernels, and the folders that hold a bundle."""
    built_in = {path.parent.name for path in assets("kernels").glob("*/kernel.toml")}
    return sorted(built_in.union(_folders(incomplete, "kernel.toml")))


def gpus(incomplete: str) -> list[str]:
    """Return the known GPUs."""
    from mltune.api import devices

    return [device["spec"] for device in devices(known=True)["devices"]]


def targets(incomplete: str) -> list[str]:
    """Return the devices that a run may use."""
    return ["auto", "cuda:0", *(f"{REPLAY}{name}" for name in datasets(incomplete))]


def datasets(incomplete: str) -> list[str]:
    """Return the datasets that come with mltune."""
    return [path.stem for path in assets("datasets").glob("*/*.json")]


def runs(incomplete: str) -> list[str]:
    """Return the runs and campaigns below ``runs/``, or in the folder of the word."""
    return _folders(incomplete if "/" in incomplete else f"{RUNS}/", FILE, POINTER, PLAN_FILE)


def plans(incomplete: str) -> list[str]:
    """Return the built-in plans."""
    return [path.stem for path in assets("search").glob("*.toml")]


def campaigns(incomplete: str) -> list[str]:
    """Return what :func:`plans` and :func:`runs` return."""
    return [*plans(incomplete), *runs(incomplete)]


def several(complete: Complete) -> Complete:
    """Return the completion of the last of several values with commas between them."""

    def last(incomplete: str) -> list[str]:
        before, comma, begun = incomplete.rpartition(",")
        return [f"{before}{comma}{value}" for value in complete(begun)]

    return last


def one_of(names: Iterable[str]) -> Complete:
    """Return the completion of a name."""
    return lambda incomplete: [*names]


BY_NAME: Mapping[str, Complete] = {
    "PROBLEM": problems,
    "KERNEL": kernels,
    "--kernel": kernels,
    "FACTS": gpus,
    "[FACTS]": gpus,
    "DEVICE": targets,
    "DATASET...": datasets,
    "[NAME|DIR]...": datasets,
    "A B...": datasets,
    "RUN": runs,
    "--run": runs,
    "PLAN": campaigns,
    "NAME|FILE": plans,
    "--strategies": several(one_of(STRATEGIES)),
    "--datasets": several(datasets),
}
"""Completions of values, by option or by the name of the value in the help."""


def _folders(incomplete: str, *files: str) -> list[str]:
    """Return the folders that hold one of the files, beside the incomplete path."""
    within, folders = os.path.dirname(incomplete), []
    with contextlib.suppress(OSError), os.scandir(within or ".") as entries:
        for entry in islice(entries, MOST_SEEN):
            path = os.path.join(within, entry.name)
            if re.fullmatch(r"[\w./][\w./+-]*", path) and any(os.path.lexists(f"{path}/{file}") for file in files):
                folders.append(path)
    return folders
