"""The choice of the pretrained model that a search starts from."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from mltune import assets
from mltune.errors import ModelError

if TYPE_CHECKING:
    from mltune.kernel.bundle import Kernel
    from mltune.learn.pretrained import PretrainedModel

NONE = "none"


def choose_model(prior: str, kernel: Kernel) -> PretrainedModel | None:
    """Return the model that a search starts from.

    Parameters
    ----------
    prior : str
        ``"none"``, the name of a model that comes with mltune, or a file.
    kernel : Kernel

    Raises
    ------
    ModelError
        There is no such model, or it is of other parameters.
    """
    if prior == NONE:
        return None
    from mltune.learn.model_file import load_model

    shipped = assets.folder("models") / f"{prior}.json"
    path = shipped if shipped.is_file() else Path(prior)
    model = load_model(path)
    if set(model.parameters) != set(kernel.all_parameters):
        raise ModelError(
            f"a model is used for the parameters that it was trained on, but {path.stem} is of {model.kernel} with "
            f"{', '.join(model.parameters)}, and {kernel.name} has {', '.join(kernel.all_parameters)}."
        )
    return model
