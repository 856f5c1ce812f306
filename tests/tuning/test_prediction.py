"""Choices without a measurement."""

import json
import shutil
from dataclasses import asdict

import numpy as np
import pytest
from scipy import stats

from mltune.cost.features import Features
from mltune.cost.model_file import SUFFIXES, shipped_card
from mltune.cost.pretrained import are_near
from mltune.dataset.dataset import load_manifest
from mltune.device.known import find_device
from mltune.errors import MltuneWarning, UsageError, WisdomError
from mltune.files import folders
from mltune.kernel.placed import PlacedKernel
from mltune.kernel.reader import load_kernel
from mltune.problem.kinds import problem_from_name
from mltune.resolve.device import Target
from mltune.resolve.problems import named_problem
from mltune.resolve.request import TuneRequest
from mltune.show import table, tables
from mltune.tuning.prediction import predict
from mltune.tuning.tuner import tune
from tests.cli.program import command

SGEMM = problem_from_name("sgemm", trans="NT", size=2048)


@pytest.mark.slow
def test_choices_are_those_that_a_search_measures_first():
    device, _ = find_device("a100")
    found = predict(PlacedKernel(load_kernel("gemm_simt"), SGEMM, device), top=3, wisdom="none")
    assert [one.source for one in found.choices] == ["expected"] * 3
    assert (found.expected.source, found.expected.choices) == ("physics", 1)
    more = predict(PlacedKernel(load_kernel("gemm_simt"), SGEMM, device), top=8, wisdom="none")
    assert more.choices[:3] == found.choices


def test_the_expectation_is_that_of_what_was_held_out():
    device, _ = find_device("rtx_4090")
    found = predict(PlacedKernel(load_kernel("clblast_xgemm"), SGEMM, device), wisdom="none")
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
    placed = PlacedKernel(kernel, SGEMM, device)  # whose space takes most of a second
    found = predict(placed, wisdom="none")
    assert (found.expected.source, found.expected.share) == ("physics", pytest.approx(by_physics))
    assert found.expected.by_model == pytest.approx(by_model)
    assert found.choices == predict(placed, prior="none", wisdom="none").choices
    named = predict(placed, prior="gemm_simt", wisdom="none").expected  # is used where it is asked for
    assert (named.source, named.by_model) == ("model", None)
    assert named.learned_from == "other problems on GPUs of the same architecture"
    assert predict(placed, top=5, wisdom="none").expected.source == "model"
    shown = command("predict", "dgemm", "--gpu", "t4", "--kernel", "gemm_simt", "--wisdom", "none").stdout
    text = " ".join(shown.split())
    assert f"ranked by physics; the first choice by physics alone reached {by_physics:.3f} of the optimum" in text
    assert f", with the model {by_model:.3f}: it is left out" in text


def test_of_a_model_that_is_left_out_nothing_is_expected():
    device, _ = find_device("mi325x")
    found = predict(PlacedKernel(load_kernel("clblast_xgemm"), SGEMM, device), top=5, wisdom="none")
    (notice,) = found.notices
    assert "left out" in notice
    card = shipped_card(load_kernel("clblast_xgemm"))
    assert (found.expected.source, found.expected.choices) == ("physics", 5)
    assert found.expected.share == pytest.approx(np.mean(card.shares("physics")[5]))
    assert found.expected.share < np.mean(card.shares("model")[5])


def test_nothing_is_expected_of_what_was_not_judged():
    problem, bundle = named_problem("transpose", {}, None)
    assert predict(PlacedKernel(bundle, problem, find_device("a100")[0]), wisdom="none").expected is None


HGEMM = problem_from_name("hgemm", trans="NT", size=4096)
FEW = "takes 5 recorded sweeps of similar size on {}, each judged by others; known: {}".format


@pytest.fixture
def model(tmp_path):
    """Return a copy of the model of gemm_wgmma, and a function that changes the times of a copy of its card."""
    for suffix in SUFFIXES:
        shutil.copy(folders.assets("models") / f"gemm_wgmma{suffix}", tmp_path / f"mine{suffix}")

    def change(times):
        card = json.loads((tmp_path / "mine.json").read_text())
        for number, member in enumerate(card["members"]):
            times(number, member)
        (tmp_path / "mine.json").write_text(json.dumps(card))
        kernel, device = load_kernel("gemm_wgmma"), find_device("h200")[0]
        return predict(PlacedKernel(kernel, HGEMM, device), prior=str(tmp_path / "mine"), wisdom="none")

    return change


def test_the_first_choice_has_a_time_with_an_interval():
    """That of Student's t over the recorded sweeps of similar size, whose coverage is counted by leaving each out."""
    kernel, device = load_kernel("gemm_wgmma"), find_device("h200")[0]
    found = predict(PlacedKernel(kernel, HGEMM, device), wisdom="none")
    columns = {name: np.array([value]) for name, value in found.choices[0].configuration.items()}
    (physical_s,) = Features(PlacedKernel(kernel, HGEMM, device)).physical_s(columns)
    logs = [
        np.log(one.over_physics["model"]) for one in shipped_card(kernel).members if are_near(one.flops, HGEMM.flops)
    ]

    def interval(logs):
        spread = np.std(logs, ddof=1) * np.sqrt(1 + 1 / len(logs))
        return stats.t.interval(0.9, len(logs) - 1, np.mean(logs), spread)

    inside = 0
    for at, one in enumerate(logs):
        least, most = interval(logs[:at] + logs[at + 1 :])
        inside += least <= one <= most
    assert (found.time.sweeps, found.time.inside, found.time.confidence) == (len(logs), inside, 0.9)
    assert [found.time.least_s, found.time.most_s] == pytest.approx(physical_s * np.exp(interval(logs)))
    assert found.time.time_s == pytest.approx(physical_s * np.exp(np.mean(logs)))
    assert found.no_time == ""
    assert found.expected is None  # the share of the optimum was not judged
    by_physics = predict(PlacedKernel(kernel, HGEMM, device), prior="none", wisdom="none").time
    assert by_physics.most_s / by_physics.least_s != pytest.approx(found.time.most_s / found.time.least_s, rel=0.01)


def test_what_is_known_has_the_time_that_was_measured(tmp_path):
    recorded, kernel = load_manifest("convolution_rtx_a4000"), load_kernel("convolution")
    target, file = Target(dataset=recorded.name), tmp_path / "wisdom.json"
    tune(TuneRequest(recorded.problem, kernel, target, trials=20, run=tmp_path / "run", wisdom=file))
    found = predict(PlacedKernel(kernel, recorded.problem, recorded.device), wisdom=file)
    assert found.choices[0].source == "known"
    assert (found.time, found.no_time) == (None, "the first choice is known: the wisdom has its time")


@pytest.mark.parametrize(
    ("name", "kernel", "device", "reason"),
    [
        ("reduction", "reduction", "h200", FEW("sm_90", 1)),
        ("hgemm", "gemm_wgmma", "h100", ""),
        ("sgemm", "gemm_simt", "a100", FEW("sm_80", 0)),
        ("sgemm", "gemm_naive", "h200", FEW("sm_90", 0)),
        ("transpose", "transpose", "h200", FEW("sm_90", 1)),
    ],
)
@pytest.mark.sampled(2, nightly=99)
def test_a_time_that_cannot_be_promised_is_not_given(name, kernel, device, reason):
    problem, bundle = named_problem(name, {}, kernel)
    found = predict(PlacedKernel(bundle, problem, find_device(device)[0]), wisdom="none")
    assert (found.time is None) == bool(reason)
    assert reason in found.no_time


def test_four_sweeps_are_too_few(model):
    def fourth(number, member):
        member["over_physics"] = {"model": 0.8} if member["flops"] > 1e11 and number in (0, 1, 2, 3) else {}

    assert model(fourth).no_time.endswith(FEW("sm_90", 4))


def test_a_card_without_times_is_that_of_another_version(model):
    found = model(lambda number, member: member.pop("over_physics"))
    assert found.time is None
    assert found.no_time == "the card of the model has no times of first choices; train the model again"


def test_the_largest_ratios_of_a_card_give_finite_times(model):
    time = model(lambda number, member: member.update(over_physics={"model": 1e6 if number % 2 else 1e-6})).time
    assert 0 < time.least_s < time.time_s < time.most_s < np.inf
    same = model(lambda number, member: member.update(over_physics={"model": 1.0})).time
    assert same.least_s == same.time_s == same.most_s


def test_a_damaged_wisdom_is_an_error_only_where_it_was_named(tmp_path, monkeypatch):
    device, damaged = find_device("a100")[0], tmp_path / "wisdom.json"
    damaged.write_text("{")
    monkeypatch.setenv("MLTUNE_WISDOM", str(damaged))
    with pytest.warns(MltuneWarning, match="It is not used"):
        assert predict(PlacedKernel(load_kernel("gemm_shared"), SGEMM, device)).choices[0].source == "expected"
    with pytest.raises(WisdomError, match="is no wisdom"):
        predict(PlacedKernel(load_kernel("gemm_shared"), SGEMM, device), wisdom=damaged)
    with pytest.raises(WisdomError, match=r"there is no .*none\.json"):
        predict(PlacedKernel(load_kernel("gemm_shared"), SGEMM, device), wisdom=tmp_path / "none.json")


def test_what_is_not_possible_is_refused():
    with pytest.raises(UsageError, match="1 to 8"):
        predict(PlacedKernel(load_kernel("gemm_simt"), SGEMM, find_device("a100")[0]), top=9, wisdom="none")


def prediction(*arguments):
    return command("predict", *arguments, COLUMNS="160")


def test_the_command():
    document = json.loads(prediction("transpose", "--device", "h100", "--top", "2", "--json").stdout)
    assert len(document["choices"]) == 2
    assert document["device"].startswith("NVIDIA H100")
    assert (document["time"], document["no_time"]) == (None, f"that {FEW('sm_90', 1)}")
    refused = prediction("transpose")
    assert refused.returncode == 2
    assert "no GPU was found" in refused.stderr


def test_the_choices_are_shown(capsys):
    found = predict(PlacedKernel(load_kernel("clblast_xgemm"), SGEMM, find_device("a100")[0]), top=2, wisdom="none")
    table.show(
        tables.predicted({"problem": SGEMM.label, "device": "NVIDIA A100", "kernel": "clblast_xgemm", **asdict(found)})
    )
    shown = capsys.readouterr().out
    assert "MWG" in shown
    assert "ranked by model; the first choice" in " ".join(shown.split())
    assert "by the model, learned from GPUs of other architectures, reached" in " ".join(shown.split())
    assert "of the optimum on the mean of 4 recorded spaces (lowest to" in " ".join(shown.split())
    assert "note: the model clblast_xgemm was trained on sm_75, sm_86" in " ".join(shown.split())


def test_the_time_is_shown(capsys):
    time = {"time_s": 1.914e-3, "least_s": 1.8e-3, "most_s": 0.0021, "confidence": 0.9, "sweeps": 8, "inside": 6}
    document = {"problem": "p", "device": "d", "kernel": "k", "choices": [], "expected": None, "notices": ()}

    def shown(time, no_time=""):
        table.show(tables.predicted(document | {"time": time, "no_time": no_time}))
        return " ".join(capsys.readouterr().out.split())

    said = "of the first choice: 1.91 ms, with a probability of 90 % between 1.8 ms and 2.1 ms"
    assert f"{said}; learned from only 8 recorded sweeps of similar size, of which 6 lay in the" in shown(time)
    assert "learned from 20 recorded sweeps" in shown(time | {"sweeps": 20})
    assert "no time is given for the first choice: few" in shown(None, "few")
