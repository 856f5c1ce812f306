"""The time of the first choice: whether the interval that `mltune predict` promises holds on a GPU of the architecture.

For each kernel of GEMM that gets intervals the problems are those of its recorded sweeps, each without what was learned
from it, and new ones. The first choice is what is remembered of the closest sweeps. It is compiled, verified and timed;
its interval follows from the card of the model that comes with mltune, without the sweep of the problem.

    python benchmarks/first_times.py [--output benchmarks/results/first_times.json]
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from harness import RESULTS, gpu_provenance, parser_of, write

from mltune.cost.features import Features
from mltune.cost.model_file import load_card
from mltune.cost.pretrained import Member, PretrainedModel, are_near, fastest_of
from mltune.device.facts import Device
from mltune.device.query import query_device
from mltune.files import folders
from mltune.kernel.bundle import Kernel, variables_of
from mltune.kernel.reader import load_kernel
from mltune.measure.build import NvrtcBuilder
from mltune.measure.runner import GpuRunner
from mltune.problem.kinds import problem_from_name
from mltune.problem.problem import Problem
from mltune.process.child import ChildPool
from mltune.records.trial import Build
from mltune.tuning.prediction import FEWEST_SWEEPS, interval
from mltune.tuning.session import make_space
from mltune.tuning.training import as_sweeps, find_datasets, joined, without

PRECISIONS = {"gemm_wgmma": "hb", "gemm_simt": "sdcz", "gemm_mma64": "dz"}
NEW = (("NN", 3072), ("NT", 6144), ("TN", 1536))
Job = tuple[Kernel, str, Problem, dict[str, int]]


def first_choices(name: str, device: Device) -> list[Job]:
    """Return the first choices of a kernel for recorded and new problems: those that are remembered and valid."""
    kernel, datasets = load_kernel(name), find_datasets(str(folders.assets("datasets") / name))
    sweeps = joined(datasets, as_sweeps(datasets))
    members = (
        Member(one.name, one.architecture, one.case, one.cost_class, one.flops, None, fastest_of(one)) for one in sweeps
    )
    model = PretrainedModel(name, (), tuple(members))
    recorded = {one.manifest.name: one.manifest.problem for one in datasets}
    cases: list[tuple[str, Any, Any]] = [
        (one.name, recorded[one.name], without(model, sweeps, one.group)) for one in sweeps
    ]
    for precision in PRECISIONS[name]:
        problems = [problem_from_name(f"{precision}gemm", trans=trans, size=size) for trans, size in NEW]
        cases += [(problem.label, problem, model) for problem in problems]
    jobs = []
    for label, problem, known in cases:
        space = make_space(kernel, variables_of(problem, device))
        first = (dict(one) for one in known.closest(problem, device).first if space.index_of(columns_of(one))[0] >= 0)
        jobs += [(kernel, label, problem, one) for one in first][:1]
    return jobs


def columns_of(configuration: Any) -> dict[str, np.ndarray]:
    """Return a configuration as a table."""
    return {name: np.array([value]) for name, value in configuration.items()}


def build(job: Job, device: Device) -> Build:
    """Compile a first choice."""
    kernel, _, problem, configuration = job
    with NvrtcBuilder(kernel, problem, device.architecture, workers=1, cache=None) as builder:
        return builder.submit(configuration).result()


def judged(job: Job, median_s: float, device: Device) -> dict[str, Any]:
    """Return a measured time over that of physics, and the interval from the sweeps of other problems."""
    kernel, label, problem, configuration = job
    physical_s = Features(kernel, problem, device).physical_s(columns_of(configuration))[0]
    others = [one for one in load_card(folders.assets("models") / kernel.name).members if one.sweep != label]
    ratios = [one.over_physics["model"] for one in others if are_near(one.flops, problem.flops)]
    least, _, most = interval(np.array(ratios)) if len(ratios) >= FEWEST_SWEEPS - 1 else (np.nan,) * 3
    ratio = median_s / physical_s
    row = {"kernel": kernel.name, "problem": problem.label, "new": label == problem.label, "median_s": median_s}
    return row | {"over_physics": ratio, "least": least, "most": most, "inside": bool(least <= ratio <= most)}


def main() -> None:
    """Measure all first choices, and write how many lay in their intervals."""
    arguments = parser_of(__doc__, RESULTS / "first_times.json").parse_args()
    device = query_device(0)
    jobs = [job for name in PRECISIONS for job in first_choices(name, device)]
    with ThreadPoolExecutor(14) as threads:
        builds = list(threads.map(lambda job: build(job, device), jobs))
    rows, pool = [], ChildPool()
    for job, built in zip(jobs, builds, strict=True):
        with GpuRunner(job[0], job[2], 0, device=device, pool=pool) as runner:
            measured = runner.submit(job[3], built).result()
        rows.append(judged(job, measured.median_s, device))
    pool.close()
    text = f"{sum(one['inside'] for one in rows)} of {len(rows)} first choices lay in their intervals of 90 %"
    print(text)
    write(arguments.output, gpu_provenance(answer=text, rows=rows))


if __name__ == "__main__":
    main()
