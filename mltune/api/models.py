"""Functions that judge a problem without measuring it: upper bounds, predictions, and trained models."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

from mltune.problem.problem import Problem, ShapeOptions
from mltune.resolve.options import RunOptions

if TYPE_CHECKING:
    from mltune.cost.pretrained import PretrainedModel
    from mltune.tuning.bound import UpperBound
    from mltune.tuning.prediction import Predicted


def bound(
    problem: str | Path | Problem,
    *,
    kernel: str | Path | None = None,
    accuracy: str | None = None,
    gpu: str = "auto",
    config: Mapping[str, int] | None = None,
    code: bool = False,
    **shape: Unpack[ShapeOptions],
) -> UpperBound:
    """Compute how fast a problem can be at best, without measuring it, and what limits it.

    That is the limit of the hardware, the limit of the best configuration of each kernel that solves it, and with
    `config` that of the best that has these values (docs/explanation/bound.md).

    Parameters
    ----------
    kernel : str or pathlib.Path, optional
        By default of all that solve the problem the one with the highest upper bound.
    gpu : str
        ``"auto"``, the first GPU of this machine; ``"cuda:N"``; a known GPU, such as ``"a100"``; or a file with facts
        (:func:`devices`).
    config : mapping of str to int, optional
        Values of some parameters, or of all.
    code : bool
        Whether to compile the configuration, and to count the instructions of its main loop.
    problem, accuracy, **shape
        See :func:`tune`.

    Raises
    ------
    UsageError
        There is no such problem, kernel or device, or no kernel fits the device.

    Examples
    --------
    >>> import mltune
    >>> found = mltune.bound("sgemm", trans="NN", size=2048, kernel="gemm_shared", gpu="a100")
    >>> found.kernel, found.best.time_s > found.hardware["arithmetic"]
    ('gemm_shared', True)
    """
    from mltune.resolve.device import facts_of
    from mltune.resolve.problems import named_kernels
    from mltune.tuning.bound import upper_bound

    named, kernels = named_kernels(problem, shape, kernel, accuracy)
    return upper_bound(named, kernels, facts_of(gpu), config, code=code)


def predict(
    problem: str | Path | Problem,
    *,
    kernel: str | Path | None = None,
    accuracy: str | None = None,
    gpu: str = "auto",
    top: int = 1,
    prior: str | Path = RunOptions.prior,
    wisdom: str | Path = RunOptions.wisdom,
    **shape: Unpack[ShapeOptions],
) -> Predicted:
    """Choose configurations without measuring any, also for a GPU that is not here.

    They are those that a run would measure first: what a wisdom knows, then what a pretrained model and physics expect
    to be fast, or physics alone where it did better on recorded timings. The first one has a time with an interval
    where enough recorded sweeps are similar.

    Parameters
    ----------
    top : int
        How many, at most 8.
    problem, accuracy, prior, wisdom, **shape
        See :func:`tune`.
    kernel, gpu
        See :func:`bound`.

    Raises
    ------
    UsageError
        There is no such problem, kernel or device.
    ModelError
        The model cannot be used.

    Examples
    --------
    >>> import mltune
    >>> found = mltune.predict("transpose", size={"columns": 2048}, gpu="a100", wisdom="none")
    >>> [choice.source for choice in found.choices], "TILE_X" in found.choices[0].configuration
    (['expected'], True)
    """
    from mltune.kernel.placed import PlacedKernel
    from mltune.resolve.device import facts_of
    from mltune.resolve.problems import named_kernels
    from mltune.tuning.bound import find_bounds
    from mltune.tuning.prediction import predict as choose

    named, kernels = named_kernels(problem, shape, kernel, accuracy)
    facts = facts_of(gpu)
    placed = PlacedKernel(kernels[0], named, facts) if len(kernels) == 1 else find_bounds(named, kernels, facts)[0][0]
    return choose(placed, top=top, prior=str(prior), wisdom=wisdom)


def train(
    datasets: str | Path | Sequence[str | Path],
    out: str | Path,
    *,
    kernel: str | None = None,
    seed: int = 0,
    overwrite: bool = False,
) -> PretrainedModel:
    """Train a model on recorded timings, from which runs of the kernel start: ``tune(..., prior=out)``.

    It is judged on each dataset by what was learned from other architectures; where there is one architecture, from
    other problems.

    Parameters
    ----------
    datasets : str, pathlib.Path or sequence of these
        Names, files, folders, directories of runs and of plans.
    out : str or pathlib.Path
        The model is written to ``OUT.npy``, and its card to ``OUT.json``.
    kernel : str, optional
        Name of the kernel; needed where the datasets are of several.
    seed : int
        Seed of the regressors.
    overwrite : bool
        Whether to replace a model of the same name.

    Returns
    -------
    PretrainedModel
        Its ``facts`` have its quality on what was left out.

    Raises
    ------
    ModelError
        No kernel is named and the datasets are of several, some have other parameters, or too few configurations.
    UsageError
        The file exists.

    Examples
    --------
    >>> import mltune, tempfile
    >>> model = mltune.train("h200-transpose-8192x8192-random", tempfile.mkdtemp() + "/transpose")
    >>> model.kernel, len(model.members)
    ('transpose', 1)
    """
    from mltune.cost.model_file import SUFFIXES, file_of, save_model
    from mltune.errors import UsageError
    from mltune.tuning.training import find_datasets
    from mltune.tuning.training import train as train_model

    for file in (file_of(Path(out), suffix) for suffix in SUFFIXES):
        if os.path.lexists(file) and not overwrite:
            raise UsageError(f"{file} exists; choose another name, or --overwrite.")
    names = [datasets] if isinstance(datasets, str | Path) else datasets
    loaded = [dataset for name in names for dataset in find_datasets(str(name))]
    model = train_model(loaded, kernel=kernel, seed=seed)
    save_model(model, Path(out))
    return model


def load_model(path: str | Path) -> PretrainedModel:
    """Load a pretrained model.

    Parameters
    ----------
    path : str or pathlib.Path
        The file of a model (:func:`train`), or the name of one that comes with mltune: that of its kernel.

    Raises
    ------
    ModelError
        A file cannot be read, does not belong to its card, or holds something else than regressors.

    Examples
    --------
    >>> import mltune
    >>> mltune.load_model("gemm_simt").kernel
    'gemm_simt'
    """
    from mltune.cost import model_file
    from mltune.files import folders

    shipped = folders.assets("models") / f"{path}.json"
    return model_file.load_model(shipped if shipped.is_file() else Path(path))


def card_of(model: str | Path) -> Path:
    """Return the card of a model that is written to a path."""
    from mltune.cost.model_file import file_of

    return file_of(Path(model), ".json")
