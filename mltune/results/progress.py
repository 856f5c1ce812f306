"""Progress of a run and of a campaign."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of a run. Limits that a run does not have are None, as are values that are not known yet.

    Attributes
    ----------
    problem : str
        Its label.
    slug : str
        Its name in the plan; empty outside a plan.
    device : str
        The device specification.
    trials : int
    elapsed_s : float
    counts : mapping of str to int
        Trials by state.
    audited : int
        Trials that a gate would have skipped, measured for the audit.
    best_s : float or None
        Median time of the fastest trial so far, seconds.
    best_tflops, best_share_of_reference, best_share_of_peak : float or None
        Its rating.
    reference : str
        Name of the reference kernel; empty where there is none.
    trials_per_min : float or None
        Over the last minute.
    left_s : float or None
        Estimated seconds until the first limit is reached.
    trials_limit : int or None
    time_limit_s : float or None
    message : str or None
        A message for the user.
    """

    problem: str
    device: str
    trials: int
    elapsed_s: float
    counts: Mapping[str, int]
    slug: str = ""
    audited: int = 0
    best_s: float | None = None
    best_tflops: float | None = None
    best_share_of_reference: float | None = None
    best_share_of_peak: float | None = None
    reference: str = ""
    trials_per_min: float | None = None
    left_s: float | None = None
    trials_limit: int | None = None
    time_limit_s: float | None = None
    message: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the progress as plain JSON values."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class CampaignProgress:
    """The progress of a campaign.

    Attributes
    ----------
    runs : tuple of Progress
        The time slices under way, one per device.
    done, problems : int
        Problems that have had their minimum, and all problems.
    elapsed_s : float
        Seconds since the campaign began, without interruptions.
    left_s : float or None
        Seconds until the budget is spent; None where it is counted in trials.
    message : str or None
        A message for the user.
    """

    runs: tuple[Progress, ...] = ()
    done: int = 0
    problems: int = 1
    elapsed_s: float = 0.0
    left_s: float | None = None
    message: str | None = None


Report = Callable[[Progress], None]
CampaignReport = Callable[[CampaignProgress], None]
