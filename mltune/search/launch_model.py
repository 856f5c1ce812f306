"""Predict launches of a Triton kernel by a model of recorded sweeps of other kernels.

Parameters have other names in every kernel, so the model knows them by their roles: extents of blocks, warps, stages.
Each member was trained without one of the kernels; where the members disagree, nothing is predicted.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np

from mltune.cost.model_file import AUTO, NONE, load_model, shipped_model
from mltune.cost.pretrained import PretrainedModel
from mltune.device.facts import NO_CUDA, Device
from mltune.errors import MltuneWarning, ModelError
from mltune.kernel.coding import Columns, Floats

NAME = "triton"
"""Name of the model that comes with mltune, and of the kernel in its card."""

SMALLEST_EXTENT = 16
"""Smallest power of two that is an extent of a block: ``tl.dot`` takes no smaller ones."""

FEWEST_EXTENTS = 2
"""Fewest extents that differ between configurations, as in all sweeps that the model has seen."""

AGREED = 0.8
"""Least standard deviation, 1 where all members agree, of their mean standardised prediction for it to count."""

WEIGHT = 0.5
"""Log speed of one standard deviation of the prediction, beside what physics expects."""

FEATURES = ("warps", "stages", "area", "area_per_thread", "volume", "depth", "blocks", "others", "elongation", "tail")
"""Features of a configuration that the model may use; all but the last are relative to the median of the list."""

_LAUNCH = ("num_warps", "num_stages", "num_ctas", "maxnreg", "pre_hook")


def launch_features(
    parameters: Columns, tiles: Sequence[str], blocks: Floats, threads: Floats, device: Device | None
) -> dict[str, Floats]:
    """Return the features of a list of configurations; empty without CUDA, a grid, warps or two extents."""
    varying = {name: column for name, column in parameters.items() if column.min() < column.max()}
    extents = [
        name
        for name, column in varying.items()
        if name not in _LAUNCH
        and column.min() >= (1 if name in tiles else SMALLEST_EXTENT)
        and not (column & (column - 1)).any()
    ]
    if device is None or device.architecture == NO_CUDA or "num_warps" not in parameters:
        return {}
    if len(extents) < FEWEST_EXTENTS or not np.isfinite(blocks).all():
        return {}
    logs = np.sort(np.log2([parameters[name] for name in extents]), axis=0)
    in_grid = [np.log2(parameters[name]) for name in extents if name in tiles]
    area, volume = np.sum(in_grid if len(in_grid) > 1 else logs[-2:], axis=0), logs.sum(axis=0)
    logarithms = [np.log2(1.0 + np.abs(column)) for name, column in varying.items() if name not in (*extents, *_LAUNCH)]
    nothing, waves, warps = np.zeros(len(blocks)), blocks / device.sm_count, np.log2(threads / 32.0)
    features = [
        warps,
        np.log2(np.maximum(parameters.get("num_stages", nothing), 1)),
        area,
        area - warps,
        volume,
        volume - area,
        np.log2(np.maximum(blocks, 1.0)),
        np.sum([nothing, *logarithms], axis=0),
        logs[-1] - logs[-2],
    ]
    tail = waves / np.maximum(np.ceil(waves), 1.0)
    return dict(zip(FEATURES, [*(column - np.median(column) for column in features), tail], strict=True))


def start_of(prior: str, features: Mapping[str, Floats]) -> Floats | None:
    """Return the log speeds that the model ``prior`` expects; None, with a warning, if it cannot be used."""
    try:
        return expected(launch_model(prior), features) if features else None
    except ModelError as error:
        warnings.warn(MltuneWarning(f"the search starts without a model: {error}"), stacklevel=2)
        return None


def expected(model: PretrainedModel | None, features: Mapping[str, Floats]) -> Floats | None:
    """Return the log speeds that the members expect, up to a constant; None where they disagree."""
    if model is None or not features:
        return None
    X = np.column_stack([features[name] for name in model.parameters])
    predictions: Floats = np.array([member.regressor.predict(X) for member in model.members if member.has_regressor])
    predictions -= predictions.mean(axis=1, keepdims=True)
    mean: Floats = (predictions / np.maximum(predictions.std(axis=1, keepdims=True), 1e-9)).mean(axis=0)
    agreement = float(mean.std())
    return WEIGHT * mean / agreement if agreement >= AGREED else None


@lru_cache(maxsize=2)
def launch_model(prior: str) -> PretrainedModel | None:
    """Return the model of ``autotune``'s option ``prior``: ``"auto"``, ``"none"`` or a file."""
    if prior == NONE:
        return None
    model = shipped_model(NAME) if prior == AUTO else load_model(Path(prior))
    if model.kernel != NAME or not set(model.parameters) <= set(FEATURES):
        raise ModelError(
            f"{prior} is a model of {model.kernel!r:.100} with {', '.join(model.parameters)!r:.300}; a search over "
            f"launches starts from one of {NAME} with the features {', '.join(FEATURES)}."
        )
    return model
