"""Files of models: what is written is read again, and nothing else is used."""

import hashlib
import io
import json
import math
import subprocess
import sys
import tracemalloc
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from sklearn.ensemble import HistGradientBoostingRegressor

from mltune.cost.model_file import MOST_BYTES, MOST_MEMBERS, NODE, load_card, load_model, save_model
from mltune.cost.pretrained import Member, PretrainedModel
from mltune.errors import ModelError
from mltune.files.folders import assets

X = np.random.default_rng(0).random((200, 2))


def regressor(iterations=5, **options):
    made = HistGradientBoostingRegressor(max_iter=iterations, early_stopping=False, **options)
    return made.fit(X, X[:, 0] - X[:, 1])


@pytest.fixture
def path(tmp_path):
    members = tuple(
        Member(name, "sm_90", "sgemm NT", "s", 1e9, regressor(random_state=seed), ({"P": 2, "Q": seed},), ratios)
        for seed, (name, ratios) in enumerate({"a": {"model": 0.8, "physics": 1.5}, "b": {}}.items())
    )
    save_model(PretrainedModel("toy", ("P", "Q"), members, facts={"versions": {"numpy": "1"}}), tmp_path / "toy")
    return tmp_path / "toy.npy"


def put(path, content):
    """Replace the regressors, with the hash that belongs to them."""
    content = content if isinstance(content, bytes) else saved(content)
    path.write_bytes(content)
    write_card(path, {"sha256": hashlib.sha256(content).hexdigest()})


def saved(array):
    file = io.BytesIO()
    np.save(file, array, allow_pickle=True)
    return file.getvalue()


def write_card(path, change):
    card = json.loads(path.with_suffix(".json").read_text())
    path.with_suffix(".json").write_text(json.dumps(card | change))


def test_what_is_written_is_read(path):
    columns = {"P": np.arange(1, 9), "Q": np.arange(2, 10)}
    model = load_model(path)
    members = tuple(
        Member(name, "sm_90", "sgemm NT", "s", 1e9, regressor(random_state=seed)) for seed, name in enumerate("ab")
    )
    expected = PretrainedModel("toy", ("P", "Q"), members).predict(columns)
    np.testing.assert_array_equal(model.predict(columns), expected)
    assert (model.kernel, model.parameters, [one.sweep for one in model.members]) == ("toy", ("P", "Q"), ["a", "b"])
    assert [one.fastest for one in model.members] == [({"P": 2, "Q": 0},), ({"P": 2, "Q": 1},)]
    assert [one.over_physics for one in model.members] == [{"model": 0.8, "physics": 1.5}, {}]
    assert model.digest == load_card(path).sha256 == hashlib.sha256(path.read_bytes()).hexdigest()


def test_a_sweep_without_a_regressor_is_remembered_and_predicts_nothing(path):
    model = load_model(path)
    silent = replace(model.members[0], sweep="c", regressor=None)
    save_model(replace(model, members=(silent, *model.members)), path)
    again = load_model(path)
    assert [(one.sweep, one.has_regressor) for one in again.members] == [("c", False), ("a", True), ("b", True)]
    assert again.members[0].fastest == silent.fastest
    columns = {"P": np.arange(1, 9), "Q": np.arange(2, 10)}
    np.testing.assert_array_equal(again.predict(columns), model.predict(columns))

    card = json.loads(path.with_suffix(".json").read_text())
    write_card(path, {"members": [one | {"has_regressor": False} for one in card["members"]]})
    with pytest.raises(ModelError, match="no member of the model has a regressor"):
        load_model(path)
    write_card(path, {"members": [one | {"has_regressor": True} for one in card["members"]]})
    with pytest.raises(ModelError):
        load_model(path)


def test_a_file_predicts_what_the_regressors_of_scikit_learn_predict_to_the_last_bit(tmp_path):
    fitted = regressor(60, learning_rate=0.2)
    save_model(PretrainedModel("toy", ("P", "Q"), (Member("a", "sm_90", "", "s", 1e9, fitted),)), tmp_path / "toy")
    (member,) = load_model(tmp_path / "toy").members
    thresholds = np.load(tmp_path / "toy.npy")["num_threshold"]
    points = np.concatenate([np.random.default_rng(1).random((5000, 2)), np.tile(thresholds, (2, 1)).T])
    np.testing.assert_array_equal(member.regressor.predict(points), fitted.predict(points))
    assert member.regressor.predict(X[:0]).shape == (0,)


def test_a_search_starts_from_a_file_without_scikit_learn():
    """Its import takes seconds."""
    program = """
import sys
import numpy as np
from mltune.cost.model_file import load_model
from mltune.files.folders import assets
model = load_model(assets("models") / "softmax")
assert np.isfinite(model.predict({name: np.ones(3) for name in model.parameters})).all()
assert not {"sklearn", "scipy"} & sys.modules.keys()
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=300)


def test_a_model_that_was_read_is_written_with_the_same_bytes(path):
    """Those of a campaign are written again, beside new ones."""
    again = path.with_name("again.npy")
    save_model(load_model(path), again)
    assert again.read_bytes() == path.read_bytes()


def test_a_name_may_have_dots(path):
    model = load_model(path)
    other = path.with_name("toy.v2")
    save_model(replace(model, kernel="other"), other)
    assert load_model(path).kernel == "toy"
    for name in ("toy.v2", "toy.v2.json", "toy.v2.npy"):
        assert load_model(path.with_name(name)).kernel == "other"


def test_a_kill_while_a_model_is_replaced_leaves_one_that_is_read(path):
    program = """
import os, sys
from dataclasses import replace
from pathlib import Path
from mltune.cost.model_file import load_model, save_model
model, renamed = load_model(Path(sys.argv[1])), []
def kill(event, arguments):
    renamed.extend([event] if event == "os.rename" else [])
    if event == "os.rename" and len(renamed) == 3:  # the card is written
        os.kill(os.getpid(), 9)
sys.addaudithook(kill)
save_model(replace(model, kernel="other", members=model.members[:1]), Path(sys.argv[1]))
"""
    done = subprocess.run([sys.executable, "-c", program, path], timeout=300)
    assert done.returncode == -9
    model = load_model(path)
    assert (model.kernel, [one.sweep for one in model.members]) == ("other", ["a"])


@pytest.mark.parametrize("name", ["", ".", "..", "/"])
def test_a_path_without_a_name_is_refused(name):
    with pytest.raises(ModelError, match="does not name a model"):
        load_model(Path(name))


def test_a_file_that_is_not_that_of_its_card_is_refused(path):
    path.write_bytes(path.read_bytes() + b" ")
    with pytest.raises(ModelError, match="is not that of its card"):
        load_model(path)


@pytest.mark.parametrize("missing", [".json", ".npy"])
def test_a_missing_file_is_named(path, missing):
    path.with_suffix(missing).unlink()
    with pytest.raises(ModelError, match=rf"toy\{missing}"):
        load_model(path)


def facts(share):
    """Return the facts of a model that was judged on one dataset."""
    shares = {"model": {"1": 0.4}, "physics": {"1": 0.5, "5": 0.8}, "together": {"1": share, "5": 0.9}}
    return {"gain": 0.15, "scores": {"one": {"share_of_optimum": shares}}, "datasets": {"one": {"flops": 1e9}}}


def test_figures_of_a_card_are_read(path):
    """What is no figure is left out."""
    write_card(path, {"facts": facts("high")})
    card = load_card(path)
    assert (card.gain, card.shares("model"), card.shares("physics")) == (0.15, {5: [0.9]}, {1: [0.5], 5: [0.8]})
    assert [one.flops for one in card.training.values()] == [1e9]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"format": 2}, "format"),
        ({"kernel": ""}, "kernel"),
        ({"weight": -1}, "weight"),
        ({"parameters": []}, "parameters"),
        ({"members": [{"sweep": "a"}]}, "are not 1 regressors"),
        ({"members": [{"sweep": "a", "fastest": [{"P": 2**60}]}, {"sweep": "b"}]}, "fastest"),
        ({"members": [{"sweep": "a", "fastest": [{"P": 0.5}]}, {"sweep": "b"}]}, "fastest"),
        ({"parameters": ["P"]}, "not among its 1"),
        ({"extra": 1}, "extra"),
        ({"sha256": "0"}, "sha256"),
        (
            {"members": [{"sweep": "a", "over_physics": {"model": math.nan}}]},
            r"over_physics.model cannot be .*: it must be finite",
        ),
        (
            {"members": [{"sweep": "a", "over_physics": {"model": math.inf}}]},
            r"over_physics.model cannot be .*: it must be finite",
        ),
        (
            {"members": [{"sweep": "a", "over_physics": {"model": 2e6}}]},
            r"over_physics.model cannot be .*: it must be at most 1000000",
        ),
        (
            {"members": [{"sweep": "a", "over_physics": {"physics": 0}}]},
            r"over_physics.physics cannot be .*: it must be at least 1e-06",
        ),
        (
            {"members": [{"sweep": "a", "over_physics": {"model": -1.0}}]},
            r"over_physics.model cannot be .*: it must be at least 1e-06",
        ),
        (
            {"members": [{"sweep": "a", "over_physics": {"model": "fast"}}]},
            r"over_physics.model cannot be .*: it must be a number",
        ),
        ({"members": [{"sweep": "a", "over_physics": {"luck": 1.0}}]}, "over_physics.luck"),
        ({"members": [{"sweep": "a", "over_physics": [1.0]}]}, r"over_physics cannot be .*: it must be a table"),
        ({"facts": {"gain": math.nan}}, "the gain cannot be nan: it is a number from -1 to 1"),
        ({"facts": facts(7e300)}, "the share of the optimum cannot be 7e[+]300: it is a number from 0 to 1"),
        ({"facts": facts(-0.1)}, "the share of the optimum cannot be -0.1: it is a number from 0 to 1"),
        ({"facts": {"datasets": {"one": {"flops": math.inf}}}}, "the number of operations cannot be inf"),
    ],
)
def test_a_card_is_checked(path, change, words):
    write_card(path, change)
    with pytest.raises(ModelError, match=words):
        load_model(path)


def edited(**fields):
    """Return a change of the first node of the first tree."""

    def change(table):
        for name, value in fields.items():
            table[name][1] = value
        return table

    return change


def declaring(shape="(9,)", descr=None):
    """Return a change of what the header says."""

    def change(table):
        header = f"{{'descr': {descr or NODE.descr!r}, 'fortran_order': False, 'shape': {shape}}}\n".encode()
        return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + table.tobytes()

    return change


def start_of_two_nodes(table):
    table = np.insert(table, 1, table[0])
    table["left"][0] = table["right"][0] = 1
    return table


def first_tree_by_another_name(table, tree):
    table["tree"][table["tree"] == 1] = tree
    return table


def grown(table, trees):
    """Return rows with more trees, of a leaf each, in the last regressor."""
    more = np.zeros(trees - table["tree"][-1], NODE)
    more["member"], more["tree"] = 1, np.arange(table["tree"][-1] + 1, trees + 1)
    return np.concatenate([table, more])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda table: table[table["member"] == 0], "are not 2 regressors"),
        (lambda table: np.concatenate([table, table[-1:]])[::-1], "are not 2 regressors"),
        (lambda table: table[1:], "are not 2 regressors"),
        (lambda table: table[:0], "are not 2 regressors"),
        (lambda table: first_tree_by_another_name(table, 9), "are not 2 regressors"),
        (lambda table: first_tree_by_another_name(table, 0), "are not 2 regressors"),
        (start_of_two_nodes, "are not 2 regressors"),
        (edited(member=1), "are not 2 regressors"),
        (edited(left=0), "does not follow it"),
        (edited(right=0), "does not follow it"),
        (edited(left=255), "does not follow it"),
        (lambda table: edited(right=(table["tree"][table["member"] == 0] == 1).sum())(table), "does not follow it"),
        (edited(left=2, right=2), "two parents"),
        (lambda table: grown(table, 101), "more than 100 trees"),
        (edited(feature_idx=2), "not among its 2"),
        (edited(value=np.nan), "is not from"),
        (edited(num_threshold=np.nan), "is not from"),
        (edited(num_threshold=-np.inf), "is not from"),
        (edited(value=1e300), "is not from"),
        (lambda table: table.astype(object), "but its size is that of"),
        (lambda table: np.zeros((3, 3)), "but its size is that of"),
        (lambda table: table.astype(NODE.newbyteorder(">")), "but its size is that of"),
        (lambda table: table.reshape(1, -1), "but its size is that of"),
        (lambda table: saved(table) + b"x", "but its size is that of"),
        (lambda table: saved(table)[:-1], "but its size is that of"),
        (declaring("(10**9,)"), "cannot be used"),
        (declaring("(1000000000000,)"), "but its size is that of"),
        (declaring("(-1,)"), "but its size is that of"),
        (declaring("()"), "but its size is that of"),
        (declaring(descr="[('member', 'u1', (1000000000,))]"), "cannot be used"),
        (declaring(descr="'\\d'"), "cannot be used"),
        (declaring("(" * 5000), "cannot be used"),
        (declaring("9" * 60_000), "cannot be used"),
        (lambda table: b"\x93NUMPY\x02" + saved(table)[7:], "version 1.0"),
        (lambda table: b"", "cannot be used"),
        (lambda table: b"PK\x05\x06" + bytes(18), "cannot be used"),
    ],
)
def test_only_trees_that_end_are_used(path, change, words):
    put(path, change(np.load(path).copy()))
    tracemalloc.start()
    try:
        with pytest.raises(ModelError, match=words):
            load_model(path)
        assert tracemalloc.get_traced_memory()[1] < 20e6
    finally:
        tracemalloc.stop()


def test_the_deepest_trees_end(path):
    """Chains, in which every inner node has a leaf and the rest of the chain."""
    chain = np.zeros(255, NODE)
    chain["left"][:-1:2], chain["right"][:-1:2] = np.arange(1, 255, 2), np.arange(2, 256, 2)
    chain["num_threshold"], chain["value"][-1] = -1.0, 1.0
    table = np.concatenate([np.zeros(1, NODE), np.tile(chain, 100)] * 2)
    table["tree"] = np.tile(np.repeat(np.arange(101), [1, *[255] * 100]), 2)
    table["member"] = np.repeat([0, 1], len(table) // 2)
    put(path, table)
    model = load_model(path)
    assert model.predict({"P": np.arange(1, 9), "Q": np.arange(2, 10)}).tolist() == [100.0] * 8


def test_a_larger_file_is_not_read(path):
    with path.open("r+b") as file:
        file.truncate(MOST_BYTES + 1)
    with pytest.raises(ModelError, match=f"at most {MOST_BYTES} are read"):
        load_model(path)


def test_a_model_that_could_not_be_read_is_not_written(path):
    model = load_model(path)
    with pytest.raises(ModelError, match=r"has 202 members in \d+ bytes, more than 200 in 4194304; train it"):
        save_model(replace(model, members=model.members * 101), path)
    assert load_model(path).digest == model.digest


@pytest.mark.parametrize("file", sorted(assets("models").glob("*.npy")), ids=lambda file: file.stem)
def test_the_models_that_come_with_mltune_are_far_below_the_limits(file):
    assert 4 * file.stat().st_size < MOST_BYTES
    assert 4 * len(load_card(file).members) < MOST_MEMBERS


def test_mutated_files_are_refused_or_used(path):
    """No crash, whatever 100 mutations do."""
    rng, content = np.random.default_rng(1), path.read_bytes()
    columns = {"P": np.arange(1, 9), "Q": np.arange(2, 10)}
    refused = 0
    for _ in range(100):
        mutated = bytearray(content)
        for at in rng.integers(0, len(content), rng.integers(1, 6)):
            mutated[at] = rng.integers(0, 256)
        put(path, bytes(mutated[: len(content) if rng.random() < 0.8 else rng.integers(1, len(content))]))
        try:
            assert load_model(path).predict(columns).shape == (8,)
        except ModelError:
            refused += 1
    assert refused > 50


def test_mutated_cards_are_refused_or_used(path):
    """No crash, and no figure out of bounds, whatever 300 mutations do."""
    write_card(path, {"facts": facts(0.6)})
    rng, content = np.random.default_rng(2), path.with_suffix(".json").read_bytes()
    refused = 0
    for _ in range(300):
        mutated = bytearray(content)
        for at in rng.integers(0, len(content), rng.integers(1, 4)):
            mutated[at] = rng.choice(list(b'0123456789.-eE"[]{},:aN\xff'))
        path.with_suffix(".json").write_bytes(mutated)
        try:
            card = load_card(path)
        except ModelError:
            refused += 1
            continue
        shares = [*card.shares("model").values(), *card.shares("physics").values()]
        assert all(0 <= share <= 1 for some in shares for share in some)
        assert card.gain is None or abs(card.gain) <= 1
        assert all(1e-6 <= ratio <= 1e6 for one in card.members for ratio in one.over_physics.values())
    assert 50 < refused < 300
