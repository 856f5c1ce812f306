"""The progress of a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a run is. Limits that a run does not have are None, and so is what is not known yet.

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
        Trials that a gate would have skipped and the audit had measured.
    best_tflops, best_share_of_reference, best_share_of_peak : float or None
        Of the fastest trial so far.
    trials_per_min : float or None
        Over the last minute.
    left_s : float or None
        Seconds until the limit.
    trials_limit, time_limit_s
        The limits.
    message : str or None
        Something to tell the user.
    """

    problem: str
    device: str
    trials: int
    elapsed_s: float
    counts: Mapping[str, int]
    slug: str = ""
    audited: int = 0
    best_tflops: float | None = None
    best_share_of_reference: float | None = None
    best_share_of_peak: float | None = None
    trials_per_min: float | None = None
    left_s: float | None = None
    trials_limit: int | None = None
    time_limit_s: float | None = None
    message: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the progress as plain JSON values."""
        return asdict(self)


Report = Callable[[Progress], None]


@dataclass(frozen=True, slots=True)
class CampaignProgress:
    """How far a campaign is.

    Attributes
    ----------
    runs : tuple of Progress
        The time slices under way, one a device.
    done, problems : int
        Problems that have had their minimum, and all.
    elapsed_s : float
        Seconds since the plan began, interruptions not counted.
    left_s : float or None
        Seconds until the budget is spent; None where it is counted in trials.
    message : str or None
        Something to tell the user.
    """

    runs: tuple[Progress, ...]
    done: int
    problems: int
    elapsed_s: float
    left_s: float | None
    message: str | None = None


CampaignReport = Callable[[CampaignProgress], None]
