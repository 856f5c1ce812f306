"""Sweeps that teach a model the opposite of what they measured."""

from dataclasses import replace

import numpy as np

from mltune.cost.pretrained import Sweep


def mirrored(sweep: Sweep) -> Sweep:
    """Return a sweep in which each value of a parameter is replaced by that of the opposite end of the list."""
    columns = {}
    for name, column in sweep.columns.items():
        values, places = np.unique(column, return_inverse=True)
        columns[name] = values[::-1][places]
    return replace(sweep, columns=columns)
