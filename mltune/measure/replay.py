"""Replay: a builder and a runner that return what a dataset has recorded."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from typing import Generic, Self, TypeVar

from mltune.dataset.dataset import Dataset
from mltune.errors import DatasetError
from mltune.records.trial import Build, Measurement

Result = TypeVar("Result")


class _Replay(Generic[Result]):
    """The recorded results of a dataset by configuration.

    Parameters
    ----------
    dataset : Dataset
        The recorded configurations: no others can be submitted.

    Raises
    ------
    DatasetError
        On submission: the configuration is not in the dataset, or one to run did not compile when it was recorded.
    """

    def __init__(self, dataset: Dataset, results: list[Result]) -> None:
        self._name = dataset.manifest.name
        self._parameters = tuple(dataset.columns)
        columns = (column.tolist() for column in dataset.columns.values())
        self._results = dict(zip(zip(*columns, strict=True), results, strict=True))

    def _recorded(self, configuration: Mapping[str, int]) -> Result:
        key = tuple([configuration[name] for name in self._parameters if name in configuration])
        if key not in self._results:
            raise DatasetError(
                f"in replay a configuration must be recorded, but dataset {self._name} does not hold "
                f"{dict(configuration)}; search in the dataset's own configurations."
            )
        return self._results[key]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        """Do nothing: there is nothing to release."""


class ReplayBuilder(_Replay[Build]):
    """A :class:`~mltune.measure.protocols.Builder` of the recorded builds, failures included, without cubins."""

    def __init__(self, dataset: Dataset) -> None:
        super().__init__(dataset, dataset.builds())

    def submit(self, configuration: Mapping[str, int]) -> Future[Build]:
        """Return the recorded build."""
        return _done(self._recorded(configuration))


class ReplayRunner(_Replay[Measurement | None]):
    """A :class:`~mltune.measure.protocols.Runner` of the recorded measurements, failures included."""

    def __init__(self, dataset: Dataset) -> None:
        super().__init__(dataset, dataset.measurements())

    def submit(
        self, configuration: Mapping[str, int], build: Build, *, best_s: float | None = None
    ) -> Future[Measurement]:
        """Return the recorded measurement; ``best_s`` has no effect."""
        measurement = self._recorded(configuration)
        if measurement is None:
            raise DatasetError(
                f"only a build in state ok can run, but dataset {self._name} has none of {dict(configuration)}."
            )
        return _done(measurement)


def _done(answer: Result) -> Future[Result]:
    future: Future[Result] = Future()
    future.set_result(answer)
    return future
