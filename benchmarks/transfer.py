"""Starting from a model that has not seen the GPU or the problem: what it is worth, replayed.

Datasets of a kernel that come from several architectures are replayed with a model of the other architectures; those of
one architecture (gemm_simt on the H200), with a model of the other problems. Compared are

- ``raw``: the search without physics or model;
- ``physics``: the search as it starts without a model;
- ``portable``: the fixed order of the mean recorded speed on what the model is trained on; where that has not been
  measured (random samples of a space that is too large) there is none;
- ``model``: the fixed order of the model;
- ``warm``: the search with physics and model;
- ``misled``: the search without physics, with a model that takes each value for that of the opposite end of its list.

Kernels of one sweep are replayed without a model.

The figures are the fastest so far as a share of the fastest recorded, means over spaces and seeds, beside the
:data:`TARGETS`; and for each space the first pick of physics, of the model and of the search with both, with what that
loses against the better one; and how far the search with sources is below the one without from :data:`LAW_FROM`
measurements on, at worst: no more than :data:`LAW` is the law. Sub-spaces that were recorded completely are replayed
with the model of the random samples of other problems.

    python benchmarks/transfer.py [--seeds 20] [--jobs 2] [--between architecture] [--datasets DIR] [--results DIR]

``--between`` narrows to what is left out, and leaves the other parts of the results as they are. ``--datasets`` adds
the datasets of a folder (see ``mltune datasets import``), such as those of further GPUs.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"

import numpy as np
from harness import SEARCHING, provenance, write

from mltune.comparison.baselines import ShippedSearch
from mltune.comparison.simulation import Recording, record, simulate
from mltune.cost.pretrained import Member, PretrainedModel, Sweep, fit_member
from mltune.dataset.dataset import Dataset, datasets_in, load_dataset, shipped_datasets, shipped_searches
from mltune.kernel.reader import is_bundle, load_kernel
from mltune.tuning.training import as_sweeps

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
from misleading import mirrored

AT = (1, 5, 10, 25, 50, 100)
TARGETS = {1: 0.95, 5: 0.975, 10: 0.985, 25: 0.99}
"""Share of the optimum that is aimed at after so many measurements, where the architecture is left out."""

LAW, LAW_FROM = 0.02, 10
"""What a source may cost against the search without sources, from so many measurements on, in the mean over seeds."""

SEARCHES: dict[str, dict[str, Any]] = {
    "raw": {"resources": False},
    "physics": {},
    "warm": {"pretrained": None},
    "misled": {"pretrained": None, "resources": False},
}
FIRST = ("physics", "model", "warm")
ORDERS = ("portable", "model")
BETWEEN = {
    "architecture": "another architecture",
    "problem": "another problem, the same GPU",
    "nothing": "everything, physics alone",
}


@dataclass(frozen=True)
class Case:
    """A dataset that is replayed, and what may be known before."""

    name: str
    between: str
    recording: Recording
    model: PretrainedModel | None
    portable: np.ndarray | None
    misleading: PretrainedModel | None = None


def cases(datasets: list[Dataset], searches: list[Dataset]) -> list[Case]:
    """Return the cases of all datasets of bundles that others were recorded beside; searches only train."""
    found = []
    for kernel in filter(is_bundle, sorted({one.manifest.kernel for one in datasets})):
        own = [one for one in datasets if one.manifest.kernel == kernel]
        sweeps = as_sweeps([*own, *(one for one in searches if one.manifest.kernel == kernel)])
        if len({sweep.group for sweep in sweeps}) < 2:
            found += [
                Case(dataset.manifest.name, "nothing", record(dataset, load_kernel(kernel)), None, None)
                for dataset in own
            ]
            continue
        between = "architecture" if sweeps[0].group != own[0].manifest.problem.label else "problem"
        parameters = tuple(own[0].manifest.parameters)
        members = {sweep.name: fit_member(sweep, parameters) for sweep in sweeps}
        opposite: dict[str, Member] = {}
        for dataset, sweep in zip(own, sweeps, strict=False):
            others = [one for one in sweeps if one.group != sweep.group and not is_part(one.name)]
            model = PretrainedModel(kernel, parameters, tuple(members[one.name] for one in others)).closest(
                dataset.manifest.problem, dataset.manifest.device
            )
            recording = record(dataset, load_kernel(kernel))
            misleading = None
            if model is not None:
                for other in others:
                    if other.name in {member.sweep for member in model.members} - {*opposite}:
                        opposite[other.name] = fit_member(mirrored(other), parameters)
                misleading = replace(model, members=tuple(opposite[member.sweep] for member in model.members))
            found.append(Case(sweep.name, between, recording, model, portable_order(sweep, others), misleading))
    return found


def is_part(name: str) -> bool:
    """Whether a dataset is a part of the space of another one."""
    return name.endswith("-complete")


def portable_order(sweep: Sweep, others: list[Sweep]) -> np.ndarray | None:
    """Return the rows of a sweep by their mean recorded speed in others; None where hardly any were recorded there."""
    names = list(sweep.columns)
    means: dict[tuple[int, ...], list[float]] = {}
    for other in others:
        rows = zip(*(other.columns[name].tolist() for name in names), strict=True)
        for key, speed in zip(rows, other.relative().tolist(), strict=True):
            means.setdefault(key, []).append(speed)
    rows = zip(*(sweep.columns[name].tolist() for name in names), strict=True)
    expected = np.array([np.mean(means[key]) if key in means else -np.inf for key in rows])
    return np.argsort(-expected, kind="stable") if np.isfinite(expected).mean() > 0.25 else None


def curve(recording: Recording, indices: np.ndarray) -> list[float]:
    """Return the fastest of the first configurations, as shares of the fastest recorded."""
    speed = np.nan_to_num(np.nanmin(recording.median_s) / recording.median_s)[indices]
    best = np.maximum.accumulate(speed)
    return [float(best[min(count, len(best)) - 1]) for count in AT]


_cases: list[Case] = []


def remember(known: list[Case]) -> None:
    """Keep the cases in a worker process."""
    _cases[:] = known


def play(at: int, search: str, seed: int) -> list[float]:
    """Replay one search."""
    case, options = _cases[at], dict(SEARCHES[search])
    if "pretrained" in options:
        options["pretrained"] = case.model
    if search == "misled":
        options["pretrained"] = case.misleading
    trace = simulate(ShippedSearch(**options), case.recording, max(AT), seed)
    return curve(case.recording, trace.indices)


def main() -> None:
    """Replay everything, and write summary.json and table.md."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--between", choices=BETWEEN)
    parser.add_argument("--datasets", type=Path)
    parser.add_argument("--results", type=Path, default=Path(__file__).parent / "results" / "transfer")
    arguments = parser.parse_args()
    started = time.time()
    paths = [*shipped_datasets().values(), *(datasets_in(arguments.datasets) if arguments.datasets else [])]
    known = cases([load_dataset(path) for path in paths], [load_dataset(path) for path in shipped_searches()])
    known = [case for case in known if arguments.between in (None, case.between)]
    spaces: dict[str, dict[str, Any]] = {}
    for case in known:
        orders = {
            "portable": case.portable,
            "model": case.model
            and np.argsort(
                -case.model.predict(case.recording.space.rows(np.arange(case.recording.space.count))), kind="stable"
            ),
        }
        spaces[case.name] = {
            name: [curve(case.recording, order)] for name, order in orders.items() if order is not None
        }
    with ProcessPoolExecutor(arguments.jobs, initializer=remember, initargs=(known,)) as pool:
        jobs = {
            (case.name, search, seed): pool.submit(play, at, search, seed)
            for seed in range(arguments.seeds)
            for at, case in enumerate(known)
            for search in SEARCHES
            if case.model is not None or search in ("raw", "physics", "warm")
        }
        for (name, search, _), job in jobs.items():
            spaces[name].setdefault(search, []).append(job.result())
    head = {**provenance(*SEARCHING), "seeds": arguments.seeds, "seconds": round(time.time() - started)}
    path = arguments.results / "summary.json"
    parts = json.loads(path.read_text())["parts"] if path.exists() else {}
    for between in dict.fromkeys(case.between for case in known):
        curves = {case.name: spaces[case.name] for case in known if case.between == between}
        parts[between] = {**head, **part_of(curves)}
    write(path, {"at": AT, "parts": parts})
    text = table(parts)
    (arguments.results / "table.md").write_text(text, encoding="utf-8")
    print(text)


def part_of(spaces: dict[str, dict[str, list[list[float]]]]) -> dict[str, Any]:
    """Return the means over seeds of each space, with their errors, and the worst space of each search by the law."""
    means = {
        name: {start: np.round(np.mean(curves, axis=0), 4).tolist() for start, curves in space.items()}
        | {"error": {search: standard_error(space[search]) for search in SEARCHES if search in space}}
        for name, space in spaces.items()
    }
    return {"spaces": means, "worst": worst_of(means)}


def worst_of(spaces: dict[str, Any]) -> dict[str, Any]:
    """Return the space in which each search is furthest below the one without sources, by how much, and when."""
    worst = {}
    for search in SEARCHES:
        below = [(*below_raw(space, search), name) for name, space in spaces.items() if search in space]
        if search != "raw" and below:
            worst[search] = dict(zip(("below", "at", "space"), max(below), strict=True))
    return worst


def standard_error(curves: list[list[float]]) -> list[float]:
    """Return the standard errors of the means of curves."""
    errors = np.std(curves, axis=0, ddof=1) / np.sqrt(len(curves)) if len(curves) > 1 else np.zeros(len(AT))
    return np.round(errors, 4).tolist()


def table(parts: dict[str, Any]) -> str:
    """Return the means over spaces, and each space after 100 measurements."""
    lines = []
    starts = [*list(SEARCHES)[:2], *ORDERS, *list(SEARCHES)[2:]]
    for between, title in BETWEEN.items():
        if between not in parts:
            continue
        part, chosen = parts[between], parts[between]["spaces"]
        lines += [f"Held out: {title} ({len(chosen)} spaces)", ""]
        lines += [f"{part['date']}, `{part['command']}`, {part['seeds']} seeds.", ""]
        lines += ["| start | " + " | ".join(map(str, AT)) + " |", "| --- |" + " ---: |" * len(AT)]
        for start in starts:
            curves = [space[start] for space in chosen.values() if start in space]
            if curves:
                note = "" if len(curves) == len(chosen) else f" ({len(curves)} spaces)"
                mean = " | ".join(f"{value:.3f}" for value in np.mean(curves, axis=0))
                lines.append(f"| {start}{note} | {mean} |")
        if between == "architecture":
            aims = " | ".join(f"{TARGETS[count]:.3f}" if count in TARGETS else "" for count in AT)
            lines.append(f"| target | {aims} |")
        lines += ["", "The first pick, by space:", "", *first_picks(chosen)]
        lines += ["", f"Below raw from {LAW_FROM} measurements on, at worst:", "", *below_table(chosen)]
        lines += ["", "After 100 measurements, by space (± standard error of the mean over seeds):", ""]
        lines += ["| space | " + " | ".join(SEARCHES) + " |", "| --- |" + " ---: |" * len(SEARCHES)]
        for name, space in chosen.items():
            cells = [
                f"{space[search][-1]:.3f} ± {space['error'][search][-1]:.3f}" if search in space else ""
                for search in SEARCHES
            ]
            lines.append(f"| {name} | " + " | ".join(cells) + " |")
        lines.append("")
    return "\n".join(lines)


def first_picks(spaces: dict[str, Any]) -> list[str]:
    """Return what each source alone and the search with both pick first; where there is no model, physics alone."""
    lines = ["| space | " + " | ".join(FIRST) + " | below the better |", "| --- |" + " ---: |" * (len(FIRST) + 1)]
    for name, space in spaces.items():
        picks = [space[start][0] if start in space else None for start in FIRST]
        lost = max(pick for pick in picks if pick is not None) - picks[-1]
        cells = ["" if pick is None else f"{pick:.3f}" for pick in picks]
        lines.append(f"| {name} | " + " | ".join(cells) + f" | {lost:.3f} |")
    return lines


def below_raw(space: dict[str, Any], search: str) -> tuple[float, int]:
    """Return how far a search is below the one without sources at worst, from :data:`LAW_FROM` on, and when."""
    late = [at for at, count in enumerate(AT) if count >= LAW_FROM]
    return max((round(space["raw"][at] - space[search][at], 4), AT[at]) for at in late)


def below_table(spaces: dict[str, Any]) -> list[str]:
    """Return how far each search is below the one without sources, and when; bold: more than the law allows."""
    searches = [search for search in SEARCHES if search != "raw"]
    lines = ["| space | " + " | ".join(searches) + " |", "| --- |" + " ---: |" * len(searches)]
    for name, space in spaces.items():
        cells = []
        for search in searches:
            below, count = below_raw(space, search) if search in space else (0.0, 0)
            text = f"{below:+.3f} at {count}" if count else ""
            cells.append(f"**{text}**" if below > LAW else text)
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return lines


if __name__ == "__main__":
    main()
