"""The compiler's reports that a search knows, as columns."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence

import numpy as np

from mltune.cost.features import BUILD_COLUMNS
from mltune.kernel.columns import Floats, Indices
from mltune.records.trial import Build
from mltune.records.trials import Trials


class KnownBuilds:
    """The compiler's reports of configurations, by their index in the search space.

    Examples
    --------
    >>> from mltune.records.trial import TrialState
    >>> known = KnownBuilds()
    >>> known.add(7, Build(TrialState.OK, registers=128))
    >>> known.columns(np.array([7, 8]))["registers"]
    array([128.,  nan])
    """

    def __init__(self) -> None:
        self._row: dict[int, int] = {}
        self._columns: Mapping[str, array[float]] = {name: array("d", [np.nan]) for name in BUILD_COLUMNS}

    def add(self, index: int, build: Build) -> None:
        """Add the build of a configuration."""
        self._row[index] = len(self._columns[BUILD_COLUMNS[0]])
        for name, column in build_columns([build]).items():
            self._columns[name].append(column[0])

    def extend(self, trials: Trials) -> None:
        """Add the builds of trials."""
        built = trials.column("build_state").astype(bool)
        first = len(self._columns[BUILD_COLUMNS[0]])
        self._row.update(
            zip(trials.column("index")[built].tolist(), range(first, first + int(built.sum())), strict=True)
        )
        for name, column in self._columns.items():
            column.frombytes(trials.column(name)[built].tobytes())

    def columns(self, indices: Indices) -> dict[str, Floats]:
        """Return the reports of configurations: columns of shape (n_indices,), NaN where a value is not known."""
        rows = np.array([self._row.get(index, 0) for index in indices.tolist()], dtype=np.int64)
        return {name: np.array(column)[rows] for name, column in self._columns.items()}


def build_columns(builds: Sequence[Build | None]) -> dict[str, Floats]:
    """Return the compiler's reports as columns of shape (n_builds,); NaN where a value is not known."""
    return {
        name: np.array(
            [np.nan if build is None or getattr(build, name) is None else getattr(build, name) for build in builds],
            dtype=np.float64,
        )
        for name in BUILD_COLUMNS
    }
