"""Pruned sweeps against complete ones: in replay of every complete dataset, and live on a GPU.

Replay: for every complete dataset and seed the share of configurations and of seconds (compiling, and verifying and
timing) that were measured, whether the best was found, how many fast configurations were missed in truth, and what the
audit said of that. With ``--prior`` the sweep starts from a model that is trained on the other datasets of the kernel.
ASTRA's thresholds (before compiling) are judged on the same spaces where the kernel has its resources.

    OMP_NUM_THREADS=1 python benchmarks/pruned_sweep.py [--seeds 20] [--within 1] [--prior] [--spaces NAME,NAME]
        [--datasets DIR] [--processes 2] [--name replay]

The same on made spaces whose fast configurations are hard to meet, ten of each family (`tests/hidden_optima.py`).
Shares of seconds are then those of configurations.

    OMP_NUM_THREADS=1 python benchmarks/pruned_sweep.py --hidden --seeds 10 --name hidden

Live, on a GPU, on the two complete sub-spaces of GEMM (1: sgemm NT, 2: cgemm NN), each part in a call of its own with
a cache of cubins of its own. A part that was interrupted goes on where it was.

    python benchmarks/pruned_sweep.py --gpu FOLDER --space 1 --full
    python benchmarks/pruned_sweep.py --gpu FOLDER --space 1 --pruned [--within 1] [--seed 0] [--prior gemm_simt]
    python benchmarks/pruned_sweep.py --gpu FOLDER --space 1 --astra
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from harness import SEARCHING, gpu_provenance, provenance, write

from mltune.cost.features import Features
from mltune.dataset.dataset import Dataset, datasets_in, list_datasets, load_dataset, load_manifest
from mltune.dataset.replay import recorded_kernel
from mltune.errors import BundleError
from mltune.kernel.placed import PlacedKernel
from mltune.kernel.reader import load_kernel
from mltune.records.store import Store
from mltune.records.trial import TrialState
from mltune.records.trials import Trials
from mltune.resolve.device import Target
from mltune.search.astra import AstraThresholds
from mltune.search.pruning import Promise, Pruner

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

RESULTS = Path(__file__).parent / "results" / "pruned_sweep"

SHARES = ("configurations", "compile_s", "gpu_s", "seconds")

LIVE = {1: "h200-sgemm-nt-4096-complete", 2: "h200-cgemm-nn-4096-complete"}


# --- replay


@cache
def known(source: str) -> tuple[Dataset, Any, Any]:
    """Return a dataset, its features and its log speeds."""
    dataset = load_dataset(source)
    features = Features(
        PlacedKernel(recorded_kernel(dataset.manifest)[0], dataset.manifest.problem, dataset.manifest.device)
    )
    speed = np.where(dataset.states == TrialState.OK, -np.log(dataset.numbers("median_s")), np.nan)
    return dataset, features.before(dataset.columns), speed


@cache
def expected(source: str) -> Any:
    """Return the log speeds that a model expects that was trained on the other datasets; None without others."""
    from mltune.tuning.training import train

    dataset = known(source)[0]
    manifest = dataset.manifest
    others = [one.name for one in list_datasets() if one.kernel == manifest.kernel and one.name != manifest.name]
    model = train([load_dataset(one) for one in others]) if others else None
    closest = model and model.closest(manifest.problem, manifest.device)
    return closest and closest.predict(dataset.columns)


def share(dataset: Dataset, measured: Any) -> dict[str, float]:
    """Return the shares of configurations and seconds."""
    compile_s = dataset.numbers("compile_s")
    gpu_s = np.nan_to_num(dataset.numbers("verify_s")) + np.nan_to_num(dataset.numbers("time_s"))
    both = compile_s + gpu_s
    parts = [part[measured].sum() / part.sum() for part in (compile_s, gpu_s, both)]
    return {name: round(float(value), 4) for name, value in zip(SHARES, [measured.mean(), *parts], strict=True)}


def replay(source: str, seed: int, within: float, prior: bool) -> dict[str, Any]:
    """Replay one pruned sweep."""
    dataset, features, speed = known(source)
    wanted = expected(source) if prior else None
    row = {"dataset": dataset.manifest.name, "seed": seed, "prior": wanted is not None}
    measured, figures = played(features, speed, seed, within, wanted, len(dataset.columns))
    return row | share(dataset, measured) | figures


def replay_hidden(family: str, number: int, seed: int, within: float) -> dict[str, Any]:
    """Replay one pruned sweep of a made space."""
    from hidden_optima import hidden

    space = hidden(family, number)
    measured, figures = played(space.X, space.speed, seed, within)
    some = round(float(measured.mean()), 4)
    return {"dataset": family, "number": number, "seed": seed, "prior": False} | figures | dict.fromkeys(SHARES, some)


def played(
    features: Any, speed: Any, seed: int, within: float, wanted: Any = None, parameters: int | None = None
) -> tuple[Any, dict[str, Any]]:
    """Return what a pruned sweep measures, and its figures."""
    promise = Promise(within=within)
    started = time.process_time()
    pruner = Pruner(features, seed=seed, promise=promise, expected=wanted, parameters=parameters)
    while (asked := pruner.ask()) is not None:
        for indices in (asked.chosen, asked.beside):
            pruner.tell(dict(zip(indices.tolist(), speed[indices].tolist(), strict=True)))
    measured, best = pruner.measured, float(np.nanmax(speed))
    missed = (speed >= promise.goal(best)) & ~measured
    return measured, {
        "found": float(np.exp(np.nanmax(speed[measured]) - best)),
        "missed": int(missed.sum()),
        "missed_share": float(missed.sum() / max((~measured).sum(), 1)),
        "planning_s": round(time.process_time() - started, 2),
        "audit": pruner.audit().to_json(),
    }


def astra(source: str, within: float) -> dict[str, Any] | None:
    """Judge ASTRA's thresholds; None where the kernel lacks the resources."""
    dataset, _, speed = known(source)
    manifest = dataset.manifest
    try:
        thresholds = AstraThresholds(
            Features(PlacedKernel(recorded_kernel(manifest)[0], manifest.problem, manifest.device))
        )
    except (BundleError, KeyError):
        return None
    kept, best = thresholds.keeps(dataset.columns), float(np.nanmax(speed))
    fast = speed >= Promise(within=within).goal(best)
    return {
        "dataset": manifest.name,
        "survivors": int(kept.sum()),
        "valid": len(kept),
        **share(dataset, kept),
        "found": float(np.exp(np.nanmax(speed[kept]) - best)),
        "fast": int(fast.sum()),
        "missed": int((fast & ~kept).sum()),
    }


def table(rows: list[dict[str, Any]], thresholds: list[dict[str, Any]]) -> str:
    """Return the figures as Markdown: means over seeds, and their range of seconds."""
    lines = [
        "| space | start | configurations | seconds (from, to) | best found | nothing missed | confidence (from, to) | "
        "missed, most | false, audited | true share missed, most | bound, most |",
        "|---" * 11 + "|",
    ]
    for name, prior in dict.fromkeys((one["dataset"], one["prior"]) for one in rows):
        some = [one for one in rows if (one["dataset"], one["prior"]) == (name, prior)]
        seconds, audits = [one["seconds"] for one in some], [one["audit"] for one in some]
        said = [one["confidence"] for one in audits]
        cells = [
            name,
            "model" if prior else "nothing",
            f"{np.mean([one['configurations'] for one in some]):.3f}",
            f"{np.mean(seconds):.3f} ({min(seconds):.3f}, {max(seconds):.3f})",
            f"{sum(one['found'] == 1.0 for one in some)} of {len(some)}",
            f"{sum(one['missed'] == 0 for one in some)} of {len(some)}",
            f"{np.mean(said):.3f} ({min(said):.3f}, {max(said):.3f})",
            str(max(one["missed"] for one in some)),
            f"{sum(one['false'] for one in audits)} of {sum(one['audited'] for one in audits)}",
            f"{max(one['missed_share'] for one in some):.4f}",
            f"{max(one['false_share_at_most'] for one in audits):.4f}",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    lines += ["", "| space, ASTRA's thresholds | survivors | seconds | best kept | fast ones lost |", "|---" * 5 + "|"]
    for one in thresholds:
        kept = f"{one['survivors']} of {one['valid']} | {one['seconds']:.3f} | {one['found']:.3f}"
        lines.append(f"| {one['dataset']} | {kept} | {one['missed']} of {one['fast']} |")
    return "\n".join(lines)


def replay_all(asked: argparse.Namespace) -> None:
    """Replay all sweeps that were asked for; write JSON and Markdown."""
    found = [manifest.name for manifest in list_datasets() if manifest.kind == "complete"]
    if asked.datasets is not None:
        found += [str(path) for path in datasets_in(asked.datasets) if load_manifest(path).kind == "complete"]
    sources = asked.spaces.split(",") if asked.spaces else found
    within = asked.within / 100
    one, jobs = replay, [(source, seed, within, asked.prior) for source in sources for seed in range(asked.seeds)]
    if asked.hidden:
        from hidden_optima import FAMILIES

        one, sources = replay_hidden, []
        families = asked.spaces.split(",") if asked.spaces else FAMILIES
        jobs = [(name, at, seed, within) for name in families for at in range(10) for seed in range(asked.seeds)]
    rows: list[dict[str, Any]] = []
    with ProcessPoolExecutor(asked.processes) as pool:
        for row in pool.map(one, *zip(*jobs, strict=True)):
            rows.append(row)
            print({name: value for name, value in row.items() if name != "audit"}, flush=True)
    thresholds = [one for source in sources if (one := astra(source, within)) is not None]
    text = table(rows, thresholds)
    results = {"within": within, "runs": rows, "astra": thresholds}
    write(RESULTS / f"{asked.name}.json", provenance(*SEARCHING) | {"results": results}, text)
    print(text)


# --- live


def live(asked: argparse.Namespace) -> None:
    """Make one part of the live comparison, and add it to ``live.json`` in the folder."""
    from mltune.measure.build import available_cores
    from mltune.resolve.request import TuneRequest

    part = next(name for name in ("full", "pruned", "astra") if getattr(asked, name))
    run = f"space{asked.space}-{part}" + (f"-{asked.within:g}-{asked.prior}-{asked.seed}" if part == "pruned" else "")
    directory = asked.gpu / run
    os.environ["XDG_CACHE_HOME"] = str((asked.gpu / f"{run}-cache").resolve())
    manifest = load_manifest(LIVE[asked.space])
    request = TuneRequest(
        manifest.problem,
        load_kernel(manifest.kernel),
        Target(cuda=0),
        seed=asked.seed,
        run=directory,
        prior=asked.prior or "none",
    )
    resumed, started = directory.exists(), time.perf_counter()
    figures = PARTS[part](request, manifest.parameters, asked)
    with Store.read_only(directory) as store:
        trials, seconds = store.records(), store.seconds()
    figures |= {
        "resumed": resumed,
        "wall_s": time.perf_counter() - started,
        "sweep_s": seconds["total"],
        "planning_s": seconds.get("search", 0.0),
        **judged(trials),
    }
    path = asked.gpu / "live.json"
    known_parts = json.loads(path.read_text())["results"]["parts"] if path.exists() else {}
    head = gpu_provenance(cores=available_cores())
    write(path, head | {"results": {"parts": known_parts | {run: figures}}})
    print(json.dumps({run: figures}, indent=1))


def full(request: Any, values: Any, _: argparse.Namespace) -> dict[str, Any]:
    """Measure every configuration."""
    from mltune.tuning.sweep import sweep

    return {"dataset": str(sweep(request, None, values=values))}


def pruned(request: Any, values: Any, asked: argparse.Namespace) -> dict[str, Any]:
    """Measure what may be fast."""
    from mltune.tuning.sweep import pruned_sweep

    found = pruned_sweep(request, Promise(within=asked.within / 100), values=values)
    return {"dataset": str(found.dataset), "pruning": found.to_json()}


def within_thresholds(request: Any, values: Any, _: argparse.Namespace) -> dict[str, Any]:
    """Measure what ASTRA's thresholds keep before compiling, in random order."""
    from mltune.results.progress import Observer
    from mltune.tuning.session import open_session, run_header
    from mltune.tuning.sweep import Everything, measure_all

    session = open_session(replace(request, kernel=request.kernel.with_values(values)))
    order = np.random.default_rng(request.seed).permutation(session.placed.space.count)
    thresholds = AstraThresholds(Features(session.placed))
    kept = order[thresholds.keeps(session.placed.space.rows(order))]
    with Store.open(request.run, run_header(session, request.seed, {"sweep": "astra"})) as store, session:
        observer = Observer(session.placed.problem, session.placed.device, "gpu", trials_limit=len(kept))
        measure_all(session, store, Everything(session.placed.space, kept), observer)
    return {"survivors": len(kept), "valid": session.placed.space.count}


PARTS = {"full": full, "pruned": pruned, "astra": within_thresholds}


def judged(trials: Trials) -> dict[str, Any]:
    """Return what was measured: how many, in how many seconds of compilers and GPU, and the fastest."""
    best = trials.fastest(1)
    return {
        "measured": len(trials),
        "compile_s": float(np.nansum(trials.column("compile_s"))),
        "gpu_s": float(np.nansum(trials.column("verify_s")) + np.nansum(trials.column("time_s"))),
        "failed": int((~trials.succeeded).sum()),
        "best_s": float(best.column("median_s")[0]),
        "best": dict(zip(trials.parameters, best.configurations[0].tolist(), strict=True)),
    }


def main() -> None:
    """Read the options, and run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--within", type=float, default=100 * Promise().within, help="percent")
    parser.add_argument("--prior", nargs="?", const="others", help="replay: a flag; live: a model")
    parser.add_argument("--spaces", default="")
    parser.add_argument("--datasets", type=Path)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--name", default="replay")
    parser.add_argument("--hidden", action="store_true")
    parser.add_argument("--gpu", type=Path, metavar="FOLDER")
    parser.add_argument("--space", type=int, choices=tuple(LIVE), default=1)
    parser.add_argument("--seed", type=int, default=0)
    part = parser.add_mutually_exclusive_group()
    for name in PARTS:
        part.add_argument(f"--{name}", action="store_true")
    asked = parser.parse_args()
    if asked.gpu is None:
        asked.prior = bool(asked.prior)
        replay_all(asked)
    elif not (asked.full or asked.pruned or asked.astra):
        parser.error("--gpu needs one of --full, --pruned, --astra")
    else:
        asked.gpu.mkdir(parents=True, exist_ok=True)
        live(asked)


if __name__ == "__main__":
    main()
