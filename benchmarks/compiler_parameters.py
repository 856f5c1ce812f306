"""What the compiler parameters change in the machine code of the built-in kernels, without a GPU.

Of each kernel the configurations that physics expects to be fastest are compiled for an H200, in all variants:
registers, spills, size of the code, instructions of the main loop, and conflicts of register banks.

    python benchmarks/compiler_parameters.py [--configurations 8] --output benchmarks/results/compiler_parameters.json
"""

from __future__ import annotations

import statistics
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from harness import parser_of, provenance, write

from mltune.cost.features import Features
from mltune.device.known import H200
from mltune.errors import UsageError
from mltune.kernel.bundle import Kernel, variables_of
from mltune.kernel.coding import row
from mltune.kernel.reader import built_in, load_kernel
from mltune.measure.build import NvrtcBuilder, nvrtc_version
from mltune.measure.machine_code import disassemble, main_loop
from mltune.problem.kinds import problem_from_name
from mltune.problem.problem import RunnableProblem
from mltune.records.trial import Build, TrialState
from mltune.tuning.session import make_space

CASES = {"gemm_mma64": "dgemm", "gemm_wgmma": "hgemm", "gemm_dd": "ddgemm"}
"""The problem of a kernel of GEMMs, at 4096 in the case TN; sgemm of the others, and their own of other kernels."""


def problem_of(kernel: Kernel) -> RunnableProblem:
    """Return the problem for which a kernel is compiled."""
    if kernel.arrays is not None:
        return kernel.arrays.problem()
    found = problem_from_name(CASES.get(kernel.name, "sgemm"), trans="TN", size=4096)
    assert isinstance(found, RunnableProblem)  # noqa: S101
    return found


def fastest_expected(kernel: Kernel, problem: RunnableProblem, count: int) -> list[dict[str, int]]:
    """Return the configurations of a sample that physics expects to be fastest; the first where it expects nothing."""
    space = make_space(kernel, variables_of(problem, H200))
    drawn = space.sample(4000, np.random.default_rng(0))
    order = np.argsort(-Features(kernel, problem, H200).prior(space.rows(drawn)), kind="stable")[:count]
    columns = space.rows(drawn[order])
    return [row(columns, at) for at in range(len(order))]


def facts(build: Build) -> dict[str, Any] | None:
    """Return what is counted of a build; None where it failed."""
    if build.state is not TrialState.OK:
        return None
    loop = main_loop(disassemble(build.cubin))
    counted = {} if loop is None else {"loop": loop.total, "arithmetic": loop.arithmetic, "conflicts": loop.conflicts}
    return {"registers": build.registers, "spill_bytes": build.spill_bytes, "code_bytes": build.code_bytes, **counted}


def study(kernel: Kernel, count: int) -> dict[str, Any]:
    """Compile configurations in all variants, and summarise each variant against the default."""
    problem = problem_of(kernel)
    names = [*kernel.compiler.parameters]
    variants = list(product(*kernel.compiler.parameters.values()))
    configurations = fastest_expected(kernel, problem, count)
    with NvrtcBuilder(kernel, problem, H200.architecture) as builder:
        futures = [
            [builder.submit(one | dict(zip(names, variant, strict=True))) for one in configurations]
            for variant in variants
        ]
        found = [[facts(future.result()) for future in row] for row in futures]
    plain, document = found[0], []
    for variant, built in zip(variants, found, strict=True):
        pairs = [(one, other) for one, other in zip(plain, built, strict=True) if one and other]
        summary = {
            name: statistics.median(other[name] / max(one[name], 1) for one, other in pairs)
            for name in ("registers", "code_bytes", "loop")
            if pairs and all(name in one and name in other for one, other in pairs)
        }
        fewer = [other["registers"] - one["registers"] for one, other in pairs]
        document.append(
            {
                "variant": kernel.in_variants().space.labelled(dict(zip(names, variant, strict=True))),
                "compiled": len(pairs),
                "median_ratio": summary,
                "registers": [min(fewer), statistics.median(fewer), max(fewer)] if fewer else None,
                "same_code": sum(one == other for one, other in pairs),
                "spilling": sum(other["spill_bytes"] > 0 for _, other in pairs),
                "builds": built,
            }
        )
    return {"problem": problem.label, "configurations": len(configurations), "variants": document}


def main() -> None:
    """Study all built-in kernels that can be compiled, print a table, and write the JSON."""
    parser = parser_of(__doc__)
    parser.add_argument("--configurations", type=int, default=8)
    parser.add_argument("--kernels", default="")
    options = parser.parse_args()
    kernels: dict[str, Any] = {}
    lines = [
        "| kernel | variant | registers: least, median, most change | loop | spilling | same counts |",
        "|---|---|---|---|---|---|",
    ]
    for name in options.kernels.split(",") if options.kernels else built_in():
        try:
            kernel = load_kernel(name)
            if kernel.source.text is None:
                continue
            kernels[name] = study(kernel, options.configurations)
        except UsageError as error:
            print(f"{name}: {error}")
            continue
        for one in kernels[name]["variants"]:
            asked = (
                " ".join(f"{key}={value}" for key, value in one["variant"].items() if value not in ("", 5)) or "default"
            )
            loop = one["median_ratio"].get("loop")
            lines.append(
                f"| {name}, {kernels[name]['problem']} | {asked} | {one['registers']} | {loop and round(loop, 3)} "
                f"| {one['spilling']} of {one['compiled']} | {one['same_code']} |"
            )
            print(lines[-1], flush=True)
    head = provenance(nvrtc=nvrtc_version(), architecture=H200.architecture)
    output: Path | None = options.output
    write(output, {**head, "kernels": kernels}, "\n".join(lines))


if __name__ == "__main__":
    main()
