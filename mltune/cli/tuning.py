"""The commands ``tune`` and ``sweep``."""

from __future__ import annotations

from mltune import api
from mltune.cli.application import Given, answer, command, fail_if
from mltune.cli.options import (
    PROBLEMS,
    AsJson,
    Sizes,
    argument,
    flag,
    number,
    parameter_values,
    several_sizes,
    share,
    sizes,
    text,
    texts,
)
from mltune.cli.plans import answer_campaign
from mltune.errors import UsageError
from mltune.show import terminal


@command(
    api.tune,
    problem=argument("PROBLEM", f"{PROBLEMS}; in replay the recorded one.", str | None, show_default=False),
    size=Sizes,
    kernel=texts(
        "--kernel",
        "KERNEL",
        "A built-in kernel, or the folder of a bundle; several compete.  [default: the built-in ones of the accuracy "
        "class, or the replayed one]",
    ),
    compilers=None,
)
def tune(given: Given, as_json: AsJson = False) -> None:
    """Find the fastest configuration of a kernel; of several kernels, the fastest of all.

    Where no kernel is named, all built-in kernels that solve the problem at the accuracy that is asked for share the
    budget, which goes where it is expected to pay.

    Without --trials and --time the budget is 60 s on a GPU and 300 trials in replay. Without a GPU, timings recorded
    on one are replayed. Ctrl-C ends the run with the best so far. The run also ends once no untried configuration can
    be expected to be faster, and says so. Exits with 1 when no trial succeeded.

    Several sizes, such as --size 512 --size 4096, are several problems: they share the budget, start from what the
    others have found, and are carried out as by `mltune run`. --device may then also be all or replay.
    """
    from mltune.process.signals import Interrupt
    from mltune.show import tables
    from mltune.show.live import RunDisplay

    several = several_sizes(given["size"])
    if len(several) > 1:
        extents = {name: given.pop(name) for name in ("m", "n", "k")}
        if both := [f"--{name}" for name, value in extents.items() if value is not None]:
            raise UsageError(f"several sizes are given by --size, but there is {', '.join(both)} too; leave one out.")
        del given["size"]
        with RunDisplay() as progress, Interrupt() as interrupt:
            result = api.tune_sizes(sizes=several, **given, progress=progress, interrupt=interrupt)
        return answer_campaign(result, as_json)
    given["size"] = sizes(given["size"])
    with RunDisplay() as progress, Interrupt() as interrupt:
        found = api.tune(**given, progress=progress, interrupt=interrupt)
    for trial, reason in (found.declaration.rejected if found.declaration else {}).items():
        terminal.write(f"trial {trial} was faster, but failed the last verification: {reason}", stderr=True)
    document = api.summarise(found)
    answer(document, as_json, lambda: tables.tuned(document))
    fail_if(document["best"] is None)


@command(
    api.sweep,
    count=number("--count", "How many configurations to time.", 1),
    complete=flag("--complete", "Time all configurations, not --count."),
    prune=flag("--prune", "With --complete: leave out what is surely slow, and audit that."),
    within=share("--within", "With --prune: how much slower than the best still counts as fast.  [default: 1%]", 0, 50),
    confidence=share(
        "--confidence", "With --prune: confidence that nothing fast is left out.  [default: 95%]", 50, 99.9
    ),
    prior=text("--prior", "auto|none|NAME|FILE", "With --prune: the pretrained model to start from.  [default: none]"),
    only=texts("--only", "NAME=V,V", "Values of a parameter to sweep; may be given several times.", parameter_values),
)
def sweep(given: Given, as_json: AsJson = False) -> None:
    """Record a dataset of timings on a GPU.

    The configurations are a uniform random sample of the search space, or all of it; failures are recorded too. With
    --only it is a sub-space. With --complete --prune it is all of it that may be fast, and the answer says how sure
    that is; this also replays a complete dataset. An existing run is resumed.
    """
    from mltune.show import tables
    from mltune.show.live import RunDisplay

    with RunDisplay() as progress:
        found = api.sweep(**given, progress=progress)
    document = found.to_json()
    pruned = [] if found.pruned is None else [tables.pruned(document)]
    answer(document, as_json, lambda: [*pruned, str(found.dataset)])
