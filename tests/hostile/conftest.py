"""Fixtures of the hostile suite: its cases, honest inputs, and the sandbox in which commands run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hostile.base import make_base
from tests.hostile.sandbox import Sandbox
from tests.hostile.suite import few_cases, many_cases


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of honest inputs."""
    return make_base(tmp_path_factory.mktemp("honest") / "base")


@pytest.fixture(scope="session")
def sandbox() -> Iterator[Sandbox]:
    """Return the process that runs commands."""
    with Sandbox() as one:
        yield one


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Give each test the cases of the kinds of its module; the many only where they are asked for."""
    if "case" not in metafunc.fixturenames:
        return
    config, kinds = metafunc.config, metafunc.module.KINDS
    if metafunc.definition.get_closest_marker("hostile") is None:
        found = list(few_cases())
    else:
        wanted = "hostile" in config.getoption("markexpr").replace("not hostile", "")
        found = list(many_cases(config.getoption("hostile_seed"))) if wanted else []
    cases = [case for case in found if case.kind in kinds]
    metafunc.parametrize("case", cases, ids=[case.id for case in cases])
