"""The choice of the pretrained model that a search starts from."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from mltune import assets
from mltune.errors import ModelError

if TYPE_CHECKING:
    from mltune.kernel.bundle import Kernel
    from mltune.learn.pretrained import PretrainedModel

AUTO, NONE = "auto", "none"


def choose_model(prior: str, kernel: Kernel, *, replayed: bool = False) -> PretrainedModel | None:
    """Return the model that a search starts from.

    Parameters
    ----------
    prior : str
        ``"auto"``, ``"none"``, the name of a model that comes with mltune, or a file.
    kernel : Kernel
    replayed : bool
        Whether the run is a replay: a model that comes with mltune has seen the recording, so that ``"auto"`` is none.

    Raises
    ------
    ModelError
        There is no such model, or it is of another kernel.
    """
    if prior == NONE or (prior == AUTO and replayed):
        return None
    shipped = assets.folder("models") / f"{kernel.name if prior == AUTO else prior}.json"
    own = kernel.folder.resolve().parent == assets.folder("kernels").resolve()
    if prior == AUTO and not (own and shipped.is_file()):
        return None
    from mltune.learn.model_file import load_card, load_model

    path = shipped if shipped.is_file() else Path(prior)
    card = load_card(path)
    if set(card.parameters) != set(kernel.all_parameters):
        raise ModelError(
            f"a model is used for the parameters that it was trained on, but {path.stem} is of {card.kernel} with "
            f"{', '.join(card.parameters)}, and {kernel.name} has {', '.join(kernel.all_parameters)}."
        )
    return load_model(path)
