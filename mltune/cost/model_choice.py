"""The choice of the pretrained model that a search starts from."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from mltune.cost.model_file import Card, file_of, load_card, load_model
from mltune.cost.pretrained import PretrainedModel, are_near, is_comparable
from mltune.device.facts import NO_CUDA, Device
from mltune.errors import ModelError
from mltune.files import assets
from mltune.files.text import did_you_mean, printable
from mltune.kernel.bundle import Kernel
from mltune.problem.problem import Problem

NONE = "none"
AUTO = "auto"

TOLERATED_LOSS = 0.01
"""Mean loss of the share of the optimum against physics that may be chance: its standard error over eight sweeps of
gemm_simt is .006."""


@dataclass(frozen=True, slots=True)
class ChosenModel:
    """A model whose card has been read and fits the kernel. Its regressors are loaded later: that takes a second."""

    path: Path
    card: Card

    @property
    def name(self) -> str:
        """The name of its file."""
        return file_of(self.path).name

    def notices(self, problem: Problem, device: Device) -> tuple[str, ...]:
        """Return in words where a problem and a device differ from all training data of the model."""
        origins = [one for one in self.card.origins if one.architecture]
        families = sorted({one.architecture for one in origins})
        classes = sorted({one.cost_class for one in self.card.members if one.cost_class})
        flops = [one.flops for one in origins if one.flops > 0.0]
        if not any(is_comparable(one.architecture, device) for one in self.card.members):
            known = "with" if device.architecture == NO_CUDA else "without"
            return (f"the model {self.name} is left out: it was trained on GPUs {known} CUDA alone",)
        said = []
        if families and device.family not in families:
            said.append(f"on {', '.join(families)}, and this GPU is {device.family}")
        if classes and problem.cost_class and problem.cost_class not in classes:
            said.append(f"on the classes {', '.join(classes)}, and this problem is of {problem.cost_class}")
        if flops and not any(are_near(one, problem.flops) for one in flops):
            said.append(f"on {min(flops):.2g} to {max(flops):.2g} operations, and this problem has {problem.flops:.2g}")
        return tuple(f"the model {self.name} was trained {one}" for one in said)

    def load(self, problem: Problem, device: Device) -> PretrainedModel | None:
        """Load what counts for a problem and a device (:meth:`mltune.cost.pretrained.PretrainedModel.closest`).

        Raises
        ------
        ModelError
            See :func:`mltune.cost.model_file.load_model`.
        """
        return _load(self.path, self.card.sha256).closest(problem, device)


@lru_cache(maxsize=2)
def _load(path: Path, digest: str) -> PretrainedModel:
    """Load a model, once for all runs of a campaign."""
    model = load_model(path)
    if model.digest != digest:
        raise ModelError(f"the model {path} was replaced while it was read; start the run again.")
    return model


def choose_model(prior: str, kernel: Kernel, *, replay: bool = False) -> ChosenModel | None:
    """Return the model that a search starts from.

    Parameters
    ----------
    prior : str
        ``"auto"``, ``"none"``, the name of a model that comes with mltune, or a file. ``"auto"`` is the model of a
        kernel that comes with mltune, if there is one of its parameters, unless it lost against physics where it was
        judged on datasets that it had not seen: more than :data:`TOLERATED_LOSS` (``gain`` in its card).
    kernel : Kernel
    replay : bool
        Whether recorded timings are replayed: ``"auto"`` is then none, because the model may have seen them.

    Raises
    ------
    ModelError
        There is no such model, or it is of other parameters.

    Examples
    --------
    >>> from mltune.kernel.reader import load_kernel
    >>> choose_model("convolution", load_kernel("convolution")).card.kernel
    'convolution'
    """
    shipped = assets.folder("models") / f"{kernel.name if prior == AUTO else prior}.json"
    own = _comes_with_mltune(kernel)
    if prior == NONE or (prior == AUTO and (replay or not own or not shipped.is_file())):
        return None
    path = shipped if shipped.is_file() else Path(prior)
    if not file_of(path, ".json").exists():
        names = sorted(one.stem for one in assets.folder("models").glob("*.json"))
        raise ModelError(
            f"a model is a file or comes with mltune ({', '.join(names)}), but there is no "
            f"{printable(file_of(path, '.json'), 300)}{did_you_mean(prior, names) or '.'}"
        )
    card = load_card(path)
    fits = set(card.parameters) == set(kernel.all_parameters)
    if prior == AUTO:
        return ChosenModel(path, card) if fits and (card.gain is None or card.gain >= -TOLERATED_LOSS) else None
    if fits:
        return ChosenModel(path, card)
    raise ModelError(
        f"a model is used for the parameters that it was trained on, but {path.stem} is of {card.kernel} with "
        f"{', '.join(card.parameters)}, and {kernel.name} has {', '.join(kernel.all_parameters)}."
    )


def shipped_card(kernel: Kernel) -> Card | None:
    """Return the card of the model that comes with mltune for a kernel, also where no search starts from it."""
    path = assets.folder("models") / f"{kernel.name}.json"
    card = load_card(path) if _comes_with_mltune(kernel) and path.is_file() else None
    return card if card and set(card.parameters) == set(kernel.all_parameters) else None


def _comes_with_mltune(kernel: Kernel) -> bool:
    return kernel.folder.resolve().parent == assets.folder("kernels").resolve()
