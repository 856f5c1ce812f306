"""The model that starts the search on a Triton kernel: trained on recorded sweeps, and judged with kernels left out.

Each of the seven kernels of ``triton_kernels/`` is left out at both of its sizes, on every GPU; a model of the other
six starts the search on its recorded sweeps. ``--learned`` and ``--judged`` are parts of the names of GPUs: the model
learns from the sweeps of some, and is judged by those of others. The figures are the fastest so far as a share of the
fastest recorded, means over sweeps and seeds:

- *as it was*, *with a model*: the order in which configurations are measured when the compiler has said nothing, which
  is that of compiling, and when it has said everything (*compiled*);
- *with its kernel*: the same with the whole model, which knows the kernel on another GPU;
- *physics*: its order alone; *list*: the order of the list; *random*: the mean of 1,000 orders.

What the model must not know is tried too: lists that differ in warps and stages alone, and recorded kernels of CUDA.
Drawn lists of 20 configurations of each sweep, whose first one is drawn too, show what remains with short lists.

    python benchmarks/triton_model.py [--seeds 2] [--learned H200] [--judged H200] [--output FILE]
    python benchmarks/triton_model.py --train models/triton
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest import mock

os.environ["OMP_NUM_THREADS"] = "1"

import numpy as np
from harness import RESULTS, SEARCHING, parser_of, provenance, write
from record_triton import KERNELS, launches_of, module_of

from mltune.cost.model_file import Trees, save_model
from mltune.cost.pretrained import Member, PretrainedModel
from mltune.dataset.dataset import load_dataset
from mltune.device.facts import Device
from mltune.records.versions import installed_versions
from mltune.search.launch_model import FEATURES, NAME, expected, launch_features
from mltune.search.launch_search import LaunchSearch

DATASETS = Path(__file__).parent.parent / "datasets"
AT = (1, 2, 5, 10, 25)
DRAWS, SHORT = 1000, 20
TREES = {"n_estimators": 16, "max_leaf_nodes": 40, "min_samples_leaf": 3, "max_features": 0.5}
BUILD = {"registers": "registers", "spill_bytes": "stack_bytes", "shared_bytes": "shared_bytes"}
"""Columns of a dataset, and what a search calls them."""

Floats = np.ndarray


@dataclass(frozen=True)
class Sweep:
    """A recorded sweep in the order of its list, with what the grid says."""

    name: str
    sha256: str
    kernel: str
    device: Device
    columns: dict[str, np.ndarray]
    tiles: list[str]
    blocks: Floats
    times_s: Floats
    compile_s: Floats
    build: dict[str, Floats]

    @property
    def features(self) -> dict[str, Floats]:
        """What a model may know."""
        threads = 32.0 * self.columns["num_warps"]
        return launch_features(self.columns, self.tiles, self.blocks, threads, self.device)

    @property
    def shares(self) -> Floats:
        """Speeds as shares of the fastest; 0 for failures."""
        return np.nan_to_num(np.nanmin(self.times_s) / self.times_s)

    def of(self, rows: np.ndarray) -> Sweep:
        """Return a shorter list."""
        columns = {name: column[rows] for name, column in self.columns.items()}
        build = {name: column[rows] for name, column in self.build.items()}
        return replace(self, columns=columns, blocks=self.blocks[rows], times_s=self.times_s[rows], build=build)

    def search(self, model: PretrainedModel | None, compiled: bool, seed: int) -> LaunchSearch:
        """Return a search that has started from a model, where that knows the list."""
        start, threads = expected(model, self.features), 32.0 * self.columns["num_warps"]
        search = LaunchSearch(self.columns, self.tiles, self.blocks, threads, self.device, seed, start)
        for name, column in self.build.items() if compiled else ():
            search.build[name][:] = column
        return search

    def order(self, model: PretrainedModel | None, compiled: bool, seed: int, count: int = max(AT)) -> list[int]:
        """Return the first configurations in the order of a session that has compiled all, or knows no facts."""
        search, tried = self.search(model, compiled, seed), []
        left = np.flatnonzero(search.can_launch)
        while len(tried) < count and len(left):
            first = len(tried) == search.is_started and 0 in left
            tried.append(0 if first else int(search.best_first(left, compiled=compiled)[0]))
            search.times_s[tried[-1]] = np.nan_to_num(self.times_s[tried[-1]], nan=np.inf)
            left = left[left != tried[-1]]
        return tried

    def curve(self, order: Sequence[int]) -> list[float]:
        """Return the largest share after so many of an order."""
        return [float(self.shares[list(order[:count])].max()) for count in AT]


def sweeps(gpu: str, kernels: Iterable[str] = KERNELS) -> list[Sweep]:
    """Return the recorded sweeps of kernels on GPUs by a part of their names."""
    files = [path for kernel in kernels for path in sorted((DATASETS / f"triton_{kernel}").glob("*.json"))]
    found = [as_sweep(path, path.parent.name.removeprefix("triton_")) for path in files]
    return [one for one in found if gpu in one.device.name]


def as_sweep(path: Path, kernel: str) -> Sweep:
    """Return the sweep of a file; the grid is that of the kernel's first launch."""
    import torch

    data, module = load_dataset(path), module_of(kernel)
    with mock.patch("torch.randn", torch.empty):  # the grid needs no values
        grid, *_ = launches_of(module.arguments(**data.manifest.problem.values))[0]

    def blocks(config: Any, **changed: int) -> float:
        return float(np.prod(grid({**config.all_kwargs(), **changed}) if callable(grid) else grid))

    recorded = zip(*(data.columns[one].tolist() for one in data.manifest.parameters), strict=True)
    rows = {row: at for at, row in enumerate(recorded)}
    configs = [{**one.kwargs, "num_warps": one.num_warps, "num_stages": one.num_stages} for one in module.CONFIGS]
    order = [rows[tuple(one[name] for name in data.manifest.parameters)] for one in configs]
    columns = {name: np.asarray(data.columns[name])[order] for name in data.manifest.parameters}
    first = module.CONFIGS[0]
    tiles = [
        name
        for name, column in columns.items()
        if blocks(first, **{name: int(column.min())}) > blocks(first, **{name: int(column.max())})
    ]
    return Sweep(
        data.manifest.name,
        data.manifest.sha256,
        kernel,
        data.manifest.device,
        columns,
        tiles,
        np.array([blocks(one) for one in module.CONFIGS]),
        data.numbers("median_s")[order],
        data.numbers("compile_s")[order],
        {ours: data.numbers(theirs)[order] for theirs, ours in BUILD.items()},
    )


def fit(found: Sequence[Sweep]) -> PretrainedModel:
    """Return a model with a member for each kernel, which has not seen that kernel.

    Members learn ranks: they say which of a list is fast, not by how much. Each sweep counts as much as any other.
    """
    kernels = sorted({one.kernel for one in found})
    members = []
    for left_out in kernels:
        seen = [one for one in found if one.kernel != left_out]
        members.append(Member(f"without {left_out}", seen[0].device.architecture, "", "", 0.0, trees(seen)))
    return PretrainedModel(NAME, FEATURES, tuple(members))


def trees(seen: Sequence[Sweep]) -> Trees:
    """Return a regressor of ranks that is fitted to sweeps."""
    from sklearn.ensemble import ExtraTreesRegressor

    X = np.vstack([np.column_stack([*one.features.values()]) for one in seen])
    y = np.concatenate([one.shares.argsort(kind="stable").argsort() / len(one.shares) for one in seen])
    weights = np.concatenate([np.full(len(one.shares), 1.0 / len(one.shares)) for one in seen])
    fitted = ExtraTreesRegressor(**TREES, random_state=0).fit(X, y, sample_weight=weights)
    return Trees([_nodes([0], [0], [0], [0.0], [0.0]), *(_tree(one.tree_) for one in fitted.estimators_)])


def _tree(tree: Any) -> np.ndarray:
    leaf = tree.children_left < 0
    share = np.where(leaf, tree.value.ravel() / TREES["n_estimators"], 0.0)
    sides = (np.where(leaf, 0, side) for side in (tree.children_left, tree.children_right))
    return _nodes(*sides, np.where(leaf, 0, tree.feature), np.where(leaf, 0.0, tree.threshold), share)


def _nodes(left: Any, right: Any, feature: Any, threshold: Any, value: Any) -> np.ndarray:
    names = ("left", "right", "feature_idx", "num_threshold", "value")
    return np.rec.fromarrays([left, right, feature, threshold, value], names=names)


def train(found: Sequence[Sweep], path: Path) -> None:
    """Train the model on sweeps, and write it."""
    origins = {
        one.name: {"sha256": one.sha256, "device": one.device.name, "architecture": one.device.architecture}
        for one in found
    }
    facts = {"datasets": origins, "versions": installed_versions("numpy", "scikit-learn")}
    save_model(replace(fit(found), facts=facts), path)


def judge(learned: Sequence[Sweep], found: Sequence[Sweep], seeds: int) -> dict[str, Any]:
    """Return the curves of each sweep with its kernel left out of what is learned."""
    each: dict[str, Any] = {}
    is_elsewhere = not {one.sha256 for one in learned} & {one.sha256 for one in found}
    whole = {"with its kernel": fit(learned)} if is_elsewhere else {}
    for kernel in sorted({one.kernel for one in found}):
        model = fit([one for one in learned if one.kernel != kernel])
        for sweep in (one for one in found if one.kernel == kernel):
            rng = np.random.default_rng(0)
            count = len(sweep.shares)
            curves = {
                f"{name}{', compiled' * compiled}": np.mean(
                    [sweep.curve(sweep.order(one, compiled, seed)) for seed in range(seeds)], axis=0
                ).tolist()
                for compiled in (False, True)
                for name, one in {"as it was": None, "with a model": model, **whole}.items()
            }
            physics = sweep.search(None, False, 0).best_first(np.arange(count), compiled=False)
            curves |= {"physics": sweep.curve(physics), "list": sweep.curve(range(count))}
            drawn = [sweep.curve(rng.permutation(count)) for _ in range(DRAWS)]
            each[sweep.name] = {
                "left_out": kernel,
                "configurations": count,
                "starts": expected(model, sweep.features) is not None,
                "curves": curves | {"random": np.mean(drawn, axis=0).tolist()},
                "short": short_lists(sweep, model, seeds),
            }
            print(sweep.name, {name: np.round(curve, 3).tolist() for name, curve in curves.items()}, flush=True)
    return each


def short_lists(sweep: Sweep, model: PretrainedModel, seeds: int) -> dict[str, list[float]]:
    """Return the mean curves of drawn lists of some configurations, without facts of the compiler."""
    rng = np.random.default_rng(0)
    lists = [sweep.of(rng.choice(np.flatnonzero(sweep.shares), SHORT, replace=False)) for _ in range(5 * seeds)]
    curves = {
        name: [one.curve(one.order(start, False, 0, SHORT // 2)) for one in lists]
        for name, start in (("as it was", None), ("with a model", model))
    }
    return {name: np.mean(one, axis=0)[:-1].tolist() for name, one in curves.items()}


def unknown(found: Sequence[Sweep], model: PretrainedModel) -> dict[str, str]:
    """Return what the model says of lists that it must not know."""
    lists: dict[str, dict[str, Floats]] = {}
    for sweep in found:
        fixed = [name for name in sweep.columns if name not in ("num_warps", "num_stages")]
        groups = np.unique(np.column_stack([sweep.columns[name] for name in fixed]), axis=0, return_inverse=True)[1]
        rows = np.flatnonzero(groups.ravel() == np.bincount(groups.ravel()).argmax())
        lists[f"{sweep.name}: warps and stages alone"] = sweep.of(rows).features
    for path in itertools.chain(DATASETS.glob("convolution*/*.json"), DATASETS.glob("[gst]*/h200-*.json")):
        data = load_dataset(path)
        if not data.manifest.kernel.startswith("triton"):
            rows = np.arange(len(data.numbers("median_s")))[:SHORT]
            columns = {name: np.asarray(data.columns[name])[rows] for name in data.manifest.parameters}
            many = np.full(len(rows), 1024.0)
            lists[data.manifest.name] = launch_features(columns, [*columns], many, many, data.manifest.device)
    return {name: "nothing" if expected(model, one) is None else "an order" for name, one in lists.items()}


def table(each: dict[str, Any]) -> list[str]:
    """Return the means and the sweeps as Markdown."""
    arms = list(next(iter(each.values()))["curves"])
    lines = [f"| after | {' | '.join(map(str, AT))} |", f"|---|{'---:|' * len(AT)}"]
    for arm in arms:
        mean = np.mean([one["curves"][arm] for one in each.values()], axis=0)
        lines.append(f"| {arm} | {' | '.join(f'{value:.3f}' for value in mean)} |")
    for name in ("as it was", "with a model"):
        mean = np.mean([one["short"][name] for one in each.values()], axis=0)
        lines.append(f"| lists of {SHORT}, {name} | {' | '.join(f'{value:.3f}' for value in mean)} | - |")
    shown = [f"{name}, {count}" for count in (1, 2, 5) for name in ("as it was", "with a model")]
    lines += ["", f"| sweep, its kernel left out | {' | '.join(shown)} |", f"|---|{'---:|' * len(shown)}"]
    for sweep, one in each.items():
        pairs = [one["curves"][arm][AT.index(count)] for count in (1, 2, 5) for arm in ("as it was", "with a model")]
        lines.append(f"| {sweep} | {' | '.join(f'{value:.3f}' for value in pairs)} |")
    return lines


def main() -> None:
    """Train, or judge."""
    parser = parser_of(__doc__, RESULTS / "triton_model.json")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--learned", default="H200", help="part of the names of the GPUs whose sweeps are learned")
    parser.add_argument("--judged", default="H200", help="and of those whose sweeps are judged")
    parser.add_argument("--train", type=Path, help="write the model of what is learned there, and judge nothing")
    given = parser.parse_args()
    learned = sweeps(given.learned)
    if given.train:
        train(learned, given.train)
        return
    found = sweeps(given.judged)
    each = judge(learned, found, given.seeds)
    said = unknown(found, fit(learned))
    head = provenance(*SEARCHING, at=AT, trees=TREES, learned=given.learned, judged=given.judged)
    title = f"# The model that starts the search on a Triton kernel (learned: {given.learned}, judged: {given.judged})"
    text = [title, "", *table(each), ""]
    nothing = sum(one == "nothing" for one in said.values())
    text += [f"Of {len(said)} lists that it must not know it says nothing of {nothing}."]
    write(given.output, {**head, "sweeps": each, "unknown": said}, "\n".join([*text, "", f"`{head['command']}`."]))
    print("\n".join(text))


if __name__ == "__main__":
    main()
