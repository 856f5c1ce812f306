"""The directory of a campaign: the identity of its plan, its result, and its products."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mltune.campaign.schedule import Standing
from mltune.campaign.scheduler import Scheduler
from mltune.errors import MltuneError, RunDirectoryError
from mltune.files.atomic import write_file_atomically
from mltune.files.reading import parse_json, raising, read_file
from mltune.files.text import many, printable
from mltune.process.bounded import done_before
from mltune.records.directory import DATASETS, IDENTITY_FILE, PLAN_FILE, is_begun, runs_in, written_in
from mltune.resolve.plan import Plan
from mltune.resolve.plan_file import load_plan
from mltune.results.run import TuneResult

if TYPE_CHECKING:
    from mltune.show.report.writing import ReportPaths


MAX_BYTES = 2**22
"""Largest file that is read: a thousand problems take a tenth of it."""

_NAMED = 3


def claim_directory(plan: Plan, directory: Path) -> None:
    """Write a plan to the locked directory of its campaign; refuse one with other problems or another seed."""
    document, identity, text = _identity(plan), directory / IDENTITY_FILE, directory / PLAN_FILE
    if identity.exists():
        _check_same(document, _stored(identity), directory)
    elif text.is_file():
        _check_same(document, _identity(load_plan(text)), directory)
        if not runs_in(directory) and read_file(text, MAX_BYTES, inside=directory) != plan.text.encode():
            raise RunDirectoryError(
                f"{directory} has a file {PLAN_FILE}, to which a plan is written, and no runs; choose another "
                "directory (--run)."
            )
    elif is_begun(directory):
        raise RunDirectoryError(f"{directory} is the directory of a single run, not of a plan; choose another (--run).")
    with written_in(directory):
        write_file_atomically(identity, (json.dumps(document, indent=1) + "\n").encode())
        write_file_atomically(text, plan.text.encode())


def _identity(plan: Plan) -> dict[str, Any]:
    """Return the identity of a plan as plain JSON values."""
    problems = {task.slug: {"kernel": task.kernel.label, "problem": task.problem.to_json()} for task in plan.tasks}
    document: dict[str, Any] = json.loads(json.dumps({"seed": plan.seed, "problems": problems}))
    return document


def _stored(path: Path) -> dict[str, Any]:
    """Read the identity on record."""
    advice = f"if {PLAN_FILE} beside it is the plan that began the campaign, delete {path}"
    law = f"{path}, the problems and the seed of a campaign, cannot be read ({advice})"
    with raising(RunDirectoryError, law, OSError, ValueError, LookupError, TypeError):
        document = parse_json(read_file(path, MAX_BYTES, inside=path.parent))
        return {"seed": document["seed"], "problems": dict(document["problems"])}


def _check_same(current: dict[str, Any], earlier: dict[str, Any], directory: Path) -> None:
    """Refuse a plan whose identity is not that of the directory."""
    problems, begun = current["problems"], earlier["problems"]
    seed, before = current["seed"], earlier["seed"]
    differences = [] if seed == before else [f"the seed is {seed}, not {before}"]
    differences += [f"{slug} is missing" for slug in begun if slug not in problems]
    differences += [f"{slug} is new" for slug in problems if slug not in begun]
    changed = [slug for slug in problems if begun.get(slug, problems[slug]) != problems[slug]]
    differences += [f"{slug} has another kernel or problem" for slug in changed]
    if differences:
        further = [f"and {len(differences) - _NAMED} more differences"] if differences[_NAMED:] else []
        listed = "; ".join([*differences[:_NAMED], *further])
        raise RunDirectoryError(
            f"{directory} is the directory of another plan: in this plan {printable(listed)}. Undo the change, or "
            "carry the plan out in another directory (--run)."
        )


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

    def __repr__(self) -> str:
        state = f"{'interrupted, ' * self.interrupted}{len(self.failed)} failed"
        return f"CampaignResult({many(len(self.standings), 'problem')}, {state}, {self.directory})"

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
    """Write the trials of every problem as a dataset, if the plan requests it; ``say`` gets messages on failures."""
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
    overwrite: bool,
    quick: bool,
) -> ReportPaths | None:
    """Write the report, or only the winners, as the plan requests, if there is time before the deadline.

    ``deadline`` is on the clock of :func:`time.monotonic`; ``quick`` leaves out figures; ``overwrite`` replaces files
    that mltune did not write.
    """
    from mltune.show.report import writing

    written: list[ReportPaths] = []

    def write() -> None:
        if "report" in plan.produce:
            written.append(writing.write_report(directory, overwrite=overwrite, quick=quick, read=scheduler.read))
        else:
            writing.write_winners(directory, scheduler.read, overwrite=overwrite)

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
