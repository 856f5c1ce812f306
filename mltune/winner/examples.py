"""The texts of a winner's folder: the two examples and README.txt, from templates."""

from __future__ import annotations

from importlib import resources
from string import Template
from typing import TYPE_CHECKING, Any

import numpy as np

from mltune import __version__
from mltune.winner.formulas import launch_formulas
from mltune.winner.source import licence, nvcc
from mltune.winner.winner import Winner, computes, one_line

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mltune.problem.gemm import GemmProblem

FILES = ("example.py", "example.cpp", "README.txt")
"""What is made from the template of the same name."""

_ELEMENTS = {"s": "float", "d": "double", "c": "std::complex<float>", "z": "std::complex<double>"}
_PYTHON_OP = {"N": "", "T": ".T", "C": ".T.conj()"}


def fill_templates(winner: Winner, document: Mapping[str, Any]) -> dict[str, bytes]:
    """Return the texts by name.

    Parameters
    ----------
    winner : Winner
        With machine code.
    document : mapping
        What winner.json holds.
    """
    values = {**_common(winner), **_python(winner.gemm), **_cpp(winner.gemm), **_measured(winner, document)}
    folder = resources.files("mltune.winner") / "templates"
    return {name: Template((folder / f"{name}.txt").read_text()).substitute(values).encode() for name in FILES}


def _common(winner: Winner) -> dict[str, Any]:
    problem = winner.gemm
    rows_a, columns_a = ("m", "k") if problem.trans_a == "N" else ("k", "m")
    rows_b, columns_b = ("k", "n") if problem.trans_b == "N" else ("n", "k")
    launch, at_other_sizes = winner.launch(), launch_formulas(winner)
    values = [winner.record.configuration[name] for name in winner.kernel.arguments]
    sizes = {name: getattr(problem, name) for name in ("m", "n", "k", "lda", "ldb", "ldc")}
    return sizes | {
        "label": problem.label,
        "computes": computes(problem),
        "device": one_line(winner.device.name),
        "entry": winner.kernel.entry,
        "rows_a": rows_a,
        "columns_a": columns_a,
        "rows_b": rows_b,
        "columns_b": columns_b,
        "grid": ", ".join(map(str, launch.grid)),
        "block": ", ".join(map(str, launch.block)),
        "shared_bytes": launch.shared_bytes,
        "grid_formula": ", ".join(at_other_sizes["grid"]),
        "block_formula": ", ".join(at_other_sizes["block"]),
        "shared_formula": at_other_sizes["shared_bytes"],
        "launched": ", ".join(f"{name} = {value}" for name, value in zip(winner.kernel.arguments, values, strict=True)),
        "launched_values": ", ".join(map(str, values)) or "0",
        "launched_python": "".join(f", numpy.int32({value})" for value in values),
        "launched_cpp": "".join(f", &launched[{position}]" for position in range(len(values))),
        "flops": 8 if problem.is_complex else 2,
        "epsilon": float(np.finfo(problem.dtype).eps),
    }


def _python(problem: GemmProblem) -> dict[str, Any]:
    return {
        "dtype": problem.dtype.name,
        "real": np.finfo(problem.dtype).dtype.name,
        "parts": 2 if problem.is_complex else 1,
        "python_a": f"A{_PYTHON_OP[problem.trans_a]}",
        "python_b": f"B{_PYTHON_OP[problem.trans_b]}",
        "python_alpha": str(problem.alpha).strip("()"),
        "python_beta": str(problem.beta).strip("()"),
    }


def _cpp(problem: GemmProblem) -> dict[str, Any]:
    def scalar(value: complex | float) -> str:
        return f"{value.real!r}, {value.imag!r}" if problem.is_complex else repr(float(value.real))

    def element(matrix: str, row: str, column: str, trans: str) -> str:
        if trans != "N":
            row, column = column, row
        read = f"Wide({matrix}[{row} + {column} * ld{matrix.lower()}])"
        return f"std::conj({read})" if trans == "C" else read

    return {
        "element": _ELEMENTS[problem.precision],
        "wide": "std::complex<double>" if problem.is_complex else "double",
        "draw": "draw(random), draw(random)" if problem.is_complex else "draw(random)",
        "cpp_alpha": scalar(problem.alpha),
        "cpp_beta": scalar(problem.beta),
        "cpp_a": element("A", "i", "l", problem.trans_a),
        "cpp_b": element("B", "l", "j", problem.trans_b),
    }


def _measured(winner: Winner, document: Mapping[str, Any]) -> dict[str, Any]:
    timing, verified = document["timing"], document["verified"]
    low, high = (f"{1e3 * seconds:.4g}" for seconds in timing["interval_s"])
    vendor = "cuBLAS was not timed"
    if timing["share_of_reference"] is not None:
        low_share, high_share = timing["share_of_reference_interval"]
        vendor = f"{timing['share_of_reference']:.3f} ({low_share:.3f} to {high_share:.3f}) of the speed of cuBLAS"
    ties = ", ".join(str(tie["trial"]) for tie in timing["ties"])
    sizes = ", ".join("x".join(map(str, size)) for size in verified["sizes"])
    major, minor = winner.device.compute_capability
    return {
        "kernel": winner.kernel.name,
        "version": __version__,
        "date": document["written"],
        "measured": f"{timing['tflops']:.2f} TFLOPS, median {1e3 * timing['median_s']:.4g} ms "
        f"(95 %: {low} to {high}), {timing['share_of_peak']:.1%} of the peak",
        "vendor": vendor,
        "ties": f"not told apart from it: trials {ties}" if ties else "nothing else was as fast",
        "verified": f"at {sizes}" if verified["passed"] else "as every trial is; NOT at its full size",
        "sizes_must_satisfy": "; ".join(document["launch"]["sizes_must_satisfy"]) or "nothing",
        "major": major,
        "capability": f"{major}.{minor}",
        "cuda": ".".join(winner.versions.get("nvrtc", "").split(".")[:2]),
        "nvcc": nvcc(winner),
        "licence": licence(winner.kernel),
    }
