"""Choices without a measurement."""

import json
import os
import subprocess
import sys
from dataclasses import asdict

import pytest

from mltune.device.lookup import find_device
from mltune.errors import UsageError
from mltune.problem.kinds import problem_from_name
from mltune.show import tables, terminal
from mltune.tuning.prediction import predict

SGEMM = problem_from_name("sgemm", trans="NT", size=2048)


def test_choices_are_those_that_a_search_measures_first():
    device, _ = find_device("a100")
    found = predict(SGEMM, "gemm_simt", device, top=3, wisdom="none")
    assert [one.source for one in found.choices] == ["expected"] * 3
    assert found.expected is None  # the model of gemm_simt is not used by itself
    more = predict(SGEMM, "gemm_simt", device, top=8, wisdom="none")
    assert more.choices[:3] == found.choices


def test_the_expectation_is_that_of_what_was_held_out():
    device, _ = find_device("rtx_4090")
    found = predict(SGEMM, "clblast_xgemm", device, wisdom="none")
    expected = found.expected
    assert expected.held_out == 4
    assert expected.choices == 1
    assert 0.5 < expected.least <= expected.share <= expected.most <= 1
    assert found.notices == ("the model clblast_xgemm was trained on sm_75, sm_86, and this GPU is sm_89",)


def test_what_is_not_possible_is_refused():
    with pytest.raises(UsageError, match="1 to 8"):
        predict(SGEMM, "gemm_simt", find_device("a100")[0], top=9, wisdom="none")


def mltune(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "mltune", "predict", *arguments],
        env=os.environ | {"CUDA_VISIBLE_DEVICES": "", "COLUMNS": "160"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_the_command():
    document = json.loads(mltune("transpose", "--device", "h100", "--top", "2", "--json").stdout)
    assert len(document["choices"]) == 2
    assert document["device"].startswith("NVIDIA H100")
    refused = mltune("transpose")
    assert refused.returncode == 2
    assert "no GPU was found" in refused.stderr


def test_the_choices_are_shown(capsys):
    found = predict(SGEMM, "clblast_xgemm", find_device("a100")[0], top=2, wisdom="none")
    terminal.show(tables.predicted({"problem": SGEMM.label, "device": "NVIDIA A100", **asdict(found)}))
    shown = capsys.readouterr().out
    assert "MWG" in shown
    assert "of the optimum on the mean of 4 spaces" in " ".join(shown.split())
    assert "note: the model clblast_xgemm was trained on sm_75, sm_86" in " ".join(shown.split())
