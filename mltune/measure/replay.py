"""Replay: a builder and a runner that answer from a dataset what was recorded on a GPU, at once."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from types import TracebackType
from typing import Generic, NoReturn, Self, TypeVar

from mltune.dataset.dataset import Dataset
from mltune.errors import DatasetError
from mltune.records.trial import Build, Measurement

Answer = TypeVar("Answer")


class _Replay(Generic[Answer]):
    """The recorded answers of a dataset by configuration."""

    def __init__(self, dataset: Dataset, answers: list[Answer]) -> None:
        self._name = dataset.manifest.name
        self._parameters = tuple(dataset.columns)
        columns = (column.tolist() for column in dataset.columns.values())
        self._answers = dict(zip(zip(*columns, strict=True), answers, strict=True))

    def _recorded(self, configuration: Mapping[str, int]) -> Answer:
        try:
            return self._answers[tuple([configuration[name] for name in self._parameters])]
        except KeyError:
            self._refuse(configuration)

    def _refuse(self, configuration: Mapping[str, int]) -> NoReturn:
        raise DatasetError(
            f"in replay only recorded configurations can be had, but dataset {self._name} does not hold "
            f"{dict(configuration)}; search in the dataset's own configurations."
        ) from None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """There is nothing to release."""


class ReplayBuilder(_Replay[Build]):
    """Satisfies :class:`~mltune.measure.protocols.Builder` with the recorded builds, failures included, without cubins.

    Parameters
    ----------
    dataset : Dataset
        The recorded configurations: no other can be asked for.
    """

    def __init__(self, dataset: Dataset) -> None:
        super().__init__(dataset, dataset.builds())

    def submit(self, configuration: Mapping[str, int]) -> Future[Build]:
        """Return the recorded build.

        Raises
        ------
        DatasetError
            The configuration is not in the dataset.
        """
        return _done(self._recorded(configuration))


class ReplayRunner(_Replay[Measurement | None]):
    """Satisfies :class:`~mltune.measure.protocols.Runner` with the recorded measurements, failures included.

    Parameters
    ----------
    dataset : Dataset
        The recorded configurations: no other can be asked for.
    """

    def __init__(self, dataset: Dataset) -> None:
        super().__init__(dataset, dataset.measurements())

    def submit(
        self, configuration: Mapping[str, int], build: Build, *, best_s: float | None = None
    ) -> Future[Measurement]:
        """Return the recorded measurement, whatever the best so far: one that was stopped early says so itself.

        Raises
        ------
        DatasetError
            The configuration is not in the dataset, or did not compile when it was recorded.
        """
        measurement = self._recorded(configuration)
        if measurement is None:
            raise DatasetError(
                f"only a build in state ok can be run, but dataset {self._name} has none of {dict(configuration)}."
            )
        return _done(measurement)


def _done(answer: Answer) -> Future[Answer]:
    future: Future[Answer] = Future()
    future.set_result(answer)
    return future
