"""Builds of gemm_mma64 that were wrong on a GPU, in variants of the compiler: which of these are right.

The recorded wrong configurations, and as many right ones that have two fragment buffers and spill as much, are compiled
in all variants. Each build is verified on the GPU several times, and its machine code is searched for results that are
read before they are written (unwaited.py). ``--no-gpu`` leaves out the first.

    python benchmarks/wrong_builds.py --count 10 --output benchmarks/results/wrong_builds.json
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
from harness import gpu_provenance, parser_of, provenance, write
from unwaited import unwaited

from mltune.dataset.dataset import load_dataset, shipped_datasets, shipped_searches
from mltune.device.known import H200
from mltune.errors import DeviceError
from mltune.kernel.bundle import Kernel
from mltune.kernel.coding import row
from mltune.kernel.compiler_parameters import BUILT_IN, LEVEL, NAME, variant_of
from mltune.kernel.reader import load_kernel
from mltune.measure.build import NvrtcBuilder, available_cores, nvrtc_version
from mltune.measure.machine_code import find_disassembler
from mltune.measure.runner import GpuRunner
from mltune.problem.gemm import GemmProblem
from mltune.process.child import ChildPool
from mltune.records.trial import Build, TrialState

KERNEL = "gemm_mma64"
SIZE = 256
"""Extents of the timed problem; verification has its own."""


@dataclass(frozen=True, slots=True)
class Recorded:
    """A configuration with its problem, and how it ended."""

    dataset: str
    problem: GemmProblem
    configuration: dict[str, int]
    state: str


def recorded(kernel: Kernel) -> Iterator[Recorded]:
    """Yield the recorded configurations with two fragment buffers and spills that were wrong or right, once each."""
    seen = set[tuple[object, ...]]()
    for path in (*shipped_datasets().values(), *shipped_searches()):
        if KERNEL not in path.parts:
            continue
        data = load_dataset(path)
        problem = data.manifest.problem
        assert isinstance(problem, GemmProblem)  # noqa: S101
        small = dataclasses.replace(problem, m=SIZE, n=SIZE, k=SIZE, lda=0, ldb=0, ldc=0)
        spills = data.numbers("spill_bytes") > 0
        for at in np.flatnonzero(spills & (data.columns["FRAGMENTS"] == 2)):
            state, values = str(data.states[at]), row(data.columns, int(at))
            configuration = {name: values[name] for name in kernel.all_parameters if name in values}
            key = problem.label, *configuration.values()
            if state in ("ok", "wrong_result") and key not in seen:
                seen.add(key)
                yield Recorded(data.manifest.name, small, configuration, state)


def chosen(kernel: Kernel, count: int) -> list[Recorded]:
    """Return wrong configurations, and as many right ones of the same problems."""
    found = list(recorded(kernel))
    wrong = [one for one in found if one.state == "wrong_result"]
    wrong = wrong[:: -(-len(wrong) // count)]
    right = [one for one in found if one.state == "ok" and one.problem in {bad.problem for bad in wrong}]
    drawn = np.random.default_rng(0).choice(len(right), min(len(wrong), len(right)), replace=False)
    return sorted([*wrong, *(right[at] for at in drawn)], key=lambda one: one.problem.label)


def compiled(kernel: Kernel, cases: list[Recorded], variants: list[dict[str, Any]]) -> list[list[Build]]:
    """Compile all configurations in all variants; the macros of a problem are part of what is compiled."""
    makers = {one.problem: NvrtcBuilder(kernel, one.problem, H200.architecture) for one in cases}
    with next(iter(makers.values())) as builder:
        futures = []
        for one in cases:
            macros = makers[one.problem].definitions(one.configuration)
            for variant in map(variant_of, variants):
                renamed = (
                    f"#define {kernel.source.entry} {variant.entry(str(kernel.source.entry))}\n" if variant.name else ""
                )
                futures.append(builder.build(macros + renamed, variant.options))
        builds = [future.result() for future in futures]
    return [builds[at : at + len(variants)] for at in range(0, len(builds), len(variants))]


def verified(
    kernel: Kernel, cases: list[Recorded], builds: list[list[Build]], repeats: int
) -> list[list[dict[str, Any]]]:
    """Verify the builds on the first GPU; return the state of each, and what the verification said."""
    from mltune.device.query import query_device

    device, rows = query_device(0), list[list[dict[str, Any]]]()
    with contextlib.closing(ChildPool()) as pool, contextlib.ExitStack() as stack:
        runner, problem = None, None
        for one, variants in zip(cases, builds, strict=True):
            if runner is None or one.problem != problem:
                stack.close()
                problem = one.problem
                runner = stack.enter_context(GpuRunner(kernel, problem, device=device, pool=pool))
            futures = [
                [runner.submit(one.configuration, build) for _ in range(repeats if build.cubin else 0)]
                for build in variants
            ]
            found = [[future.result() for future in each] for each in futures]
            rows.append(
                [
                    {
                        "states": dict(Counter(str(run.state) for run in each)),
                        "detail": next((run.detail for run in each if run.state is not TrialState.OK), ""),
                    }
                    for each in found
                ]
            )
    return rows


def main() -> None:
    """Compile, verify, search the machine code, print a table, and write the JSON."""
    parser = parser_of(__doc__)
    parser.add_argument("--count", type=int, default=10, help="wrong configurations, and right ones")
    parser.add_argument("--levels", default="5,8,0,3,10", help="of register usage")
    parser.add_argument("--repeats", type=int, default=2, help="verifications of each build")
    parser.add_argument("--no-gpu", action="store_true")
    options = parser.parse_args()

    kernel = load_kernel(KERNEL)
    cases = chosen(kernel, options.count)
    variants = [
        {NAME: name, LEVEL: level} for name, level in product(BUILT_IN[NAME], map(int, options.levels.split(",")))
    ]
    builds = compiled(kernel, cases, variants)
    flat = [build.cubin for of_case in builds for build in of_case]
    try:
        find_disassembler()
    except DeviceError as error:
        print(error)
        hazards: list[Any] = [None] * len(flat)
    else:
        with ProcessPoolExecutor(available_cores()) as pool:
            hazards = list(pool.map(unwaited, flat, chunksize=4))
    runs = None if options.no_gpu else verified(kernel, cases, builds, options.repeats)

    rows = []
    for number, (one, of_case) in enumerate(zip(cases, builds, strict=True)):
        for at, (variant, build) in enumerate(zip(variants, of_case, strict=True)):
            ran = {} if runs is None else runs[number][at]
            rows.append(
                {
                    "dataset": one.dataset,
                    "problem": one.problem.label,
                    "recorded": one.state,
                    **one.configuration,
                    **variant,
                    "build": str(build.state),
                    "registers": build.registers,
                    "spill_bytes": build.spill_bytes,
                    **ran,
                    "unwaited": hazards[number * len(variants) + at],
                }
            )
    lines = [
        "| variant | recorded | builds | wrong | read too early | wrong, but not so |",
        "|---|---|---|---|---|---|",
    ]
    for variant, state in product(variants, ("wrong_result", "ok")):
        of_both = [one for one in rows if one["recorded"] == state and variant.items() <= one.items()]
        wrong = [one for one in of_both if "wrong_result" in one.get("states", ())]
        early = sum(bool(one["unwaited"]) for one in of_both)
        other = sum(not one["unwaited"] for one in wrong)
        lines.append(
            f"| {variant[NAME] or 'default'}, {variant[LEVEL]} | {state} | {len(of_both)} "
            f"| {'not run' if runs is None else len(wrong)} | {early} | {other} |"
        )
    print("\n".join(lines))
    head = provenance(nvrtc=nvrtc_version(), architecture=H200.architecture) if options.no_gpu else gpu_provenance()
    write(
        options.output, {**head, "kernel": KERNEL, "source_hash": kernel.source.sha256, "rows": rows}, "\n".join(lines)
    )


if __name__ == "__main__":
    main()
