"""Train a model on datasets of one kernel, and judge it on what it has not seen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from mltune.errors import ModelError
from mltune.learn.pretrained import PretrainedModel, Sweep, fit_member
from mltune.records.trial import TrialState
from mltune.records.versions import installed_versions

if TYPE_CHECKING:
    from mltune.dataset.dataset import Dataset
    from mltune.device.facts import Device
    from mltune.kernel.columns import Floats

CHOICES = (1, 5, 10, 25)
"""Numbers of first choices of which the fastest is compared with the optimum."""

FEWEST = 50
"""Fewest configurations of a dataset that a model is trained on."""


def train(datasets: Sequence[Dataset], *, seed: int = 0) -> PretrainedModel:
    """Train a model on datasets of one kernel.

    It is judged on each dataset by the members of other groups: of other architectures, or where all datasets are of
    one architecture, of other problems.

    Parameters
    ----------
    datasets : sequence of Dataset

    Raises
    ------
    ModelError
        The datasets are of several kernels or have other parameters, or one has too few configurations.

    Examples
    --------
    >>> from mltune.dataset.dataset import load_dataset
    >>> model = train([load_dataset("h200-transpose-8192x8192-random")])
    >>> model.kernel, len(model.members), model.facts["scores"]
    ('transpose', 1, {})
    """
    first = datasets[0].manifest
    for one in datasets:
        if one.manifest.kernel != first.kernel or set(one.manifest.parameters) != set(first.parameters):
            raise ModelError(
                f"a model is of one kernel and its parameters, but {first.name} is of {first.kernel} and "
                f"{one.manifest.name} of {one.manifest.kernel}, or has other parameters."
            )
        if int((one.states == TrialState.OK).sum()) < FEWEST:
            raise ModelError(f"a model learns from datasets of {FEWEST} times or more, got {one.manifest.name}.")
    parameters = tuple(first.parameters)
    sweeps = as_sweeps(datasets)
    model = PretrainedModel(
        first.kernel, parameters, tuple(fit_member(sweep, parameters, seed=seed) for sweep in sweeps)
    )
    facts = {
        "datasets": {one.manifest.name: _origin(one) for one in datasets},
        "versions": installed_versions("numpy", "scikit-learn", "skops"),
        "seed": seed,
        "scores": scores(model, sweeps),
    }
    return replace(model, facts=facts)


def as_sweeps(datasets: Sequence[Dataset]) -> list[Sweep]:
    """Return datasets as sweeps, in groups that are left out together."""
    architectures = [architecture(one.manifest.device) for one in datasets]
    several = len(set(architectures)) > 1
    return [
        Sweep(
            one.manifest.name,
            group if several else one.manifest.problem.label,
            one.manifest.problem.cost_class,
            one.columns,
            np.where(one.states == TrialState.OK, one.numbers("median_s"), np.nan),
        )
        for one, group in zip(datasets, architectures, strict=True)
    ]


def architecture(device: Device) -> str:
    """Return the architecture of a GPU: that of CUDA, or for other GPUs their name."""
    return device.name if device.compute_capability is None else device.architecture


def without(model: PretrainedModel, sweeps: Sequence[Sweep], group: str) -> PretrainedModel | None:
    """Return a model without the members of a group; None where no others are left."""
    left = {sweep.name for sweep in sweeps if sweep.group != group}
    members = tuple(one for one in model.members if one.sweep in left)
    return replace(model, members=members) if members else None


def scores(model: PretrainedModel, sweeps: Sequence[Sweep]) -> dict[str, Any]:
    """Judge a model on each sweep by the members of other groups.

    Returns
    -------
    dict
        By sweep: ``share_of_optimum`` by number of first choices, ``spearman`` of prediction and speed.
    """
    found = {}
    for sweep in sweeps:
        judged = without(model, sweeps, sweep.group)
        if judged is not None:
            found[sweep.name] = score(judged.predict(sweep.columns, sweep.cost_class), sweep.median_s)
    return found


def score(predicted: Floats, median_s: Floats) -> Mapping[str, Any]:
    """Compare an order of configurations with their times."""
    from scipy.stats import spearmanr

    speed = np.nan_to_num(np.nanmin(median_s) / median_s)
    order = np.argsort(-predicted, kind="stable")
    ran = speed > 0
    return {
        "share_of_optimum": {str(count): round(float(speed[order[:count]].max()), 4) for count in CHOICES},
        "spearman": round(float(spearmanr(predicted[ran], speed[ran]).statistic), 4),
    }


def _origin(dataset: Dataset) -> dict[str, Any]:
    manifest = dataset.manifest
    return {
        "sha256": manifest.sha256,
        "device": manifest.device.name,
        "architecture": architecture(manifest.device),
        "problem": manifest.problem.label,
        "rows": len(dataset),
    }
