"""Values of the templates of examples that call a GEMM: types, scalars and operands in Python and in C++."""

from __future__ import annotations

from typing import Any

import numpy as np

from mltune.problem.problem import Examples

_FILES = ("example.py", "example.cpp")
_USAGE = """\
python example.py    needs CuPy
g++ -O2 -std=c++17 example.cpp -I/usr/local/cuda/include -lcuda -o example && ./example
                     needs cuda.h (of a toolkit, or of `pip install nvidia-cuda-runtime`); with a driver alone, link
                     -l:libcuda.so.1 instead of -lcuda. Both examples time the kernel with a warm cache.
"""
_ELEMENTS = {
    "s": "float",
    "d": "double",
    "c": "std::complex<float>",
    "z": "std::complex<double>",
    "h": "float",
    "b": "float",
    "dd": "DoubleDouble",
}
_NARROW = {  # CuPy's operators return arrays in C's order: those of "b" get arrays in C's order
    "h": "{}.astype('float16')",
    "b": "({}{transposed}.view('uint32') >> 16).astype('uint16'){transposed}",
}
_WIDE = {"h": "{}.astype('float32')", "b": "({}.astype('uint32') << 16).view('float32')", "dd": "{}.real"}
_HALF = """\
constexpr int DIGITS = %d, BIAS = %d;

struct Half {  // a number in half precision; digits that it lacks are cut off
  uint16_t bits = 0;
  Half() = default;
  explicit Half(double value) {
    int exponent;
    double fraction = std::frexp(std::abs(value), &exponent);  // at least 1/2, below 1
    exponent += BIAS - 1;
    if (value != 0 && exponent > 0) bits = (exponent << DIGITS) + int(fraction * (2 << DIGITS)) - (1 << DIGITS);
    bits |= (value < 0) << 15;
  }
  explicit operator double() const {
    int exponent = (bits & 0x7fff) >> DIGITS, digits = bits & ((1 << DIGITS) - 1);
    double value = exponent ? std::ldexp((1 << DIGITS) + digits, exponent - BIAS - DIGITS) : 0;
    return bits >> 15 ? -value : value;
  }
};

"""
_DOUBLE_DOUBLE = """\
struct alignas(16) DoubleDouble {  // the sum of two doubles
  double hi, lo;
  DoubleDouble(double hi = 0, double lo = 0) : hi(hi), lo(lo) {}
  explicit operator double() const { return hi; }  // in which the example compares
};

"""
_DEFINITIONS = {"h": _HALF % (10, 15), "b": _HALF % (7, 127), "dd": _DOUBLE_DOUBLE}


def examples(problem: Any) -> Examples:
    """Return the examples of a :class:`mltune.problem.gemm.GemmProblem`, whose module imports this one."""
    return Examples(_FILES, _USAGE, _values(problem))


def _values(problem: Any) -> dict[str, Any]:
    rows_a, columns_a = ("m", "k") if problem.trans_a == "N" else ("k", "m")
    rows_b, columns_b = ("k", "n") if problem.trans_b == "N" else ("n", "k")
    return {
        **{name: getattr(problem, name) for name in ("m", "n", "k", "lda", "ldb", "ldc")},
        "rows_a": rows_a,
        "columns_a": columns_a,
        "rows_b": rows_b,
        "columns_b": columns_b,
        "flops": 8 if problem.is_complex else 2,
        "epsilon": max(2 * problem.types.roundoff, float(np.finfo("float64").eps)),  # dd is compared in double
        **_python(problem, columns_a, columns_b),
        **_cpp(problem),
        **_batch(problem, columns_a, columns_b),
    }


def _python(problem: Any, columns_a: str, columns_b: str) -> dict[str, Any]:
    narrow, wide = (table.get(problem.precision, "{}") for table in (_NARROW, _WIDE))
    real, dtype = np.finfo(problem.result_dtype).dtype.name, problem.result_dtype.name
    note, convert = "random columns of ld elements each", f'view("{dtype}")'
    if problem.types.is_sum:
        note = "columns of ld random doubles, as complex numbers of a high and a low part"
        convert = f'astype("{dtype}")'
    transposed = ".T" if problem.batch == 1 else ".swapaxes(-2, -1)"
    op = {"N": "", "T": transposed, "C": f"{transposed}.conj()"}
    return {
        "seen": "a matrix" if problem.batch == 1 else "matrices",
        "transposed": transposed,
        "dtype": dtype,
        "real": real,
        "note": note,
        "convert": convert,
        "parts": 2 if problem.is_complex else 1,
        "operand_a": narrow.format(f"matrix(lda, {columns_a})", transposed=transposed),
        "operand_b": narrow.format(f"matrix(ldb, {columns_b})", transposed=transposed),
        "python_a": f"{wide.format('A')}{op[problem.trans_a]}",
        "python_b": f"{wide.format('B')}{op[problem.trans_b]}",
        "python_alpha": str(problem.alpha).strip("()"),
        "python_beta": str(problem.beta).strip("()"),
    }


def _cpp(problem: Any) -> dict[str, Any]:
    def scalar(value: complex | float) -> str:
        return f"{value.real!r}, {value.imag!r}" if problem.is_complex else repr(float(value.real))

    def place(matrix: str, row: str, column: str) -> str:
        return f"{row} + {column} * ld{matrix}{f' + z * stride_{matrix}' if problem.batch > 1 else ''}"

    def element(matrix: str, row: str, column: str, trans: str) -> str:
        read = f"Wide({matrix}[{place(matrix.lower(), *((row, column) if trans == 'N' else (column, row)))}])"
        return f"std::conj({read})" if trans == "C" else read

    return {
        "in_c": place("c", "i", "j"),
        "definition": _DEFINITIONS.get(problem.precision, ""),
        "element": _ELEMENTS[problem.precision],
        "operand": "Half" if problem.precision in _NARROW else "T",
        "wide": "std::complex<double>" if problem.is_complex else "double",
        "draw": "draw(random), draw(random)" if problem.is_complex else "draw(random)",
        "cpp_alpha": scalar(problem.alpha),
        "cpp_beta": scalar(problem.beta),
        "cpp_a": element("A", "i", "l", problem.trans_a),
        "cpp_b": element("B", "l", "j", problem.trans_b),
    }


def _batch(problem: Any, columns_a: str, columns_b: str) -> dict[str, str]:
    """Return the texts that only the examples of a batch have; empty ones for a single product."""
    strides = {"a": f"lda * {columns_a}", "b": f"ldb * {columns_b}", "c": "ldc * n"}
    declared = ", ".join(f"stride_{name} = {stride}" for name, stride in strides.items())
    texts = {
        "times_batch": " * batch",
        "and_batch": ", batch",
        "batch_value": f", {problem.batch}",
        "batch_and": "batch, ",
        "every": "..., ",
        "whole": ", :",
        "strides_python": f"strides = [numpy.int64(stride) for stride in ({', '.join(strides.values())})]\n",
        "strides_passed_python": ", *strides, numpy.int64(batch)",
        "strides_cpp": f"  long long batch = {problem.batch}, {declared};\n",
        "strides_passed_cpp": ", &stride_a, &stride_b, &stride_c, &batch",
        "draw_batch": ", z = random() % batch",
    }
    return texts if problem.batch > 1 else dict.fromkeys(texts, "")
