"""The command ``mltune``, as ``python -m mltune``."""

from mltune.cli import main

main()
