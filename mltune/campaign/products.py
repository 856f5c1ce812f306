"""The result of a campaign, and its products: the report, the winners and the datasets."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mltune.campaign.scheduler import Scheduler
from mltune.campaign.standing import Standing
from mltune.errors import MltuneError
from mltune.process.deadline import done_before
from mltune.records.directory import DATASETS
from mltune.resolve.plan import Plan
from mltune.results.run import TuneResult

if TYPE_CHECKING:
    from mltune.show.report.writing import ReportPaths


@dataclass(frozen=True, slots=True)
class CampaignResult:
    """The result of a campaign.

    Attributes
    ----------
    directory : pathlib.Path
    standings : dict of str to Standing
        The standing of every task, by slug.
    interrupted : bool
        Whether a signal ended the campaign.
    report : ReportPaths or None
        None where the plan produces none, or it could not be written.
    read : callable
        Reads the run in a folder, given its slug; the campaign has read most of it already.
    """

    directory: Path
    standings: dict[str, Standing]
    interrupted: bool
    report: ReportPaths | None
    read: Callable[[Path, str], TuneResult]

    @property
    def failed(self) -> dict[str, str]:
        """The reasons why tasks were set aside, or cannot be read, by slug."""
        reasons = {
            slug: standing.failed or (standing.unread and f"not readable: {standing.unread}")
            for slug, standing in self.standings.items()
        }
        return {slug: reason for slug, reason in reasons.items() if reason}

    def to_json(self) -> dict[str, Any]:
        """Return the result as plain JSON values: what ``mltune run --json`` prints."""
        from mltune.results.summary import summarise_campaign

        return summarise_campaign(self.directory, self.read) | {
            "interrupted": self.interrupted,
            "failed": self.failed,
            "report": None if self.report is None else str(self.report.html),
        }


def write_datasets(plan: Plan, scheduler: Scheduler, directory: Path, say: Callable[[str], None]) -> None:
    """Write the trials of every problem as a dataset, where the plan asks for it. ``say`` gets messages on failures."""
    from mltune.dataset.dataset import export_run

    for task in plan.tasks if "datasets" in plan.produce else ():
        if scheduler.standings[task.slug].spent:
            with _saying_why_not(f"dataset of {task.slug}", say):
                export_run(scheduler.folder(task), directory / DATASETS)


def write_report(
    plan: Plan,
    scheduler: Scheduler,
    directory: Path,
    say: Callable[[str], None],
    deadline: Callable[[], float],
    *,
    quick: bool,
) -> ReportPaths | None:
    """Write the report, or only the winners, as the plan asks, unless there is no time for it.

    Parameters
    ----------
    say : callable
        Gets messages on failures.
    deadline : callable
        Returns when it must be done, on the clock of :func:`time.monotonic`.
    quick : bool
        Whether to leave out figures.
    """
    from mltune.show.report import writing

    written: list[ReportPaths] = []

    def write() -> None:
        if "report" in plan.produce:
            written.append(writing.write_report(directory, quick=quick, read=scheduler.read))
        else:
            writing.write_winners(directory, scheduler.read)

    if {"report", "winners"} & plan.produce:
        with _saying_why_not("report", say):
            if scheduler.left_out or not done_before(deadline, write):
                say(f"no time was left for the report: `mltune report {directory}` writes it")
    return written[0] if written else None


@contextlib.contextmanager
def _saying_why_not(product: str, say: Callable[[str], None]) -> Iterator[None]:
    """Turn an exception into a message: a product can be written again from the records."""
    try:
        yield
    except (MltuneError, OSError) as error:
        say(f"{product}: {error}")
    except Exception as error:  # of a store that is damaged in an unforeseen way
        say(f"{product}: {type(error).__name__}: {error}")
