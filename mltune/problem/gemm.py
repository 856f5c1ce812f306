"""The GEMM problem, C = alpha op(A) op(B) + beta C as in the BLAS."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from numbers import Complex
from typing import Any, ClassVar, Unpack

import numpy as np

from mltune.errors import ProblemError
from mltune.files.text import printable
from mltune.problem import gemm_operands, gemm_reference, gemm_verification
from mltune.problem.array_values import FP8_BLOCK, STORAGE, block_shapes
from mltune.problem.gemm_epilogue import Epilogue, parse_epilogue
from mltune.problem.gemm_operands import (
    FP8_OPS,
    HALF_PRECISION,
    LARGEST_INTEGER,
    NARROW,
    PRECISIONS,
    TRANSPOSES,
    Precision,
)
from mltune.problem.problem import DEFAULT_SIZE, DEFAULT_TRANS, LARGEST_BATCH, Buffer, Operands, ShapeOptions

CASES: tuple[tuple[str, str, str], ...] = tuple(
    (precision, *ops) for precision in "sdcz" for ops in gemm_operands.transpositions(precision)
)
"""The 26 cases (precision, trans_a, trans_b) of the BLAS."""

ARGUMENTS = ("m", "n", "k", "alpha", "A", "lda", "B", "ldb", "beta", "C", "ldc")
_STRIDES = ("stride_a", "stride_b", "stride_c")
_LARGEST_EXTENT = 2**40
_LARGEST_OPERAND_BYTES = 2**47
_SCALAR_DENOMINATOR = 64


@dataclass(frozen=True, slots=True)
class GemmProblem:
    """A GEMM: C = alpha op(A) op(B) + beta C, column-major, where op(A) is m x k, op(B) is k x n and C is m x n.

    Or a batch of up to 65,535: the same for many A, B and C, which lie behind one another. The precision is the BLAS
    letter (``s``, ``d``, ``c``, ``z``); ``h`` or ``b``, FP16 or BF16 with scalars and sums in FP32; ``hs`` or ``bs``,
    the same with C in FP32; ``eb``, ``eh`` or ``es``, FP8 (e4m3) with C in BF16, FP16 or FP32; ``ebf``, the first of
    these with the fast sums of tensor cores; ``e45b`` and so on, A in e4m3 and B in e5m2; ``e54b`` and so on, the other
    way round; or ``dd``, double-double with real elements. op is ``N``, ``T`` or
    ``C``, which becomes ``T`` for a real matrix. As in the BLAS, A and B are not read when ``alpha == 0``, nor C when
    ``beta == 0``. Leading dimensions are in elements; 0 is replaced by the smallest. An `epilogue`, such as
    ``"bias_m+gelu"``, is applied before a result is stored. FP8 has op(A) T and op(B) N alone. A ProblemError tells of
    an impossible value, or of an operand of 2**47 bytes or more.
    """

    precision: str
    trans_a: str
    trans_b: str
    m: int
    n: int
    k: int
    alpha: complex | float = 1.0
    beta: complex | float = 0.0
    lda: int = 0
    ldb: int = 0
    ldc: int = 0
    batch: int = 1
    epilogue: str = ""

    kind: ClassVar[str] = "gemm"
    is_product: ClassVar[bool] = True
    needs_baseline: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if self.precision not in PRECISIONS:
            raise ProblemError(f"{self.precision!r} is no precision of a GEMM: it is one of {', '.join(PRECISIONS)}.")
        for field in ("trans_a", "trans_b"):
            trans = getattr(self, field)
            if trans not in TRANSPOSES:
                raise ProblemError(f"{field} cannot be {trans!r}: it is one of N, T, C.")
            self._set(field, "T" if trans == "C" and not self.is_complex else trans)
        if self.types.is_fp8 and (self.trans_a, self.trans_b) != FP8_OPS:
            raise ProblemError(
                f"there is no {self.name} {self.trans_a}{self.trans_b}: tensor cores read FP8 along k of both "
                "operands; use TN: op(A) transposed, op(B) not."
            )
        for field in ("m", "n", "k"):
            self._set(field, _extent(field, getattr(self, field)))
        self._set("batch", _whole("batch", self.batch, 1, LARGEST_BATCH, str(LARGEST_BATCH)))
        if self.batch > 1 and self.types.is_sum:
            raise ProblemError(f"batch cannot be {self.batch}: there is no batched {self.name}.")
        self._set("epilogue", "+".join(filter(None, parse_epilogue(self.epilogue))))
        if self.epilogue and (self.is_complex or not self.types.has_wider_on_gpu):
            raise ProblemError(f"epilogue cannot be {self.epilogue}: there is none of {self.name}.")
        if self.has_block_scales and (self.types.promoted != FP8_BLOCK or self.batch > 1):
            raise ProblemError(
                f"{'a batch' if self.batch > 1 else self.name} cannot have block_scales: they are for FP8 whose "
                "sums are promoted, such as ebgemm, without a batch."
            )
        for field in ("alpha", "beta"):
            self._set(field, self._scalar(field))
        for field, (rows, columns) in zip(("lda", "ldb", "ldc"), self.shapes(), strict=True):
            self._set(field, self._leading_dimension(field, rows, columns))

    def _set(self, field: str, value: object) -> None:
        object.__setattr__(self, field, value)

    def _scalar(self, field: str) -> complex | float:
        value = getattr(self, field)
        if not isinstance(value, Complex):
            raise ProblemError(f"{field} cannot be {value!r}: it is a number.")
        number = complex(value)
        if number.imag and not self.is_complex:
            raise ProblemError(
                f"{field} of {self.name} cannot be {value!r}: it is real; cgemm and zgemm take complex scalars."
            )
        largest = float(np.finfo(self.scalar_dtype).max)
        if not (abs(number.real) <= largest and abs(number.imag) <= largest):
            raise ProblemError(f"{field} of {self.name} cannot be {value!r}: it is finite in {self.scalar_dtype.name}.")
        return number if self.is_complex else number.real

    def _leading_dimension(self, field: str, rows: int, columns: int) -> int:
        leading = _extent(field, getattr(self, field) or 0) or max(1, rows)
        if leading < max(1, rows):
            raise ProblemError(
                f"{field} cannot be {leading}: for a matrix of {rows} rows it is at least {max(1, rows)}."
            )
        element_bytes = self.result_dtype.itemsize if field == "ldc" else self.element_bytes
        if leading * columns * self.batch * element_bytes >= _LARGEST_OPERAND_BYTES:
            raise ProblemError(
                f"{self.name} with {field}={leading} has an operand of {leading} x {columns * self.batch} elements of "
                f"{element_bytes} bytes, not smaller than 2**47 bytes; choose a smaller problem."
            )
        return leading

    def shapes(self) -> tuple[tuple[int, int], tuple[int, int], tuple[int, int]]:
        """Return rows and columns of A, B and C as stored in memory, of each in a batch."""
        shape_a = (self.m, self.k) if self.trans_a == "N" else (self.k, self.m)
        shape_b = (self.k, self.n) if self.trans_b == "N" else (self.n, self.k)
        return shape_a, shape_b, (self.m, self.n)

    @property
    def strides(self) -> tuple[int, int, int]:
        """Elements from each A to the next in a batch, and of B and C."""
        (_, of_a), (_, of_b), (_, of_c) = self.shapes()
        return self.lda * of_a, self.ldb * of_b, self.ldc * of_c

    @property
    def name(self) -> str:
        """The BLAS name, such as ``"sgemm"``."""
        return f"{self.precision}gemm"

    @property
    def case(self) -> str:
        """Precision, ops and epilogue, such as ``"sgemm NT"`` or ``"hgemm TN bias_m+gelu"``."""
        return f"{self.name} {self.trans_a}{self.trans_b} {self.epilogue}".rstrip()

    @property
    def finish(self) -> Epilogue:
        """The epilogue's parts."""
        return parse_epilogue(self.epilogue)

    @property
    def has_block_scales(self) -> bool:
        """Whether factors of the product differ along k."""
        return self.finish.scales == "block_scales"

    @property
    def label(self) -> str:
        """The case and its size, such as ``"sgemm NT 4096"`` or ``"sgemm NT 4096x512x64 batch 8"`` (m x n x k)."""
        size = f"{self.m}" if self.m == self.n == self.k else f"{self.m}x{self.n}x{self.k}"
        return f"{self.case} {size}{f' batch {self.batch}' if self.batch > 1 else ''}"

    @property
    def dtype(self) -> np.dtype[Any]:
        """NumPy's type in which an element of A and B is stored; BF16 and FP8 as their bits."""
        return STORAGE[self.types.operands[0]]

    @property
    def result_dtype(self) -> np.dtype[Any]:
        """NumPy's type in which an element of C is stored; BF16 as its bits."""
        return STORAGE[self.types.result]

    @property
    def scalar_dtype(self) -> np.dtype[Any]:
        """NumPy's type of alpha and beta."""
        return np.dtype(self.types.accumulator)

    @property
    def element_bytes(self) -> int:
        """Size of an element of A and B, bytes."""
        return self.dtype.itemsize

    @property
    def types(self) -> Precision:
        """The types of operands and result, and the error of the arithmetic."""
        return PRECISIONS[self.precision]

    @property
    def is_complex(self) -> bool:
        """Whether the elements are complex."""
        return self.types.is_complex

    @property
    def arithmetic(self) -> str:
        """The unit whose peak bounds the problem, such as ``"fp32"`` or ``"tensor_fp16"``."""
        return self.types.arithmetic

    @property
    def size_names(self) -> tuple[str, ...]:
        """Extents and leading dimensions; of a batch its number as well. A kernel for one product solves no batch."""
        return ("m", "n", "k", "lda", "ldb", "ldc", *(("batch",) if self.batch > 1 else ()))

    @property
    def reference(self) -> str:
        """``"cuBLAS"``, or empty where that has no such GEMM."""
        return "" if self.epilogue else self.types.reference

    @property
    def flops(self) -> int:
        """Floating-point operations, or double-double ones: 2 m n k, when complex 8 m n k, times the batch."""
        return (8 if self.is_complex else 2) * self.m * self.n * self.k * self.batch

    @property
    def bytes(self) -> int:
        """Least memory traffic, bytes: A and B read once, C written once, and read once unless ``beta == 0``."""
        inputs = self.m * self.k + self.k * self.n if self.alpha else 0
        outputs = self.m * self.n * (2 if self.beta else 1)
        return (inputs * self.element_bytes + outputs * self.result_dtype.itemsize) * self.batch

    @property
    def operand_bytes(self) -> int:
        """Memory that A, B and C occupy on a GPU, bytes."""
        of_a, of_b, of_c = self.strides
        return ((of_a + of_b) * self.element_bytes + of_c * self.result_dtype.itemsize) * self.batch

    @property
    def cost_class(self) -> str:
        """The precision of the operands: all cases of it cost the same per operation to compile and time."""
        return self.precision[0] if self.types.operands[0] in NARROW else self.precision

    @property
    def cost_case(self) -> str:
        """The case by the precision of the operands."""
        return f"{self.cost_class}gemm {self.trans_a}{self.trans_b}"

    @property
    def work_class(self) -> tuple[str, int, int, int, int]:
        """Precision, extents and batch: all transpositions of a size do the same work."""
        return self.precision, self.m, self.n, self.k, self.batch

    @property
    def formula(self) -> str:
        """The computation in one line: ``"C = alpha A B^T + beta C, column-major as in the BLAS"``."""
        ops = {"N": "", "T": "^T", "C": "^H"}
        batch = f" for {self.batch} A, B and C" if self.batch > 1 else ""
        scales, bias, activation = self.finish
        before, behind = ("diag(scale_m) ", " diag(scale_n)") if scales else ("", "")
        product = f"{before}A{ops[self.trans_a]} B{ops[self.trans_b]}{behind}"
        product = f"sum over blocks of {FP8_BLOCK} of k of {product}" if self.has_block_scales else product
        value = f"alpha {product} + beta C{' + bias' if bias else ''}"
        value = f"{activation}({value})" if activation else value
        return f"C = {value}{batch}, column-major as in the BLAS"

    @property
    def buffers(self) -> tuple[Buffer, ...]:
        """A and B are inputs; C is an output, and an input as well unless ``beta == 0``."""
        return (
            *(Buffer(name, "in", dtype) for name, dtype in zip("AB", self.types.operands, strict=True)),
            Buffer("C", "inout" if self.beta else "out", self.types.result),
            *(Buffer(name, "in", dtype) for name, (dtype, _) in self.vectors.items()),
        )

    @property
    def vectors(self) -> dict[str, tuple[str, int]]:
        """Types and lengths of the vectors of the epilogue by name, in order; all products of a batch share them."""
        scales, bias, _ = self.finish
        vectors: dict[str, tuple[str, int]] = {}
        if scales:
            shapes = block_shapes(self.m, self.n, self.k) if self.has_block_scales else ((self.m,), (self.n,))
            for name, shape in zip(("scale_m", "scale_n"), shapes, strict=True):
                vectors[name] = self.types.accumulator, math.prod(shape)
        if bias:
            vectors["bias"] = self.types.result, self.m if bias == "bias_m" else self.n
        return vectors

    @property
    def is_empty(self) -> bool:
        """Whether C has no elements."""
        return not self.m * self.n

    @property
    def is_exact(self) -> bool:
        """Whether every correct kernel returns the same result for integer operands (see :meth:`operands`).

        This holds when the scalars are multiples of 1/64 and no sum in any order can leave the integers (in units of
        1/64) that the precision of sums holds. A result in half precision is one that is rounded once.
        """
        scalars = (self.alpha.real, self.alpha.imag, self.beta.real, self.beta.imag)
        if any(not (scalar * _SCALAR_DENOMINATOR).is_integer() for scalar in scalars) or not self.finish.is_exact:
            return False
        parts = 2 if self.is_complex else 1
        alpha, beta = (abs(scalar.real) + abs(scalar.imag) for scalar in (self.alpha, self.beta))
        product = self.k * parts * LARGEST_INTEGER ** (4 if self.finish.scales else 2)
        largest = product * max(1.0, alpha) + LARGEST_INTEGER * (beta + bool(self.finish.bias))
        *_, overflow = self.types.rounding
        if min(self.k, self.types.promoted or self.k) * parts * LARGEST_INTEGER**2 * self.types.roundoff > 1:
            return False  # tensor cores
        return largest <= overflow and largest * _SCALAR_DENOMINATOR < 2.0 ** (np.finfo(self.scalar_dtype).nmant + 1)

    @property
    def variables(self) -> dict[str, int]:
        """The values of the problem that the expressions of a kernel bundle may use."""
        return {
            **{name: getattr(self, name) for name in ("m", "n", "k", "lda", "ldb", "ldc")},
            "element_bytes": self.element_bytes,
            "words": -(-self.result_dtype.itemsize // 4),
            "is_complex": int(self.is_complex),
            "is_double": int(self.arithmetic == "fp64"),
            "trans_a": int(self.trans_a != "N"),
            "trans_b": int(self.trans_b != "N"),
            "conj_a": int(self.trans_a == "C"),
            "conj_b": int(self.trans_b == "C"),
            "fma_per_mac": 4 if self.is_complex else 1,
            "result_bytes": self.result_dtype.itemsize,
            "batch": self.batch,
            "has_epilogue": int(bool(self.epilogue)),
            "promotes": int(self.types.promoted > 0),
            "block_scales": int(self.has_block_scales),
        }

    def macros(self) -> dict[str, int]:
        """Return the macros that select the case when a kernel is compiled; ``BATCHED`` of a batch alone."""
        variables = self.variables
        case = {name.upper(): variables[name] for name in ("trans_a", "trans_b", "conj_a", "conj_b")}
        batched = {"BATCHED": 1} if self.batch > 1 else {}
        return {"PRECISION": self.types.number, **case, **batched, **self.finish.macros()}

    def operands(self, xp: Any, seed: int, *, integers: bool = False) -> dict[str, Any]:
        """Make the flat column-major buffers A, B and C; everything that must not be read is NaN.

        Elements (and both parts of complex ones) are uniform in [-1, 1), or with `integers` from -3 to 3: when
        :attr:`is_exact`, their GEMM has one correct result. The parts of a double-double element are its high and its
        low one, at most half a unit of the high one, and 0 of an integer.
        """
        draw = partial(gemm_operands.random_matrix, xp, gemm_operands.random_generator(xp, seed), integers=integers)
        leading, scalars, types = (self.lda, self.ldb, self.ldc), (self.alpha, self.alpha, self.beta), self.types
        dtypes = (*types.operands, types.result)
        matrices = {
            name: draw(dtype, (rows, columns * self.batch, ld), unread=not scalar, is_sum=types.is_sum)
            for name, dtype, (rows, columns), ld, scalar in zip(
                "ABC", dtypes, self.shapes(), leading, scalars, strict=True
            )
        }
        for name, (dtype, length) in self.vectors.items():
            matrices[name] = draw(dtype, (length, 1, max(1, length)), unread=False)
        return matrices

    def kernel_arguments(self, operands: Operands) -> dict[str, Any]:
        """Return a kernel's arguments by name, in order: m, n, k, alpha, A, lda, B, ldb, beta, C, ldc.

        Those of a batch are followed by stride_a, stride_b, stride_c and batch, and all by the vectors of an epilogue.
        """
        extents = {name: np.int64(getattr(self, name)) for name in ("m", "n", "k", "lda", "ldb", "ldc")}
        scalars = {name: self.scalar_dtype.type(getattr(self, name)) for name in ("alpha", "beta")}
        of_batch = dict(zip((*_STRIDES, "batch"), map(np.int64, (*self.strides, self.batch)), strict=True))
        values = {**extents, **scalars, **operands, **of_batch}
        further = (*(of_batch if self.batch > 1 else ()), *self.vectors)
        return {name: values[name] for name in (*ARGUMENTS, *further)}

    def result(self, C: Any) -> Any:
        """Return the m x n matrices in a flat buffer C, as a view of shape (m, n), or (batch, m, n) of a batch."""
        return gemm_operands.view(C, (self.m, self.n), self.ldc, self.batch)

    def padding(self, C: Any) -> Any:
        """Return the part of a flat buffer C that a kernel must not change, as a view of shape (ldc - m, n batch)."""
        columns = self.n * self.batch
        return C[: self.ldc * columns].reshape(columns, self.ldc)[:, self.m :].T

    verification_cases = gemm_verification.verification_cases
    own_cases = gemm_verification.own_cases
    winner_problems = gemm_verification.winner_problems
    verification_document = gemm_verification.verification_document
    reference_call = gemm_reference.reference_call
    factors = gemm_verification.factors
    answer = gemm_verification.answer
    error_bound = gemm_verification.error_bound
    worst_error = gemm_verification.worst_error
    device_error = gemm_verification.device_error

    def argument_documents(self) -> list[dict[str, Any]]:
        """Return name, type and value of the arguments of a kernel, complex values as [real, imaginary]."""
        values = self.kernel_arguments({buffer.name: buffer for buffer in self.buffers})
        return [
            {"name": name, "type": f"pointer to {value.dtype}"}
            if isinstance(value, Buffer)
            else {"name": name, "type": value.dtype.name, "value": _plain(value)}
            for name, value in values.items()
        ]

    def to_json(self) -> dict[str, Any]:
        """Return the problem as plain JSON values: complex scalars as [real, imaginary], without a batch of one.

        Nor is there an empty epilogue. Documents of ``h`` and ``b`` have the type of the result: those without one are
        older, and C was in FP32.
        """
        document = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        if self.types.result in HALF_PRECISION:
            document["result"] = self.types.result
        for name, usual in (("batch", 1), ("epilogue", "")):
            if document[name] == usual:
                del document[name]
        if self.is_complex:
            document |= {name: [document[name].real, document[name].imag] for name in ("alpha", "beta")}
        return document

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> GemmProblem:
        """Rebuild a problem from :meth:`to_json`; raise a ProblemError for any other document."""
        names = {field.name for field in dataclasses.fields(cls)} | {"result"}
        if not isinstance(document, dict) or not set(document) <= {*names, "kind"}:
            raise ProblemError(f"{document!r} is no problem, which has the fields {', '.join(sorted(names))}.")
        values = {name: value for name, value in document.items() if name not in ("kind", "result")}
        if values.get("precision") in ("h", "b") and "result" not in document:
            values["precision"] += "s"
        for name in ("alpha", "beta"):
            if isinstance(values.get(name), list):
                values[name] = _complex_from_json(name, values[name])
        try:
            problem = cls(**values)
        except TypeError as error:
            raise ProblemError(f"the problem {document!r} lacks precision, trans_a, trans_b, m, n or k.") from error
        if document.get("result", problem.types.result) != problem.types.result:
            raise ProblemError(
                f"the result of {problem.name} cannot be {document['result']!r:.80}: it is {problem.types.result}."
            )
        return problem


def parse_problem(
    name: str,
    default: GemmProblem | None = None,
    *,
    alpha: complex | float = 1.0,
    beta: complex | float = 0.0,
    **shape: Unpack[ShapeOptions],
) -> GemmProblem:
    """Make a problem from its name, such as ``"sgemm"`` or ``"ddgemm"``, and options; others are those of `default`.

    `size` is m = n = k, each of which overrides it. Without a default they are NT (FP8: TN), 4096 and a batch of 1. A
    name or size that is impossible raises a ProblemError.
    """
    usual = default or GemmProblem("s", DEFAULT_TRANS[0], DEFAULT_TRANS[1], DEFAULT_SIZE, DEFAULT_SIZE, DEFAULT_SIZE)
    options: dict[str, Any] = {option: value for option, value in shape.items() if value is not None}
    precision = name.lower().removesuffix("gemm")
    is_fp8 = PRECISIONS.get(precision, usual.types).is_fp8
    trans = options.pop("trans", "".join(FP8_OPS) if is_fp8 else usual.trans_a + usual.trans_b)
    extents = {extent: getattr(usual, extent) for extent in ("m", "n", "k", "batch", "epilogue")}
    if "size" in options:
        size = options.pop("size")
        if isinstance(size, Mapping):
            names = " ".join(f"--{name.lower()} {value}" for name, value in size.items())
            raise ProblemError(
                f"size cannot be {printable(size, 80)}: of a GEMM it is m, n and k at once, without names, "
                f"and each has an option of its own: {printable(names, 80)}."
            )
        extents |= dict.fromkeys("mnk", _extent("size", size))
    ops = str(trans).upper()
    if len(ops) != 2 or not set(ops) <= set(TRANSPOSES):
        raise ProblemError(
            f"trans cannot be {printable(repr(trans), 80)}: it is two of the letters N, T, C, such as NT."
        )
    return GemmProblem(precision, ops[0], ops[1], alpha=alpha, beta=beta, **extents | options)


def _plain(value: np.generic) -> Any:
    number = value.item()
    return [number.real, number.imag] if isinstance(number, complex) else number


def _extent(field: str, value: object) -> int:
    return _whole(field, value, 0, _LARGEST_EXTENT, "2**40")


def _whole(field: str, value: object, least: int, most: int, written: str) -> int:
    if not isinstance(value, int | np.integer) or isinstance(value, bool) or not least <= value <= most:
        raise ProblemError(
            f"{field} cannot be {printable(repr(value), 80)}: it is a whole number from {least} to {written}."
        )
    return int(value)


def _complex_from_json(name: str, parts: list[Any]) -> complex:
    if len(parts) != 2 or any(not isinstance(part, int | float) for part in parts):
        raise ProblemError(f"{name} cannot be {parts!r}: it is a number or [real, imaginary].")
    return complex(*parts)
