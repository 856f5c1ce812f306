"""The protocols of problems: the computation that kernels perform, its operands, and how a result is verified."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol, Self, TypedDict, runtime_checkable

from mltune.errors import UsageError
from mltune.files.text import no_such

ACCURACIES = ("ieee", "fp32")
"""The classes, the strictest first.

``"ieee"``: every product and every sum is rounded once, as by the FMA of the problem's type. ``"fp32"``: the error
relative to abs(A) abs(B) is not above that of FP32 FMA arithmetic, by whatever operations. Of GEMMs with operands in
half precision, which are defined by what tensor cores compute, all kernels that stay within the bound are ``"ieee"``.
"""

STRICTEST = ACCURACIES[0]
"""The class of a kernel and of a request that name none."""


def accepts(accuracy: str, other: str) -> bool:
    """Return whether a request for a class accepts a kernel of another: one that is as strict, or stricter."""
    return ACCURACIES.index(other) <= ACCURACIES.index(accuracy)


def check_accuracy(accuracy: str) -> str:
    """Return the name of a class; raise a UsageError where there is none of that name."""
    if accuracy not in ACCURACIES:
        raise UsageError(no_such("accuracy class", accuracy, ACCURACIES, f"They are {', '.join(ACCURACIES)}"))
    return accuracy


ARITHMETICS = ("fp32", "fp64", "tensor_fp16", "tensor_fp8", "tensor_tf32", "tensor_fp64")

LARGEST_BATCH = 65535
"""CUDA's limit of a grid along z, where the products of a batch are."""

DEFAULT_TRANS = "NT"
DEFAULT_SIZE = 4096


class ShapeOptions(TypedDict, total=False):
    """The shape of a problem; None, as a missing key, where an option is not given.

    ``trans`` is op(A) and op(B) of a GEMM, ``size`` its m = n = k, or maps the names of another kernel's sizes to
    sizes; ``m``, ``n``, ``k`` are single extents, ``batch`` is the number of products, and ``epilogue`` what is done
    with a result before it is stored.
    """

    trans: str | None
    size: int | Mapping[str, int] | None
    m: int | None
    n: int | None
    k: int | None
    batch: int | None
    epilogue: str | None


SHAPE: tuple[str, ...] = tuple(ShapeOptions.__annotations__)


@runtime_checkable
class Problem(Protocol):
    """A problem as features, records and replay need it.

    A GPU needs a :class:`~mltune.problem.problem.RunnableProblem`. Equal instances are the same problem.
    """

    @property
    def kind(self) -> str:
        """The kind, a key of :data:`~mltune.problem.kinds.KINDS`, such as ``"gemm"``."""

    @property
    def name(self) -> str:
        """The computation in one word, such as ``"sgemm"``."""

    @property
    def label(self) -> str:
        """The name and the size for display, such as ``"sgemm NT 4096"``."""

    @property
    def arithmetic(self) -> str:
        """The unit whose peak bounds the problem: one of :data:`ARITHMETICS`."""

    @property
    def flops(self) -> int:
        """Floating-point operations, at least 0."""

    @property
    def precision(self) -> str:
        """The precision that a bundle lists under ``precisions``, such as ``"s"``; empty for kinds without one."""

    @property
    def bytes(self) -> int:
        """Least memory traffic in bytes: every input read once, every output written once; 0 when unknown."""

    @property
    def operand_bytes(self) -> int:
        """Memory that the operands occupy on a GPU in bytes; 0 when unknown."""

    @property
    def case(self) -> str:
        """The problem whatever its sizes, such as ``"sgemm NT"``, for titles; empty when unknown."""

    @property
    def cost_case(self) -> str:
        """The case for training, the same where precisions of the result alone differ; empty when unknown."""

    @property
    def cost_class(self) -> str:
        """A class whose trials cost the same per operation, such as ``"s"``, for forecasts; empty when unknown."""

    @property
    def work_class(self) -> tuple[Any, ...] | None:
        """A key of the amount of work, such as precision and extents, for siblings in a campaign; None when unknown."""

    @property
    def size_names(self) -> tuple[str, ...]:
        """The variables that another call of the same compiled kernel may change, such as m, n and k."""

    @property
    def reference(self) -> str:
        """The name of the reference implementation that kernels are compared with, such as ``"cuBLAS"``, or empty."""

    @property
    def is_product(self) -> bool:
        """Whether it is a matrix product: tensor cores can compute it, and it is rated by operations at every size."""

    @property
    def variables(self) -> dict[str, int]:
        """The values of the problem that the expressions of a kernel bundle may use.

        Of several equal problems that are solved at once, ``batch`` is their number.
        """

    def to_json(self) -> dict[str, Any]:
        """Return the problem as plain JSON values, for :func:`~mltune.problem.kinds.problem_from_json`."""


Operands = Mapping[str, Any]
"""The buffers of a problem by name: NumPy or CuPy arrays, device addresses, or anything else that represents them."""


@dataclass(frozen=True, slots=True)
class Buffer:
    """A buffer that a kernel reads or writes, whose elements are of :data:`mltune.problem.array_values.DTYPES`.

    A kernel must not change an ``"in"`` buffer; an ``"inout"`` buffer is restored before a kernel is timed.
    """

    name: str
    role: Literal["in", "out", "inout"]
    dtype: str


@dataclass(frozen=True, slots=True)
class CaseBuffer:
    """A buffer of a verification case, which the verification puts between guard zones.

    Attributes
    ----------
    role : {"in", "out", "inout", "constant"}
        A kernel must not change ``"in"`` and ``"constant"``. Before a kernel runs, ``"out"`` is filled with bytes that
        no correct kernel leaves, and ``"inout"`` is restored.
    values, dtype, shape : array, str and tuple of int
        The elements before the kernel runs, of NumPy or CuPy; their type, a name of
        :data:`mltune.problem.array_values.DTYPES`; and their shape for those who read them, flat by default.
    offset_bytes, guard_bytes : int
        Bytes from a multiple of 256 to the first element; least size of the guard zone behind the buffer.
    expected : array or None
        Correct content of a written buffer; None where the baseline gives it. With a bound it is float64, one per real
        number (two per complex element); without one, elements of the buffer's type.
    bound : ndarray of shape (n_words,), float64, or None
        Largest error of each word; negative where the kernel must not change it. None where the tolerances decide.
    terms : int
        1, or the consecutive words whose sum is a value: 2 in double-double arithmetic. The error of the sum counts;
        its bound stands with the first word.
    tolerance, absolute : float
        The largest error is ``tolerance * (abs(expected) + rms) + absolute``, where `rms` is the root mean square of
        all expected words.
    """

    role: Literal["in", "out", "inout", "constant"]
    dtype: str
    values: Any
    shape: tuple[int, ...] = (-1,)
    offset_bytes: int = 0
    guard_bytes: int = 0
    expected: Any = None
    bound: Any = None
    terms: int = 1
    tolerance: float = 0.0
    absolute: float = 0.0


class VerificationCase(Protocol):
    """A problem with operands on which kernels are verified."""

    @property
    def problem(self) -> RunnableProblem:
        """The problem that a kernel solves."""

    @property
    def label(self) -> str:
        """The problem and its operands, such as ``"sgemm NT 389x293x211, random operands, aligned"``."""

    @property
    def is_timed(self) -> bool:
        """Whether kernels are also timed on the buffers of this case: only where a GPU may not hold a second set."""

    def buffers(self, xp: Any) -> dict[str, CaseBuffer]:
        """Make the buffers by name with ``numpy`` or, of large problems, with ``cupy``; the same ones at every call."""


@dataclass(frozen=True, slots=True)
class LibraryCall:
    """A call of cuBLAS that solves a problem: a function of CuPy's bindings, its arguments, and memory to `keep`."""

    function: str
    arguments: tuple[Any, ...]
    keep: Any = None


@runtime_checkable
class RunnableProblem(Problem, Protocol):
    """A problem that kernels can be compiled, verified and timed for. Instances are hashable and can be pickled.

    The right answer is known on the host, or a baseline gives it (:attr:`needs_baseline`).
    """

    @property
    def formula(self) -> str:
        """The computation in one line, such as ``"C = alpha A B^T + beta C, column-major as in the BLAS"``."""

    @property
    def buffers(self) -> tuple[Buffer, ...]:
        """The buffers of the problem."""

    @property
    def is_empty(self) -> bool:
        """Whether the result has no elements, so that no kernel is launched."""

    @property
    def needs_baseline(self) -> bool:
        """Whether a baseline gives the right answer, such as the default configuration, because the host cannot."""

    def macros(self) -> dict[str, int]:
        """Return the macros that select the case when a kernel is compiled."""

    def operands(self, xp: Any, seed: int) -> dict[str, Any]:
        """Make random operands with ``numpy`` or ``cupy``; the same seed gives the same ones for the same ``xp``."""

    def kernel_arguments(self, operands: Operands) -> dict[str, Any]:
        """Return the arguments of a kernel by name, in order: NumPy scalars, and the operands themselves."""

    def verification_cases(self) -> tuple[VerificationCase, ...]:
        """Return the cases on which every configuration is verified before it is timed."""

    def own_cases(self) -> tuple[VerificationCase, ...]:
        """Return cases of this very problem for a winner; none when it is too large to be solved on the host."""

    def winner_problems(self) -> tuple[Self, ...]:
        """Return the problems of other sizes that a winner is verified on besides its own."""

    def reference_call(self, addresses: Mapping[str, int]) -> LibraryCall | None:
        """Return the reference's call on buffers at device addresses, or None; a DeviceError if it is unsupported."""

    def argument_documents(self) -> list[dict[str, Any]]:
        """Return a kernel's arguments in order as plain JSON values: name, type, value of scalars, role of constants.

        The type of a buffer is ``"pointer to DTYPE"``. Arrays with the role ``"constant"`` are copied to constant
        memory.
        """

    def verification_document(self) -> dict[str, Any]:
        """Return where a winner is verified as plain JSON values.

        ``"sizes"`` is a list of lists or mappings of extents, ``"addresses"`` a text; other keys are up to the kind.
        """


@runtime_checkable
class LargeProblem(RunnableProblem, Protocol):
    """A runnable problem that may be too large to be solved on the host."""

    def device_error(self, before: Operands, after: Operands, run_reference: Callable[[Operands], None]) -> float:
        """Return the largest error of a kernel, as a share of its bound.

        `before` and `after` are operands on the GPU as the kernel found and left them; they share the ``"in"`` buffers.
        `run_reference` raises :class:`~mltune.errors.DeviceError` where there is no reference implementation.
        """
