"""The texts of a winner's folder: kernel.cu with its macros set, README.txt, and examples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mltune.files import folders
from mltune.records.versions import __version__
from mltune.results.rating import MS, speed, unit_of
from mltune.results.winner import Winner, launch_formulas, one_line

if TYPE_CHECKING:
    from jinja2 import Environment

    from mltune.kernel.bundle import Kernel
    from mltune.kernel.launch import Launch
    from mltune.problem.problem import RunnableProblem


TEMPLATES = Path(__file__).parent / "templates"
"""README.txt, and a folder for each kind of problem that has examples: usage.txt and their templates."""


def kernel_source(winner: Winner, date: str) -> str:
    """Return the source of a winner: a head comment, its macros as ``#define``, the bundle's source unchanged.

    NVRTC compiles it to the same machine code as the build that was timed. The winner has machine code; ``date`` is the
    time of writing.
    """
    kernel, problem = winner.kernel, winner.runnable
    head = [
        f"{problem.label}: {problem.formula}.",
        f"Found by mltune {__version__} on {winner.device.name} ({winner.device.architecture}), {date}.",
        f"Kernel {kernel.name}, SHA-256 of bundle {kernel.source_hash}. {licence(kernel)}",
        "",
        f"Compile it with `{nvcc(winner)}`; {winner.compiler}",
        "with the options in winner.json compiles it to the kernel.cubin that was timed, byte for byte.",
    ]
    macros = winner.macros()
    if "<" in (kernel.entry or ""):
        head.append(f"The kernel is {_instance(winner)}: nvcc compiles it where it is instantiated or called.")
    launched = ", ".join(f"{name} = {value}" for name, value in winner.launched.items())
    passed = f" (passed at launch: {launched})" if launched else ""
    lines = [
        *(f"// {one_line(line)}".rstrip() for line in head),
        "",
        f"// The parameters of the kernel{passed}.",
        *(f"#define {name} {value}" for name, value in macros.items() if name not in problem.macros()),
        "",
        f"// The case of the problem: {one_line(problem.label)}.",
        *(f"#define {name} {macros[name]}" for name in problem.macros()),
        "",
        "",
    ]
    return "\n".join(lines) + kernel.source_of(winner.record.configuration)


def _instance(winner: Winner) -> str:
    """Return the instance of a template that a winner is."""
    from mltune.measure.build import definitions
    from mltune.measure.compiler import CudaSource

    text = winner.kernel.source_of(winner.record.configuration)
    return CudaSource(text, winner.kernel.entry or "", ()).expression(definitions(winner.macros()))


def nvcc(winner: Winner) -> str:
    """Return the command that compiles kernel.cu.

    The option allows device code to call ``constexpr`` functions that are not marked for it, as NVRTC does.
    """
    folders = dict.fromkeys((".", *winner.kernel.include)) if winner.kernel.headers else ()
    include = "".join(f" -I{folder}" for folder in folders)
    architecture = winner.kernel.architecture_on(winner.device.architecture)
    further = "".join(f" {option}" for option in winner.options)
    return f"nvcc -arch={architecture} -std=c++17 --expt-relaxed-constexpr{further}{include} -cubin kernel.cu"


def header_files(kernel: Kernel) -> dict[str, str]:
    """Return the texts of a kernel's headers by their path in its folder."""
    files: dict[str, str] = {}
    for name, text in kernel.headers.items():  # the first name of a header has its text, another one includes it
        files.setdefault(kernel.header_paths.get(name, name), text)
    return files


def licence(kernel: Kernel) -> str:
    """Return the licence of a kernel's source, as far as mltune knows it."""
    if kernel.folder.resolve().parent == folders.assets("kernels").resolve():
        return "Part of mltune. SPDX-License-Identifier: Apache-2.0"
    return "Its licence is that of the bundle that it was tuned from; mltune adds no terms."


def fill_templates(winner: Winner, document: Mapping[str, Any]) -> dict[str, bytes]:
    """Return the texts by file name, for a winner with machine code and the content of its winner.json."""
    return render(winner.runnable, {**_launch(winner), **_measured(winner, document)})


def text_templates(folder: Path) -> Environment:
    """Return the templates of a folder that make programs and plain texts: ``${name}`` is a value."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    return Environment(
        loader=FileSystemLoader(folder),
        autoescape=False,  # noqa: S701 - these are no pages
        variable_start_string="${",
        variable_end_string="}",
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        undefined=StrictUndefined,
    )


def render(problem: RunnableProblem, values: Mapping[str, Any]) -> dict[str, bytes]:
    """Return README.txt and the examples of a problem's kind: the templates of its folder, if it has one."""
    environment = text_templates(TEMPLATES)
    examples = sorted((TEMPLATES / problem.kind).glob("example.*.txt"))
    sources = {"README.txt": "README.txt.txt"} | {path.stem: f"{problem.kind}/{path.name}" for path in examples}
    return {
        name: environment.get_template(source).render(values, problem=problem).encode()
        for name, source in sources.items()
    }


def _launch(winner: Winner) -> dict[str, Any]:
    launch, launched = winner.launch(), winner.launched
    return {
        "label": winner.problem.label,
        "formula": winner.runnable.formula,
        "device": one_line(winner.device.name),
        "entry": winner.build.entry or winner.kernel.entry,
        "grid": ", ".join(map(str, launch.grid)),
        "block": ", ".join(map(str, launch.block)),
        "shared_bytes": launch.shared_bytes,
        **_at_other_sizes(winner),
        "launched": ", ".join(f"{name} = {value}" for name, value in launched.items()),
        "launched_values": ", ".join(map(str, launched.values())) or "0",
        **_after_the_problem(launch),
    }


def _after_the_problem(launch: Launch) -> dict[str, str]:
    """Return the arguments that follow those of the problem, in Python and in C++: integers, then the workspace."""
    python = "".join(f", numpy.int32({value})" for value in launch.arguments)
    cpp = "".join(f", &launched[{position}]" for position in range(len(launch.arguments)))
    if launch.workspace_bytes is None:
        return {"launched_python": python, "launched_cpp": cpp, "workspace_python": "", "workspace_cpp": ""}
    size = max(launch.workspace_bytes, 1)
    return {
        "launched_python": f"{python}, workspace",
        "launched_cpp": f"{cpp}, &workspace",
        "workspace_python": f'workspace = cupy.zeros({size}, dtype="uint8")  # zero before the first launch\n',
        "workspace_cpp": "  CUdeviceptr workspace;  // zero before the first launch\n"
        f"  check(cuMemAlloc(&workspace, {size}ull));\n  check(cuMemsetD8(workspace, 0, {size}ull));\n",
    }


def _at_other_sizes(winner: Winner) -> dict[str, str]:
    formulas, launch = launch_formulas(winner), winner.launch()
    if formulas is None:
        unknown = "as your Python call computes it"
        fixed = [", ".join(map(str, shape)) for shape in (launch.grid, launch.block)]
        return {
            "grid_formula": unknown,
            "launch_formula": f"grid ({fixed[0]}), block ({fixed[1]}), {launch.shared_bytes} bytes of dynamic shared "
            f"memory,\n          at other sizes {unknown}",
        }
    grid, block = (", ".join(formulas[shape]) for shape in ("grid", "block"))
    workspace = formulas["workspace_bytes"]
    return {
        "grid_formula": grid,
        "launch_formula": f"grid ({grid}), block ({block}), {formulas['shared_bytes']} bytes of dynamic shared memory"
        + ("" if workspace is None else f",\n          a workspace of {workspace} bytes, zero before the first launch"),
    }


def _size(size: Mapping[str, int] | Sequence[int]) -> str:
    """Return extents as text, with their names where they have some."""
    if hasattr(size, "items"):
        return " ".join(f"{name}={extent}" for name, extent in size.items()) or "its only size"
    return "x".join(map(str, size))


def _measured(winner: Winner, document: Mapping[str, Any]) -> dict[str, Any]:
    timing, verified = document["timing"], document["verified"]
    low, high = (f"{1e3 * seconds:.4g}" for seconds in timing["interval_s"])
    time = f"median {1e3 * timing['median_s']:.4g} ms (95 %: {low} to {high})"
    unit = unit_of(timing) or MS
    rate = "" if unit is MS else f"{speed(timing)}, "
    peak = "" if timing["share_of_peak"] is None else f", {unit.of_limit(timing['share_of_peak'])}"
    name = winner.problem.reference or "a reference"
    reference = f"{name} was not timed"
    if timing["share_of_reference"] is not None:
        interval = timing["share_of_reference_interval"]
        between = "" if interval is None or None in interval else f" ({interval[0]:.3f} to {interval[1]:.3f})"
        reference = f"{timing['share_of_reference']:.3f}{between} of the speed of {name}"
    ties = ", ".join(str(tie["trial"]) for tie in timing["ties"])
    sizes = ", ".join(map(_size, verified["sizes"]))
    major, minor = winner.device.compute_capability or (0, 0)
    return {
        "kernel": winner.kernel.name,
        "version": __version__,
        "date": document["written"],
        "measured": f"{rate}{time}{peak}",
        "reference": reference,
        "ties": f"not distinguishable from it: trials {ties}" if ties else "nothing else was as fast",
        "verified": f"at {sizes}" if verified["passed"] else "like every trial; NOT at its full size",
        "addresses": verified["addresses"],
        "sizes_must_satisfy": "; ".join(document["launch"]["sizes_must_satisfy"]) or "nothing",
        "major": major,
        "capability": f"{major}.{minor}",
        "cuda": f"{winner.versions.get('nvrtc', '').partition('.')[0]}.0",  # minor version compatibility
        "nvcc": nvcc(winner),
        "licence": licence(winner.kernel),
    }
