"""The model that starts a search over launches: what it is worth for a kernel that it has not seen, and its silence."""

import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from mltune.cost.model_file import load_card, load_model
from mltune.dataset.dataset import datasets_in, list_datasets, load_dataset
from mltune.device.known import H200
from mltune.errors import ModelError
from mltune.files.folders import assets
from mltune.search.launch_model import FEATURES, expected, launch_features, launch_model
from mltune.search.launch_search import LaunchSearch

MATMUL = ("BLOCK_M", "BLOCK_N"), lambda of, m, n: np.ceil(of["M"] / m) * np.ceil(of["N"] / n)
ROWS = ("ROWS",), lambda of, rows: np.ceil(of["M"] / rows)
GRIDS = {
    "matmul": MATMUL,
    "fp8_matmul": (("BLOCK_SIZE_M", "BLOCK_SIZE_N"), MATMUL[1]),
    "flash_attention": (("BLOCK_M",), lambda of, m: np.ceil(of["LENGTH"] / m) * of["HEADS"]),
    "layer_norm": ROWS,
    "softmax": ROWS,
    "grouped_gemm": ((), lambda of: 132.0),
}
"""Parameters in the grid of a kernel, and its blocks."""


class Sweep:
    """A recorded sweep of a Triton kernel, and a model that has not seen the kernel."""

    def __init__(self, data):
        self.kernel, self.device = data.manifest.kernel.removeprefix("triton_"), data.manifest.device
        self.tiles, grid = GRIDS[self.kernel]
        self.columns = {name: np.asarray(data.columns[name]) for name in data.manifest.parameters}
        blocks = grid(data.manifest.problem.values, *(self.columns[name] for name in self.tiles))
        self.threads = 32.0 * self.columns["num_warps"]
        self.blocks = self.columns["PROGRAMS"] * 1.0 if "PROGRAMS" in self.columns else blocks
        self.times_s = data.numbers("median_s")
        self.shares = np.nan_to_num(np.nanmin(self.times_s) / self.times_s)
        self.features = launch_features(self.columns, self.tiles, self.blocks, self.threads, self.device)
        model = launch_model("auto")
        unseen = tuple(one for one in model.members if one.sweep == f"without {self.kernel}")
        self.model = replace(model, members=unseen)

    def first(self, start, count):
        """Return the share that a search has reached after some measurements, without facts of the compiler."""
        search = LaunchSearch(self.columns, self.tiles, self.blocks, self.threads, self.device, 0, start)
        left = np.arange(len(self.shares))
        for _ in range(count):
            chosen = search.best_first(left, compiled=False)[0]
            search.times_s[chosen] = np.nan_to_num(self.times_s[chosen], nan=np.inf)
            left = left[left != chosen]
        return float(np.nanmin(self.times_s) / search.times_s[np.isfinite(search.times_s)].min(initial=np.inf))


@pytest.fixture(scope="module", params=["H200", "H100"])
def sweeps(request):
    """Return the sweeps on the GPU that the model knows, and on one that it does not know."""
    found = [load_dataset(one) for kernel in GRIDS for one in datasets_in(assets("datasets") / f"triton_{kernel}")]
    return [Sweep(one) for one in found if request.param in one.manifest.device.name]


def test_its_first_choice_of_an_unseen_kernel_is_better_than_chance_and_physics(sweeps):
    assert len(sweeps) == (12 if "H200" in sweeps[0].device.name else 10)
    assert all(len(one.model.members) == 1 for one in sweeps)
    starts = [expected(one.model, one.features) for one in sweeps]
    chosen = np.array([one.first(start, 1) for one, start in zip(sweeps, starts, strict=True)])
    alone = np.array([one.shares[start.argmax()] for one, start in zip(sweeps, starts, strict=True)])
    physics = np.array([one.first(None, 1) for one in sweeps])
    chance = np.array([one.shares.mean() for one in sweeps])
    assert chosen.mean() > chance.mean() + 0.15
    assert alone.mean() > chance.mean() + 0.15
    assert chosen.mean() > physics.mean() + 0.15
    assert (chosen > chance).sum() >= len(sweeps) - 2


def test_few_measurements_find_more_from_it(sweeps):
    for count in (2, 5):
        with_model = np.mean([one.first(expected(one.model, one.features), count) for one in sweeps])
        assert with_model > np.mean([one.first(None, count) for one in sweeps]) + 0.02


def test_all_members_together_agree_on_what_they_have_seen(sweeps):
    model = launch_model("auto")
    starts = [expected(model, one.features) for one in sweeps]
    assert all(start is not None for start in starts)
    assert np.mean([one.shares[start.argmax()] for one, start in zip(sweeps, starts, strict=True)]) > 0.85


def features_of(parameters, tiles=("M",), device=H200, **changed):
    columns = {name: np.array(column) for name, column in parameters.items()}
    count = len(next(iter(columns.values())))
    blocks = changed.get("blocks", np.arange(1.0, count + 1.0))
    return launch_features(columns, tiles, blocks, np.full(count, 128.0), device)


TILES = {"M": [32, 64, 128, 256], "N": [256, 128, 32, 64], "num_warps": [4, 8, 4, 8]}


def test_names_and_constants_say_nothing():
    found = features_of(TILES)
    assert tuple(found) == FEATURES
    renamed = {{"M": "HEIGHT", "N": "WIDTH"}.get(name, name): column for name, column in TILES.items()}
    constant = {**renamed, "DEPTH": [64] * 4, "num_stages": [3] * 4}
    for one, other in zip(found.values(), features_of(constant, ("HEIGHT",)).values(), strict=True):
        np.testing.assert_array_equal(one, other)


WARPS = {"num_warps": [1, 2, 4, 8], "num_stages": [2, 3, 4, 5]}


@pytest.mark.parametrize(
    "unknown",
    [
        features_of(WARPS),
        features_of({**WARPS, "BLOCK": [128, 256, 512, 1024]}, ("BLOCK",)),
        features_of({**TILES, "M": [48, 64, 80, 96]}),
        features_of({"M": TILES["M"], "N": TILES["N"]}),
        features_of(TILES, device=None),
        features_of(TILES, device=replace(H200, compute_capability=None)),
        features_of(TILES, blocks=np.array([1.0, 2.0, np.nan, 4.0])),
    ],
    ids=["warps alone", "one extent", "no powers of two", "no warps", "no GPU", "no CUDA", "no grid"],
)
def test_it_is_silent_of_lists_unlike_those_that_it_has_seen(unknown):
    assert unknown == {}
    assert expected(launch_model("auto"), unknown) is None


@pytest.mark.parametrize("name", ["h200-convolution-cuda-random", "h200-softmax-16384x4096-random"])
def test_it_is_silent_of_recorded_kernels_that_are_not_triton_kernels(name):
    data = load_dataset(name)
    columns = {one: np.asarray(data.columns[one])[:100] for one in data.manifest.parameters}
    some = np.full(100, 256.0)
    assert expected(launch_model("auto"), launch_features(columns, [*columns], some, some, H200)) is None


class Member:
    """Stand for a regressor that knows one feature."""

    def __init__(self, feature, sign):
        self.feature, self.sign = feature, sign

    def predict(self, X):
        return self.sign * X[:, self.feature]


def test_it_is_silent_where_its_members_disagree():
    model, found = launch_model("auto"), features_of(TILES)
    area = FEATURES.index("area")

    def asked(*signs):
        regressors = [Member(area, sign) for sign in signs]
        return expected(replace(model, members=[replace(model.members[0], regressor=one) for one in regressors]), found)

    np.testing.assert_array_equal(asked(1.0, 2.0).argsort(), found["area"].argsort())
    assert asked(1.0, -1.0) is None
    assert asked(0.0, 0.0) is None


def test_only_a_model_of_launches_can_be_used(tmp_path):
    assert launch_model("none") is None
    with pytest.raises(ModelError, match="softmax is a model of 'softmax' with 'LANES"):
        launch_model(str(assets("models") / "softmax"))
    with pytest.raises(ModelError, match="the card of the model,"):
        launch_model(str(tmp_path / "nothing"))
    for suffix in (".json", ".npy"):
        shutil.copy(assets("models") / f"triton{suffix}", tmp_path / f"mine{suffix}")
    assert launch_model(str(tmp_path / "mine")).digest == launch_model("auto").digest
    card = (tmp_path / "mine.json").read_text().replace('"kernel": "triton"', '"kernel": "\\u001b[31m"')
    (tmp_path / "other.json").write_text(card)
    shutil.copy(tmp_path / "mine.npy", tmp_path / "other.npy")
    with pytest.raises(ModelError, match=r"other is a model of '\\x1b\[31m' with"):
        launch_model(str(tmp_path / "other"))
    content = bytearray((tmp_path / "mine.npy").read_bytes())
    content[len(content) // 2] ^= 1
    (tmp_path / "damaged.npy").write_bytes(content)
    shutil.copy(tmp_path / "mine.json", tmp_path / "damaged.json")
    with pytest.raises(ModelError, match="the SHA-256 of"):
        launch_model(str(tmp_path / "damaged"))


def test_the_integration_reads_it_only_when_it_tunes():
    program = """
import sys
opened = []
sys.addaudithook(lambda event, given: opened.append(str(given[0])) if event == "open" else None)
import mltune.integrations.triton
assert opened and not [one for one in opened if "models" in one and "triton" in one.rsplit("/", 1)[-1]], opened
from mltune.search.launch_model import launch_model
launch_model("auto")
assert [one for one in opened if one.endswith("triton.npy")]
assert not {"sklearn", "scipy", "triton"} & sys.modules.keys()
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=300)


def test_it_was_trained_on_the_sweeps_of_one_gpu_that_are_here():
    """``models/train.sh`` must be run again after datasets of Triton kernels on an H200 have changed."""
    recorded = [one for one in list_datasets() if one.kernel.startswith("triton_") and "H200" in one.device.name]
    trained = load_card(assets("models") / "triton").facts["datasets"]
    assert {name: one["sha256"] for name, one in trained.items()} == {one.name: one.sha256 for one in recorded}
    kernels = {one.kernel.removeprefix("triton_") for one in recorded}
    assert {one.sweep for one in load_model(assets("models") / "triton").members} == {
        f"without {one}" for one in kernels
    }
    assert Path(assets("models") / "triton.npy").stat().st_size < 1_000_000
