"""Products of a campaign: the report, the winners and the datasets, written at its end from the records."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from mltune.campaign.scheduler import Scheduler
from mltune.errors import MltuneError
from mltune.process.deadline import done_before
from mltune.records.directory import DATASETS
from mltune.resolve.plan import Plan

if TYPE_CHECKING:
    from mltune.show.report.writing import ReportPaths


class Products:
    """Writer of the products of a campaign. A product that cannot be written is a message, not an exception.

    Parameters
    ----------
    plan : Plan
    directory : pathlib.Path
    scheduler : Scheduler
        Has read the records.
    say : callable
        Shows a message to the user.
    """

    def __init__(self, plan: Plan, directory: Path, scheduler: Scheduler, say: Callable[[str], None]) -> None:
        self._plan = plan
        self._directory = directory
        self._scheduler = scheduler
        self._say = say

    def write_report(self, deadline: Callable[[], float], *, quick: bool) -> ReportPaths | None:
        """Write the report, or only the winners, unless there is no time for it.

        Parameters
        ----------
        deadline : callable
            Returns when it must be done, on the clock of :func:`time.monotonic`.
        quick : bool
            Whether to leave out figures.
        """
        from mltune.show.report.writing import write_report, write_winners

        written: list[ReportPaths] = []

        def write() -> None:
            if "report" in self._plan.produce:
                written.append(write_report(self._directory, quick=quick, read=self._scheduler.read))
            else:
                write_winners(self._directory, self._scheduler.read)

        if {"report", "winners"} & self._plan.produce:
            with self._saying_why_not("report"):
                if self._scheduler.left_out or not done_before(deadline, write):
                    self._say(f"no time was left for the report: `mltune report {self._directory}` writes it")
        return written[0] if written else None

    def write_datasets(self) -> None:
        """Write the trials of every problem as a dataset, where the plan asks for it."""
        from mltune.dataset.dataset import export_run

        for task in self._plan.tasks if "datasets" in self._plan.produce else ():
            if self._scheduler.standings[task.slug].spent:
                with self._saying_why_not(f"dataset of {task.slug}"):
                    export_run(self._scheduler.folder(task), self._directory / DATASETS)

    @contextlib.contextmanager
    def _saying_why_not(self, product: str) -> Iterator[None]:
        """Turn an exception into a message: a product can be written again from the records."""
        try:
            yield
        except (MltuneError, OSError) as error:
            self._say(f"{product}: {error}")
        except Exception as error:  # of a store that is damaged in a way that nobody has foreseen
            self._say(f"{product}: {type(error).__name__}: {error}")
