"""``python -m mltune.integrations.triton PROGRAM ...``: a program with mltune's search in Triton's autotuners."""

from __future__ import annotations

import os
import runpy
import sys
from pathlib import Path

from mltune.integrations.triton import VARIABLE, install

USAGE = """usage: python -m mltune.integrations.triton PROGRAM ...
       python -m mltune.integrations.triton -m MODULE ...

Runs a Python program in which mltune tunes Triton's kernels."""


def main() -> None:
    """Run a program or a module as Python would, with its arguments."""
    arguments = sys.argv[1:]
    if arguments[:1] in ([], ["-h"], ["--help"]) or arguments == ["-m"]:
        sys.exit(USAGE if arguments[:1] in ([], ["-m"]) else sys.stdout.write(USAGE + "\n") and 0)
    os.environ[VARIABLE] = "1"  # for the processes that it starts
    install()
    is_module = arguments[0] == "-m"
    sys.argv = arguments[is_module:]
    if is_module:
        sys.path[:1] = [os.getcwd()]
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    else:
        sys.path[:1] = [str(Path(sys.argv[0]).resolve().parent)]
        runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
