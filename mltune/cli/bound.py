"""The command of the upper bound: ``mltune bound``."""

from __future__ import annotations

import re
from typing import Annotated

import typer

from mltune.cli.application import (
    Accuracy,
    AnyKernelName,
    AsJson,
    Batch,
    Facts,
    K,
    M,
    N,
    ProblemName,
    Size,
    Trans,
    answer,
    app,
    device_of,
    sizes,
)
from mltune.errors import UsageError
from mltune.files.text import printable
from mltune.resolve.problems import named_kernels


@app.command()
def bound(
    problem: ProblemName,
    trans: Trans = None,
    size: Size = None,
    m: M = None,
    n: N = None,
    k: K = None,
    batch: Batch = None,
    kernel: AnyKernelName = None,
    accuracy: Accuracy = None,
    device: Facts = "auto",
    config: Annotated[
        list[str] | None,
        typer.Option("--config", metavar="NAME=V", help="Parameters of a configuration, all or some."),
    ] = None,
    code: Annotated[
        bool, typer.Option("--code", help="Compile the configuration, and count the instructions of its main loop.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Compute how fast a problem can be at best, without measuring it, and what limits it.

    That is the limit of the hardware, the limit of the best configuration of each kernel that solves it, and with
    --config that of the best that has these values. The facts of a GPU that was measured (mltune device --measure)
    bring it closer.
    """
    from mltune.device.known import with_mixes
    from mltune.results.rating import rate_of
    from mltune.show.bound import bounded
    from mltune.tuning.bound import LimitedConfiguration, find_bound, find_bounds, read_code

    shape = {"trans": trans, "size": sizes(size), "m": m, "n": n, "k": k, "batch": batch}
    named, kernels = named_kernels(problem, shape, [] if kernel is None else [kernel], accuracy)
    facts = device_of(device)
    if config is None:
        bounds = find_bounds(named, kernels, facts)
    else:  # of a single kernel
        bounds = [(kernels[0], find_bound(named, kernels[0], facts, configuration=_configuration(config)))]
    (bundle, found), *others = bounds

    def described(one: LimitedConfiguration) -> dict[str, object]:
        limits = dict(one.limits)
        return {"time_s": one.time_s, "binding": one.binding, "limits": limits, "configuration": one.configuration}

    loop, issue_s = (None, 0.0) if not code else read_code(named, bundle, facts, found.given or found.best)
    document = {
        "problem": named.label,
        "device": facts.name,
        "kernel": bundle.label,
        "unit": found.unit,
        "hardware": dict(found.hardware),
        "best": described(found.best),
        "given": None if found.given is None else described(found.given),
        "examined": found.examined,
        "configurations": found.count,
        "rivals": [{"kernel": rival.label, "unit": one.unit, "best": described(one.best)} for rival, one in others],
        "mixes": len(with_mixes(facts).mixes),
        "code": None
        if loop is None
        else {
            "instructions": loop.total,
            "multiply_adds": loop.arithmetic,
            "counts": loop.counts,
            "bank_conflicts": loop.conflicts,
            "issue_s": issue_s,
        },
    }
    answer(document, as_json, lambda: bounded(document, rate_of(named, facts)))


def _configuration(options: list[str]) -> dict[str, int]:
    """Read the options ``--config NAME=V``."""
    found: dict[str, int] = {}
    for option in options:
        if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*=\d{1,9}", option):
            raise UsageError(f"a parameter is given as NAME=V, got {printable(repr(option), 100)}; write BLK_M=64.")
        name, _, value = option.partition("=")
        found[name] = int(value)
    return found
