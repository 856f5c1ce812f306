"""The command that trains a model: ``mltune train``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mltune.cli.application import AsJson, answer, app


@app.command()
def train(
    datasets: Annotated[
        list[str],
        typer.Argument(metavar="DATASET...", help="Names or files of datasets of one kernel (mltune datasets)."),
    ],
    out: Annotated[Path, typer.Option("--out", metavar="PATH", help="Writes PATH.skops and its card PATH.json.")],
    seed: Annotated[int, typer.Option("--seed", metavar="N", help="Seed of the regressors.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Train a model on recorded timings, from which runs of the kernel start: mltune tune --prior PATH.

    It is judged on each dataset by what was learned from other architectures; where there is one architecture, from
    other problems.
    """
    from mltune.dataset.dataset import load_dataset
    from mltune.learn.model_file import save_model
    from mltune.show import tables
    from mltune.transfer.training import train as train_model

    model = train_model([load_dataset(name) for name in datasets], seed=seed)
    save_model(model, out)
    document = {"kernel": model.kernel, "model": str(out.with_suffix(".json")), **model.facts}
    answer(document, as_json, lambda: tables.training(document))
