"""Every command answers a hostile input, and changes nothing of somebody else; what others send has a module of its own."""

import pytest

from tests.hostile.commands import COMMANDS_OF
from tests.hostile.suite import examine
from tests.hostile.test_hostile_senders import KINDS as SENT

KINDS = COMMANDS_OF.keys() - {*SENT}


@pytest.mark.sampled(30)
def test_an_input_is_answered(case, tmp_path, base, sandbox, record_property):
    assert examine(case, tmp_path / "input", base, sandbox, record_property) == []


@pytest.mark.hostile
def test_one_of_many_inputs_is_answered(case, tmp_path, base, sandbox, record_property):
    assert examine(case, tmp_path / "input", base, sandbox, record_property, commands=3) == []
