"""The commands ``space``, ``device`` and ``datasets``: list search spaces, GPUs and recorded timings."""

from __future__ import annotations

import math
from typing import Annotated

import typer

from mltune.cli.application import AsJson, Size, Trans, answer, app, one_of


@app.command()
def space(
    kernel: Annotated[str, typer.Argument(metavar="KERNEL", help="A built-in kernel, or the folder of a bundle.")],
    trans: Trans = None,
    size: Size = None,
    precision: Annotated[
        str | None,
        typer.Option(
            "--precision",
            metavar="s|d|c|z",
            parser=one_of("--precision", tuple("sdcz")),
            help="Of a GEMM.  [default: the first of the kernel]",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show the size and the restrictions of a kernel's search space.

    It is counted for an NVIDIA H200. What each restriction removes is a share of the raw combinations, estimated on a
    uniform sample of them: "removes" by itself, "only this" what no other restriction removes.
    """
    from mltune.device.known import H200
    from mltune.kernel.bundle import device_variables
    from mltune.kernel.reader import load_kernel
    from mltune.kernel.space import ConstrainedSpace
    from mltune.show import tables
    from mltune.tuning.request import space_problem

    bundle = load_kernel(kernel)
    problem = space_problem(bundle, precision, {"trans": trans, "size": size})
    bundle.check_problem(problem)
    found = ConstrainedSpace(bundle, {**problem.variables(), **device_variables(H200)})
    document = {
        "kernel": bundle.name,
        "has_source": bundle.source is not None,
        "problem": problem.to_json(),
        "device": H200.to_json(),
        "combinations": math.prod(len(values) for values in bundle.all_parameters.values()),
        "valid": found.count,
        "parameters": {name: list(values) for name, values in bundle.all_parameters.items()},
        "restrictions": [
            {"restriction": text, "reason": reason, "removes": removes, "removes_alone": alone}
            for text, reason, removes, alone in found.explain()
        ],
    }
    answer(document, as_json, lambda: tables.space(document))


@app.command()
def device(as_json: AsJson = False) -> None:
    """List the GPUs of this machine."""
    from mltune.device.peaks import peak_flops
    from mltune.show import tables
    from mltune.tuning.target import find_gpus

    gpus, reason = find_gpus()
    devices = [
        {
            "spec": f"cuda:{index}",
            "architecture": facts.architecture,
            "peak_flops": {arithmetic: peak_flops(facts, arithmetic) for arithmetic in ("fp32", "fp64")},
            "device": facts.to_json(),
        }
        for index, facts in enumerate(gpus)
    ]
    document = {"devices": devices, "reason": reason or None}
    answer(document, as_json, lambda: [tables.devices(document)])


@app.command()
def datasets(as_json: AsJson = False) -> None:
    """List the recorded timings.

    Each can be searched without a GPU: mltune tune --device replay:DATASET.
    """
    from mltune.dataset.dataset import list_datasets
    from mltune.results.summary import describe_dataset
    from mltune.show import tables

    documents = [describe_dataset(manifest) for manifest in list_datasets()]
    answer(documents, as_json, lambda: [tables.datasets(documents)])
