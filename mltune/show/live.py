"""How far a run is, while it goes on: on a terminal a few lines that stay in place, elsewhere a plain line a minute."""

from __future__ import annotations

import math
import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from mltune.results.wording import duration, percent, states
from mltune.show.tables import console, table

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
    from rich.live import Live

    from mltune.compare.comparison import Progress as ComparisonProgress
    from mltune.results.progress import CampaignProgress, Progress

LINE_EVERY_S = 60.0
"""Seconds between two plain lines."""

DRAW_EVERY_S = 0.2
"""Least seconds between two drawings of the lines that stay in place."""

_BAR_WIDTH = 24


class Display:
    """Shows how far something is; a context manager.

    On a terminal a picture that stays in place, and above it what is said. Elsewhere plain lines: one a minute, at once
    what is said, and once more at the end of what took longer than that.

    Parameters
    ----------
    stderr : bool
        Whether to write to stderr, not stdout.
    """

    def __init__(self, *, stderr: bool = True) -> None:
        self._console: Console = console(stderr=stderr)
        self._on_terminal = (sys.stderr if stderr else sys.stdout).isatty() and not self._console.is_dumb_terminal
        self._on_terminal |= self._console.is_jupyter
        self._live: Live | NotebookOutput | None = None
        self._lines: tuple[str, ...] = ()
        self._told: tuple[str, ...] = ()
        self._next_s = -math.inf if self._on_terminal else time.monotonic() + LINE_EVERY_S

    def __enter__(self) -> Self:
        if self._console.is_jupyter:
            self._live = NotebookOutput()
        elif self._on_terminal:
            from rich.live import Live

            redirect = sys.stdout.isatty()  # else what goes to a file would be drawn
            self._live = Live(console=self._console, auto_refresh=False, transient=True, redirect_stdout=redirect)
            self._live.start()
            self._console.show_cursor()  # a process that is killed must not leave a terminal without one
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()
        elif self._told:
            self._tell()

    def say(self, text: str, *, timed: bool = False) -> None:
        """Show a line that stays; elsewhere than on a terminal with the time, unless it is there."""
        clock = "" if timed or self._on_terminal else f"{time.strftime('%H:%M:%S')} "
        self._console.print(f"{clock}{text}", soft_wrap=True)

    def show(self, picture: RenderableType, *lines: str) -> None:
        """Show a state: the picture on a terminal, elsewhere the lines, when it is time to."""
        self._lines = lines
        now = time.monotonic()
        if now < self._next_s:
            return
        if self._live is not None:
            self._next_s = now + DRAW_EVERY_S
            self._live.update(picture, refresh=True)
        elif not self._on_terminal:
            self._next_s = now + LINE_EVERY_S
            self._tell()

    def _tell(self) -> None:
        if self._lines != self._told:
            self._told = self._lines
            for line in self._lines:
                self.say(line)


class NotebookOutput:
    """The output of a notebook cell that shows the latest picture: ``rich.live.Live`` needs ipywidgets there."""

    def __init__(self) -> None:
        self._handle: Any = None

    def update(self, picture: RenderableType, *, refresh: bool = True) -> None:
        """Replace the picture."""
        from IPython.display import display
        from rich.padding import Padding

        shown = Padding(picture, 0)
        if self._handle is None:
            self._handle = display(shown, display_id=True)
        else:
            self._handle.update(shown)

    def stop(self) -> None:
        """Leave the last picture where it is."""


def in_notebook() -> bool:
    """Return whether output goes to a notebook."""
    return console(stderr=True).is_jupyter


class RunDisplay(Display):
    """Shows the progress of a run, or of all the runs of a plan: whoever does them calls it with each state.

    Parameters
    ----------
    stderr : bool
        Whether to write to stderr, not stdout.
    announce : bool
        Whether a plain line says what problem is begun.
    """

    def __init__(self, *, stderr: bool = True, announce: bool = True) -> None:
        super().__init__(stderr=stderr)
        self._announces = announce and not self._on_terminal
        self._said: dict[str, str | None] = {}
        self._begun: set[str] = set()

    def __call__(self, progress: Progress | CampaignProgress) -> None:
        """Show a state."""
        from mltune.results.progress import Progress

        if isinstance(progress, Progress):
            self._say_once("", progress.message)
            self.show(_Run(progress), run_line(progress))
            return
        self._say_once("", progress.message)
        for run in progress.runs:
            self._say_once(run.device, run.message)
            if self._announces and run.slug not in self._begun:
                self._begun.add(run.slug)
                self.say(f"{run.problem} on {run.device}: begun")
        self.show(_Runs(progress), campaign_line(progress), *map(run_line, progress.runs))

    def _say_once(self, where: str, message: str | None) -> None:
        """Say a message that was not there the last time."""
        before, self._said[where] = self._said.get(where), message
        if message and message != before:
            self.say(f"{where}: {message}" if where else message)


class ComparisonDisplay(Display):
    """Shows the progress of a comparison."""

    def __call__(self, progress: ComparisonProgress) -> None:
        """Show one state of the comparison."""
        failed = f" · {progress.failed} failed" if progress.failed else ""
        text = f"{progress.done}/{progress.jobs} runs{failed} · {progress.last}"
        self.show(_bar(progress.done / max(progress.jobs, 1), text), text)


def run_line(progress: Progress) -> str:
    """Write how far a run is in one line, what matters most first."""
    where = f"{progress.problem} on {progress.device}: {_best(progress)}"
    return " · ".join((where, _trials(progress), *_tempo(progress), _time(progress.elapsed_s, progress.left_s)))


def campaign_line(campaign: CampaignProgress) -> str:
    """Write how far a plan is in one line."""
    return f"{campaign.done} of {campaign.problems} problems done · {_time(campaign.elapsed_s, campaign.left_s)}"


def _best(progress: Progress) -> str:
    if progress.best_tflops is None:
        return "nothing found yet"
    shares = {"cuBLAS": progress.best_share_of_reference, "the peak": progress.best_share_of_peak}
    known = (f"{percent(share)} of {whole}" for whole, share in shares.items() if share is not None)
    return ", ".join((f"best {progress.best_tflops:.2f} TFLOPS", *known))


def _trials(progress: Progress) -> str:
    limit = "" if progress.trials_limit is None else f" of {progress.trials_limit}"
    return f"{progress.trials}{limit} trials: {states(progress.counts)}"


def _tempo(progress: Progress) -> list[str]:
    audited = [f"{progress.audited} audited"] if progress.audited else []
    return audited + ([] if progress.trials_per_min is None else [f"{progress.trials_per_min:.0f} trials/min"])


def _time(elapsed_s: float, left_s: float | None) -> str:
    return duration(elapsed_s) + ("" if left_s is None else f", {duration(left_s)} left")


def _share_done(progress: Progress) -> float:
    """Return how much of the budget is spent: of trials or of time, whichever is further."""
    trials = progress.trials / progress.trials_limit if progress.trials_limit else 0.0
    seconds = progress.elapsed_s / progress.time_limit_s if progress.time_limit_s else 0.0
    return min(max(trials, seconds), 1.0)


def _bar(done: float, text: str) -> RenderableType:
    """Return a bar and a text beside it."""
    from rich.progress_bar import ProgressBar
    from rich.table import Table

    row = Table.grid(padding=(0, 1, 0, 0))
    row.add_column(width=_BAR_WIDTH)
    row.add_column(no_wrap=True, overflow="ellipsis")
    row.add_row(ProgressBar(total=1.0, completed=done, width=_BAR_WIDTH), text)
    return row


class _Run:
    """One run: where it is, its best, its trials."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from rich.text import Text

        told = self._progress
        yield _bar(_share_done(told), _time(told.elapsed_s, told.left_s))
        yield Text(f"{told.problem} on {told.device}: {_best(told)}", no_wrap=True, overflow="ellipsis")
        yield Text(" · ".join((_trials(told), *_tempo(told))), no_wrap=True, overflow="ellipsis")


class _Runs:
    """The runs of a plan: one as it is, several in a line each, with as many columns as there is room for."""

    def __init__(self, campaign: CampaignProgress) -> None:
        self._campaign = campaign

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        campaign = self._campaign
        done = campaign.done / max(campaign.problems, 1)
        if campaign.left_s is not None:
            done = campaign.elapsed_s / max(campaign.elapsed_s + campaign.left_s, 1e-9)
        yield _bar(done, campaign_line(campaign))
        if len(campaign.runs) == 1:
            yield from list(_Run(campaign.runs[0]).__rich_console__(console, options))[1:]
        elif campaign.runs:
            yield self._fitting(console, options)

    def _fitting(self, console: Console, options: ConsoleOptions) -> RenderableType:
        from rich.measure import Measurement

        rows = [_columns(run) for run in self._campaign.runs]
        for count in range(len(rows[0]), 2, -1):
            made = table([*rows[0]][:count], [[*row.values()][:count] for row in rows])
            if Measurement.get(console, options.update(max_width=1000), made).maximum <= options.max_width:
                break
        return made


def _columns(run: Progress) -> dict[str, str]:
    """Return the columns of a run's line, those first that are kept where there is no room for all."""
    return {
        "device": run.device,
        "problem": run.problem,
        ">TFLOPS": "-" if run.best_tflops is None else f"{run.best_tflops:.2f}",
        ">of cuBLAS": percent(run.best_share_of_reference),
        ">of peak": percent(run.best_share_of_peak),
        ">left": "-" if run.left_s is None else duration(run.left_s),
        ">trials": str(run.trials),
        ">/min": "-" if run.trials_per_min is None else f"{run.trials_per_min:.0f}",
        ">audited": str(run.audited),
        "by state": states(run.counts),
    }
