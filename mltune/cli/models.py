"""The commands of pretrained models: ``mltune train`` and ``mltune predict``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mltune.cli.application import (
    Accuracy,
    AnyKernelName,
    AsJson,
    Batch,
    Facts,
    K,
    M,
    N,
    Prior,
    ProblemName,
    Size,
    Trans,
    answer,
    app,
    device_of,
    sizes,
    whole,
)
from mltune.errors import UsageError
from mltune.resolve.problems import named_kernels


@app.command()
def train(
    datasets: Annotated[
        list[str],
        typer.Argument(
            metavar="DATASET...",
            help="Datasets of one kernel: names (mltune datasets), files, folders, directories of runs and campaigns.",
        ),
    ],
    out: Annotated[Path, typer.Option("--out", metavar="PATH", help="Writes PATH.skops and its card PATH.json.")],
    seed: Annotated[int, typer.Option("--seed", metavar="N", help="Seed of the regressors.")] = 0,
    report: Annotated[
        bool, typer.Option("--report", help="Show its quality on what was left out, and which parameters carry it.")
    ] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a model of the same name.")] = False,
    as_json: AsJson = False,
) -> None:
    """Train a model on recorded timings, from which runs of the kernel start: mltune tune --prior PATH.

    It is judged on each dataset by what was learned from other architectures; where there is one architecture, from
    other problems.
    """
    from mltune.cost.model_file import SUFFIXES, file_of, save_model
    from mltune.cost.training import find_datasets
    from mltune.cost.training import train as train_model
    from mltune.show import tables

    for file in (file_of(out, suffix) for suffix in SUFFIXES):
        if file.exists() and not overwrite:
            raise UsageError(f"a model is not replaced, but {file} exists; choose another name, or --overwrite.")
    model = train_model([one for name in datasets for one in find_datasets(name)], seed=seed)
    save_model(model, out)
    document = {"kernel": model.kernel, "model": str(file_of(out, ".json")), **model.facts}
    answer(document, as_json, lambda: tables.training(document, report))


@app.command()
def predict(
    problem: ProblemName,
    trans: Trans = None,
    size: Size = None,
    m: M = None,
    n: N = None,
    k: K = None,
    batch: Batch = None,
    kernel: AnyKernelName = None,
    accuracy: Accuracy = None,
    device: Facts = "auto",
    top: Annotated[
        int,
        typer.Option("--top", metavar="K", parser=whole("--top", 1, 8), help="How many, at most 8."),
    ] = 1,
    prior: Prior = "auto",
    wisdom: Annotated[
        str | None,
        typer.Option("--wisdom", metavar="FILE|none", help="Best known configurations.  [default: the user's]"),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Choose configurations without measuring any, also for a GPU that is not here.

    They are those that a run would measure first: what a wisdom knows, then what a pretrained model and physics expect
    to be fast. The mean share of the optimum, and its range, are those that the model reached on what it had not seen,
    or where none is used those of physics.
    """
    from dataclasses import asdict

    from mltune.show import tables
    from mltune.tuning.bound import find_bounds
    from mltune.tuning.prediction import predict as choose

    shape = {"trans": trans, "size": sizes(size), "m": m, "n": n, "k": k, "batch": batch}
    named, kernels = named_kernels(problem, shape, [] if kernel is None else [kernel], accuracy)
    facts = device_of(device)
    bundle = kernels[0] if len(kernels) == 1 else find_bounds(named, kernels, facts)[0][0]
    found = choose(named, bundle, facts, top=top, prior=prior, wisdom=wisdom)
    document = {"problem": named.label, "device": facts.name, "kernel": bundle.label, **asdict(found)}
    answer(document, as_json, lambda: tables.predicted(document))
