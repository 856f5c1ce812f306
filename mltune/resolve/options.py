"""The options that a function, a command and a plan share, each declared once with its default."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, TypedDict


class ShapeOptions(TypedDict, total=False):
    """The shape of a problem; None, as a missing key, where an option is not given.

    ``trans`` is op(A) and op(B) of a GEMM, ``size`` its m = n = k, or maps the names of another kernel's sizes to
    sizes; ``m``, ``n``, ``k`` are single extents, and ``batch`` is the number of products.
    """

    trans: str | None
    size: int | Mapping[str, int] | None
    m: int | None
    n: int | None
    k: int | None
    batch: int | None


SHAPE: tuple[str, ...] = tuple(ShapeOptions.__annotations__)


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """The options of every run: of :func:`mltune.tune`, of ``mltune tune``, and of ``[options]`` in a plan.

    Attributes
    ----------
    search : str
        One of :data:`mltune.records.candidate.SEARCHES`; the others than ``"model"`` are for comparison.
    skip : bool
        Whether gates skip configurations that are predicted to be slow.
    stop : bool
        Whether the run ends by itself once nothing untried can be expected to be faster.
    enough : float or None
        The run ends once the best reaches this share of the upper bound (:mod:`mltune.cost.bound`); None never.
    compilers : int or None
        Compile processes; None is one per core.
    prior : str
        The pretrained model that the search starts from (:func:`mltune.cost.model_choice.choose_model`).
    wisdom : str
        File of the best known configurations, which are measured first and to which the winner is added. ``"none"`` for
        none; ``"auto"`` is the user's file on a GPU (:func:`mltune.known.wisdom_file.default_file`), none in replay.
    """

    search: str = "model"
    skip: bool = True
    stop: bool = True
    enough: float | None = None
    compilers: int | None = None
    prior: str = "auto"
    wisdom: str = "auto"

    @property
    def fits_models(self) -> bool:
        """Whether the search fits models: to propose, to skip, or to stop."""
        return self.search == "model" or self.skip or self.stop


USUAL: Mapping[str, Any] = {one.name: one.default for one in fields(RunOptions)}
"""The defaults of :class:`RunOptions`."""


def unusual(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that differ from their defaults.

    Examples
    --------
    >>> unusual({"search": "model", "skip": False})
    {'skip': False}
    """
    return {name: value for name, value in options.items() if value != USUAL[name]}
