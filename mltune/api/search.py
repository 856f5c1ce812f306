"""The search as an object over a plain dict of parameters."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, overload

from mltune.errors import UsageError
from mltune.files.text import many, printable
from mltune.resolve.options import whole_number

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
    >>> while (configuration := search.ask()) is not None:
    ...     search.tell(configuration, 1e-3 * (abs(configuration["block"] - 64) + configuration["unroll"]))
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

        if scale not in ("log", "symlog"):
            raise UsageError(
                f"scale cannot be {printable(repr(scale), 60)}: it is 'log' for times or 'symlog' for any other "
                "objective; results on a linear scale take 'symlog'."
            )
        if not isinstance(parameters, Mapping) or not parameters:
            raise UsageError(f"{parameters!r:.100} cannot be the parameters, a dict of lists such as {{'x': [1, 2]}}.")
        if isinstance(restrictions, str) or not isinstance(restrictions, Iterable):
            wrong = printable(repr(restrictions), 200)
            raise UsageError(f"restrictions cannot be {wrong}: they are a sequence; write [{wrong}].")
        whole_number("seed", seed, 0)
        self._scale = scale
        self._table = list_configurations(plain_values(parameters), restrictions)
        self._search = PlainSearch(self._table, seed=seed, scale=scale, maximise=maximise)
        self._maximise = maximise
        self.results: dict[tuple[Any, ...], float] = {}

    def __len__(self) -> int:
        """Return the number of configurations."""
        return len(self._table)

    def __repr__(self) -> str:
        return f"Search({many(len(self), 'configuration')} of {', '.join(self._table.names)}; {len(self.results)} told)"

    @overload
    def ask(self) -> dict[str, Any] | None: ...

    @overload
    def ask(self, count: int) -> list[dict[str, Any]]: ...

    def ask(self, count: int | None = None) -> dict[str, Any] | list[dict[str, Any]] | None:
        """Propose a configuration to measure, or a list of ``count``; they are then under way.

        Returns
        -------
        dict, list of dict, or None
            Without ``count`` one configuration, None when nothing is left. With it a list, which is shorter than
            ``count`` once all others are measured or under way, and empty when nothing is left.
        """
        rows = self._search.ask(1 if count is None else whole_number("count", count, 0))
        configurations = [dict(zip(self._table.names, self._table[row], strict=True)) for row in rows]
        return next(iter(configurations), None) if count is None else configurations

    def tell(
        self,
        configuration: Mapping[str, Any] | Sequence[Mapping[str, Any]],
        result: float | Sequence[float | None] | None,
    ) -> None:
        """Report the result of a configuration, proposed or not, or the results of a list of them.

        Parameters
        ----------
        configuration : dict or list of dict
        result : float or None, or a list of these
            None if the configuration failed, and so does what is not finite. Of several results the last counts.

        Raises
        ------
        UsageError
            It is no configuration of this search; or a result on a logarithmic scale is not positive. What stands
            before it in a list is told.
        """
        if isinstance(configuration, Mapping):
            return self._tell(configuration, result)
        results = [*result] if isinstance(result, Sequence) else [result]
        if len(results) != len(configuration):
            raise UsageError(
                f"{len(results)} results of {len(configuration)} configurations: a list of them has as many results."
            )
        for single, its_result in zip(configuration, results, strict=True):
            self._tell(single, its_result)

    def _tell(self, configuration: Mapping[str, Any], result: Any) -> None:
        values = tuple(configuration[name] for name in self._table.names if name in configuration)
        row = self._table.row_of(values) if len(values) == len(configuration) == len(self._table.names) else -1
        if row < 0:
            raise UsageError(
                f"{printable(dict(configuration), 300)} is no configuration of this search: it has values of "
                f"{', '.join(self._table.names)} that satisfy the restrictions."
            )
        try:
            number = math.nan if result is None else float(result)
        except (TypeError, ValueError):
            got = printable(repr(result), 100)
            raise UsageError(f"a result cannot be {got}: it is a number, or None for a failure.") from None
        if self._scale == "log" and math.isfinite(number) and number <= 0:
            raise UsageError(
                f"a result cannot be {number}: on a logarithmic scale it is positive; give None for a failure, or "
                "make the search with scale='symlog' for an objective of any sign."
            )
        self._search.tell(row, number)
        self.results[values] = number

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
