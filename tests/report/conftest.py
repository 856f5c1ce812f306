"""A bad night, and the report on it."""

import shutil

import pytest
from campaigns import bad_night

from mltune.report.writing import write_report


@pytest.fixture(scope="session")
def _night(tmp_path_factory):
    directory = tmp_path_factory.mktemp("nights") / "bad"
    bad_night(directory)
    return directory


@pytest.fixture
def night(_night, tmp_path):
    """Return the directory of a bad night, to write into."""
    return shutil.copytree(_night, tmp_path / "night")


@pytest.fixture(scope="session")
def report(_night, tmp_path_factory):
    """Return the report on a bad night: to be read only."""
    directory = shutil.copytree(_night, tmp_path_factory.mktemp("reported") / "night")
    return write_report(directory)
