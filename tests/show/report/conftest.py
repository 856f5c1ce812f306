"""A campaign with many failures, and the report on it."""

import shutil

import pytest
from campaigns import failed_campaign

from mltune.show.report.writing import write_report


@pytest.fixture(scope="session")
def _campaign(tmp_path_factory):
    directory = tmp_path_factory.mktemp("campaigns") / "failed"
    failed_campaign(directory)
    return directory


@pytest.fixture
def campaign(_campaign, tmp_path):
    """Return the directory of the campaign, to write into."""
    return shutil.copytree(_campaign, tmp_path / "campaign")


@pytest.fixture(scope="session")
def report(_campaign, tmp_path_factory):
    """Return the report on the campaign, for reading only."""
    directory = shutil.copytree(_campaign, tmp_path_factory.mktemp("reported") / "campaign")
    return write_report(directory)
