"""Live display of progress: a few lines updated in place on a terminal, one plain line per minute elsewhere."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Self

from mltune.files.text import many
from mltune.results.progress import CampaignProgress, Progress
from mltune.results.rating import rating_text, unit_of
from mltune.results.wording import duration, states
from mltune.show.table import Column, Table, console, for_notebook, number, rated, write

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.live import Live

LINE_EVERY_S = 60.0
"""Seconds between two plain lines."""

DRAW_EVERY_S = 0.2
"""Least seconds between two updates on a terminal."""

_BAR_WIDTH = 24


class Display:
    """A display of progress; a context manager that writes to stderr by default.

    On a terminal, a picture is updated in place and messages appear above it. Elsewhere, messages appear at once, and
    the state as plain lines once per minute and at the end of anything longer than a minute.
    """

    def __init__(self, *, stderr: bool = True) -> None:
        self._stderr = stderr
        self._console: Console = console(stderr=stderr)
        self._on_terminal = (sys.stderr if stderr else sys.stdout).isatty() and not self._console.is_dumb_terminal
        self._on_terminal |= self._console.is_jupyter
        self._live: Live | NotebookOutput | None = None
        self._lines: tuple[str, ...] = ()
        self._written: tuple[str, ...] = ()
        self._next_s = -math.inf if self._on_terminal else time.monotonic() + LINE_EVERY_S

    def __enter__(self) -> Self:
        if self._console.is_jupyter:
            self._live = NotebookOutput()
        elif self._on_terminal:
            from rich.live import Live

            redirect = sys.stdout.isatty()  # output to a file must not go to the terminal
            self._live = Live(console=self._console, auto_refresh=False, transient=True, redirect_stdout=redirect)
            self._live.start()
            self._console.show_cursor()  # a process that is killed must not leave a terminal without one
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()
        elif self._written:
            self._write()

    def say(self, text: str, *, timed: bool = False) -> None:
        """Show a message; without a terminal with the time before it, unless it is ``timed`` itself."""
        if self._on_terminal:
            self._console.print(text, soft_wrap=True)
        else:
            write(text if timed else f"{time.strftime('%H:%M:%S')} {text}", stderr=self._stderr)

    def show(self, picture: Sequence[RenderableType], *lines: str) -> None:
        """Show a state, not too often: the picture on a terminal, the lines elsewhere."""
        self._lines = lines
        from rich.console import Group

        now = time.monotonic()
        if now < self._next_s:
            return
        if self._live is not None:
            self._next_s = now + DRAW_EVERY_S
            self._live.update(Group(*picture), refresh=True)
        elif not self._on_terminal:
            self._next_s = now + LINE_EVERY_S
            self._write()

    def _write(self) -> None:
        if self._lines != self._written:
            self._written = self._lines
            for line in self._lines:
                self.say(line)


class NotebookOutput:
    """The output of a notebook cell with the latest picture, without the ipywidgets that ``rich.live.Live`` needs."""

    def __init__(self) -> None:
        self._handle: Any = None

    def update(self, picture: RenderableType, *, refresh: bool = True) -> None:
        """Replace the picture."""
        from IPython.display import display

        shown = for_notebook(picture)
        if self._handle is None:
            self._handle = display(shown, raw=True, display_id=True)
        else:
            self._handle.update(shown, raw=True)

    def stop(self) -> None:
        """Keep the last picture where it is."""


def in_notebook() -> bool:
    """Return whether output goes to a notebook."""
    return console(stderr=True).is_jupyter


class RunDisplay(Display):
    """A display of the states of a run or a campaign; ``announce`` shows a plain line when a problem begins."""

    def __init__(self, *, stderr: bool = True, announce: bool = True) -> None:
        super().__init__(stderr=stderr)
        self._announces = announce and not self._on_terminal
        self._said: dict[str, str | None] = {}
        self._begun: set[str] = set()

    def __call__(self, progress: Progress | CampaignProgress) -> None:
        """Show a state."""
        self._say_once("", progress.message)
        if isinstance(progress, Progress):
            self.show(_run_picture(progress), run_line(progress))
            return
        for run in progress.runs:
            self._say_once(run.device, run.message)
            if self._announces and run.slug not in self._begun:
                self._begun.add(run.slug)
                self.say(f"{run.problem} on {run.device}: begun")
        picture = _campaign_picture(progress)
        self.show(picture, campaign_line(progress), *map(run_line, progress.runs))

    def _say_once(self, where: str, message: str | None) -> None:
        """Show a message unless it is the same as the last time."""
        before, self._said[where] = self._said.get(where), message
        if message and message != before:
            self.say(f"{where}: {message}" if where else message)


class ComparisonDisplay(Display):
    """A display of the progress of a comparison."""

    def __call__(self, progress: Any) -> None:
        """Show one state of the comparison: jobs ``done`` of all ``jobs``, and ``failed``, ``left_s``, ``last``."""
        remaining = f"about {duration(progress.left_s)} left" if progress.left_s and progress.left_s >= 1 else ""
        if progress.message:
            self.say(", ".join(filter(None, (progress.message, remaining))))
        failed = f"{progress.failed} failed" if progress.failed else ""
        text = " · ".join(
            filter(None, (f"{progress.done}/{many(progress.jobs, 'run')}", failed, remaining, progress.last))
        )
        self.show([_bar(progress.done / max(progress.jobs, 1), text)], text)


def run_line(progress: Progress) -> str:
    """Write the progress of a run in one line."""
    return " · ".join((_best(progress), _trials(progress), _time(progress.elapsed_s, progress.left_s)))


def campaign_line(campaign: CampaignProgress) -> str:
    """Write the progress of a campaign in one line."""
    trials = "" if campaign.trials_limit is None else f" · {campaign.trials} of {many(campaign.trials_limit, 'trial')}"
    done = f"{campaign.done} of {many(campaign.problems, 'problem')} done"
    return f"{done}{trials} · {_time(campaign.elapsed_s, campaign.left_s)}"


def _best(progress: Progress) -> str:
    is_found = unit_of(progress.best) is not None
    best = f"best {rating_text(progress.best, progress.reference)}" if is_found else "nothing found yet"
    return f"{progress.problem} on {progress.device}: {best}"


def _trials(progress: Progress) -> str:
    limit, trials = progress.trials_limit, progress.trials
    count = many(trials, "trial") if limit is None else f"{trials} of {many(limit, 'trial')}"
    audited = f" · {progress.audited} audited" if progress.audited else ""
    rate = "" if progress.trials_per_min is None else f" · {progress.trials_per_min:.0f} trials/min"
    return f"{count}: {states(progress.counts)}{audited}{rate}"


def _time(elapsed_s: float, left_s: float | None) -> str:
    return duration(elapsed_s) + ("" if left_s is None else f", {duration(left_s)} left")


def _share_done(progress: Progress) -> float:
    """Return the spent share of the budget: of trials or of time, whichever is larger."""
    trials = progress.trials / progress.trials_limit if progress.trials_limit else 0.0
    seconds = progress.elapsed_s / progress.time_limit_s if progress.time_limit_s else 0.0
    return min(max(trials, seconds), 1.0)


def _bar(done: float, text: str) -> RenderableType:
    """Return a progress bar with a text beside it."""
    from rich.progress_bar import ProgressBar
    from rich.table import Table

    row = Table.grid(padding=(0, 1, 0, 0))
    row.add_column(width=_BAR_WIDTH)
    row.add_column(no_wrap=True, overflow="ellipsis")
    row.add_row(ProgressBar(total=1.0, completed=done, width=_BAR_WIDTH), text)
    return row


def _run_picture(run: Progress) -> list[RenderableType]:
    """Return the picture of one run: time, best result, trials."""
    from rich.text import Text

    bar = _bar(_share_done(run), _time(run.elapsed_s, run.left_s))
    return [bar, *(Text(line, no_wrap=True, overflow="ellipsis") for line in (_best(run), _trials(run)))]


def _campaign_picture(campaign: CampaignProgress) -> list[RenderableType]:
    """Return the picture of a campaign: a single run in full, several as a table with as many columns as fit."""
    bar = _bar(campaign.share_done, campaign_line(campaign))
    if len(campaign.runs) == 1:
        return [bar, *_run_picture(campaign.runs[0])[1:]]
    runs = campaign.runs
    columns = [
        Column("device", lambda run: run.device),
        Column("problem", lambda run: run.problem),
        *rated((run.best for run in runs), (run.reference for run in runs), lambda run: run.best, spare=(7, 6, 8)),
        number("left", lambda run: run.left_s, duration, spare=5),
        number("trials", lambda run: run.trials, spare=4),
        number("/min", lambda run: run.trials_per_min, "{:.0f}".format, spare=3),
        number("audited", lambda run: run.audited, spare=2),
        Column("by state", lambda run: states(run.counts), wraps=True, spare=1),
    ]
    return [bar, Table(runs, columns)] if runs else [bar]
