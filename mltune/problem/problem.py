"""The problem protocol: name, work, variables and arithmetic of the computation that a kernel performs."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

ARITHMETICS = ("fp32", "fp64", "tensor_fp16", "tensor_tf32", "tensor_fp64")
GEMM_PRECISIONS = ("s", "d", "c", "z", "h", "b", "dd")
"""The precisions of GEMM by the letters before its name: those of the BLAS, FP16, BF16, double-double arithmetic."""

LARGEST_BATCH = 65535
"""CUDA's limit of a grid along z, where the products of a batch are."""

DEFAULT_TRANS = "NT"
DEFAULT_SIZE = 4096


@runtime_checkable
class Problem(Protocol):
    """A problem as features, records and replay need it.

    A GPU needs a :class:`~mltune.problem.runnable.RunnableProblem`. Equal instances are the same problem.
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
        """The problem whatever its sizes, such as ``"sgemm NT"``; empty when unknown."""

    @property
    def cost_class(self) -> str:
        """The class of problems whose trials cost the same per operation, such as ``"s"``; empty when unknown."""

    @property
    def work_class(self) -> tuple[Any, ...] | None:
        """A key that problems with the same amount of work share, such as precision and extents; None when unknown."""

    @property
    def batch(self) -> int:
        """Number of equal problems that are solved at once; 1 for kinds without batches."""

    @property
    def size_names(self) -> tuple[str, ...]:
        """The variables that another call of the same compiled kernel may change, such as m, n and k."""

    @property
    def reference(self) -> str:
        """The name of the reference implementation that kernels are compared with, such as ``"cuBLAS"``, or empty."""

    @property
    def is_product(self) -> bool:
        """Whether it is a matrix product, which tensor cores can compute."""

    @property
    def follows_roofline(self) -> bool:
        """Whether it is rated in GB/s where memory limits it; if not, always by the operations that it counts."""

    def variables(self) -> dict[str, int]:
        """Return the values of the problem that the expressions of a kernel bundle may use."""

    def to_json(self) -> dict[str, Any]:
        """Return the problem as plain JSON values, for :func:`~mltune.problem.kinds.problem_from_json`."""
