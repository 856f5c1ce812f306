"""Find the fastest version of a parametrised GPU kernel while measuring few of its versions.

``import mltune`` itself takes a few milliseconds: everything else is imported when it is first used.

Examples
--------
>>> import mltune
>>> result = mltune.tune("sgemm", trans="NT", size=4096, trials=40, device="replay:h200-sgemm-nt-4096-random")
>>> len(result.records)
40
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mltune import api, errors
from mltune.errors import MltuneError, MltuneWarning, RunError, UsageError
from mltune.records.versions import __version__

if TYPE_CHECKING:
    from mltune.api import *  # noqa: F403 - what it offers is in its __all__

__all__ = ["MltuneError", "MltuneWarning", "RunError", "UsageError", "__version__", "errors"]
__all__ += api.__all__


def __getattr__(name: str) -> Any:
    if name not in api.__all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(api, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return list(__all__)
