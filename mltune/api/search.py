"""The search as an object over a plain dict of parameters."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from mltune.errors import UsageError
from mltune.files.text import printable

if TYPE_CHECKING:
    from mltune.kernel.configurations import Restrictions, Values
    from mltune.search.plain_search import Scale


class Search:
    """mltune's search over configurations that you measure yourself: ask for one, measure it, tell the result.

    Several configurations may be under way at a time, and results may come in any order. The same arguments, seed and
    order of calls give the same proposals.

    Parameters
    ----------
    parameters : mapping of str to sequence
        The values of each parameter: bool, int, float, str or None.
    restrictions : sequence of str or callable
        Conditions of a configuration: expressions over numeric parameters, such as ``"x * y <= 1024"``
        (:mod:`mltune.kernel.expressions`), or functions that take it as a dict.
    seed : int
    scale : {"log", "symlog"}
        ``"log"`` is for times: results are positive, and their ratios count. ``"symlog"`` is for any other objective,
        of any sign and size.
    maximise : bool
        Whether larger results are better. By default smaller ones are.

    Attributes
    ----------
    results : dict of tuple to float
        The results so far, in the order in which they were told: by the values of the configuration, NaN for a failure.

    Raises
    ------
    UsageError
        A parameter or a restriction is not as described.
    SpaceError
        No configuration satisfies all restrictions, or there are too many.

    Examples
    --------
    >>> import mltune
    >>> search = mltune.Search({"block": [32, 64, 128], "unroll": [1, 2, 4]}, restrictions=["block * unroll <= 256"])
    >>> while configurations := search.ask():
    ...     for configuration in configurations:
    ...         search.tell(configuration, 1e-3 * (abs(configuration["block"] - 64) + configuration["unroll"]))
    >>> len(search.results), search.best, search.best_result
    (8, {'block': 64, 'unroll': 1}, 0.001)
    """

    def __init__(
        self,
        parameters: Values,
        restrictions: Restrictions = (),
        *,
        seed: int = 0,
        scale: Scale = "log",
        maximise: bool = False,
    ) -> None:
        from mltune.kernel.configurations import list_configurations, plain_values
        from mltune.search.plain_search import PlainSearch

        self._table = list_configurations(plain_values(parameters), restrictions)
        self._search = PlainSearch(self._table, seed=seed, scale=scale, maximise=maximise)
        self._maximise = maximise
        self.results: dict[tuple[Any, ...], float] = {}

    def __len__(self) -> int:
        """Return the number of configurations."""
        return len(self._table)

    def ask(self, count: int = 1) -> list[dict[str, Any]]:
        """Propose configurations to measure, which are then under way.

        Returns
        -------
        list of dict
            Fewer than ``count`` once all others are measured or under way; empty when nothing is left.
        """
        return [dict(zip(self._table.names, self._table[row], strict=True)) for row in self._search.ask(count)]

    def tell(self, configuration: Mapping[str, Any], result: float | None) -> None:
        """Report the result of a configuration, proposed or not; None if it failed. Of several results the last counts.

        Raises
        ------
        UsageError
            It is no configuration of this search.
        """
        values = tuple(configuration[name] for name in self._table.names if name in configuration)
        row = self._table.row_of(values) if len(values) == len(configuration) == len(self._table.names) else -1
        if row < 0:
            raise UsageError(
                f"a result is of a configuration of {', '.join(self._table.names)} that satisfies the restrictions, "
                f"got {printable(dict(configuration), 300)}."
            )
        self._search.tell(row, result)
        self.results[values] = math.nan if result is None else float(result)

    @property
    def best(self) -> dict[str, Any] | None:
        """The configuration with the best result; None where none has one."""
        finite = [values for values, result in self.results.items() if math.isfinite(result)]
        if not finite:
            return None
        chosen = (max if self._maximise else min)(finite, key=self.results.__getitem__)
        return dict(zip(self._table.names, chosen, strict=True))

    @property
    def best_result(self) -> float | None:
        """The best result; None where there is none."""
        return None if self.best is None else self.results[tuple(self.best.values())]
