"""The environment of child processes: the checkout's package, the packages of this process, and no GPU where asked."""

import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

PATIENT = (
    *(sys.executable, "-c"),
    "from mltune.process.signals import Interrupt\n"
    "begin = Interrupt.__init__\n"
    "Interrupt.__init__ = lambda interrupt, patience_s=0.0, **options: begin(interrupt, 600.0, **options)\n"
    "from mltune.cli import main\n"
    "main()",
)
"""The command ``mltune`` with minutes to end after a signal, which a busy machine may need."""


def importing(*folders: Path | str, **changes: str) -> dict[str, str]:
    """Return the environment of a process that imports from folders, from this checkout, and then as this one does."""
    paths = [*map(str, folders), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return os.environ | {"PYTHONPATH": os.pathsep.join(paths)} | changes
