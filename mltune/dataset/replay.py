"""Replay: a builder and a runner that return the results of a dataset. They satisfy the protocols of measuring."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from typing import Self, TypeVar

import numpy as np

from mltune.dataset.dataset import Dataset
from mltune.errors import DatasetError
from mltune.records.trial import Build, Measurement

Result = TypeVar("Result")


class _Replay:
    """The recorded results of a dataset by configuration.

    Raises
    ------
    DatasetError
        On submission: the configuration is not in the dataset, or one to run did not compile when it was recorded.
    """

    def __init__(self, dataset: Dataset) -> None:
        self._dataset = dataset
        self._parameters = tuple(dataset.columns)

    def _row(self, configuration: Mapping[str, int]) -> int:
        columns = {name: np.array([configuration[name]]) for name in self._parameters if name in configuration}
        row = int(self._dataset.space.index_of(columns)[0]) if len(columns) == len(self._parameters) else -1
        if row < 0:
            raise DatasetError(
                f"in replay a configuration must be recorded, but dataset {self._dataset.manifest.name} does not hold "
                f"{dict(configuration)}; search in the dataset's own configurations."
            )
        return row

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        """Do nothing: there is nothing to release."""


class ReplayBuilder(_Replay):
    """A builder of the recorded builds, failures included, without cubins."""

    def submit(self, configuration: Mapping[str, int]) -> Future[Build]:
        """Return the recorded build."""
        return _done(self._dataset.builds(self._row(configuration), 1)[0])


class ReplayRunner(_Replay):
    """A runner of the recorded measurements, failures included."""

    def submit(
        self, configuration: Mapping[str, int], build: Build, *, best_s: float | None = None
    ) -> Future[Measurement]:
        """Return the recorded measurement; ``best_s`` has no effect."""
        measurement = self._dataset.measurements(self._row(configuration), 1)[0]
        if measurement is None:
            raise DatasetError(
                f"only a build in state ok can run, but dataset {self._dataset.manifest.name} has none of "
                f"{dict(configuration)}."
            )
        return _done(measurement)


def _done(answer: Result) -> Future[Result]:
    future: Future[Result] = Future()
    future.set_result(answer)
    return future
