"""Train a model on datasets of one kernel, and judge it on datasets that it has not seen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from mltune.cost.encoding import Encoding, Source, first_choice, physical, portfolio
from mltune.cost.features import NEEDED, Features
from mltune.cost.model_file import FEWEST_JUDGED
from mltune.cost.pretrained import LARGEST_RATIO, SLOWEST, PretrainedModel, Sweep, fit_members, importance
from mltune.cost.regressors import one_thread
from mltune.dataset.dataset import Dataset, datasets_in, export_run, load_dataset
from mltune.dataset.manifest import Manifest
from mltune.dataset.replay import recorded_kernel
from mltune.errors import DamagedRunError, ModelError, RunDirectoryError
from mltune.files.text import no_such
from mltune.kernel.coding import Columns
from mltune.kernel.placed import PlacedKernel
from mltune.kernel.space import SearchSpace
from mltune.records.directory import runs_in
from mltune.records.store import Store
from mltune.records.trial import TrialState
from mltune.records.versions import installed_versions

CHOICES = (1, 5, 10, 25)
"""Numbers of first choices of which the fastest is compared with the optimum."""

FEWEST = 50
"""Fewest measured configurations of a sweep that a model is trained on."""

PREDICTED_FAST = 0.05
"""Share of the configurations of a sweep, those predicted to be the fastest, on which bias and error are judged."""


def train(datasets: Sequence[Dataset], *, kernel: str | None = None, seed: int = 0) -> PretrainedModel:
    """Train a model on the datasets of a kernel, which must be named where they are of several.

    Datasets of one problem on one device are one sweep. The model is judged on each large dataset by the closest
    members of other groups: of other architectures, or where all are of one architecture, of other problems. A
    ModelError tells of other parameters, or too few configurations.
    """
    datasets = _of_kernel(datasets, kernel)
    first = datasets[0].manifest
    parameters = _parameters(datasets)
    for dataset in datasets:
        lacking = set(parameters) - set(dataset.manifest.parameters)
        if lacking and not lacking <= recorded_kernel(dataset.manifest)[0].compiler.parameters.keys():
            raise ModelError(
                f"{dataset.manifest.name} has other parameters than {first.name}; a model is of one kernel and its "
                "parameters."
            )
    sweeps_of_datasets = as_sweeps(datasets)
    sweeps = joined(datasets, sweeps_of_datasets)
    for sweep in sweeps:
        if int(np.isfinite(sweep.median_s).sum()) < FEWEST:
            raise ModelError(
                f"{sweep.name} has too few times: a model learns from {FEWEST} or more of a problem on a device."
            )
    with one_thread():  # several are slower: there is little to do between two waits for all of them
        members = fit_members(sweeps, parameters, seed=seed)
        model = PretrainedModel(first.kernel, parameters, members)
        judged_scores = scores(model, datasets, sweeps_of_datasets, sweeps)
        relied_on = importance(model, sweeps, seed=seed)
        manifests = {_measured(dataset): dataset.manifest for dataset in datasets}.values()  # as the sweeps
        judged = [over_physics(model, sweeps, *arguments) for arguments in zip(sweeps, manifests, strict=True)]
    members = tuple(replace(member, over_physics=ratios) for member, ratios in zip(members, judged, strict=True))
    facts = {
        "datasets": {dataset.manifest.name: _origin(dataset) for dataset in datasets},
        "versions": installed_versions("numpy", "scikit-learn"),
        "seed": seed,
        "scores": judged_scores,
        "gain": gain(judged_scores),
        "importance": relied_on,
    }
    return replace(model, members=members, facts=facts)


def _of_kernel(datasets: Sequence[Dataset], kernel: str | None) -> list[Dataset]:
    """Return the datasets of a kernel, or of the only one that there is."""
    kernels = sorted({dataset.manifest.kernel for dataset in datasets})
    if kernel is None and len(kernels) > 1:
        raise ModelError(f"there are timings of {', '.join(kernels)}, but a model is of one kernel; name it: --kernel.")
    if kernel is not None and kernel not in kernels:
        raise ModelError(no_such("kernel in the datasets", kernel, kernels, f"They have {', '.join(kernels)}"))
    return [dataset for dataset in datasets if kernel in (None, dataset.manifest.kernel)]


def find_datasets(name: str) -> list[Dataset]:
    """Return the datasets of a name, of a file, of a run or a campaign, or of a folder of datasets."""
    if not Path(name).is_dir():
        return [load_dataset(name)]
    try:
        return datasets_of_runs(Path(name))
    except DamagedRunError:
        raise
    except RunDirectoryError:
        return [load_dataset(path) for path in datasets_in(Path(name))]


def datasets_of_runs(directory: Path) -> list[Dataset]:
    """Return the trials of a run, or of the runs of a campaign that have enough for a model, as datasets."""
    datasets = []
    with TemporaryDirectory() as scratch:
        for run in runs_in(directory):
            with Store.read_only(run) as store:
                enough = int(store.records().succeeded.sum()) >= FEWEST
            if enough:
                datasets.append(load_dataset(export_run(run, Path(scratch))))
    if not datasets:
        raise ModelError(f"{directory} holds no run of {FEWEST} times or more, the fewest that a model learns from.")
    return datasets


def as_sweeps(datasets: Sequence[Dataset]) -> list[Sweep]:
    """Return datasets as sweeps, in groups that are left out together."""
    several, parameters = len({dataset.manifest.device.family for dataset in datasets}) > 1, _parameters(datasets)

    def sweep_of(dataset: Dataset) -> Sweep:
        name, problem, device = dataset.manifest.name, dataset.manifest.problem, dataset.manifest.device
        median_s = np.where(dataset.states == TrialState.OK, dataset.numbers("median_s"), np.nan)
        group = device.family if several else problem.label
        return Sweep.of(name, group, problem, device, _completed(dataset, parameters), median_s)

    return list(map(sweep_of, datasets))


def _parameters(datasets: Sequence[Dataset]) -> tuple[str, ...]:
    """Return the parameters of datasets of one kernel: some may lack compiler parameters that others have."""
    return tuple(dict.fromkeys(name for dataset in datasets for name in dataset.manifest.parameters))


def _completed(dataset: Dataset, parameters: Sequence[str]) -> Columns:
    """Return the configurations of a dataset, with the defaults of the compiler parameters that it lacks."""
    if dataset.columns.keys() >= set(parameters):
        return dataset.columns
    columns = recorded_kernel(dataset.manifest)[0].compiler.with_defaults(dataset.columns)
    return {name: columns[name] for name in parameters}


def joined(datasets: Sequence[Dataset], sweeps: Sequence[Sweep]) -> list[Sweep]:
    """Return the sweeps of datasets; several of one problem on one device are one, with the name of the first."""
    parts: dict[tuple[object, ...], list[Sweep]] = {}
    for dataset, sweep in zip(datasets, sweeps, strict=True):
        parts.setdefault(_measured(dataset), []).append(sweep)
    return [
        replace(
            group[0],
            columns={name: np.concatenate([sweep.columns[name] for sweep in group]) for name in group[0].columns},
            median_s=np.concatenate([sweep.median_s for sweep in group]),
        )
        for group in parts.values()
    ]


def _measured(dataset: Dataset) -> tuple[object, ...]:
    """Return what the datasets of a sweep share."""
    return repr(dataset.manifest.problem), dataset.manifest.device


def without(model: PretrainedModel, sweeps: Sequence[Sweep], group: str) -> PretrainedModel | None:
    """Return a model without the members of a group; None where no others are left."""
    names = {sweep.name for sweep in sweeps if sweep.group != group}
    members = tuple(member for member in model.members if member.sweep in names)
    return replace(model, members=members) if members else None


def scores(
    model: PretrainedModel, datasets: Sequence[Dataset], sweeps_of_datasets: Sequence[Sweep], sweeps: Sequence[Sweep]
) -> dict[str, Any]:
    """Judge a model on each large dataset by the closest members of other groups; return :func:`score` by dataset.

    `sweeps_of_datasets` has the sweep of each dataset, `sweeps` those that the members were fitted to.
    """
    scores_by_name = {}
    for dataset, sweep in zip(datasets, sweeps_of_datasets, strict=True):
        model_without = without(model, sweeps, sweep.group)
        judged = model_without and model_without.closest(dataset.manifest.problem, dataset.manifest.device)
        if judged is not None and len(dataset) >= FEWEST_JUDGED:
            scores_by_name[sweep.name] = score(judged, dataset, sweep)
    return scores_by_name


def score(model: PretrainedModel, dataset: Dataset, sweep: Sweep) -> dict[str, Any]:
    """Compare the expectations of a model with the times of a sweep whose ``group`` was left out.

    ``share_of_optimum`` is the share of the fastest speed that the best of so many first choices reaches, by the model,
    physics and both ``together`` as a search starts. ``spearman`` is of prediction and speed; ``bias`` and ``error``
    are mean and root mean square of measured less predicted log of speed among the :data:`PREDICTED_FAST`.
    """
    from scipy.stats import spearmanr

    predicted = model.predict(sweep.columns)
    measured = sweep.relative()
    ran = measured > SLOWEST
    fast = np.argsort(-predicted, kind="stable")[: max(FEWEST, int(PREDICTED_FAST * len(predicted)))]
    away = (measured - np.minimum(predicted, 0.0))[fast]
    sources = {"model": [model.source]}
    kernel, _ = recorded_kernel(dataset.manifest)
    features = Features(PlacedKernel(kernel, dataset.manifest.problem, dataset.manifest.device))
    if features.has_prior:
        sources["physics"] = [physical(features.prior, sweep.columns)]
        sources["together"] = sources["physics"] + sources["model"]
    return {
        "group": sweep.group,
        "share_of_optimum": {name: _shares(dataset.space, order, sweep) for name, order in sources.items()},
        "spearman": round(float(spearmanr(predicted[ran], measured[ran]).statistic), 4),
        "bias": round(float(away.mean()), 4),
        "error": round(float(np.sqrt(np.square(away).mean())), 4),
    }


def over_physics(model: PretrainedModel, sweeps: Sequence[Sweep], sweep: Sweep, manifest: Manifest) -> dict[str, float]:
    """Return measured over physical time of the first choice in a sweep, by what chooses among those that ran.

    The model of other groups chooses as a search starts: what it remembers, else what it and physics expect. Physics
    has no time without operations or resources, nor for a kernel that has other parameters now.
    """
    kernel, _ = recorded_kernel(manifest)
    if not (sweep.flops and set(NEEDED) <= set(kernel.resources.estimates) and kernel.has_parameters(sweep.columns)):
        return {}
    features = Features(PlacedKernel(kernel, manifest.problem, manifest.device))
    ran = np.isfinite(sweep.median_s)
    columns = {name: column[ran] for name, column in sweep.columns.items()}
    ratios = np.clip(sweep.median_s[ran] / features.physical_s(columns), 1.0 / LARGEST_RATIO, LARGEST_RATIO)

    def first(sources: Sequence[Source]) -> int:
        return first_choice(
            np.array([np.maximum(source.expected(columns), source.least) for source in sources]), sources
        )

    sources = [physical(features.prior, columns)]
    chosen = {"physics": first(sources)}
    model_without = without(model, sweeps, sweep.group)
    judged = model_without and model_without.closest(manifest.problem, manifest.device)
    if judged:
        same = (
            np.all([columns[name] == configuration[name] for name in columns], axis=0) for configuration in judged.first
        )
        remembered = (int(np.argmax(rows)) for rows in same if rows.any())
        chosen["model"] = next(remembered, first([*sources, judged.source]))
    return {name: float(f"{ratios[at]:.4g}") for name, at in chosen.items()}


def gain(scores: Mapping[str, Mapping[str, Any]]) -> float | None:
    """Return the mean gain of a model's share of the optimum over physics, or over 0; None if none was held out."""
    gains = []
    for score_of_dataset in scores.values():
        shares = score_of_dataset["share_of_optimum"]
        judged = shares.get("together", shares["model"])
        gains += [judged[count] - shares.get("physics", {}).get(count, 0.0) for count in judged]
    return round(float(np.mean(gains)), 4) if gains else None


def _shares(space: SearchSpace, sources: Sequence[Source], sweep: Sweep) -> dict[str, float]:
    points, basis = Encoding(space, sources).describe(sweep.columns)
    chosen = portfolio(basis[:, 1:].T, points, max(CHOICES), np.random.default_rng(0), sources)
    speed = np.nan_to_num(np.nanmin(sweep.median_s) / sweep.median_s)
    return {str(count): round(float(speed[chosen[:count]].max()), 4) for count in CHOICES}


def _origin(dataset: Dataset) -> dict[str, Any]:
    manifest = dataset.manifest
    return {
        "sha256": manifest.sha256,
        "device": manifest.device.name,
        "architecture": manifest.device.family,
        "problem": manifest.problem.label,
        "flops": float(manifest.problem.flops),
        "rows": len(dataset),
    }
