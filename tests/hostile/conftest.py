"""Fixtures of the hostile suite: honest inputs, and the sandbox in which commands run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hostile.base import make_base
from tests.hostile.sandbox import Sandbox


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of honest inputs."""
    return make_base(tmp_path_factory.mktemp("honest") / "base")


@pytest.fixture(scope="session")
def sandbox() -> Iterator[Sandbox]:
    """Return the process that runs commands."""
    with Sandbox() as one:
        yield one
