"""The effort that the environment asks for."""

import pytest

from mltune.errors import UsageError
from mltune.known.effort import EFFORTS, effort


@pytest.mark.parametrize("asked", ["", *EFFORTS])
def test_an_effort_is_one_of_three_or_none(monkeypatch, asked):
    monkeypatch.setenv("MLTUNE_EFFORT", asked)
    assert effort() == asked


def test_another_is_refused(monkeypatch):
    monkeypatch.setenv("MLTUNE_EFFORT", "Full\n")
    with pytest.raises(UsageError, match="MLTUNE_EFFORT cannot be 'Full"):
        effort()


def test_without_the_variable_nothing_is_asked(monkeypatch):
    monkeypatch.delenv("MLTUNE_EFFORT", raising=False)
    assert effort() == ""
