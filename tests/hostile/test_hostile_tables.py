"""Every command answers a hostile input: dataset, table, Kernel Tuner cache."""

import pytest

from tests.hostile.suite import examine

KINDS = (
    "dataset",
    "table",
    "Kernel Tuner cache",
)


@pytest.mark.sampled(6)
def test_an_input_is_answered(case, tmp_path, base, sandbox, record_property):
    assert examine(case, tmp_path / "input", base, sandbox, record_property) == []


@pytest.mark.hostile
def test_one_of_many_inputs_is_answered(case, tmp_path, base, sandbox, record_property):
    assert examine(case, tmp_path / "input", base, sandbox, record_property, commands=3) == []
