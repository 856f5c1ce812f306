"""Carry out a plan of many problems, or forecast it; read the records of a run or of a plan, and write its report."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, Literal

from mltune.api.display import Forecast, interruptible, shown, warn
from mltune.api.places import check_places
from mltune.errors import DamagedRunError
from mltune.files.owned import check_replaceable
from mltune.files.reading import reason
from mltune.records.directory import PLAN_FILE, RUNS, is_plan, new_directory, runs_in

if TYPE_CHECKING:
    from mltune.campaign.cluster.gpu_workers import Cluster
    from mltune.campaign.products import CampaignResult
    from mltune.resolve.plan import Plan
    from mltune.results.progress import CampaignReport
    from mltune.results.run import TuneResult
    from mltune.show.report.writing import ReportPaths


def run(
    plan: str | Path | Plan,
    *,
    run: str | Path | None = None,
    store: str | None = None,
    compile_on: str | None = None,
    cluster: str | None = None,
    overwrite: bool = False,
    progress: CampaignReport | Literal["auto"] | None = "auto",
    interrupt: Callable[[], bool] | None = None,
) -> CampaignResult:
    """Carry out a plan: tune many problems, unattended, and write the reports and files that it asks for.

    The time is shared out by expected gain.

    Parameters
    ----------
    plan : str, pathlib.Path or Plan
        A file (TOML, docs/reference/plans.md), the name of a built-in plan such as ``"quick"``, or the directory of a
        run of a plan, which is resumed.
    run : str or pathlib.Path, optional
        Directory of the run; a run of the same plan there is resumed. By default a new one under ``runs/``.
    store : str, optional
        URL of the PostgreSQL database for the records of problems that begin.
    compile_on : str, optional
        Address or scheduler file of a Dask cluster whose compile workers help.
    cluster : str, optional
        Address or scheduler file of a Dask cluster whose GPU workers are the devices; ``"local"`` makes one of the GPUs
        of this machine.
    overwrite : bool
        Whether the report replaces files that mltune did not write. Without it such a file is kept, there is no report,
        and a warning says so at the start.
    progress : callable, "auto" or None
        Called with a :class:`mltune.results.progress.CampaignProgress` about twice a second. ``"auto"`` shows a
        progress bar in a notebook or a terminal (on stderr), and nothing elsewhere.
    interrupt : callable, optional
        Called without arguments about twice a second; true ends the run within 10 s, with a report. By default Ctrl-C
        does so, and a second Ctrl-C raises KeyboardInterrupt.

    Raises
    ------
    PlanError
        The plan is malformed, or cannot be carried out on this machine.
    RunDirectoryError
        The directory is in use, holds another plan, or cannot be written.

    Warns
    -----
    MltuneWarning
        There is no GPU: recorded timings are replayed. Or no report can be written.

    Examples
    --------
    >>> import mltune
    >>> result = mltune.run("rehearsal")  # doctest: +SKIP
    >>> result.to_json()["with_winner"]  # doctest: +SKIP
    4
    """
    begun = perf_counter()
    from mltune.campaign.campaign import CampaignSettings, run_plan
    from mltune.resolve.device import find_gpus
    from mltune.resolve.options import directory_of
    from mltune.resolve.placement import notices, place, place_on_workers
    from mltune.resolve.plan import Plan
    from mltune.resolve.plan_file import load_plan
    from mltune.show.report.writing import report_files

    directory = directory_of(run)
    if not isinstance(plan, Plan) and is_plan(Path(plan)):
        directory, plan = directory or Path(plan), Path(plan) / PLAN_FILE
    loaded = plan if isinstance(plan, Plan) else load_plan(plan)
    with _cluster(cluster) as workers:
        if workers is None:
            placed = place(loaded, *find_gpus())
        else:
            placed = place_on_workers(loaded, {name: worker.device for name, worker in workers.known.items()})
        if placed.replayed and loaded.devices != placed.devices:
            warn(["no GPU found: every problem is replayed from recorded timings"])
        warn(notices(placed))
        directory = directory or new_directory(loaded.name)
        if "report" in loaded.produce and not overwrite:
            try:
                check_replaceable(report_files(directory))
            except OSError as error:
                warn([f"the run will write no report: {reason(error)}"])
        with shown(progress, "RunDisplay") as report, interruptible(interrupt) as interrupted:
            if hasattr(report, "say"):
                report.say(f"run directory: {directory}; name it to resume the run", timed=True)
            return run_plan(
                placed,
                directory,
                progress=report,
                stop=interrupted,
                cluster=workers,
                settings=CampaignSettings(store=store or "", compile_on=compile_on or "", overwrite=overwrite),
                begun=begun,
            )


@contextlib.contextmanager
def _cluster(where: str | None) -> Iterator[Cluster | None]:
    """Connect to a cluster, and wait for its GPU workers."""
    if not where:
        yield None
        return
    from mltune.campaign.cluster.gpu_workers import WAIT_S, named_cluster
    from mltune.resolve.device import find_gpus

    with named_cluster(where, len(find_gpus()[0])) as connected:
        connected.workers(WAIT_S)
        yield connected


def plan(plan: str | Path) -> Forecast:
    """Forecast a plan: devices, order, time and trials of each problem, and files. Nothing is run.

    Parameters
    ----------
    plan : str or pathlib.Path
        A file (TOML), or the name of a built-in plan such as ``"quick"``.

    Returns
    -------
    Forecast
        A dict of plain JSON values (docs/reference/plans.md), which ``mltune plan --json`` prints. A notebook shows a
        table of its problems.

    Raises
    ------
    PlanError
        The plan is malformed, or its budget is smaller than its minima.

    Examples
    --------
    >>> import mltune
    >>> forecast = mltune.plan("quick")
    >>> forecast["problems"][0]["problem"]
    'sgemm NN 4096'
    """
    from mltune.campaign.forecast import forecast
    from mltune.measure.build import available_cores
    from mltune.resolve.device import find_gpus
    from mltune.resolve.plan_file import load_plan

    return Forecast(forecast(load_plan(plan), *find_gpus(), available_cores()))


def check_cluster(cluster: str, *, builds: int = 32) -> dict[str, Any]:
    """Look at a Dask cluster: latency, versions, devices, and how many configurations it compiles in a second.

    Parameters
    ----------
    cluster : str
        Address or file of its scheduler.
    builds : int
        Number of builds that are timed, at least 2.

    Returns
    -------
    dict
        Plain JSON values: what ``mltune cluster check --json`` prints. ``workers`` have ``fits``: whether their
        versions of mltune and of NVRTC are those of this host.

    Raises
    ------
    UsageError
        Dask is not installed, or the cluster does not answer.

    Examples
    --------
    >>> import mltune
    >>> mltune.check_cluster("tcp://10.0.0.1:8786")["latency_s"]  # doctest: +SKIP
    0.0004
    """
    from mltune.campaign.cluster import check

    return check.check_cluster(cluster, builds)


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
    from mltune.results.reader import read_run
    from mltune.results.summary import fastest

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
    from mltune.results.reader import read_run
    from mltune.results.run import TuneResult
    from mltune.results.summary import summarise_campaign, summarise_run, summarise_tuning
    from mltune.show.why import why

    if isinstance(run, TuneResult):
        return summarise_tuning(run) | {"why": why(run)}
    directory = Path(run)
    runs_in(directory)  # refuses a directory that holds neither
    if is_plan(directory):
        return summarise_campaign(directory)
    stored = read_run(directory)
    return summarise_run(stored, top) | {"why": why(stored)}


def report(run: str | Path, *, out: str | Path | None = None, overwrite: bool = False) -> ReportPaths:
    """Write the report on a run, or on a plan, which may still go on: HTML, Markdown, and the winners as JSON.

    Parameters
    ----------
    run : str or pathlib.Path
        The directory of a run or of a plan.
    out : str or pathlib.Path, optional
        Directory of the files; by default that of the run.
    overwrite : bool
        Whether to replace files that mltune did not write.

    Returns
    -------
    ReportPaths
        The files, and ``document``, the content of ``winners.json``.

    Raises
    ------
    RunDirectoryError
        The directory holds neither.
    UsageError
        There is a file in the place of one of the report that mltune did not write.
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
    from mltune.show.report.writing import report_files, write_report

    folder = None if out is None else Path(out)
    check_places(report_files(Path(run) if folder is None else folder), overwrite=overwrite)
    return write_report(Path(run), folder, overwrite=overwrite)


@contextlib.contextmanager
def dashboard(run: str | Path, *, port: int = 8080, open: bool = False) -> Iterator[str]:
    """Show a run, or a plan, in optuna-dashboard while a context lasts.

    The run, or each problem of the plan, is written as an Optuna study to ``optuna.journal`` in its directory. Trials
    of a run that is under way are added. Only this machine is served.

    Parameters
    ----------
    run : str or pathlib.Path
        The directory of a run or of a plan.
    port : int
        The port; 0 chooses a free one.
    open : bool
        Whether to open it in a browser.

    Yields
    ------
    str
        The address of the dashboard.

    Raises
    ------
    RunDirectoryError
        The directory holds neither, or cannot be written.
    UsageError
        The extra ``dashboard`` is not installed, or the port is not free.

    Examples
    --------
    >>> import mltune
    >>> with mltune.dashboard("runs/first", open=True) as address:  # doctest: +SKIP
    ...     input(f"{address}: Enter ends it")
    """
    import webbrowser

    from mltune.show.study import Studies, served

    with served(Studies(Path(run)), port) as address:
        if open:
            webbrowser.open(address)
        yield address


def export_runs(directory: Path, folder: Path) -> Iterator[str]:
    """Write the trials of a run, or of the runs of a plan that can be read, as datasets; yield a line for each."""
    from mltune.dataset.dataset import export_run

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

    return [describe_stored_run(stored) for stored in list_runs(database)]


def local_runs() -> list[dict[str, Any]]:
    """Describe the newest runs below ``runs/`` of the working directory: what ``mltune show --json`` prints."""
    from mltune.results.summary import list_runs

    return list_runs(Path(RUNS))
