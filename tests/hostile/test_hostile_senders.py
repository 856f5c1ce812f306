"""Every command answers what others send: rows of a database that many write, messages of a worker of a cluster."""

import os

import pytest

from tests.hostile.cases import Case
from tests.hostile.commands import COMMANDS_OF
from tests.hostile.databases import DATABASE, honest_run
from tests.hostile.suite import examine, failures
from tests.postgres import programs

KINDS = (
    "database rows",
    "cluster messages",
)


@pytest.fixture(scope="session")
def served(request, tmp_path_factory, base):
    """Return the folder of honest inputs, with a database where PostgreSQL is installed."""
    if programs() is None:
        return base
    pytest.importorskip("psycopg")
    folder = tmp_path_factory.mktemp("served")
    for path in base.iterdir():
        (folder / path.name).symlink_to(path)
    (folder / DATABASE).write_text(request.getfixturevalue("postgres").url(f"hostile-{os.getpid()}"))
    return folder


@pytest.mark.sampled(6)
def test_an_input_is_answered(case, tmp_path, base, sandbox, record_property):
    assert examine(case, tmp_path / "input", base, sandbox, record_property) == []


@pytest.mark.hostile
def test_one_of_many_inputs_is_answered(case, tmp_path, served, sandbox, record_property):
    assert examine(case, tmp_path / "input", served, sandbox, record_property, commands=3) == []


@pytest.mark.system
def test_an_honest_run_in_a_database_is_accepted(served, tmp_path, sandbox):
    if not (served / DATABASE).exists():
        pytest.skip("PostgreSQL is not installed")
    place = Case("database rows", "honest", print).place(tmp_path / "input", served)
    honest_run(place, (served / DATABASE).read_text())
    for command in dict.fromkeys(COMMANDS_OF["database rows"]):
        outcome = sandbox.run(command, place.folder)
        assert (failures(outcome), outcome.status) == ([], 0), outcome.output
