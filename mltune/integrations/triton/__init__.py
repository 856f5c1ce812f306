"""mltune's search inside the autotuner of Triton.

What it has is imported when it is first used: the processes that compile do not need it.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mltune.integrations.triton.decorator import autotune as autotune
    from mltune.integrations.triton.switch import install as install

__all__ = ["autotune", "install"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from mltune.integrations.triton import decorator, switch

    return getattr(switch if name == "install" else decorator, name)
