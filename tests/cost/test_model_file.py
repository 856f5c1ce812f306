"""Files of models: what is written is read again, and nothing else is used."""

import hashlib
import json
import math
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import skops.io
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.linear_model import LinearRegression

from mltune.cost import model_file
from mltune.cost.model_file import load_card, load_model, save_model
from mltune.cost.pretrained import Member, PretrainedModel
from mltune.errors import ModelError

X = np.random.default_rng(0).random((200, 2))


def regressor(iterations=5, **options):
    made = HistGradientBoostingRegressor(max_iter=iterations, early_stopping=False, **options)
    return made.fit(X, X[:, 0] - X[:, 1])


@pytest.fixture
def path(tmp_path):
    members = tuple(
        Member(name, "sm_90", "sgemm NT", "s", 1e9, regressor(random_state=seed), ({"P": 2, "Q": seed},))
        for seed, name in enumerate("ab")
    )
    save_model(PretrainedModel("toy", ("P", "Q"), members, facts={"versions": {"skops": "1"}}), tmp_path / "toy")
    return tmp_path / "toy.skops"


def put(path, content):
    """Replace the regressors, with the hash that belongs to them."""
    content = content if isinstance(content, bytes) else skops.io.dumps(content)
    path.write_bytes(content)
    write_card(path, {"sha256": hashlib.sha256(content).hexdigest()})


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
    assert model.digest == load_card(path).sha256 == hashlib.sha256(path.read_bytes()).hexdigest()


def test_a_name_may_have_dots(path):
    model = load_model(path)
    other = path.with_name("toy.v2")
    save_model(replace(model, kernel="other"), other)
    assert load_model(path).kernel == "toy"
    for name in ("toy.v2", "toy.v2.json", "toy.v2.skops"):
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
    done = subprocess.run([sys.executable, "-c", program, path], timeout=120)
    assert done.returncode == -9
    model = load_model(path)
    assert (model.kernel, [one.sweep for one in model.members]) == ("other", ["a"])


@pytest.mark.parametrize("name", ["", ".", "..", "/"])
def test_a_path_without_a_name_is_refused(name):
    with pytest.raises(ModelError, match="named by its file"):
        load_model(Path(name))


@pytest.mark.system
def test_what_only_other_array_libraries_need_is_not_imported(path):
    """PyTorch takes seconds, and scikit-learn imports it where skops lists the estimators."""
    (path.parent / "torch").mkdir()
    (path.parent / "torch" / "__init__.py").write_text("print('imported')")
    program = (
        "import sys; from pathlib import Path; from mltune.cost.model_file import load_model; "
        "load_model(Path(sys.argv[1])); print('loaded'); import torch"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, path],
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(path.parent), *sys.path])},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert done.stdout == "loaded\nimported\n"


def test_a_file_that_is_not_that_of_its_card_is_refused(path):
    path.write_bytes(path.read_bytes() + b" ")
    with pytest.raises(ModelError, match="belongs to its card"):
        load_model(path)


@pytest.mark.parametrize("missing", [".json", ".skops"])
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
    assert [one.flops for one in card.origins] == [1e9]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"format": 2}, "format"),
        ({"kernel": ""}, "kernel"),
        ({"weight": -1}, "weight"),
        ({"parameters": []}, "parameters"),
        ({"members": [{"sweep": "a"}]}, "list of 1 regressors"),
        ({"members": [{"sweep": "a", "fastest": [{"P": 2**60}]}, {"sweep": "b"}]}, "fastest"),
        ({"members": [{"sweep": "a", "fastest": [{"P": 0.5}]}, {"sweep": "b"}]}, "fastest"),
        ({"parameters": ["P"]}, "uses 1 features"),
        ({"extra": 1}, "extra"),
        ({"sha256": "0"}, "sha256"),
        ({"facts": {"gain": math.nan}}, "a gain is a number from -1 to 1, got nan"),
        ({"facts": facts(7e300)}, "a share of the optimum is a number from 0 to 1, got 7e[+]300"),
        ({"facts": facts(-0.1)}, "a share of the optimum is a number from 0 to 1, got -0.1"),
        ({"facts": {"datasets": {"one": {"flops": math.inf}}}}, "a number of operations is a number"),
    ],
)
def test_a_card_is_checked(path, change, words):
    write_card(path, change)
    with pytest.raises(ModelError, match=words):
        load_model(path)


def edited(**fields):
    """Return two regressors, of which the first tree of the first has other nodes."""
    first, second = regressor(), regressor()
    nodes = first._predictors[0][0].nodes
    for name, value in fields.items():
        nodes[name][0] = value
    return [first, second]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (lambda: [LinearRegression().fit(X, X[:, 0])] * 2, "got LinearRegression"),
        (lambda: regressor(), "a list of 2 regressors"),
        (lambda: {"a": regressor()}, "a list of 2 regressors"),
        (lambda: edited(left=0), "children follow"),
        (lambda: edited(right=2**31), "children follow"),
        (lambda: edited(feature_idx=7), "uses 2 features"),
        (lambda: edited(feature_idx=-1), "uses 2 features"),
        (lambda: edited(is_categorical=1), "compares numbers"),
        (lambda: edited(value=np.nan), "finite"),
        (lambda: edited(is_leaf=3), "finite"),
        (lambda: b"", "cannot be used"),
        (lambda: b"PK\x05\x06" + bytes(18), "cannot be used"),
    ],
)
def test_only_trees_that_end_are_used(path, content, words):
    put(path, content())
    with pytest.raises(ModelError, match=words):
        load_model(path)


def test_types_that_run_code_are_refused(path):

    put(path, skops.io.dumps([np.random.RandomState, print]))
    with pytest.raises(ModelError, match="cannot be used"):
        load_model(path)


def test_a_bomb_is_not_unpacked(path, monkeypatch):
    monkeypatch.setattr(model_file, "MOST_UNPACKED", 1000)
    with pytest.raises(ModelError, match="at most 1000 bytes"):
        load_model(path)


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
    assert 50 < refused < 300
