"""mltune train, and runs that start from its model."""

import json

import pytest

import mltune
from mltune.errors import ModelError, RunDirectoryError
from mltune.results.messages import message
from tests.cli.program import command

DATASET = "h200-transpose-8192x8192-random"


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    path = tmp_path_factory.mktemp("models") / "mine"
    return json.loads(command("train", DATASET, "--out", path, "--json").stdout)


def tune(run, prior, trials=24):
    device = f"replay:{DATASET}"
    return mltune.tune(device=device, trials=trials, run=run, prior=prior, stop=False, progress=None)


def test_the_command_writes_a_model_and_says_what_it_has_learned_from(trained):
    assert trained["kernel"] == "transpose"
    assert trained["datasets"][DATASET]["rows"] == 400
    assert trained["scores"] == {}


def test_why_nothing_was_judged_is_said(tmp_path):
    """Also of two architectures that say nothing of each other; what carries the model is known all the same."""
    shown = command("train", "convolution_w6600", "convolution_rtx_a4000", "--out", tmp_path / "two", "--report").stdout
    assert "with CUDA both or neither" in " ".join(shown.split())
    assert "parameters that carry it: " in shown


def test_a_model_is_not_replaced_by_chance(trained):
    refused = command("train", DATASET, "--out", trained["model"])
    assert refused.returncode == 2
    assert "mine.json exists; choose another name, or --overwrite" in refused.stderr
    assert command("train", DATASET, "--out", trained["model"], "--overwrite").returncode == 0


@pytest.mark.parametrize("arguments", [("train", DATASET, "--out", "."), ("tune", "transpose", "--prior", "")])
def test_a_model_has_a_name(arguments):
    refused = command(*arguments)
    assert refused.returncode == 2
    assert "does not name a model" in refused.stderr
    assert len(refused.stderr.splitlines()) <= 2  # a run without a GPU first says that it replays


def test_a_run_starts_from_a_model(trained, tmp_path):
    """It has seen the recording, so that its first choice is among the best."""
    started, other = tune(tmp_path / "with", trained["model"]), tune(tmp_path / "without", "none")
    best_s = min(mltune.load_dataset(DATASET).numbers("median_s"))
    first = next(record for record in started.records if record.proposed_by == "start")
    assert first.median_s < 1.05 * best_s
    assert [one.index for one in started.records] != [one.index for one in other.records]


@pytest.mark.slow
def test_what_a_model_does_not_know_is_said(tmp_path):
    """In a run and in a pruned sweep; a model that is left out is not said to be used."""
    model = tmp_path / "nvidia"
    assert command("train", "convolution_rtx_a4000", "--out", model).returncode == 0
    run, device = tmp_path / "run", "replay:convolution_w6600"
    begun = command("tune", "--device", device, "--prior", model, "--trials", "16", "--run", run, "--json")
    left_out = "the model nvidia is left out: it was trained on GPUs with CUDA alone"
    assert left_out in begun.stderr
    assert json.loads(begun.stdout)["model"] == ""
    (event,) = (json.loads(line) for line in (run / "events.jsonl").read_text().splitlines() if '"model"' in line)
    assert message(event).endswith(f"pretrained model: {left_out}")
    sweep = "sweep", "convolution", "--complete", "--prune", "--device", device, "--prior", model
    assert left_out in command(*sweep, "--run", tmp_path / "sweep").stderr


def test_a_run_names_its_model(trained, tmp_path):
    assert tune(tmp_path / "with", trained["model"]).model == "mine"
    assert mltune.load_run(tmp_path / "with").to_json()["model"] == "mine"


def test_a_run_is_resumed_with_its_model_only(trained, tmp_path):
    run = tmp_path / "run"
    tune(run, trained["model"])
    assert len(tune(run, trained["model"], trials=32).records) == 32
    with pytest.raises(RunDirectoryError, match="prior"):
        tune(run, "none", trials=40)


def test_a_model_of_another_kernel_is_refused(tmp_path):
    with pytest.raises(ModelError, match="trained on"):
        tune(tmp_path / "run", "softmax")
