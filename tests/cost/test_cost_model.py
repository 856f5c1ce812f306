"""The target of the cost models, and its compression."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from mltune.cost.regressors import Compression, log_share

SPEEDS = arrays(np.float64, st.integers(1, 30), elements=st.floats(-20, 0))


def test_log_share():
    assert log_share(flops=1e12, median_s=1.0, peak_flops=1e12) == 0.0
    assert log_share(flops=1e12, median_s=2.0, peak_flops=1e12) == pytest.approx(np.log(0.5))


@given(SPEEDS, st.floats(0.05, 1))
def test_compression_keeps_the_order_and_is_undone(speeds, slope):
    compression = Compression(slope)
    target = compression.fit(len(speeds), speeds)
    np.testing.assert_allclose(compression.expand(target), speeds, atol=1e-9)
    assert (np.diff(target[np.argsort(speeds)]) >= -1e-12).all()


def test_the_fast_half_is_left_alone_and_failures_are_the_slowest():
    target = Compression(0.2).fit(5, np.array([-4.0, -2.0, -1.0, -0.5, np.nan]))
    np.testing.assert_allclose(target[2:4], [-1.0, -0.5])
    assert target[4] == target[0] > -4.0


@pytest.mark.parametrize("y", [np.full(5, np.nan), np.zeros(4)])
def test_nothing_to_learn_from_is_refused(y):
    with pytest.raises(ValueError, match="as many rows as targets"):
        Compression(0.2).fit(5, y)
