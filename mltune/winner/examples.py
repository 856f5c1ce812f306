"""The texts of a winner's folder from templates: README.txt, and examples for the problem kinds that have them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import resources
from string import Template
from typing import TYPE_CHECKING, Any

from mltune.records.versions import __version__
from mltune.results.rating import MS, speed, unit_of
from mltune.winner.formulas import launch_formulas
from mltune.winner.source import licence, nvcc
from mltune.winner.winner import Winner, one_line

if TYPE_CHECKING:
    from mltune.kernel.launch import Launch


def fill_templates(winner: Winner, document: Mapping[str, Any]) -> dict[str, bytes]:
    """Return the texts by file name, for a winner with machine code and the content of its winner.json."""
    examples, templates = winner.runnable.examples(), resources.files("mltune.winner") / "templates"
    values = {**_launch(winner), **_measured(winner, document), "usage": examples.usage, **examples.values}
    sources = {"README.txt": templates} | dict.fromkeys(examples.files, templates / winner.problem.kind)
    return {
        name: Template((folder / f"{name}.txt").read_text()).substitute(values).encode()
        for name, folder in sources.items()
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
