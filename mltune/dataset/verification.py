"""Verify datasets: their files, their values, and what the bundle of their kernel says about them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mltune.dataset.dataset import Dataset, load_dataset
from mltune.dataset.importing import broken_restrictions
from mltune.dataset.replay import recorded_kernel
from mltune.errors import UsageError
from mltune.kernel.bundle import Kernel
from mltune.kernel.placed import PlacedKernel
from mltune.kernel.reader import is_bundle
from mltune.kernel.space import ConstrainedSpace


@dataclass(frozen=True, slots=True)
class Verified:
    """What was found about a dataset: its rows, 0 if unreadable, what is wrong, and what could not be checked."""

    name: str
    rows: int
    problems: tuple[str, ...]
    notices: tuple[str, ...] = ()


def verify_dataset(name_or_path: str | Path) -> Verified:
    """Verify a dataset.

    The hash, the columns, the values and the best of the table are checked (:func:`load_dataset`), then that the
    configurations consist of values of the kernel's bundle and satisfy its restrictions, and that a complete dataset
    has all that do.
    """
    name = str(name_or_path)
    try:
        dataset = load_dataset(name_or_path)
    except UsageError as error:
        return Verified(name, 0, (str(error),))
    try:
        kernel, notice = recorded_kernel(dataset.manifest)
        kernel.check_problem(dataset.manifest.problem)
        warning = dataset.manifest.check_kernel(kernel)
        kernel = kernel.recorded_with(dataset.manifest.parameters)
        problems = tuple(_problems(dataset, kernel)) if is_bundle(dataset.manifest.kernel) else ()
    except UsageError as error:
        return Verified(name, len(dataset), (str(error),))
    return Verified(name, len(dataset), problems, tuple(filter(None, (notice, warning))))


def _problems(dataset: Dataset, kernel: Kernel) -> Iterator[str]:
    manifest, columns = dataset.manifest, dataset.columns
    foreign = {name: np.setdiff1d(columns[name], values).tolist() for name, values in kernel.all_parameters.items()}
    strange = {name: values for name, values in foreign.items() if values}
    for name, values in strange.items():
        yield f"{name} has the values {values[:20]}, which {kernel.name} does not have."
    if strange:
        return
    placed = PlacedKernel(kernel, manifest.problem, manifest.device)
    broken = dict(broken_restrictions(placed, columns))
    for text, holds in broken.items():
        yield (
            f"{(~holds).sum():,} of {len(dataset):,} configurations do not satisfy `{text}`, the first in row "
            f"{int(np.argmin(holds))}."
        )
    if manifest.kind == "complete" and not broken:
        count = ConstrainedSpace(kernel.with_values(manifest.parameters), placed.variables).count
        if count != len(dataset):
            yield f"it has {len(dataset):,} of {count:,} valid configurations; a complete dataset has all."
