"""``python -m mltune.integrations.triton PROGRAM ...``: a program with mltune's search in Triton's autotuners."""

from __future__ import annotations

import argparse
import os
import runpy
import sys
from pathlib import Path

from mltune.integrations.triton import OVERLAP, VARIABLE, install


def main() -> None:
    """Run a program or a module as Python would, with its arguments."""
    parser = argparse.ArgumentParser(
        prog="python -m mltune.integrations.triton",
        description="Runs a Python program in which mltune tunes Triton's kernels.",
    )
    parser.add_argument("-m", dest="is_module", action="store_true", help="PROGRAM is the name of a module")
    parser.add_argument("--overlap", action="store_true", help="compile the kernels of a first step at the same time")
    parser.add_argument("program", metavar="PROGRAM")
    parser.add_argument("arguments", metavar="...", nargs=argparse.REMAINDER, help="arguments of the program")
    options = parser.parse_args()
    os.environ[VARIABLE] = OVERLAP if options.overlap else "1"  # for the processes that it starts
    install(overlap=options.overlap)
    sys.argv = [options.program, *options.arguments]
    if options.is_module:
        sys.path[:1] = [os.getcwd()]
        runpy.run_module(options.program, run_name="__main__", alter_sys=True)
    else:
        sys.path[:1] = [str(Path(options.program).resolve().parent)]
        runpy.run_path(options.program, run_name="__main__")


if __name__ == "__main__":
    main()
