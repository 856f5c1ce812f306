"""Accuracy classes of kernels: promises about the error of a result, ordered by strictness."""

from __future__ import annotations

from mltune.errors import UsageError
from mltune.files.text import did_you_mean, printable

ACCURACIES = ("ieee", "fp32")
"""The classes, the strictest first.

``"ieee"``: every product and every sum is rounded once, as by the FMA of the problem's type. ``"fp32"``: the error
relative to abs(A) abs(B) is not above that of FP32 FMA arithmetic, by whatever operations. Of GEMMs with operands in
half precision, which are defined by what tensor cores compute, all kernels that stay within the bound are ``"ieee"``.
"""

STRICTEST = ACCURACIES[0]
"""The class of a kernel and of a request that name none."""


def accepts(accuracy: str, other: str) -> bool:
    """Return whether a request for a class accepts a kernel of another: one that is as strict, or stricter.

    Examples
    --------
    >>> accepts("fp32", "ieee"), accepts("ieee", "fp32")
    (True, False)
    """
    return ACCURACIES.index(other) <= ACCURACIES.index(accuracy)


def check_accuracy(accuracy: str) -> str:
    """Return the name of a class; raise a UsageError where there is none of that name."""
    if accuracy not in ACCURACIES:
        raise UsageError(
            f"an accuracy class is one of {', '.join(ACCURACIES)}, got {printable(repr(accuracy), 60)}"
            f"{did_you_mean(str(accuracy), ACCURACIES) or '.'}"
        )
    return accuracy
