"""The environment of child processes: the checkout's package, the packages of this process, and no GPU where asked."""

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def importing(*folders: Path | str, **changes: str) -> dict[str, str]:
    """Return the environment of a process that imports from folders, from this checkout, and then as this one does."""
    paths = [*map(str, folders), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return os.environ | {"PYTHONPATH": os.pathsep.join(paths)} | changes
