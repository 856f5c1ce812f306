"""The command ``cluster check``: a look at a Dask cluster before it is used."""

from __future__ import annotations

from typing import Annotated

import typer

from mltune.cli.application import AsJson, answer, command_group, whole

group = command_group("cluster", "Look at a Dask cluster.")


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
    from mltune.campaign.cluster.check import check_cluster
    from mltune.show import inventory

    document = check_cluster(cluster, builds)
    answer(document, as_json, lambda: inventory.cluster(document))
    if not all(worker["fits"] for worker in document["workers"]):
        raise typer.Exit(1)
