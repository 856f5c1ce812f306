"""The command ``library build``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from mltune import api
from mltune.cli.application import Given, answer, command, command_group
from mltune.cli.options import argument, file, flag, text

group = command_group("library", "Build a library of a kernel for many sizes.")


@command(
    api.build_library,
    "build",
    group=group,
    spec=argument("SPEC", "The description (TOML, docs/reference/library.md): operation, sizes, budget."),
    out=argument("FOLDER", "The folder of the library. An older library there is replaced.", Path),
    device=text("DEVICE", "auto, all, cuda:N, or replay for recorded timings."),
    run=file("DIR", "Directory of the run; a run of the same library there is resumed."),
    overwrite=flag("Keep a folder that holds anything else under another name."),
)
def build(options: Given, as_json: bool = False) -> None:
    """Tune an operation at representative sizes, choose a few configurations, and write them as a library.

    The library is C source with the machine code inside. If there is a C compiler, it also has a shared object. It maps
    sizes to configurations by itself, and needs only the NVIDIA driver (docs/how-to/build-a-library.md).
    """
    from mltune.show.live import RunDisplay

    with RunDisplay() as progress:
        document = api.build_library(**options, progress=progress)
    answer(document, as_json, lambda: _lines(document, options["out"]))


def _lines(document: Mapping[str, Any], folder: Path) -> Iterator[str]:
    """Yield what was written, the uses of each configuration, and the loss."""
    report = document["report"]
    yield f"wrote {folder}: {document['name']}, {len(document['configurations'])} configurations"
    yield f"{report['tuned']} sizes tuned, {len(report['sizes'])} timed, {len(report['not_timed'])} not"
    yield from (
        f"failed at {'x'.join(map(str, failure['size'].values()))}: {failure['error']}" for failure in report["failed"]
    )
    for number, configuration in enumerate(document["configurations"]):
        used = [size["size"] for size in report["sizes"] if size["configuration"] == number]
        listed = ", ".join("x".join(map(str, size)) for size in used[:3])
        where = f"{len(used)} of {len(report['sizes'])} sizes{listed and f': {listed}'}"
        yield f"  {number}: {configuration['kernel']}, used at {where}"
    shares = {"best of the portfolio": report["portfolio"], "as dispatched": report["dispatched"]}
    shares |= {"at sizes held out": report["held_out"]} if report["held_out"] else {}
    for name, share in shares.items():
        yield f"{name}: {share['mean']:.3f} of the best known on the mean, {share['least']:.3f} at least"
    if document["shared_object"] is None:
        yield "there is no C compiler here: no shared object was built"
