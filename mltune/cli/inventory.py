"""The commands ``init``, ``space``, ``check`` and ``device``: bundles and GPUs."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mltune.cli.application import AsJson, Size, Trans, answer, app, one_of, path, sizes
from mltune.errors import UsageError
from mltune.files.text import printable
from mltune.problem.problem import GEMM_PRECISIONS

if TYPE_CHECKING:
    from mltune.device.facts import Device
    from mltune.kernel.bundle import Kernel
    from mltune.problem.problem import Problem


KernelArgument = Annotated[str, typer.Argument(metavar="KERNEL", help="A built-in kernel, or the folder of a bundle.")]
Precision = Annotated[
    str | None,
    typer.Option(
        "--precision",
        metavar="|".join(GEMM_PRECISIONS),
        parser=one_of("--precision", GEMM_PRECISIONS),
        help="Of a GEMM.  [default: the kernel's first]",
    ),
]


@app.command()
def init(
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", parser=path("FOLDER"), help="A folder that is empty or does not exist.")
    ],
    as_json: AsJson = False,
) -> None:
    """Write a new kernel bundle: kernel.toml and kernel.cu, a small example to be edited."""
    import shlex

    from mltune.files import assets
    from mltune.kernel.skeleton import FILES, new_bundle

    name = new_bundle(folder)
    is_plain = re.fullmatch(r"\w[\w./-]*", str(folder)) and not (assets.folder("kernels") / folder).exists()
    named = shlex.quote(str(folder) if is_plain or folder.is_absolute() else f"./{folder}")
    document = {
        "kernel": name,
        "files": [str(folder / file) for file in sorted(FILES)],
        "next": [f"mltune check {named}", f"mltune tune {named}"],
    }
    answer(document, as_json, lambda: [f"wrote {' and '.join(document['files'])}; then", *document["next"]])


@app.command()
def space(
    kernel: KernelArgument,
    trans: Trans = None,
    size: Size = None,
    precision: Precision = None,
    as_json: AsJson = False,
) -> None:
    """Show the size and the restrictions of a kernel's search space.

    It is counted for an NVIDIA H200. What each restriction removes is a share of the raw combinations, estimated on a
    uniform sample of them: "removes" by itself, "only this" what no other restriction removes.

    Launches are computed for a sample of configurations; nothing is compiled: mltune check does that.
    """
    from mltune.device.known import H200
    from mltune.errors import BundleError
    from mltune.kernel.bundle import device_variables
    from mltune.kernel.space import ConstrainedSpace
    from mltune.measure.bundle_check import check_sample, draw_sample
    from mltune.show import inventory

    bundle, problem = _bundle_and_problem(kernel, precision, trans, size)
    found = ConstrainedSpace(bundle, {**problem.variables(), **device_variables(H200)})
    faults = check_sample(bundle, problem, H200, draw_sample(found))
    for fault in faults:
        if fault.share == 1:
            raise BundleError(f"{bundle.folder / 'kernel.toml'}: {fault.reason}. See docs/reference/kernel-toml.md.")
    document = {
        "kernel": bundle.name,
        "has_source": bundle.source is not None,
        "problem": problem.to_json(),
        "label": problem.label,
        "device": H200.to_json(),
        "combinations": math.prod(len(values) for values in bundle.all_parameters.values()),
        "valid": found.count,
        "parameters": {name: list(values) for name, values in bundle.all_parameters.items()},
        "restrictions": [
            {"restriction": text, "reason": reason, "removes": removes, "removes_alone": alone}
            for text, reason, removes, alone in found.explain()
        ],
        "faults": [fault.reason for fault in faults],
    }
    answer(document, as_json, lambda: inventory.space(document))


@app.command()
def check(
    kernel: KernelArgument,
    trans: Trans = None,
    size: Size = None,
    precision: Precision = None,
    time: Annotated[
        str, typer.Option("--time", metavar="TIME", help="Most time of all builds: 8s, 1m.", show_default=True)
    ] = "8s",
    as_json: AsJson = False,
) -> None:
    """Check a kernel bundle: its files, the launches of a sample of configurations, and the builds of some.

    It is checked for an NVIDIA H200; no GPU is needed. Where NVRTC is not installed, nothing is compiled. The exit code
    is 1 if a launch or a build fails; a build that has not ended in time does not count.
    """
    from mltune.device.known import H200
    from mltune.measure.bundle_check import check_bundle
    from mltune.resolve.request import parse_duration
    from mltune.show import inventory

    bundle, problem = _bundle_and_problem(kernel, precision, trans, size)
    checked = check_bundle(bundle, problem, H200, parse_duration(time))
    facts = {"kernel": bundle.name, "problem": problem.to_json(), "label": problem.label, "device": H200.to_json()}
    document = facts | checked.to_json()
    answer(document, as_json, lambda: inventory.check(document))
    if not checked.passed:
        raise typer.Exit(1)


def _bundle_and_problem(
    kernel: str, precision: str | None, trans: str | None, size: list[str] | None
) -> tuple[Kernel, Problem]:
    """Return a bundle and the problem that it is described for."""
    from mltune.kernel.reader import load_kernel
    from mltune.resolve.problems import space_problem

    bundle = load_kernel(kernel)
    problem = space_problem(bundle, precision, {"trans": trans, "size": sizes(size)})
    bundle.check_problem(problem)
    return bundle, problem


@app.command()
def device(
    facts: Annotated[
        str | None,
        typer.Argument(metavar="[FACTS]", help="cuda:N, a known GPU, or a file (JSON, TOML): show its facts."),
    ] = None,
    known: Annotated[bool, typer.Option("--known", help="List the known GPUs, with values from data sheets.")] = False,
    measure: Annotated[
        bool,
        typer.Option("--measure", help="Measure the rates of a GPU, cuda:0 if none is named: some twenty seconds."),
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", metavar="FILE", parser=path("--out"), help="Write the facts of one GPU to a .json file, for FACTS."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List the GPUs of this machine, and the CUDA libraries that are used; or show the facts of one GPU.

    With --measure they include rates that small kernels measure on it: of arithmetic, tensor cores, memories, launches,
    and of arithmetic mixed with loads.
    """
    from dataclasses import asdict

    from mltune.device.known import known_devices
    from mltune.device.lookup import find_device
    from mltune.files.atomic import write_file_atomically
    from mltune.measure.libraries import Library, find_libraries
    from mltune.resolve.device import find_gpus
    from mltune.show import inventory

    reason, libraries, problems = "", list[Library](), list[str]()
    unmeasured: dict[str, str] = {}
    if out is not None and (out.suffix.lower() != ".json" or not (measure or facts)):
        raise UsageError(
            f"--out writes the facts of one GPU to a .json file, got {printable(out)}; write `mltune device cuda:0 "
            "--out my-gpu.json`."
        )
    if measure:
        from mltune.measure.device_rates import measure_device

        spec = "--known" if known else facts or "cuda:0"
        if not re.fullmatch(r"cuda:\d{1,3}", spec):
            raise UsageError(f"a GPU of this machine is measured, cuda:N, got {printable(spec, 100)!r}.")
        gpu, unmeasured = measure_device(int(spec.removeprefix("cuda:")))
        found = {spec: gpu}
    elif known:
        found = dict(known_devices())
    elif facts is not None:
        found = {facts: find_device(facts)[0]}
    else:
        gpus, reason = find_gpus()
        found = {f"cuda:{index}": gpu for index, gpu in enumerate(gpus)}
        libraries, problems = find_libraries()
    document = {
        "devices": [_described(spec, gpu) for spec, gpu in found.items()],
        "reason": reason or None,
        "libraries": [asdict(library) for library in libraries],
        "problems": problems,
        "unmeasured": unmeasured,
    }
    if out is not None:
        write_file_atomically(out, f"{json.dumps(document, indent=2, allow_nan=False)}\n".encode())
    written = [] if out is None else [f"written: {out}"]
    answer(document, as_json, lambda: [*inventory.devices(document), *written])


def _described(spec: str, facts: Device) -> dict[str, Any]:
    """Describe a device: an entry of the output of ``mltune device --json``."""
    from mltune.device.peaks import data_sheet, peak_flops

    shares = {
        name: quantity.median / sheet if (sheet := data_sheet(facts, name)) else None
        for name, quantity in facts.measured.items()
    }
    return {
        "spec": spec,
        "architecture": facts.architecture,
        "peak_flops": {arithmetic: peak_flops(facts, arithmetic) for arithmetic in ("fp32", "fp64")},
        "device": facts.to_json(),
        **({"share_of_data_sheet": shares} if shares else {}),
    }
