"""Compare two versions of a kernel."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

from mltune.api.places import check_places
from mltune.problem.problem import ShapeOptions

if TYPE_CHECKING:
    from mltune.tuning.gate import GateResult


def gate(
    old: str | Path,
    new: str | Path,
    *,
    problem: str | None = None,
    kernel: str | Path | None = None,
    config: Mapping[str, int] | None = None,
    within: float | None = None,
    confidence: float | None = None,
    time: str | float = "60s",
    explain: bool = False,
    junit: str | Path | None = None,
    overwrite: bool = False,
    device: str = "auto",
    seed: int = 0,
    **shape: Unpack[ShapeOptions],
) -> GateResult:
    """Compare two versions of a kernel: verify both, and time them in turns until it is certain which is faster.

    A version is named in one of these ways:

    - the folder of a winner or of a library: the machine code in it is compared, for a library that of the
      configuration that it uses for the problem;
    - the folder of a bundle, a built-in kernel, or ``REVISION:PATH`` for the folder of a bundle in git: the source is
      compiled;
    - a CUDA source (``.cu``): it is compiled in place of the source of a bundle.

    Parameters
    ----------
    problem : str, optional
        The name of a GEMM. By default the problem of a winner or a library, or that of a bundle of another kind.
    kernel : str or pathlib.Path, optional
        The bundle of sources, by default the one in their folder; and the one whose arguments a winner has that is no
        GEMM, by default the other version.
    config : mapping of str to int, optional
        Parameters of the configuration of bundles and sources; the others are as in their default configuration.
    within : float, optional
        Share by which times may differ that are equal; 0.01 by default.
    confidence : float, optional
        Confidence of the verdict, however often the times are looked at; 0.99 by default.
    time : str or float
        Most time of the timing: ``"60s"``, ``"5m"``, or seconds.
    explain : bool
        Whether to collect what differs: registers, spills, shared memory, occupancy, instructions of the main loop.
    junit : str or pathlib.Path, optional
        A file that is written in JUnit's form.
    overwrite : bool
        Whether that file replaces one that mltune did not write.
    device : str
        ``"auto"`` or ``"cuda:N"``.
    seed : int
        Seed of the order of runs.
    trans, size, m, n, k, batch, epilogue : optional
        See :func:`tune`; by default as in the problem of a winner.

    Returns
    -------
    GateResult
        With the verdict: ``"faster"``, ``"equal"``, ``"slower"``, ``"wrong"``, ``"failed"`` or ``"undecided"``.

    Raises
    ------
    UsageError
        There is no such version, the old one does not work, or there is no GPU.
    RunError
        The GPU cannot be used any more.

    Examples
    --------
    >>> import mltune
    >>> mltune.gate("HEAD~1:kernels/mine", "kernels/mine", within=0.02).verdict  # doctest: +SKIP
    'equal'
    """
    from mltune.device.query import query_device
    from mltune.errors import UsageError
    from mltune.files.atomic import write_product
    from mltune.files.owned import JUNIT
    from mltune.library.machine_code import READERS
    from mltune.resolve.device import Target, parse_device
    from mltune.resolve.problems import given_options
    from mltune.resolve.request import parse_duration
    from mltune.tuning.gate import GateRule, compare_versions
    from mltune.tuning.versions import two_versions

    check_places({} if junit is None else {Path(junit): JUNIT}, overwrite=overwrite)
    target, limit_s = parse_device(device) or Target(cuda=0), parse_duration(str(time))
    rates = given_options({"within": within, "confidence": confidence})
    rule = GateRule(limit_s=limit_s, seed=seed, explain=explain, **rates)
    if target.cuda is None:
        raise UsageError(f"{target} cannot compare versions, which needs a GPU; --device is auto or cuda:N.")
    with two_versions(str(old), str(new), kernel, problem, shape, READERS) as makers:
        gpu = query_device(target.cuda)
        versions = [make(gpu, config or {}) for make in makers]
        result = compare_versions(*versions, device=gpu, index=target.cuda, rule=rule)
    if junit is not None:
        write_product(Path(junit), result.to_junit(), JUNIT, overwrite=overwrite)
    return result
