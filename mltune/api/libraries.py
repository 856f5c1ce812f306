"""Build a library: a kernel in a few configurations for many sizes, with a dispatcher, callable from C and Python."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, Literal

from mltune.api.campaigns import run as carry_out
from mltune.api.display import interruptible

if TYPE_CHECKING:
    from mltune.results.progress import CampaignReport


def build_library(
    spec: str | Path | Mapping[str, Any],
    out: str | Path,
    *,
    device: str = "auto",
    run: str | Path | None = None,
    overwrite: bool = False,
    compilers: int | None = None,
    progress: CampaignReport | Literal["auto"] | None = "auto",
    interrupt: Callable[[], bool] | None = None,
    **options: Any,
) -> dict[str, Any]:
    """Build a library: tune an operation at representative sizes, choose a few configurations, and write C source.

    The candidates are the fastest configurations of every tuned size, the fastest one there that is valid at all
    sizes, the default ones, those that a model of the tunes expects to be fast at other sizes, and other launches
    of the best. They are timed at the tuned sizes, and a shortlist of them at further sizes. Those of the portfolio
    are chosen by the mean speed with a floor under the worst and timed at all sizes, and a dispatcher is learned
    that maps sizes to them. All of it keeps the time of the description: fewer sizes are tuned where a tune would
    be too short, and what cannot be timed is left out.

    Parameters
    ----------
    spec : str, pathlib.Path or mapping
        A TOML file, or a mapping of its form: the operation and its sizes (docs/reference/library.md).
    out : str or pathlib.Path
        The folder of the library; a library of mltune there is replaced as a whole.
    device : str
        ``"auto"``, ``"all"``, ``"cuda:N"``, or ``"replay"``: then every size needs recorded timings, candidates have
        times where they were recorded, and shares are 0 where what runs was not. It shows what is written without a
        GPU; ``"auto"`` is that where there is none.
    run : str or pathlib.Path, optional
        Directory of the run; a run of the same library there is resumed. By default a new one under ``runs/``.
    overwrite : bool
        Whether a folder that holds anything else gets another name, which a warning tells.
    compilers : int, optional
        Compile processes; by default one per core.
    progress, interrupt
        See :func:`mltune.run`.
    **options
        Options of every run (docs/reference/plans.md#options).

    Returns
    -------
    dict
        The content of ``library.json``, whose ``report`` says where each configuration is used and what is lost.

    Raises
    ------
    LibraryError
        The description is malformed, or the folder holds something else.
    UsageError
        The operation, or a kernel for it, cannot be in a library.
    DeviceError
        There is no NVRTC.
    RunError
        No candidate could be timed at any size, the run was interrupted, or a configuration cannot be compiled.

    Examples
    --------
    >>> import mltune
    >>> spec = {"library": {"operation": "sgemm", "trans": "NT"}, "sizes": {"shapes": [1024, 4096]}}
    >>> built = mltune.build_library(spec, "sgemm_nt", device="replay")  # doctest: +SKIP
    >>> built["name"], built["report"]["portfolio"]  # doctest: +SKIP
    ('sgemm_nt', {'mean': 1.0, 'least': 1.0})
    """
    begun = perf_counter()
    from mltune.campaign.library import plan_library
    from mltune.library.folder import check_place, write_library
    from mltune.library.spec import load_spec

    check_place(Path(out), overwrite=overwrite)
    description = load_spec(spec)
    planned = plan_library(description, device, run, {**options, "compilers": compilers}, begun)
    with interruptible(interrupt) as interrupted:
        campaign = partial(carry_out, run=run, progress=progress, interrupt=interrupted)
        content = planned.content(campaign, interrupted)
    return write_library(Path(out), content, overwrite=overwrite)
