"""Compare search strategies on recorded timings, on a scoreboard of all with a licence, too."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypedDict, Unpack, overload

from mltune.api.datasets import list_datasets
from mltune.api.display import interruptible, shown, warn
from mltune.api.places import check_places
from mltune.files.text import many

if TYPE_CHECKING:
    from mltune.comparison.comparison import Report as ComparisonReport
    from mltune.comparison.journal import Job
    from mltune.comparison.results import Comparison, PartialComparison
    from mltune.comparison.strategies import Given as Strategies


class ScoreboardOptions(TypedDict, total=False):
    """Further options of :func:`scoreboard`; :func:`compare` describes them."""

    compile_cores: str | int | Sequence[int]
    jobs: int | None
    out: str | Path | None
    overwrite: bool
    progress: ComparisonReport | Literal["auto"] | None
    interrupt: Callable[[], bool] | None


class CompareOptions(ScoreboardOptions, total=False):
    """Further options of :func:`compare`, which describes them."""

    table: str | Path | None
    parameters: str | Sequence[str] | None
    time_column: str | None
    aggregate: bool
    evaluations: int
    seeds: int


USUAL: CompareOptions = {
    "aggregate": False,
    "evaluations": 400,
    "seeds": 50,
    "compile_cores": "16",
    "overwrite": False,
    "progress": "auto",
    "interrupt": None,
}
"""The defaults of :func:`compare`."""


@overload
def compare(
    strategies: Strategies | Sequence[Strategies] = ...,
    datasets: str | Sequence[str] | None = None,
    *,
    share: None = None,
    **options: Unpack[CompareOptions],
) -> Comparison: ...


@overload
def compare(
    strategies: Strategies | Sequence[Strategies] = ...,
    datasets: str | Sequence[str] | None = None,
    *,
    share: str,
    **options: Unpack[CompareOptions],
) -> Comparison | PartialComparison: ...


def compare(
    strategies: Strategies | Sequence[Strategies] = ("mltune", "tpe", "random"),
    datasets: str | Sequence[str] | None = None,
    *,
    share: str | None = None,
    **options: Unpack[CompareOptions],
) -> Comparison | PartialComparison:
    """Compare search strategies on recorded timings.

    Each strategy searches each dataset with each seed, and each configuration that it proposes is looked up. The
    comparison is written to `out`: every run as it ends, then the summary, a table and figures.

    Parameters
    ----------
    strategies : str, Strategy, class, or sequence of these
        Names, in one text separated by commas, or ``"all"``; ``"NAME@SEEDS"`` gives a strategy fewer seeds. A strategy
        of your own is an object, a class, or ``"module:Class"`` (docs/developers/extend.md).
    datasets : str or sequence of str, optional
        Names or paths of datasets, or folders that hold some. By default all that come with mltune.
    share : str, optional
        ``"I/N"`` does the I-th of N shares of the work, one on each of N machines, say. A call without `share` and with
        the same `out` joins them.
    table : str or pathlib.Path, optional
        A table of configurations and times (CSV, Parquet or JSON) in place of datasets.
    parameters : str or sequence of str, optional
        The columns of the table that are parameters.
    time_column : str, optional
        The column of the table that holds the times; its name ends with the unit: ``time_ms``.
    aggregate : bool
        Whether to merge rows of the table that differ in columns which are no parameters: the median counts.
    evaluations : int
        Distinct configurations that each run measures, 400 by default.
    seeds : int
        Runs of each strategy on each dataset, 50 by default.
    compile_cores : str, int or sequence of int
        Numbers of compile cores, 16 by default: the score over time is given for each
        (docs/explanation/comparison.md). Texts are separated by commas.
    jobs : int, optional
        Processes. By default one per processor.
    out : str or pathlib.Path, optional
        Directory of the comparison; an existing one is resumed. By default one under ``runs/`` that belongs to these
        arguments: the same call goes on.
    overwrite : bool
        Whether the results replace files that mltune did not write.
    progress : callable, "auto" or None
        Called with a :class:`mltune.comparison.comparison.Progress` after each run. ``"auto"`` shows a progress bar in
        a notebook or a terminal (on stderr), and nothing elsewhere.
    interrupt : callable, optional
        Called without arguments several times a second; true ends the comparison with the runs that have ended. By
        default Ctrl-C does so, and a second Ctrl-C raises KeyboardInterrupt.

    Returns
    -------
    Comparison or PartialComparison
        The latter for one share of several.

    Raises
    ------
    UsageError
        A strategy, dataset or option is malformed or does not exist, or there is a file in the place of a result that
        mltune did not write.
    RunError
        No strategy has run on every dataset.

    Warns
    -----
    MltuneWarning
        Runs of a strategy failed; or a table or a dataset is not as it should be, and there is no `progress` to tell.

    Examples
    --------
    >>> import mltune, tempfile
    >>> class FirstToLast:
    ...     name = "first_to_last"
    ...
    ...     def search(self, simulation, seed):
    ...         for index in range(simulation.space.count):
    ...             simulation.evaluate(index)
    >>> compared = mltune.compare(
    ...     ["random", FirstToLast], "h200-dgemm-nt-4096-random", evaluations=20, seeds=2, out=tempfile.mkdtemp()
    ... )
    >>> compared.strategies, compared.fraction("random", "h200-dgemm-nt-4096-random").shape
    (('random', 'first_to_last'), (2, 20))
    """
    from mltune.comparison.comparison import CompareCall
    from mltune.comparison.comparison import compare_strategies as run
    from mltune.comparison.results import PRODUCTS, PartialComparison, write_results
    from mltune.resolve.options import check_names
    from mltune.show import scoreboard as page

    names = [*CompareOptions.__optional_keys__, "strategies", "datasets", "share"]
    check_names("a comparison", options, names)
    settings: dict[str, Any] = {**USUAL, **options}
    overwrite, progress, interrupt = (settings.pop(name) for name in ("overwrite", "progress", "interrupt"))
    request = CompareCall(strategies=strategies, datasets=datasets, share=share, **settings).request()
    results = {} if share is not None else {request.output / name: product for name, product in PRODUCTS.items()}
    check_places(results, overwrite=overwrite)
    with shown(progress, "ComparisonDisplay") as report, interruptible(interrupt) as interrupted:
        comparison = run(request, report, interrupted)
    warn(_failures(comparison.errors))
    if isinstance(comparison, PartialComparison):
        return comparison
    if report is None:
        warn(f"{name}: {text}" for name, recording in comparison.recordings.items() for text in recording.notices)
    summary = comparison.summary
    pages = {"table.md": page.markdown(summary), "scoreboard.html": page.html(summary)}
    write_results(comparison, request.output, pages, overwrite=overwrite)
    return comparison


def _failures(errors: Mapping[Job, str]) -> Iterator[str]:
    """Yield what failed: each error of a strategy once, with the number of its runs."""
    for (strategy, error), count in Counter((job.strategy, error) for job, error in errors.items()).items():
        yield f"{strategy} failed in {many(count, 'run')}, which are left out: {error}"


SCOREBOARD = ("mltune", "mltune-raw", "tpe", "hybrid_vndx", "adaptive_tabu_greywolf", "genetic_algorithm", "random")
"""The strategies of the scoreboard."""


def scoreboard(
    strategies: Strategies | Sequence[Strategies] = SCOREBOARD,
    datasets: str | Sequence[str] | None = None,
    *,
    evaluations: int = 250,
    seeds: int = 3,
    share: str | None = None,
    **options: Unpack[ScoreboardOptions],
) -> Comparison | PartialComparison:
    """Compare search strategies on the datasets that come with mltune, have a licence, and hold no search of mltune.

    It is :func:`compare` with other defaults: ``scoreboard.html`` and ``table.md`` of the directory are the scoreboard.

    Parameters
    ----------
    strategies, datasets
        As those of :func:`compare`. By default mltune with and without what it knows of a kernel, Optuna's TPE, three
        strategies of Kernel Tuner and random search; a strategy of your own takes its place beside them.
    evaluations, seeds : int
        As those of :func:`compare`; more seeds add to fewer.
    share, **options
        As those of :func:`compare`: `compile_cores`, `jobs`, `out`, `overwrite`, `progress` and `interrupt`.

    Returns
    -------
    Comparison or PartialComparison
        The latter for one share of several.

    Raises
    ------
    UsageError
        As by :func:`compare`; the default strategies need the extra ``peers``.

    Examples
    --------
    >>> import mltune, tempfile
    >>> board = mltune.scoreboard("random", "convolution_w6600", seeds=2, out=tempfile.mkdtemp())
    >>> (board.directory / "scoreboard.html").exists()
    True
    """
    sampled = [dataset for dataset in list_datasets() if dataset.source or dataset.kind != "search"]
    licensed = [dataset.name for dataset in sampled if dataset.licence or not dataset.source]
    own: dict[str, Any] = {"evaluations": evaluations, "seeds": seeds, "share": share}
    comparison: Comparison | PartialComparison = compare(strategies, datasets or licensed, **own, **options)
    return comparison
