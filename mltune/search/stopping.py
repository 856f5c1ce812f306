"""The stopping rule: end a search once it has gained little for long."""

from __future__ import annotations

import math

import numpy as np

from mltune.kernel.coding import Floats

ENOUGH = "the best is as near to the upper bound as was asked for"
"""Reason of a search whose best is near enough to the upper bound."""

GAIN = 0.01
"""The share of improvement over the best that matters."""

FEWEST, MEASURED = 100, 250
"""Measurements without such a gain that end a search: a third of the space, within these, and at least half of all."""

USUAL = 1.15
"""Measurements after which a search ends as a multiple of those without a gain: the median of recorded searches."""

CERTAIN, ROOTS = (1e-5, 1e-2), 1.8
"""Where a model expects so many candidates to gain so much, from and to, so many roots of the space are enough.

A model that expects fewer knows nothing like the best: it would know of no other group either.
"""

FALSE = 0.05
"""Largest share of such searches, of recorded and synthetic spaces, that gain so much by as many measurements again."""


def little_gained(scores: Floats, count: int, hopes: float = math.inf) -> str:
    """Return why a search ends that has gained little for long; an empty text while it continues.

    The promise is about the search, not about the space: as many measurements again hardly ever find more;
    docs/explanation/search.md has the evidence. Scores are log shares of peak in the order of trials; NaN, which does
    not count, for failures. ``hopes`` is how many of its candidates its likeliest belief expects to gain so much.
    """
    measured = scores[np.isfinite(scores)]
    total = len(measured)
    enough = ROOTS * math.sqrt(count) if CERTAIN[0] < hopes < CERTAIN[1] else count / 3
    last = math.ceil(max(total / 2, _fewest(enough)))
    if last >= total or measured.max() - measured[: total - last].max() >= math.log1p(GAIN):
        return ""
    gain = f"{100 * GAIN:g} %"
    return (
        f"the last {last:,} of {total:,} measurements gained less than {gain}; "
        f"of recorded searches at most {100 * FALSE:g} % gain {gain} by {total:,} more"
    )


def expected_end(scores: Floats, count: int) -> int:
    """Return after how many measurements a search is expected to end: soon after it may, or as it gains no more.

    >>> expected_end(np.array([-2.0, -1.0]), 1500), expected_end(np.array([-2.0, -1.0]), 120)
    (288, 115)
    """
    measured = scores[np.isfinite(scores)]
    gained = int(np.argmax(measured > measured.max() - math.log1p(GAIN))) if len(measured) else 0
    fewest = _fewest(count / 3)
    return min(count, math.ceil(max(USUAL * fewest, gained + max(gained, fewest))))


def _fewest(enough: float) -> float:
    return min(max(enough, FEWEST), MEASURED)
