"""mltune's search inside the autotuner of Triton.

What it has is imported when it is first used: the processes that compile do not need it.
"""

import os
import warnings
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mltune.integrations.triton.decorator import autotune as autotune
    from mltune.integrations.triton.switch import install as install

__all__ = ["autotune", "install"]

VARIABLE, OVERLAP = "MLTUNE_TRITON", "overlap"
"""Environment variable that is 1 where mltune is to tune the Triton kernels of programs that import PyTorch.

It is OVERLAP where the kernels of a first step are to be compiled at the same time."""


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from mltune.integrations.triton import decorator, switch

    return getattr(switch if name == "install" else decorator, name)


def install_if_asked() -> None:
    """Install if the environment says so: ``import torch`` calls this, an entry point of its group ``torch.backends``.

    Nothing that is wrong here is raised, for it would end the import of PyTorch.
    """
    if (switch_value := os.environ.get(VARIABLE)) in ("1", OVERLAP):
        from mltune.errors import MltuneError, MltuneWarning
        from mltune.integrations.triton.decorator import Settings
        from mltune.integrations.triton.switch import switch

        try:
            switch(Settings(overlap=switch_value == OVERLAP))
        except MltuneError as error:
            warnings.warn(f"{VARIABLE}={switch_value} has no effect: {error}", MltuneWarning, stacklevel=2)
