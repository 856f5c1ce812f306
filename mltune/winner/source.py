"""kernel.cu: the bundle's source with its macros set, ready to compile."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mltune.files import assets
from mltune.records.versions import __version__
from mltune.winner.winner import Winner, one_line

if TYPE_CHECKING:
    from mltune.kernel.bundle import Kernel


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
        f"Compile it with `{nvcc(winner)}`; NVRTC {winner.versions.get('nvrtc', '')}",
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
    from mltune.measure.compiler import Source

    text = winner.kernel.source_of(winner.record.configuration)
    return Source(text, winner.kernel.entry or "", ()).expression(definitions(winner.macros()))


def nvcc(winner: Winner) -> str:
    """Return the command that compiles kernel.cu.

    The option allows device code to call ``constexpr`` functions that are not marked for it, as NVRTC does.
    """
    folders = dict.fromkeys((".", *winner.kernel.include)) if winner.kernel.headers else ()
    include = "".join(f" -I{folder}" for folder in folders)
    architecture = winner.kernel.architecture_on(winner.device.architecture)
    return f"nvcc -arch={architecture} -std=c++17 --expt-relaxed-constexpr{include} -cubin kernel.cu"


def header_files(kernel: Kernel) -> dict[str, str]:
    """Return the texts of a kernel's headers by their path in its folder."""
    files: dict[str, str] = {}
    for name, text in kernel.headers.items():  # the first name of a header has its text, another one includes it
        files.setdefault(kernel.header_paths.get(name, name), text)
    return files


def licence(kernel: Kernel) -> str:
    """Return the licence of a kernel's source, as far as mltune knows it."""
    if kernel.folder.resolve().parent == assets.folder("kernels").resolve():
        return "Part of mltune. SPDX-License-Identifier: Apache-2.0"
    return "Its licence is that of the bundle that it was tuned from; mltune adds no terms."
