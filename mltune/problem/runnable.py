"""The runnable-problem protocol: operands, kernel arguments and verification of problems that run on a GPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol, Self, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from mltune.problem.problem import Problem

Operands = Mapping[str, Any]
"""The buffers of a problem by name: NumPy or CuPy arrays, device addresses, or anything else that represents them."""


@dataclass(frozen=True, slots=True)
class Buffer:
    """A buffer that a kernel reads or writes.

    Attributes
    ----------
    name : str
    role : {"in", "out", "inout"}
        A kernel must not change an ``"in"`` buffer; an ``"inout"`` buffer is restored before a kernel is timed.
    dtype : str
        Type of an element, a name of :data:`mltune.problem.array_values.DTYPES`.
    """

    name: str
    role: Literal["in", "out", "inout"]
    dtype: str


@dataclass(frozen=True, slots=True)
class CaseBuffer:
    """One buffer of a verification case on the host: an operand with guard zones around it.

    Attributes
    ----------
    content : ndarray of shape (n_words,)
        All of the buffer before the kernel runs.
    skip_bytes : int
        Bytes before the first element of the operand.
    """

    content: NDArray[Any]
    skip_bytes: int


@dataclass(frozen=True, slots=True)
class CaseOutput(CaseBuffer):
    """A buffer that the kernel of a verification case writes; its words are real, two for a complex element.

    Attributes
    ----------
    expected, bound : ndarray of shape (n_words,), float64
        The correct word and its largest error. A negative bound marks a word that the kernel must not change.
    terms : int
        Consecutive words whose sum is a value: 2 in double-double arithmetic. The error of the sum counts; its bound
        stands with the first word.
    """

    expected: NDArray[np.float64]
    bound: NDArray[np.float64]
    terms: int = 1


class VerificationCase(Protocol):
    """A problem with operands for which every word of the result is known."""

    @property
    def problem(self) -> RunnableProblem:
        """The problem that a kernel solves."""

    @property
    def label(self) -> str:
        """The problem and its operands, such as ``"sgemm NT 389x293x211, random operands, aligned"``."""

    def buffers(self) -> dict[str, CaseBuffer]:
        """Make the buffers by name; the same ones at every call."""


@runtime_checkable
class RunnableProblem(Problem, Protocol):
    """A problem that kernels can be compiled, verified and timed for. Instances are hashable and can be pickled."""

    @property
    def formula(self) -> str:
        """The computation in one line, such as ``"C = alpha A B^T + beta C, column-major as in the BLAS"``."""

    @property
    def buffers(self) -> tuple[Buffer, ...]:
        """The buffers of the problem."""

    @property
    def is_empty(self) -> bool:
        """Whether the result has no elements, so that no kernel is launched."""

    def macros(self) -> dict[str, int]:
        """Return the macros that select the case when a kernel is compiled."""

    def operands(self, xp: Any, seed: int) -> dict[str, Any]:
        """Make random operands.

        Parameters
        ----------
        xp : module
            ``numpy`` or ``cupy``.
        seed : int
            Seed; the same seed gives the same operands within a module.
        """

    def kernel_arguments(self, operands: Operands) -> dict[str, Any]:
        """Return the arguments of a kernel by name, in order: NumPy scalars, and the operands themselves."""

    def verification_document(self) -> dict[str, Any]:
        """Return where a winner is verified as plain JSON values.

        ``"sizes"`` is a list of lists or mappings of extents, ``"addresses"`` a text; other keys are up to the kind.
        """


@runtime_checkable
class SolvedProblem(RunnableProblem, Protocol):
    """A runnable problem whose right answer is known on the host, with bounds on the error of every word."""

    def verification_cases(self) -> tuple[VerificationCase, ...]:
        """Return small cases of the same kind, on which every configuration is verified."""

    def own_cases(self) -> tuple[VerificationCase, ...]:
        """Return cases of this very problem; none when it is too large to be solved on the host."""

    def winner_problems(self) -> tuple[Self, ...]:
        """Return the problems of other sizes that a winner is verified on besides its own."""

    def device_error(self, before: Operands, after: Operands, run_reference: Callable[[Operands], None]) -> float:
        """Return the largest error of a kernel on a problem that is too large for the host, as a share of its bound.

        Parameters
        ----------
        before, after : mapping of str to array
            Operands on the GPU as the kernel found and left them; they share the ``"in"`` buffers.
        run_reference : callable
            Runs the reference implementation on operands. It raises :class:`~mltune.errors.DeviceError` where there is
            none.
        """
