"""Find the fastest version of a parametrised GPU kernel while measuring few of its versions.

``import mltune`` itself takes a few milliseconds: everything else is imported when it is first used.

Examples
--------
>>> import mltune
>>> result = mltune.tune("sgemm", trans="NT", size=4096, trials=40, device="replay:h200-sgemm-nt-4096-random")
>>> len(result.records)
40
"""

import os
import sys

if sys.argv[:1] == ["-m"] and not sys.flags.safe_path:  # Python has put the working directory first
    _module = sys.orig_argv[-len(sys.argv)]
    if _module == "mltune" or (_module.startswith("-") and _module.endswith("mmltune")):
        try:  # noqa: SIM105 - the module contextlib might be that of the working directory
            sys.path.remove(os.getcwd())  # nothing more is imported from there, as by the command
        except (OSError, ValueError):
            pass

from importlib import import_module
from typing import TYPE_CHECKING, Any

from mltune import errors as errors
from mltune.errors import MltuneError as MltuneError
from mltune.errors import MltuneWarning as MltuneWarning
from mltune.errors import RunError as RunError
from mltune.errors import UsageError as UsageError
from mltune.records.versions import __version__ as __version__

if TYPE_CHECKING:
    from mltune.api import *  # noqa: F403 - what it offers is in its __all__

_HERE = ("MltuneError", "MltuneWarning", "RunError", "UsageError", "__version__", "errors")


def __getattr__(name: str) -> Any:
    api = import_module("mltune.api")
    if name == "__all__":
        return [*_HERE, *api.__all__]
    if name not in ("api", *api.__all__):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    checked = import_module("mltune.files.arguments").checked
    value = api if name == "api" else checked(getattr(api, name), UsageError)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*_HERE, *import_module("mltune.api").__all__]
