"""Files of pretrained models, trees in one array with a card in JSON beside it, and the choice of a model.

A file may come from a stranger: regressors are rows of numbers (:data:`NODE`), neither packed nor pickled, and every
tree is checked. They predict without scikit-learn, whose import would delay a search by seconds.
"""

from __future__ import annotations

import hashlib
import io
import itertools
import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictInt, StrictStr, model_validator

from mltune.cost.pretrained import LARGEST_RATIO, Member, PretrainedModel, are_near, is_comparable
from mltune.device.facts import NO_CUDA, Device
from mltune.errors import ModelError
from mltune.files import folders
from mltune.files.atomic import described_file, write_described
from mltune.files.reading import parse_json, raising, read_file
from mltune.files.text import no_such, printable
from mltune.files.validation import matching, validated
from mltune.kernel.bundle import Kernel
from mltune.kernel.coding import Floats
from mltune.problem.problem import Problem

FIELDS = {"left": "u1", "right": "u1", "feature_idx": "u1", "num_threshold": "<f8", "value": "<f8"}
"""Fields of a node in a file, by scikit-learn's names; the children are places in the tree, 0 and 0 for a leaf."""

NODE = np.dtype([("member", "u1"), ("tree", "u1"), *FIELDS.items()])
"""A row of a file of regressors: a node of a member's tree; in tree 0, a leaf, the member's predictions start."""

MOST_BYTES = 4 << 20
"""Largest file of regressors: the size of 50 with 60 trees of 31 leaves."""

MOST_MEMBERS, MOST_TREES = 200, 100

SUFFIXES = (".json", ".npy")
"""Suffixes of a model's card and of its regressors."""

LARGEST = 2**53
"""Largest integer that JSON keeps exact."""

_MOST_CARD_BYTES = 1 << 20
_MOST_FLOPS = 1e30
_COUNT = re.compile("[1-9][0-9]{0,5}")

Name = Annotated[StrictStr, Field(min_length=1, max_length=200)]
_Value = Annotated[StrictInt, Field(ge=-LARGEST, le=LARGEST)]
_Ratio = Annotated[float, Field(ge=1.0 / LARGEST_RATIO, le=LARGEST_RATIO, allow_inf_nan=False)]


class _CardMember(BaseModel):
    model_config = ConfigDict(extra="forbid")

    sweep: Name
    architecture: Annotated[StrictStr, Field(max_length=200)] = ""
    case: Annotated[StrictStr, Field(max_length=200)] = ""
    cost_class: Annotated[StrictStr, Field(max_length=200)] = ""
    flops: Annotated[float, Field(ge=0.0, le=_MOST_FLOPS)] = 0.0
    fastest: Annotated[tuple[dict[Name, _Value], ...], Field(max_length=10)] = ()
    over_physics: dict[Literal["model", "physics"], _Ratio] = {}
    has_regressor: StrictBool = True
    device: Annotated[StrictStr, Field(max_length=200)] = ""


class Origin(NamedTuple):
    """The recording of a dataset, its device and problem; empty and 0 where unknown."""

    architecture: str
    flops: float
    device: str
    problem: str

    @classmethod
    def of(cls, facts: dict[str, Any]) -> Self:
        """Read an origin from the facts of a card."""
        flops = _figure(facts.get("flops"), "number of operations", 0.0, _MOST_FLOPS)
        texts = (printable(facts.get(name) or "", 100) for name in ("architecture", "device", "problem"))
        architecture, device, problem = texts
        return cls(architecture, flops or 0.0, device, problem)


def _figure(value: Any, meaning: str, least: float, most: float) -> float | None:
    """Return a number of a card within bounds; None where it is no number."""
    if type(value) not in (int, float):
        return None
    if not least <= value <= most:
        raise ValueError(f"the {meaning} cannot be {value:g}: it is a number from {least:g} to {most:g}")
    return float(value)


FEWEST_JUDGED = 1000
"""Fewest configurations of a dataset that a model is judged on: smaller ones stem from searches, mostly of the fast."""


class Card(BaseModel):
    """The card of a model, with the ``sha256`` of its file of regressors.

    ``members`` has for each sweep its origin, its fastest configurations, the measured time of the first choice over
    that of physics, and whether it has a regressor. ``facts`` are the training datasets with their hashes and devices,
    versions, and scores on datasets that were left out.
    """

    model_config = ConfigDict(extra="forbid")

    format: Literal[1] = 1
    kernel: Name
    parameters: Annotated[list[Name], Field(min_length=1, max_length=200)]
    members: Annotated[list[_CardMember], Field(min_length=1, max_length=MOST_MEMBERS)]
    sha256: Annotated[StrictStr, matching(r"[0-9a-f]{64}", "be a SHA-256")]
    facts: dict[str, Any] = {}

    @model_validator(mode="after")
    def _check(self) -> Self:
        """Check all figures: one out of bounds is an error, and so is a model that does not predict."""
        if not any(member.has_regressor for member in self.members):
            raise ValueError("no member of the model has a regressor")
        _ = self.gain, self.shares("model"), self.shares("physics"), self.training
        return self

    @property
    def gain(self) -> float | None:
        """The gain over physics alone on datasets that the model was not trained on; None where it was not judged."""
        return _figure(self.facts.get("gain"), "gain", -1.0, 1.0)

    def shares(self, source: Literal["model", "physics"]) -> dict[int, list[float]]:
        """Return the shares of the optimum on left-out datasets, by number of first choices of a source."""
        scores = self.facts.get("scores")
        by_count: dict[int, list[float]] = {}
        for score in scores.values() if isinstance(scores, dict) else ():
            judged = score.get("share_of_optimum") if isinstance(score, dict) else None
            sources = judged if isinstance(judged, dict) else {}
            shares = sources.get("together" if source == "model" and "together" in sources else source)
            for count, share in shares.items() if isinstance(shares, dict) else ():
                figure = _figure(share, "share of the optimum", 0.0, 1.0)
                if _COUNT.fullmatch(count) and figure is not None:
                    by_count.setdefault(int(count), []).append(figure)
        return by_count

    @property
    def learned_from(self) -> str:
        """The training data, in words, of a model that is judged on a dataset: those of the other groups."""
        origins = self.training.values()
        devices = sorted({origin.device for origin in origins})
        if len({origin.architecture for origin in origins}) > 1:
            return "GPUs of other architectures"
        where = f"the same GPU, {devices[0]}" if len(devices) == 1 else "GPUs of the same architecture"
        return f"other problems on {where}"

    @property
    def training(self) -> dict[str, Origin]:
        """Its datasets by name, where its facts have them."""
        datasets = self.facts.get("datasets")
        listed = datasets.items() if isinstance(datasets, dict) else ()
        return {printable(name, 100): Origin.of(facts) for name, facts in listed if isinstance(facts, dict)}


@dataclass(frozen=True, slots=True, eq=False)
class Trees:
    """A regressor of a file, with the predictions of the regressor of scikit-learn that was written.

    Each of the ``trees`` has nodes of the type :data:`NODE`. The first is a leaf, where predictions start. Children
    follow their parents.
    """

    trees: Sequence[NDArray[Any]]

    def predict(self, X: Floats) -> Floats:
        """Return the sum of the leaves that each configuration reaches, from X of shape (n_configs, n_features)."""
        columns, total = np.ascontiguousarray(X.T), np.zeros(len(X))
        for tree in self.trees:
            reached = [np.arange(len(X)), *[np.arange(0)] * (len(tree) - 1)]  # by the configurations of these rows
            leaf = np.empty(len(X))
            for rows, (left_child, right, feature, threshold, value) in zip(
                reached, tree[[*FIELDS]].tolist(), strict=True
            ):
                if left_child:
                    below = columns[feature][rows] <= threshold
                    reached[left_child], reached[right] = rows[below], rows[~below]
                else:
                    leaf[rows] = value
            total += leaf
        return total


def file_of(path: Path, suffix: str = "") -> Path:
    """Return a model's file with a suffix, from any of its paths; without a suffix its stem.

    >>> file_of(Path("models/one.v2"), ".json").name, file_of(Path("models/one.npy"), ".json").name
    ('one.v2.json', 'one.json')
    """
    if path.name in ("", ".."):
        raise ModelError(f"{printable(repr(str(path)), 100)} does not name a model; give a file, such as models/mine.")
    return path.with_name(f"{path.stem if path.suffix in SUFFIXES else path.name}{suffix}")


def save_model(model: PretrainedModel, path: Path) -> None:
    """Write the regressors and the card of a model, unless they could not be read again: a ModelError."""
    file = io.BytesIO()
    np.save(file, _table([member.regressor for member in model.members if member.has_regressor]))
    content = file.getvalue()
    if len(content) > MOST_BYTES or len(model.members) > MOST_MEMBERS:
        raise ModelError(
            f"the model has {len(model.members)} members in {len(content)} bytes, more than {MOST_MEMBERS} in "
            f"{MOST_BYTES}; train it on fewer datasets."
        )
    card = Card(
        kernel=model.kernel,
        parameters=list(model.parameters),
        members=[_CardMember.model_validate(member, from_attributes=True) for member in model.members],
        sha256=hashlib.sha256(content).hexdigest(),
        facts=dict(model.facts),
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    text = (card.model_dump_json(indent=1) + "\n").encode()
    write_described(file_of(path, ".npy"), content, file_of(path, ".json"), text)


def load_card(path: Path) -> Card:
    """Load the card of a model."""
    path = file_of(path, ".json")
    card = f"the card of the model, {printable(path, 300)},"
    with raising(ModelError, f"{card} cannot be read"), raising(ModelError, f"{card} is not JSON of one", ValueError):
        return validated(Card, parse_json(read_file(path, _MOST_CARD_BYTES)))


def load_model(path: Path) -> PretrainedModel:
    """Load a model; a ModelError says why its files cannot be read, or do not belong together."""
    card = load_card(path)
    path = file_of(path, ".npy")
    with raising(ModelError, f"the regressors of the model, {printable(path, 300)}, cannot be read"):
        content = read_file(described_file(path, card.sha256, MOST_BYTES), MOST_BYTES)
    if hashlib.sha256(content).hexdigest() != card.sha256:
        raise ModelError(f"the SHA-256 of {printable(path, 300)} is not that of its card; copy both files again.")
    try:
        fitted = sum(member.has_regressor for member in card.members)
        regressors = iter(_regressors(content, fitted, len(card.parameters)))
    except Exception as error:  # NumPy's parser of headers has errors of every kind for crafted files
        trained = card.facts.get("versions", {})
        raise ModelError(
            f"{printable(path, 300)} cannot be used: {type(error).__name__}: {printable(error, 300)} (trained with "
            f"{printable(trained, 200)})."
        ) from error
    members = tuple(
        Member(
            **member.model_dump(exclude={"has_regressor"}), regressor=next(regressors) if member.has_regressor else None
        )
        for member in card.members
    )
    parameters = tuple(card.parameters)
    return PretrainedModel(card.kernel, parameters, members, facts=card.facts, digest=card.sha256)


def shipped_model(name: str) -> PretrainedModel:
    """Load a model that comes with mltune."""
    return load_model(folders.assets("models") / name)


def _table(regressors: Sequence[Any]) -> NDArray[Any]:
    """Return the rows of regressors: ndarray of :data:`NODE`."""
    parts = []
    for member, regressor in enumerate(regressors):
        for tree, nodes in enumerate(regressor.trees if isinstance(regressor, Trees) else _fitted(regressor)):
            part = np.zeros(len(nodes), NODE)
            part["member"], part["tree"] = member, tree
            for name in FIELDS:
                part[name] = nodes[name]
            parts.append(part)
    return np.concatenate(parts)


def _fitted(regressor: Any) -> list[NDArray[Any]]:
    """Return the trees of a regressor that scikit-learn has fitted, as in :class:`Trees`."""
    start = np.zeros(1, NODE)
    start["value"] = regressor._baseline_prediction.item()
    return [start, *(trees[0].nodes for trees in regressor._predictors)]


def _read_table(content: bytes) -> NDArray[Any]:
    """Return the rows in a file; the sizes that a header declares are compared with the file first."""
    file = io.BytesIO(content)
    with warnings.catch_warnings(action="error"):  # of Python's parser, in words of the file
        if np.lib.format.read_magic(file) != (1, 0):
            raise ValueError("it is no .npy file of version 1.0")
        shape, _, dtype = np.lib.format.read_array_header_1_0(file)
    rows, rest = divmod(len(content) - file.tell(), NODE.itemsize)
    if dtype != NODE or shape != (rows,) or rest:
        raise ValueError(f"it declares {shape} of {dtype}, but its size is that of {rows} rows of {NODE}")
    return np.frombuffer(content, NODE, offset=file.tell())


def _check(table: NDArray[Any], count: int, features: int) -> NDArray[np.intp]:
    """Check that rows are the trees of regressors and that every path ends in a leaf; return where the trees start."""
    member, tree, left_child, right = (table[name].astype(np.intp) for name in ("member", "tree", "left", "right"))
    next_member, next_tree = np.diff(member, prepend=-1), np.diff(tree, prepend=-1)
    starts = np.where(next_member == 0, next_tree == 1, (next_member == 1) & (tree == 0))
    goes_on = (next_member == 0) & (next_tree == 0) & (tree > 0)
    if not len(table) or member[-1] != count - 1 or not (starts | goes_on).all():
        raise ValueError(f"its rows are not {count} regressors, as its card says, each a leaf and its trees")
    first = np.flatnonzero(starts)
    size = np.diff(first, append=len(table))
    place, end = np.arange(len(table)) - np.repeat(first, size), np.repeat(size, size)
    follow = (place < left_child) & (left_child < end) & (place < right) & (right < end)
    if not (follow | (left_child == 0) & (right == 0)).all():
        raise ValueError("a node has a child that does not follow it in its tree")
    children = np.concatenate([(np.arange(len(table)) - place + side)[follow] for side in (left_child, right)])
    if len(np.unique(children)) < len(children) or tree.max() > MOST_TREES:
        raise ValueError(f"a regressor has more than {MOST_TREES} trees, or a node two parents")
    if (table["feature_idx"] >= features).any():
        raise ValueError(f"a tree uses a feature that is not among its {features}")
    if not all((np.abs(table[name]) <= LARGEST).all() for name in ("num_threshold", "value")):
        raise ValueError(f"a number of a tree is not from {-LARGEST} to {LARGEST}")
    return first


def _regressors(content: bytes, count: int, features: int) -> list[Trees]:
    """Return the regressors in a file."""
    table = _read_table(content)
    first = _check(table, count, features)
    trees = np.split(table, first[1:])
    starts = np.flatnonzero(table["tree"][first] == 0).tolist()
    return [Trees(trees[start:end]) for start, end in itertools.pairwise([*starts, None])]


NONE = "none"
AUTO = "auto"

TOLERATED_LOSS = 0.01
"""Loss of the mean share of the optimum that may be chance: over eight sweeps its standard error is .006."""


@dataclass(frozen=True, slots=True)
class ChosenModel:
    """A model whose card has been read and fits the kernel; its regressors are loaded later."""

    path: Path
    card: Card

    @property
    def name(self) -> str:
        """The name of the model's file."""
        return file_of(self.path).name

    def notices(self, problem: Problem, device: Device) -> tuple[str, ...]:
        """Return in words where the problem and the device differ from all training data of the model."""
        origins = [origin for origin in self.card.training.values() if origin.architecture]
        families = sorted({origin.architecture for origin in origins})
        classes = sorted({member.cost_class for member in self.card.members if member.cost_class})
        flops = [origin.flops for origin in origins if origin.flops > 0.0]
        if not any(is_comparable(member.architecture, device) for member in self.card.members):
            preposition = "with" if device.architecture == NO_CUDA else "without"
            return (f"the model {self.name} is left out: it was trained on GPUs {preposition} CUDA alone",)
        said = []
        if families and device.family not in families:
            said.append(f"on {', '.join(families)}, and this GPU is {device.family}")
        if classes and problem.cost_class and problem.cost_class not in classes:
            said.append(f"on the classes {', '.join(classes)}, and this problem is of {problem.cost_class}")
        if flops and not any(are_near(trained_flops, problem.flops) for trained_flops in flops):
            said.append(f"on {min(flops):.2g} to {max(flops):.2g} operations, and this problem has {problem.flops:.2g}")
        return tuple(f"the model {self.name} was trained {limit}" for limit in said)

    def load(self, problem: Problem, device: Device) -> PretrainedModel | None:
        """Load the part of the model that is closest to a problem and a device; see :func:`load_model`."""
        return _load(self.path, self.card.sha256).closest(problem, device)


@lru_cache(maxsize=2)
def _load(path: Path, digest: str) -> PretrainedModel:
    """Load a model, once for all runs of a campaign."""
    model = load_model(path)
    if model.digest != digest:
        raise ModelError(f"the model {path} was replaced while it was read; start the run again.")
    return model


def choose_model(prior: str, kernel: Kernel, *, replay: bool = False) -> ChosenModel | None:
    """Return the model that a search starts from: ``"auto"``, ``"none"``, the name of a shipped model, or a file.

    ``"auto"`` is the model that comes with the kernel, if it has the kernel's parameters and did not lose more than
    :data:`TOLERATED_LOSS` against physics on datasets that it was not trained on (``gain`` in its card). In replay it
    is none, because the model may be trained on the recorded timings.
    """
    shipped = folders.assets("models") / f"{kernel.name if prior == AUTO else prior}.json"
    if prior == NONE or (prior == AUTO and (replay or not kernel.is_built_in or not shipped.is_file())):
        return None
    path = shipped if shipped.is_file() else Path(prior)
    if not file_of(path, ".json").exists():
        names = sorted(card.stem for card in folders.assets("models").glob("*.json"))
        law = f"A model comes with mltune ({', '.join(names)}) or is a file: {file_of(path, '.json')} is not there"
        raise ModelError(no_such("model", prior, names, law))
    card = load_card(path)
    fits = kernel.has_parameters(card.parameters)
    if prior == AUTO:
        return ChosenModel(path, card) if fits and (card.gain is None or card.gain >= -TOLERATED_LOSS) else None
    if fits:
        return ChosenModel(path, card)
    raise ModelError(
        f"{path.stem} is a model of {card.kernel} with {', '.join(card.parameters)}, but {kernel.name} has "
        f"{', '.join(kernel.all_parameters)}; a model is used for the parameters that it was trained on."
    )


def shipped_card(kernel: Kernel) -> Card | None:
    """Return the card of the model that comes with a kernel, even if no search starts from it."""
    path = folders.assets("models") / f"{kernel.name}.json"
    card = load_card(path) if kernel.is_built_in and path.is_file() else None
    return card if card and kernel.has_parameters(card.parameters) else None
