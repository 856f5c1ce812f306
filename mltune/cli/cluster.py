"""The command ``cluster check``: a look at a Dask cluster before it is used."""

from __future__ import annotations

from typing import Annotated

import typer

from mltune.cli.application import AsJson, answer, app, whole
from mltune.show import terminal

group = typer.Typer(invoke_without_command=True, rich_markup_mode=None, add_completion=False)
app.add_typer(group, name="cluster")


@group.callback()
def _help(context: typer.Context) -> None:
    """Look at a Dask cluster."""
    if context.invoked_subcommand is None:
        terminal.write(context.get_help(), stderr=True)
        raise typer.Exit(2)


@group.command()
def check(
    cluster: Annotated[str, typer.Argument(metavar="CLUSTER", help="Address or file of its scheduler.")],
    builds: Annotated[
        int, typer.Option("--builds", metavar="N", parser=whole("--builds", 2), help="Builds that are timed.")
    ] = 32,
    as_json: AsJson = False,
) -> None:
    """Look at a cluster: latency, versions, devices, and how many configurations it compiles in a second.

    Exits with 1 where a worker has other versions of mltune or of NVRTC than this host.
    """
    import numpy as np

    from mltune.cluster.check import check_cluster
    from mltune.device.lookup import find_device
    from mltune.kernel.bundle import device_variables
    from mltune.kernel.columns import row
    from mltune.kernel.reader import load_kernel
    from mltune.measure.build import NvrtcBuilder
    from mltune.problem.gemm import parse_problem
    from mltune.show import tables
    from mltune.tuning.session import make_space

    kernel, problem = load_kernel("gemm_simt"), parse_problem("sgemm", trans="NT", size=4096)
    device, _ = find_device("h200")
    space = make_space(kernel, {**problem.variables(), **device_variables(device)})
    rows = space.rows(space.sample(builds, np.random.default_rng(0)))
    builder = NvrtcBuilder(kernel, problem, "sm_90", workers=1)
    document = check_cluster(cluster, builder.source, [builder.definitions(row(rows, at)) for at in range(builds)])
    answer(document, as_json, lambda: tables.cluster(document))
    if not all(worker["fits"] for worker in document["workers"]):
        raise typer.Exit(1)
