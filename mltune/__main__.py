"""The command ``mltune``, as ``python -m mltune``."""

from mltune.cli import main

if __name__ == "__main__":  # a process of multiprocessing imports this module again
    main()
