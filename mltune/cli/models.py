"""The commands ``bound``, ``predict`` and ``train``: what to expect of a problem without measuring it."""

from __future__ import annotations

from typing import Annotated

import typer

from mltune import api
from mltune.api.models import card_of
from mltune.cli.application import Given, answer, command
from mltune.cli.options import AnyKernel, AsJson, Facts, argument, configuration, file, flag, number, text, texts


@command(
    api.bound,
    kernel=AnyKernel,
    device=Facts,
    config=texts("--config", "NAME=V", "Parameters of a configuration, all or some.", configuration),
    code=flag("--code", "Compile the configuration, and count the instructions of its main loop."),
)
def bound(given: Given, as_json: AsJson = False) -> None:
    """Compute how fast a problem can be at best, without measuring it, and what limits it.

    That is the limit of the hardware, the limit of the best configuration of each kernel that solves it, and with
    --config that of the best that has these values. The facts of a GPU that was measured (mltune device --measure)
    bring it closer.
    """
    from mltune.show.bound import bounded

    found = api.bound(**given)
    document = found.to_json()
    answer(document, as_json, lambda: bounded(document, found.rate))


@command(
    api.predict,
    kernel=AnyKernel,
    device=Facts,
    top=number("--top", "How many, at most 8.", 1, 8),
    wisdom=text("--wisdom", "auto|none|FILE", "The best known configurations. auto is the user's file."),
)
def predict(given: Given, as_json: AsJson = False) -> None:
    """Choose configurations without measuring any, also for a GPU that is not here.

    They are those that a run would measure first: what a wisdom knows, then what a pretrained model and physics expect
    to be fast. The mean share of the optimum, and its range, are those that the model reached on what it had not seen,
    or where none is used those of physics.
    """
    from mltune.show import tables

    document = api.predict(**given).to_json()
    answer(document, as_json, lambda: tables.predicted(document))


@command(
    api.train,
    datasets=argument(
        "DATASET...",
        "Datasets of one kernel: names (mltune datasets), files, folders, directories of runs and campaigns.",
        list[str],
    ),
    out=file("--out", "PATH", "Writes PATH.skops and its card PATH.json."),
    seed=number("--seed", "Seed of the regressors.", 0),
)
def train(
    given: Given,
    report: Annotated[
        bool, typer.Option("--report", help="Show its quality on what was left out, and which parameters carry it.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Train a model on recorded timings, from which runs of the kernel start: mltune tune --prior PATH.

    It is judged on each dataset by what was learned from other architectures; where there is one architecture, from
    other problems.
    """
    from mltune.show import tables

    model = api.train(**given)
    document = {"kernel": model.kernel, "model": str(card_of(given["out"])), **model.facts}
    answer(document, as_json, lambda: tables.training(document, report))
