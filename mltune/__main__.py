"""``python -m mltune`` is the command ``mltune``."""

from mltune.cli import main

main()
