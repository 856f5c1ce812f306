"""The result of a campaign."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mltune.campaign.standing import Standing
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
