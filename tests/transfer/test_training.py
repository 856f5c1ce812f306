"""Models are trained on datasets of one kernel, and judged on what they have not seen."""

import pytest

from mltune import assets
from mltune.dataset.dataset import list_datasets, load_dataset
from mltune.errors import ModelError
from mltune.learn.model_choice import choose_model
from mltune.learn.model_file import load_card
from mltune.transfer.training import as_sweeps, train, without

CONVOLUTION = ["convolution_rtx_a4000", "convolution_rtx_a6000", "convolution_mi250x_gcd"]


@pytest.fixture(scope="module")
def datasets():
    return [load_dataset(name) for name in CONVOLUTION]


def test_cards_of_one_architecture_are_left_out_together(datasets):
    sweeps = as_sweeps(datasets)
    assert [one.group for one in sweeps] == ["sm_86", "sm_86", "AMD Instinct MI250X (one GCD), gfx90a"]
    model = train(datasets)
    assert [one.sweep for one in without(model, sweeps, "sm_86").members] == ["convolution_mi250x_gcd"]
    scores = model.facts["scores"]
    assert scores.keys() == set(CONVOLUTION)
    for score in scores.values():
        shares = list(score["share_of_optimum"].values())
        assert shares == sorted(shares)
        assert 0 < shares[0] <= shares[-1] <= 1
    assert model.facts["datasets"]["convolution_rtx_a4000"]["sha256"] == datasets[0].manifest.sha256


def test_of_one_architecture_problems_are_left_out():
    found = as_sweeps([load_dataset("h200-sgemm-nt-1024-random"), load_dataset("h200-dgemm-nt-4096-random")])
    assert [one.group for one in found] == ["sgemm NT 1024", "dgemm NT 4096"]


def test_a_model_is_of_one_kernel(datasets):
    with pytest.raises(ModelError, match="of one kernel"):
        train([datasets[0], load_dataset("xgemm_titan_rtx")])


def test_every_recorded_kernel_has_a_model_of_its_datasets():
    """models/train.sh must be run again after datasets/ has changed."""
    from mltune.kernel.reader import load_kernel

    for kernel in sorted({manifest.kernel for manifest in list_datasets()}):
        card = load_card(assets.folder("models") / kernel)
        hashes = {name: origin["sha256"] for name, origin in card.facts["datasets"].items()}
        assert hashes == {one.name: one.sha256 for one in list_datasets() if one.kernel == kernel}
        assert choose_model(kernel, load_kernel(kernel)).kernel == kernel


def test_a_model_of_other_parameters_is_refused():
    from mltune.kernel.reader import load_kernel

    with pytest.raises(ModelError, match="trained on"):
        choose_model("transpose", load_kernel("softmax"))
    with pytest.raises(ModelError, match=r"none_such\.json"):
        choose_model("none_such", load_kernel("softmax"))
    assert choose_model("none", load_kernel("softmax")) is None
