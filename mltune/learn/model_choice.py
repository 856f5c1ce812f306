"""The choice of the pretrained model that a search starts from."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from mltune import assets
from mltune.errors import ModelError

if TYPE_CHECKING:
    from mltune.kernel.bundle import Kernel
    from mltune.learn.model_file import Card
    from mltune.learn.pretrained import PretrainedModel

NONE = "none"
AUTO = "auto"


@dataclass(frozen=True, slots=True)
class ChosenModel:
    """A model whose card has been read and fits the kernel. Its regressors are loaded later: that takes a second."""

    path: Path
    card: Card

    def load(self) -> PretrainedModel:
        """Load it; see :func:`mltune.learn.model_file.load_model`."""
        from mltune.learn.model_file import load_model

        return load_model(self.path, self.card)


def choose_model(prior: str, kernel: Kernel, *, replay: bool = False) -> ChosenModel | None:
    """Return the model that a search starts from.

    Parameters
    ----------
    prior : str
        ``"auto"``, ``"none"``, the name of a model that comes with mltune, or a file. ``"auto"`` is the model that is
        named like the kernel, if there is one of its parameters.
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
    >>> choose_model("auto", load_kernel("transpose")).card.kernel
    'transpose'
    """
    shipped = assets.folder("models") / f"{kernel.name if prior == AUTO else prior}.json"
    if prior == NONE or (prior == AUTO and (replay or not shipped.is_file())):
        return None
    from mltune.learn.model_file import load_card

    path = shipped if shipped.is_file() else Path(prior)
    card = load_card(path)
    if set(card.parameters) == set(kernel.all_parameters):
        return ChosenModel(path, card)
    if prior == AUTO:
        return None
    raise ModelError(
        f"a model is used for the parameters that it was trained on, but {path.stem} is of {card.kernel} with "
        f"{', '.join(card.parameters)}, and {kernel.name} has {', '.join(kernel.all_parameters)}."
    )
