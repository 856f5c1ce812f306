"""Models are trained on datasets of one kernel, and judged on what they have not seen."""

import json
from dataclasses import replace

import numpy as np
import pytest

from mltune.cost.features import Features
from mltune.cost.model_file import choose_model, load_card
from mltune.cost.pretrained import PretrainedModel
from mltune.dataset.dataset import list_datasets, load_dataset, load_manifest
from mltune.device.known import find_device
from mltune.device.peaks import peak_flops
from mltune.errors import DatasetError, ModelError
from mltune.files import folders
from mltune.kernel.placed import PlacedKernel
from mltune.kernel.reader import load_kernel
from mltune.problem.kinds import problem_from_name
from mltune.records.trial import TrialState
from mltune.resolve.device import Target
from mltune.resolve.request import TuneRequest
from mltune.tuning.training import (
    as_sweeps,
    datasets_of_runs,
    find_datasets,
    gain,
    joined,
    over_physics,
    train,
    without,
)
from mltune.tuning.tuner import tune

CONVOLUTION = ["convolution_rtx_a4000", "convolution_rtx_a6000", "convolution_mi250x_gcd", "convolution_w6600"]

SEARCHES = folders.assets("datasets") / "gemm_wgmma" / "searches"


@pytest.fixture(scope="module")
def datasets():
    return [load_dataset(name) for name in CONVOLUTION]


def test_cards_of_one_architecture_are_left_out_together(datasets):
    sweeps = as_sweeps(datasets)
    assert [one.group for one in sweeps] == ["sm_86", "sm_86", "gfx90a", "gfx103x"]
    model = train(datasets)
    assert [one.sweep for one in without(model, sweeps, "sm_86").members] == CONVOLUTION[2:]
    scores = model.facts["scores"]
    assert scores.keys() == set(CONVOLUTION[2:])  # those without CUDA judge each other, and nothing else
    for score in scores.values():
        assert score["share_of_optimum"].keys() == {"model", "physics", "together"}
        for shares in score["share_of_optimum"].values():
            assert list(shares.values()) == sorted(shares.values())
            assert 0 < shares["1"] <= shares["25"] <= 1
        assert -1 <= score["spearman"] <= 1
        assert score["error"] >= abs(score["bias"])
    assert sum(model.facts["importance"].values()) == pytest.approx(1, abs=0.01)
    assert model.facts["datasets"]["convolution_rtx_a4000"]["sha256"] == datasets[0].manifest.sha256


def test_the_time_of_the_first_choice_is_compared_with_that_of_physics(datasets):
    """By physics among what ran, and by what was learned from other groups, where there are such."""
    model = train(datasets)
    assert [list(one.over_physics) for one in model.members] == [["physics"]] * 2 + [["physics", "model"]] * 2
    for dataset, member in zip(datasets, model.members, strict=True):
        features = Features(PlacedKernel(load_kernel("convolution"), dataset.manifest.problem, dataset.manifest.device))
        median_s = np.where(dataset.states == TrialState.OK, dataset.numbers("median_s"), np.nan)
        share = np.where(np.isnan(median_s), 0.0, features.prior(dataset.columns))
        peak = peak_flops(dataset.manifest.device, dataset.manifest.problem.arithmetic)
        ratios = median_s * peak * share / dataset.manifest.problem.flops
        assert member.over_physics["physics"] == pytest.approx(ratios[np.argmax(share)], rel=1e-3)


def test_of_a_recorded_kernel_with_other_parameters_physics_has_no_time(datasets):
    other = replace(datasets[0], manifest=replace(datasets[0].manifest, kernel="transpose"))
    assert train([other]).members[0].over_physics == {}


def test_the_first_choice_is_what_the_others_remember():
    """Where it was recorded: searches near each other find it again."""
    found = [load_dataset(str(SEARCHES / f"h200-{name}-8192-search")) for name in ("bgemm-nt", "hgemm-nn", "hgemm-tn")]
    model = train(found)
    others = replace(model, members=model.members[1:]).closest(found[0].manifest.problem, found[0].manifest.device)
    rows = [np.all([found[0].columns[name] == one[name] for name in one], axis=0) for one in others.first]
    row = next(np.argmax(one) for one in rows if one.any())
    features = Features(PlacedKernel(load_kernel("gemm_wgmma"), found[0].manifest.problem, found[0].manifest.device))
    physical_s = features.physical_s({name: column[[row]] for name, column in found[0].columns.items()})
    assert model.members[0].over_physics["model"] == pytest.approx(
        found[0].numbers("median_s")[row] / physical_s[0], rel=1e-3
    )


def test_of_one_architecture_problems_are_left_out():
    found = as_sweeps([load_dataset("h200-sgemm-nt-1024-random"), load_dataset("h200-dgemm-nt-4096-random")])
    assert [one.group for one in found] == ["sgemm NT 1024", "dgemm NT 4096"]


def test_a_model_learns_from_runs(tmp_path):
    request = TuneRequest(
        load_manifest(CONVOLUTION[0]).problem,
        load_kernel("convolution"),
        Target(dataset=CONVOLUTION[0]),
        trials=70,
        skip=False,
    )
    tune(replace(request, run=tmp_path / "plan" / "problems" / "long"))
    tune(replace(request, run=tmp_path / "plan" / "problems" / "short", trials=20))
    (tmp_path / "plan" / "plan.toml").write_text("")

    (found,) = datasets_of_runs(tmp_path / "plan")
    assert (found.manifest.name, len(found)) == ("long", 70)
    assert train([found]).facts["datasets"]["long"]["rows"] == 70
    with pytest.raises(ModelError, match="run of 50 times or more"):
        datasets_of_runs(tmp_path / "plan" / "problems" / "short")


def test_datasets_of_one_sweep_count_together():
    found = load_dataset("h200-sgemm-nt-1024-random")

    def part(name, start, stop):
        manifest = replace(found.manifest, name=name, rows=stop - start)
        return replace(found, manifest=manifest, table=found.table.slice(start, stop - start))

    with pytest.raises(ModelError, match="first has too few times: a model learns from 50 or more"):
        train([part("first", 0, 30)])
    assert len(train([part("first", 0, 30), part("second", 30, 60)]).members) == 1


def test_a_folder_holds_datasets():
    found = find_datasets(str(folders.assets("datasets") / "convolution"))
    assert {one.manifest.name for one in found} == {*CONVOLUTION}
    with pytest.raises(DatasetError, match="has no datasets"):
        find_datasets(str(folders.assets("models")))


def test_a_model_is_of_one_kernel(datasets):
    both = [datasets[0], load_dataset("xgemm_titan_rtx")]
    with pytest.raises(ModelError, match=r"there are timings of clblast_xgemm, convolution, .*; name it: --kernel"):
        train(both)
    with pytest.raises(ModelError, match="'convolutio' is no kernel in the datasets; did you mean 'convolution'"):
        train(both, kernel="convolutio")
    assert [*train(both, kernel="convolution").facts["datasets"]] == [CONVOLUTION[0]]


@pytest.mark.system
def test_every_recorded_kernel_has_a_model_of_its_datasets():
    """models/train.sh must be run again after datasets/ has changed."""
    from mltune.kernel.reader import is_bundle, load_kernel

    rehearsed = {
        path.stem for path in (folders.assets("datasets") / "rehearsal").glob("*.json")
    }  # no model has seen them
    manifests = [one for one in list_datasets() if is_bundle(one.kernel) and one.name not in rehearsed]
    for kernel in sorted({manifest.kernel for manifest in manifests}):
        card = load_card(folders.assets("models") / kernel)
        hashes = {name: origin["sha256"] for name, origin in card.facts["datasets"].items()}
        recorded = [one for one in manifests if one.kernel == kernel]
        searches = map(load_manifest, sorted((folders.assets("datasets") / kernel).glob("searches/*.json")))
        assert hashes == {one.name: one.sha256 for one in [*recorded, *searches]}
        model = choose_model(kernel, load_kernel(kernel)).load(recorded[0].problem, recorded[0].device)
        assert recorded[0].name in [member.sweep for member in model.members]


@pytest.mark.system
def test_times_in_cards_are_over_those_of_physics_today():
    """models/train.sh must be run again after physics or the resources of a kernel have changed."""
    from mltune.kernel.reader import is_bundle

    for folder in sorted(folders.assets("datasets").iterdir()):
        if folder.is_dir() and is_bundle(folder.name):
            datasets = find_datasets(str(folder))
            manifests = {one.manifest.name: one.manifest for one in datasets}
            sweeps = joined(datasets, as_sweeps(datasets))
            nothing = PretrainedModel(folder.name, (), ())
            now = [over_physics(nothing, [], one, manifests[one.name]).get("physics") for one in sweeps]
            card = load_card(folders.assets("models") / folder.name)
            assert [one.over_physics.get("physics") for one in card.members] == now


def test_the_gain_is_that_over_physics():
    shares = {"model": {"1": 0.5}, "physics": {"1": 0.6, "5": 0.8}, "together": {"1": 0.7, "5": 0.7}}
    assert gain({"one": {"share_of_optimum": shares}}) == pytest.approx(0.0)
    assert gain({"one": {"share_of_optimum": {"model": {"1": 0.5}}}}) == 0.5
    assert gain({}) is None


def test_a_run_starts_from_a_model_by_itself_unless_it_lost(tmp_path, monkeypatch):
    """Not where it lost against physics, not of other parameters, not in replay, not without a model.

    Nor for a kernel of the same name that does not come with mltune.
    """
    kernel = load_kernel("transpose")
    shipped, kernels = folders.assets("models"), folders.assets("kernels")
    replaced = {"models": tmp_path, "kernels": kernels}
    monkeypatch.setattr("mltune.cost.model_file.folders.assets", replaced.__getitem__)
    assert choose_model("auto", kernel) is None
    document = json.loads((shipped / "transpose.json").read_text())
    for value, used in ((None, True), (0.01, True), (-0.01, True), (-0.02, False), ("high", True)):
        document["facts"]["gain"] = value
        (tmp_path / "transpose.json").write_text(json.dumps(document))
        assert (choose_model("auto", kernel) is not None) == used
        assert choose_model("auto", replace(kernel, folder=tmp_path / "transpose")) is None
    assert choose_model("auto", kernel, replay=True) is None
    document["parameters"] = ["OTHER"]
    (tmp_path / "transpose.json").write_text(json.dumps(document))
    assert choose_model("auto", kernel) is None


def test_what_a_model_has_not_seen_is_said():
    model = choose_model("clblast_xgemm", load_kernel("clblast_xgemm"))
    problem = problem_from_name("sgemm", trans="NT", size=4096)
    assert model.notices(problem, find_device("rtx_2080_ti")[0]) == ()
    assert model.notices(problem, find_device("a100")[0]) == (
        "the model clblast_xgemm was trained on sm_75, sm_86, and this GPU is sm_80",
    )
    assert "operations" in model.notices(problem_from_name("sgemm", trans="NT", size=64), find_device("a100")[0])[1]
    assert "classes" in model.notices(problem_from_name("zgemm", trans="NT", size=2048), find_device("a100")[0])[1]


def test_a_model_of_other_parameters_is_refused():
    from mltune.kernel.reader import load_kernel

    with pytest.raises(ModelError, match="trained on"):
        choose_model("transpose", load_kernel("softmax"))
    with pytest.raises(ModelError, match=r"is no model.*clblast_xgemm, .*none_such\.json"):
        choose_model("none_such", load_kernel("softmax"))
    assert choose_model("none", load_kernel("softmax")) is None
