"""The command ``mltune``, also as ``python -m mltune``."""

import os
import signal
import sys

if signal.getsignal(signal.SIGINT) is signal.default_int_handler and "multiprocessing" not in sys.modules:
    signal.signal(signal.SIGINT, lambda number, _: os._exit(128 + number))  # nothing is lost until all is imported

from mltune.cli import main

if __name__ == "__main__":  # a process of multiprocessing imports this module again
    main()
