"""kernel.cu: the bundle's source with its macros set, which compiles as it stands."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mltune import __version__, assets
from mltune.winner.winner import Winner, computes, one_line

if TYPE_CHECKING:
    from mltune.kernel.bundle import Kernel


def kernel_source(winner: Winner, date: str) -> str:
    """Return the source of a winner: what it is, its macros as ``#define``, the bundle's text unchanged.

    NVRTC makes the same machine code of it as of the bundle's source with one option ``-D`` for each macro.

    Parameters
    ----------
    winner : Winner
        With machine code.
    date : str
        When it was written.
    """
    kernel, problem = winner.kernel, winner.gemm
    head = [
        f"{problem.label}: {computes(problem)}, column-major, with the meaning that the BLAS gives it.",
        f"Found by mltune {__version__} on {winner.device.name} ({winner.device.architecture}), {date}.",
        f"Kernel {kernel.name}, SHA-256 of bundle {kernel.source_hash}. {licence(kernel)}",
        "",
        f"Compile it by `{nvcc(winner)}`; NVRTC {winner.versions.get('nvrtc', '')}",
        "with the options in winner.json makes the very kernel.cubin of it that was timed.",
    ]
    macros = winner.macros()
    lines = [
        *(f"// {one_line(line)}".rstrip() for line in head),
        "",
        f"// The parameters of the kernel{_launched(winner)}.",
        *(f"#define {name} {macros[name]}" for name in kernel.parameters),
        "",
        "// The case: PRECISION 0 to 3 for s, d, c, z; op(A) and op(B).",
        *(f"#define {name} {macros[name]}" for name in problem.macros()),
        "",
        "",
    ]
    return "\n".join(lines) + (kernel.source or "")


def nvcc(winner: Winner) -> str:
    """Return the command that compiles kernel.cu.

    The option lets a ``constexpr`` function that is not marked for the device be called there, as NVRTC does.
    """
    return f"nvcc -arch={winner.device.architecture} -std=c++17 --expt-relaxed-constexpr -cubin kernel.cu"


def licence(kernel: Kernel) -> str:
    """Return under which licence a kernel's source stands, as far as mltune can tell."""
    if kernel.folder.resolve().parent == assets.folder("kernels").resolve():
        return "Part of mltune. SPDX-License-Identifier: Apache-2.0"
    return "Its licence is that of the bundle that it was tuned from; mltune adds no terms of its own."


def _launched(winner: Winner) -> str:
    values = [f"{name} = {winner.record.configuration[name]}" for name in winner.kernel.arguments]
    return f" (passed at launch: {', '.join(values)})" if values else ""
