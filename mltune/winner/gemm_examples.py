"""Values of the GEMM examples' templates: types, scalars and operands in Python and in C++."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from mltune.winner.winner import Winner

FILES = ("example.py", "example.cpp")
"""The examples; each has a template in ``templates/gemm``."""

USAGE = """\
python example.py    needs CuPy
g++ -O2 -std=c++17 example.cpp -I/usr/local/cuda/include -lcuda -o example && ./example
                     needs cuda.h (of a toolkit, or of `pip install nvidia-cuda-runtime`); with a driver alone, link
                     -l:libcuda.so.1 instead of -lcuda. Both examples time the kernel with a warm cache.
"""
"""The commands that run the examples, for README.txt."""

_ELEMENTS = {
    "s": "float",
    "d": "double",
    "c": "std::complex<float>",
    "z": "std::complex<double>",
    "dd": "DoubleDouble",
}
_DOUBLE_DOUBLE = """\
struct alignas(16) DoubleDouble {  // the sum of two doubles
  double hi, lo;
  DoubleDouble(double hi = 0, double lo = 0) : hi(hi), lo(lo) {}
  explicit operator double() const { return hi; }  // in which the example compares
};

"""
_PYTHON_OP = {"N": "", "T": ".T", "C": ".T.conj()"}


def gemm_values(winner: Winner) -> dict[str, Any]:
    """Return the values of the templates that only a GEMM has."""
    problem: Any = winner.runnable
    rows_a, columns_a = ("m", "k") if problem.trans_a == "N" else ("k", "m")
    rows_b, columns_b = ("k", "n") if problem.trans_b == "N" else ("n", "k")
    return {
        **{name: getattr(problem, name) for name in ("m", "n", "k", "lda", "ldb", "ldc")},
        "rows_a": rows_a,
        "columns_a": columns_a,
        "rows_b": rows_b,
        "columns_b": columns_b,
        "flops": 8 if problem.is_complex else 2,
        "epsilon": float(np.finfo(problem.dtype).eps),
        **_python(problem),
        **_cpp(problem),
    }


def _python(problem: Any) -> dict[str, Any]:
    real, dtype, part = np.finfo(problem.dtype).dtype.name, problem.dtype.name, ""
    note, convert = "random columns of ld elements each", f'view("{dtype}")'
    if problem.types.is_sum:
        note = "columns of ld random doubles, as complex numbers of a high and a low part"
        convert, part = f'astype("{dtype}")', ".real"
    return {
        "dtype": dtype,
        "real": real,
        "note": note,
        "convert": convert,
        "parts": 2 if problem.is_complex else 1,
        "python_a": f"A{_PYTHON_OP[problem.trans_a]}{part}",
        "python_b": f"B{_PYTHON_OP[problem.trans_b]}{part}",
        "python_alpha": str(problem.alpha).strip("()"),
        "python_beta": str(problem.beta).strip("()"),
    }


def _cpp(problem: Any) -> dict[str, Any]:
    def scalar(value: complex | float) -> str:
        return f"{value.real!r}, {value.imag!r}" if problem.is_complex else repr(float(value.real))

    def element(matrix: str, row: str, column: str, trans: str) -> str:
        if trans != "N":
            row, column = column, row
        read = f"Wide({matrix}[{row} + {column} * ld{matrix.lower()}])"
        return f"std::conj({read})" if trans == "C" else read

    return {
        "definition": _DOUBLE_DOUBLE if problem.types.is_sum else "",
        "element": _ELEMENTS[problem.precision],
        "wide": "std::complex<double>" if problem.is_complex else "double",
        "draw": "draw(random), draw(random)" if problem.is_complex else "draw(random)",
        "cpp_alpha": scalar(problem.alpha),
        "cpp_beta": scalar(problem.beta),
        "cpp_a": element("A", "i", "l", problem.trans_a),
        "cpp_b": element("B", "l", "j", problem.trans_b),
    }
