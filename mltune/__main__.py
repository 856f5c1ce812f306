"""The command ``mltune``, as ``python -m mltune``."""

import contextlib
import os
import sys

if not sys.flags.safe_path:  # `-m` put the working directory first: like the command, import nothing from there
    with contextlib.suppress(OSError, ValueError):
        sys.path.remove(os.getcwd())

from mltune.cli import main

if __name__ == "__main__":  # a process of multiprocessing imports this module again
    main()
