"""A small recording with failures and known costs."""

import pytest

from mltune.comparison.simulation import Recording
from mltune.testing.strategies import hill as make_recording


@pytest.fixture(scope="session")
def hill():
    """Return the function that makes recordings of the landscape."""
    return make_recording


@pytest.fixture(scope="session")
def recording() -> Recording:
    return make_recording()
