"""The stopping rule: end a search once it has gained little for long."""

from __future__ import annotations

import math

import numpy as np

from mltune.kernel.coding import Floats

ENOUGH = "the best is as near to the upper bound as was asked for"
"""Reason of a search that has reached its goal."""

GAIN = 0.01
"""The improvement over the best that matters."""

FEWEST, MEASURED = 100, 250
"""Measurements without such a gain that end a search, at least half of all: a third of the space, within these."""

FALSE = 0.05
"""Share of such searches, of recorded and made spaces, that gain so much by as many measurements again."""


def little_gained(scores: Floats, count: int) -> str:
    """Return why a search ends that has gained little for long; an empty text while it continues.

    The promise is about the search, not about the space: as many measurements again hardly ever find more. What it is
    worth was measured: docs/explanation/search.md.

    Parameters
    ----------
    scores : ndarray of shape (n_finished,)
        Log shares of peak in the order of trials; NaN, which does not count, for failures.
    count : int
        Number of configurations of the space.

    Examples
    --------
    >>> little_gained(np.append([-2.0], np.full(250, -1.0)), 5000)
    ''
    >>> print(little_gained(np.append([-1.0], np.full(250, -2.0)), 5000))
    the last 250 of 251 measurements gained less than 1 %; of recorded searches at most 5 % gain 1 % by 251 more
    """
    measured = scores[np.isfinite(scores)]
    total = len(measured)
    last = math.ceil(max(total / 2, min(max(count / 3, FEWEST), MEASURED)))
    if last >= total or measured.max() - measured[: total - last].max() >= math.log1p(GAIN):
        return ""
    gain = f"{100 * GAIN:g} %"
    return (
        f"the last {last:,} of {total:,} measurements gained less than {gain}; "
        f"of recorded searches at most {100 * FALSE:g} % gain {gain} by {total:,} more"
    )
