"""The epilogue of a GEMM: factors, a bias and an activation, which it applies to its sums before it stores them."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from mltune.errors import ProblemError
from mltune.files.text import printable

SCALES = ("", "scales", "block_scales")
"""Factors of the product in FP32, in the order of the values of the macro ``EPILOGUE_SCALES``.

With `scales` each row has one, `scale_m`, and each column, `scale_n`. With `block_scales` these are factors of every
128 steps of k: one for so many rows of op(A), and one for each column of op(B).
"""

BIASES = {"": 0, "bias_m": 1, "bias_n": 2}
"""Along which index of C a bias lies, with the values of the macro ``EPILOGUE_BIAS``."""

ACTIVATIONS = {"": (0, 1.0), "relu": (1, 1.0), "gelu": (2, 1.13), "gelu_tanh": (3, 1.13), "silu": (4, 1.1)}
"""Activations, with the values of the macro ``EPILOGUE_ACTIVATION`` and the largest moduli of their derivatives."""

_ROUNDINGS = 4


class Epilogue(NamedTuple):
    """Factors, a bias and an activation, each of which may be missing.

    ``C = activation(alpha scale_m A B scale_n + beta C + bias)``, where the product may be a sum over blocks of k
    """

    scales: str = ""
    bias: str = ""
    activation: str = ""

    @property
    def is_exact(self) -> bool:
        """Whether the epilogue of integers is one number for every correct kernel."""
        return self.activation in ("", "relu")

    @property
    def slope(self) -> float:
        """By how much an error may grow."""
        return ACTIVATIONS[self.activation][1]

    @property
    def roundings(self) -> int:
        """The roundings of a kernel, each of 2**-22 of the sum of moduli: activations go through exponentials."""
        return (2 if self.scales else 0) + (1 if self.bias else 0) + (0 if self.is_exact else _ROUNDINGS)

    def macros(self) -> dict[str, int]:
        """Return the macros that select it; none without an epilogue."""
        values = {"EPILOGUE_BIAS": BIASES[self.bias], "EPILOGUE_ACTIVATION": ACTIVATIONS[self.activation][0]}
        return {"EPILOGUE_SCALES": SCALES.index(self.scales), **values} if any(self) else {}

    def activated(self, xp: Any, values: Any) -> Any:
        """Return the activation of numbers in double precision, arrays of module `xp`."""
        if self.activation == "relu":
            return xp.maximum(values, 0.0)
        if self.activation == "silu":
            return values / (1.0 + xp.exp(-values))
        if self.activation == "gelu_tanh":
            return 0.5 * values * (1.0 + xp.tanh(math.sqrt(2.0 / math.pi) * (values + 0.044715 * values**3)))
        return 0.5 * values * (1.0 + _erf(xp, values / math.sqrt(2.0))) if self.activation == "gelu" else values


def parse_epilogue(text: object) -> Epilogue:
    """Read an epilogue, such as ``"bias_m+gelu"``; a ProblemError tells of what is none.

    >>> parse_epilogue("scales+bias_m+gelu")
    Epilogue(scales='scales', bias='bias_m', activation='gelu')
    """
    words = text.split("+") if isinstance(text, str) and text else []
    scales = words.pop(0) if words and words[0] in SCALES[1:] else ""
    bias = words.pop(0) if words and words[0] in BIASES else ""
    if not isinstance(text, str) or len(words) > 1 or not {*words} <= {*ACTIVATIONS} - {""}:
        names = (name for name in (*SCALES, *BIASES, *ACTIVATIONS) if name)
        raise ProblemError(
            f"{printable(repr(text), 80)} is no epilogue: it is scales, a bias, an activation, or several, in this "
            f"order with +, of {', '.join(names)}."
        )
    return Epilogue(scales, bias, *words)


def _erf(xp: Any, values: Any) -> Any:
    if xp is np:
        from scipy.special import erf
    else:
        from cupyx.scipy.special import erf
    return erf(values)
