"""Read the records of a run or of a plan, and write the report on them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mltune.results.run import TuneResult
    from mltune.show.report.writing import ReportPaths


def load_run(directory: str | Path) -> TuneResult:
    """Load the result of a run, which may have ended or not; of one with competing kernels, that of the fastest.

    Parameters
    ----------
    directory : str or pathlib.Path
        The directory of the run: the parameter `run` of :func:`tune`.

    Raises
    ------
    RunDirectoryError
        The directory holds no run.

    Examples
    --------
    >>> import mltune, tempfile
    >>> run = tempfile.mkdtemp() + "/run"
    >>> tuned = mltune.tune(trials=20, device="replay:h200-sgemm-nt-4096-random", run=run)
    >>> mltune.load_run(run).best == tuned.best
    True
    """
    from mltune.campaign.competition import fastest
    from mltune.records.directory import is_plan
    from mltune.results.reader import read_run

    return fastest(Path(directory)) if is_plan(Path(directory)) else read_run(Path(directory))


def summarise(run: str | Path | TuneResult, *, top: int = 10) -> dict[str, Any]:
    """Summarise the records of a run, or of a plan, which may still go on.

    Parameters
    ----------
    run : str, pathlib.Path or TuneResult
        The directory of a run or of a plan, or the result of :func:`tune`.
    top : int
        How many of the best configurations of the run in a directory.

    Returns
    -------
    dict
        Plain JSON values (docs/reference/cli.md): what ``mltune show --json`` prints, or of a result ``mltune tune``.

    Raises
    ------
    RunDirectoryError
        The directory holds neither.

    Examples
    --------
    >>> import mltune, tempfile
    >>> run = tempfile.mkdtemp() + "/run"
    >>> tuned = mltune.tune(trials=20, device="replay:h200-sgemm-nt-4096-random", run=run)
    >>> mltune.summarise(run, top=3)["best"][0]["configuration"] == tuned.best_config
    True
    """
    from mltune.records.directory import is_plan, runs_in
    from mltune.results.reader import read_run
    from mltune.results.run import TuneResult
    from mltune.results.summary import summarise_campaign, summarise_run, summarise_tuning

    if isinstance(run, TuneResult):
        return summarise_tuning(run)
    directory = Path(run)
    runs_in(directory)  # refuses a directory that holds neither
    return summarise_campaign(directory) if is_plan(directory) else summarise_run(read_run(directory), top)


def report(run: str | Path, *, output: str | Path | None = None) -> ReportPaths:
    """Write the report on a run, or on a plan, which may still go on: HTML, Markdown, and the winners as JSON.

    Parameters
    ----------
    run : str or pathlib.Path
        The directory of a run or of a plan.
    output : str or pathlib.Path, optional
        Directory of the files; by default that of the run.

    Returns
    -------
    ReportPaths
        The files, and ``document``, the content of ``winners.json``.

    Raises
    ------
    RunDirectoryError
        The directory holds neither.
    RunError
        The report cannot be written.

    Examples
    --------
    >>> import mltune, tempfile
    >>> run = tempfile.mkdtemp() + "/run"
    >>> tuned = mltune.tune(trials=20, device="replay:h200-sgemm-nt-4096-random", run=run)
    >>> written = mltune.report(run)
    >>> written.html.name, written.document["winners"][0]["configuration"] == tuned.best_config
    ('report.html', True)
    """
    from mltune.show.report.writing import write_report

    return write_report(Path(run), None if output is None else Path(output))


def export_runs(directory: Path, folder: Path) -> Iterator[str]:
    """Write the trials of a run, or of the runs of a plan that can be read, as datasets; yield a line for each."""
    from mltune.dataset.dataset import export_run
    from mltune.errors import DamagedRunError
    from mltune.records.directory import is_plan, runs_in

    for run in runs_in(directory):
        try:
            yield f"written: {export_run(run, folder)}"
        except DamagedRunError as error:
            if not is_plan(directory):
                raise
            yield f"{run.name}: not readable: {error}"


def stored_runs(database: str) -> list[dict[str, Any]]:
    """Describe the runs of a database: what ``mltune show postgresql://... --json`` prints."""
    from mltune.records.database_runs import list_runs
    from mltune.results.summary import describe_stored_run

    return [describe_stored_run(one) for one in list_runs(database)]


def stored_run(text: str) -> Path:
    """Return the directory of a run in a database, ``DATABASE#RUN``, which is made."""
    from mltune.records.database_runs import directory_of

    return directory_of(text)
