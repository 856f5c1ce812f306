"""Carry out a plan of many problems, or forecast it; check a cluster."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from mltune.api.display import interruptible, shown, warn

if TYPE_CHECKING:
    from mltune.campaign.cluster.gpu_workers import Cluster
    from mltune.campaign.products import CampaignResult
    from mltune.resolve.plan import Plan
    from mltune.results.progress import CampaignReport


def run(
    plan: str | Path | Plan,
    *,
    run: str | Path | None = None,
    store: str | None = None,
    compile_on: str | None = None,
    cluster: str | None = None,
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
        There is no GPU: recorded timings are replayed.

    Examples
    --------
    >>> import mltune
    >>> result = mltune.run("rehearsal")  # doctest: +SKIP
    >>> result.to_json()["with_winner"]  # doctest: +SKIP
    4
    """
    from mltune.campaign.campaign import run_plan
    from mltune.records.directory import PLAN_FILE, is_plan, new_directory
    from mltune.resolve.device import find_gpus
    from mltune.resolve.placement import notices, place, place_on_workers
    from mltune.resolve.plan import Plan
    from mltune.resolve.plan_file import load_plan

    directory = None if run is None else Path(run)
    if not isinstance(plan, Plan) and is_plan(Path(plan)):
        directory, plan = directory or Path(plan), Path(plan) / PLAN_FILE
    loaded = plan if isinstance(plan, Plan) else load_plan(plan)
    with _cluster(cluster) as found:
        if found is None:
            placed = place(loaded, *find_gpus())
        else:
            placed = place_on_workers(loaded, {name: worker.device for name, worker in found.known.items()})
        if placed.replayed and loaded.devices != placed.devices:
            warn(["no GPU found: every problem is replayed from recorded timings"])
        warn(notices(placed))
        directory = directory or new_directory(loaded.name)
        with shown(progress, "RunDisplay") as report, interruptible(interrupt) as interrupted:
            if hasattr(report, "say"):
                report.say(f"run directory: {directory}; `mltune run {directory}` resumes it", timed=True)
            return run_plan(
                placed,
                directory,
                progress=report,
                stop=interrupted,
                store=store or "",
                compile_on=compile_on or "",
                cluster=found,
            )


@contextlib.contextmanager
def _cluster(where: str | None) -> Iterator[Cluster | None]:
    """Connect to a cluster, and wait for its GPU workers."""
    if not where:
        yield None
        return
    from mltune.campaign.cluster.gpu_workers import WAIT_S, Cluster
    from mltune.campaign.cluster.local import named_cluster
    from mltune.resolve.device import find_gpus

    with named_cluster(where, len(find_gpus()[0])) as address, contextlib.closing(Cluster(address)) as found:
        found.workers(WAIT_S)
        yield found


def plan(plan: str | Path) -> dict[str, Any]:
    """Forecast a plan: devices, order, time and trials of each problem, and files. Nothing is run.

    Parameters
    ----------
    plan : str or pathlib.Path
        A file (TOML), or the name of a built-in plan such as ``"quick"``.

    Returns
    -------
    dict
        Plain JSON values (docs/reference/plans.md): what ``mltune plan --json`` prints.

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

    return forecast(load_plan(plan), *find_gpus(), available_cores())


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
