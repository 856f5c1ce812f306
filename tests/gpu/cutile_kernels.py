"""A kernel of cuTile; its source must be in a file."""

import cuda.tile as ct


@ct.kernel
def double(x, y, tile: ct.Constant[int]):
    """Write twice the values of an array."""
    at = ct.bid(0)
    ct.store(y, (at,), 2 * ct.load(x, (at,), (tile,)))
