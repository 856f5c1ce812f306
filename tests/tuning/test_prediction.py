"""Choices without a measurement."""

import json
from dataclasses import asdict

import numpy as np
import pytest

from mltune.cost.model_file import shipped_card
from mltune.device.known import find_device
from mltune.errors import MltuneWarning, UsageError, WisdomError
from mltune.kernel.reader import load_kernel
from mltune.problem.kinds import problem_from_name
from mltune.resolve.problems import named_problem
from mltune.show import table, tables
from mltune.tuning.bound import predict
from tests.cli.program import command

SGEMM = problem_from_name("sgemm", trans="NT", size=2048)


@pytest.mark.slow
def test_choices_are_those_that_a_search_measures_first():
    device, _ = find_device("a100")
    found = predict(SGEMM, load_kernel("gemm_simt"), device, top=3, wisdom="none")
    assert [one.source for one in found.choices] == ["expected"] * 3
    assert (found.expected.source, found.expected.choices) == ("physics", 1)
    more = predict(SGEMM, load_kernel("gemm_simt"), device, top=8, wisdom="none")
    assert more.choices[:3] == found.choices


def test_the_expectation_is_that_of_what_was_held_out():
    device, _ = find_device("rtx_4090")
    found = predict(SGEMM, load_kernel("clblast_xgemm"), device, wisdom="none")
    expected = found.expected
    assert (expected.held_out, expected.learned_from) == (4, "GPUs of other architectures")
    assert expected.choices == 1
    assert 0.5 < expected.least <= expected.share <= expected.most <= 1
    assert found.notices == ("the model clblast_xgemm was trained on sm_75, sm_86, and this GPU is sm_89",)


def test_physics_ranks_where_the_card_shows_it_to_be_better():
    kernel, device = load_kernel("gemm_simt"), find_device("a100")[0]
    card = shipped_card(kernel)
    by_model, by_physics = (np.mean(card.shares(source)[1]) for source in ("model", "physics"))
    assert by_model < by_physics
    found = predict(SGEMM, kernel, device, wisdom="none")
    assert (found.expected.source, found.expected.share) == ("physics", pytest.approx(by_physics))
    assert found.expected.by_model == pytest.approx(by_model)
    assert found.choices == predict(SGEMM, kernel, device, prior="none", wisdom="none").choices
    named = predict(SGEMM, kernel, device, prior="gemm_simt", wisdom="none").expected  # is used where it is asked for
    assert (named.source, named.by_model) == ("model", None)
    assert named.learned_from == "other problems on the same GPU, NVIDIA H200"
    assert predict(SGEMM, kernel, device, top=5, wisdom="none").expected.source == "model"
    shown = command("predict", "dgemm", "--device", "t4", "--kernel", "gemm_simt", "--wisdom", "none").stdout
    text = " ".join(shown.split())
    assert "ranked by physics; the first choice by physics alone reached 0.924 of the optimum" in text
    assert ", with the model 0.901: it is left out" in text


def test_of_a_model_that_is_left_out_nothing_is_expected():
    device, _ = find_device("mi325x")
    found = predict(SGEMM, load_kernel("clblast_xgemm"), device, top=5, wisdom="none")
    (notice,) = found.notices
    assert "left out" in notice
    card = shipped_card(load_kernel("clblast_xgemm"))
    assert (found.expected.source, found.expected.choices) == ("physics", 5)
    assert found.expected.share == pytest.approx(np.mean(card.shares("physics")[5]))
    assert found.expected.share < np.mean(card.shares("model")[5])


def test_nothing_is_expected_of_what_was_not_judged():
    problem, bundle = named_problem("transpose", {}, None)
    assert predict(problem, bundle, find_device("a100")[0], wisdom="none").expected is None


def test_a_damaged_wisdom_is_an_error_only_where_it_was_named(tmp_path, monkeypatch):
    device, damaged = find_device("a100")[0], tmp_path / "wisdom.json"
    damaged.write_text("{")
    monkeypatch.setenv("MLTUNE_WISDOM", str(damaged))
    with pytest.warns(MltuneWarning, match="It is not used"):
        assert predict(SGEMM, load_kernel("gemm_shared"), device).choices[0].source == "expected"
    with pytest.raises(WisdomError, match="must be a wisdom"):
        predict(SGEMM, load_kernel("gemm_shared"), device, wisdom=damaged)
    with pytest.raises(WisdomError, match=r"there is no .*none\.json"):
        predict(SGEMM, load_kernel("gemm_shared"), device, wisdom=tmp_path / "none.json")


def test_what_is_not_possible_is_refused():
    with pytest.raises(UsageError, match="1 to 8"):
        predict(SGEMM, load_kernel("gemm_simt"), find_device("a100")[0], top=9, wisdom="none")


def prediction(*arguments):
    return command("predict", *arguments, COLUMNS="160")


def test_the_command():
    document = json.loads(prediction("transpose", "--device", "h100", "--top", "2", "--json").stdout)
    assert len(document["choices"]) == 2
    assert document["device"].startswith("NVIDIA H100")
    refused = prediction("transpose")
    assert refused.returncode == 2
    assert "no GPU was found" in refused.stderr


def test_the_choices_are_shown(capsys):
    found = predict(SGEMM, load_kernel("clblast_xgemm"), find_device("a100")[0], top=2, wisdom="none")
    table.show(
        tables.predicted({"problem": SGEMM.label, "device": "NVIDIA A100", "kernel": "clblast_xgemm", **asdict(found)})
    )
    shown = capsys.readouterr().out
    assert "MWG" in shown
    assert "ranked by model; the first choice" in " ".join(shown.split())
    assert "by the model, learned from GPUs of other architectures, reached" in " ".join(shown.split())
    assert "of the optimum on the mean of 4 recorded spaces (lowest to" in " ".join(shown.split())
    assert "note: the model clblast_xgemm was trained on sm_75, sm_86" in " ".join(shown.split())
