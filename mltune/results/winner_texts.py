"""The texts of a winner's folder: kernel.cu with its macros set, README.txt, and examples."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mltune.kernel.includes import with_macros
from mltune.records.versions import __version__
from mltune.results.rating import MS, speed, unit_of
from mltune.results.winner import Winner, one_line

if TYPE_CHECKING:
    from jinja2 import Environment

    from mltune.kernel.bundle import Kernel


TEMPLATES = Path(__file__).parent / "templates"
"""README.txt, and a folder for each kind of problem that has examples: usage.txt and their templates."""


def kernel_source(winner: Winner, date: str) -> str:
    """Return the source of a winner: a head comment, and the bundle's source with its macros as ``#define``.

    NVRTC compiles it to the same machine code as the build that was timed.
    """
    kernel, problem = winner.placed.kernel, winner.placed.runnable
    head = [
        f"{problem.label}: {problem.formula}.",
        f"Found by mltune {__version__} on {winner.placed.device.name} ({winner.placed.device.architecture}), {date}.",
        f"Kernel {kernel.name}, SHA-256 of bundle {kernel.source.sha256}. {licence(kernel)}",
        "",
        f"Compile it with `{nvcc(winner)}`; {winner.compiler}",
        "with the options in winner.json compiles it to the kernel.cubin that was timed, byte for byte.",
    ]
    from mltune.measure.build import places_of

    macros, text = winner.macros(), kernel.source_of(winner.record.configuration)
    if "<" in (kernel.source.entry or ""):
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
    places = {name: place for name, place in places_of(kernel, text).items() if name not in problem.macros()}
    return with_macros(text, "\n".join(lines), places, numbered=False)


def _instance(winner: Winner) -> str:
    """Return the instance of a template that a winner is."""
    from mltune.measure.build import definitions
    from mltune.measure.compiler import CudaSource

    text = winner.placed.kernel.source_of(winner.record.configuration)
    return CudaSource(text, winner.placed.kernel.source.entry or "", ()).expression(definitions(winner.macros()))


def nvcc(winner: Winner) -> str:
    """Return the command that compiles kernel.cu, with ``constexpr`` functions in device code, as NVRTC allows them."""
    folders = dict.fromkeys((".", *winner.placed.kernel.source.include)) if winner.placed.kernel.source.headers else ()
    include = "".join(f" -I{folder}" for folder in folders)
    architecture = winner.placed.kernel.architecture_on(winner.placed.device.architecture)
    further = "".join(f" {option}" for option in winner.options)
    return f"nvcc -arch={architecture} -std=c++17 --expt-relaxed-constexpr{further}{include} -cubin kernel.cu"


def header_files(kernel: Kernel) -> dict[str, str]:
    """Return the texts of a kernel's headers by their path in its folder."""
    files: dict[str, str] = {}
    for name, text in kernel.source.headers.items():  # the first name of a header has its text, another one includes it
        files.setdefault(kernel.source.header_paths.get(name, name), text)
    return files


def licence(kernel: Kernel) -> str:
    """Return the licence of a kernel's source, as far as mltune knows it."""
    if kernel.is_built_in:
        return "Part of mltune. SPDX-License-Identifier: Apache-2.0"
    return "Its licence is that of the bundle that it was tuned from; mltune adds no terms."


def fill_templates(winner: Winner, document: Mapping[str, Any]) -> dict[str, bytes]:
    """Return README.txt and the examples by file name: views of winner.json, for a winner with machine code."""
    timing, launch = document["timing"], document["launch"]
    shapes = launch["at_other_sizes"]
    values = {
        **document,
        "problem": winner.placed.runnable,
        "gpu": one_line(winner.placed.device.name),
        "unit": unit_of(timing) or MS,
        "speed": speed(timing),
        "grid": ", ".join(map(str, launch["grid"])),
        "block": ", ".join(map(str, launch["block"])),
        "grid_formula": "as your Python call computes it" if shapes is None else ", ".join(shapes["grid"]),
        "launched": ", ".join(f"{name} = {value}" for name, value in winner.launched.items()),
        "nvcc": nvcc(winner),
        "licence": licence(winner.placed.kernel),
    }
    environment, kind = text_templates(TEMPLATES), winner.placed.runnable.kind
    examples = sorted((TEMPLATES / kind).glob("example.*.txt"))
    sources = {"README.txt": "README.txt.txt"} | {path.stem: f"{kind}/{path.name}" for path in examples}
    return {name: environment.get_template(source).render(values).encode() for name, source in sources.items()}


@cache  # with its compiled templates
def text_templates(folder: Path) -> Environment:
    """Return the templates of a folder that make programs and plain texts: ``${name}`` is a value."""
    return templates_in(folder, variable_start_string="${", variable_end_string="}", keep_trailing_newline=True)


def templates_in(folder: Path, **settings: Any) -> Environment:
    """Return the templates of a folder, which fail for a name without a value; by default they are no pages."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    plain: dict[str, Any] = {"trim_blocks": True, "lstrip_blocks": True, "undefined": StrictUndefined}
    return Environment(loader=FileSystemLoader(folder), **plain, **settings)  # noqa: S701
