"""Tables of a checked kernel bundle, made from the JSON document of ``mltune check``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from mltune.problem.kinds import problem_from_json
from mltune.results.wording import configuration
from mltune.show.fitting_table import FittingTable
from mltune.show.tables import Document

if TYPE_CHECKING:
    from rich.console import RenderableType


def tables(document: Document) -> Iterator[RenderableType]:
    """Show what is wrong with the sample, and every build with its resources or the first error of the compiler."""
    builds = document["builds"]
    yield f"{document['kernel']}, {problem_from_json(document['problem']).label} on {document['device']['name']}"
    yield f"sample: launch and resources of {document['sampled']} of {document['valid']:,} valid configurations"
    yield from (f"wrong: {fault}" for fault in document["faults"])
    if document["not_built"]:
        yield f"builds: none: {document['not_built']}"
        return
    failed = [number for number, build in enumerate(builds, 1) if build["state"] not in ("ok", "timeout")]
    ended = sum(build["state"] != "timeout" for build in builds)
    yield f"builds: {ended} of {document['valid']:,} valid configurations compiled, {len(failed)} failed"
    rows = [
        {
            ">build": str(number),
            "state": build["state"],
            ">registers": _number(build["registers"]),
            ">spilled": _number(build["spill_bytes"]),
            ">seconds": f"{build['compile_s']:.2f}",
            "error": build["detail"].partition("; ")[0],
        }
        for number, build in enumerate(builds, 1)
    ]
    yield FittingTable(rows, texts=["error"], spare=[">seconds", ">spilled", ">registers"])
    shown = {builds[number - 1]["detail"]: number for number in reversed(failed)}  # the first build of each error
    for number in sorted(shown.values()):
        yield f"build {number}: {configuration(builds[number - 1]['configuration'])}"


def _number(value: int | None) -> str:
    return "" if value is None else str(value)
