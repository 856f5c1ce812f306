"""mltune's search inside the autotuner of Triton.

The decorator is imported when it is first used: the processes that compile do not need it.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mltune.integrations.triton.decorator import autotune as autotune

__all__ = ["autotune"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from mltune.integrations.triton import decorator

    return getattr(decorator, name)
