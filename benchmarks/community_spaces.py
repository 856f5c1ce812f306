"""Play strategies on the community's 24 spaces: four kernels on six GPUs, scored over time.

    python benchmarks/community_spaces.py FOLDER [--seeds 3] [--evaluations 1000] [--strategies A,B] [--work DIR]

FOLDER is `cachefiles` of github.com/AutoTuningAssociation/benchmark_hub (MIT), which this script does not fetch: files
such as convolution_milo/A4000.json, caches of Kernel Tuner, or A4000_T4.json, also with .gz. Nothing else there is
read, and no link is followed. They become datasets in DIR/spaces, with parameters alone, as they would be for a kernel
of a user, and `mltune scoreboard` plays them. With one compile core its score over time is that of the autotuning
methodology (Willemsen et al. 2024, 10.1016/j.future.2024.05.021): the mean of (random - strategy) / (random - optimum)
until random search is expected to be 95 % of the way from the median to the optimum. Three choices differ from the
authors' package: docs/explanation/comparison.md. Of hotspot, whose parameters change the work, the speed counts as the
time of as much work; the authors score the speed.
"""

from __future__ import annotations

import gzip
import io
import json
import sys
import tempfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from harness import parser_of

import mltune
from mltune.dataset.dataset import write_dataset
from mltune.dataset.formats import MAX_BYTES
from mltune.dataset.importing import import_table
from mltune.device.known import find_device
from mltune.errors import DatasetError
from mltune.files.reading import parse_json, read_file, reason
from mltune.problem.kinds import timed_problem

KERNELS = ("convolution", "dedispersion", "gemm", "hotspot")
GPUS = {
    "A100": "a100",
    "A4000": "rtx_a4000",
    "A6000": "rtx_a6000",
    "MI250X": "mi250x_gcd",
    "W6600": "w6600",
    "W7800": "w7800",
}
"""The community's names of the GPUs, and ours."""

ENDS = (".json", ".json.gz", "_T4.json", "_T4.json.gz")
"""What the name of a space's file ends with: the first that is there is read."""

MOST_PARSED = 64_000_000
"""Largest content that is changed, in bytes; larger ones are read in a process with limits."""

SOURCE = "github.com/AutoTuningAssociation/benchmark_hub"


def import_spaces(folder: Path, into: Path) -> Iterator[str]:
    """Write a dataset for each space whose file is there, and yield what there is to say of it."""
    for kernel in KERNELS:
        for gpu, device in GPUS.items():
            files = (folder / f"{kernel}_milo" / f"{gpu}{end}" for end in ENDS)
            path = next(filter(lambda one: one.is_symlink() or one.exists(), files), None)
            if path is None:
                yield f"{kernel} on {gpu}: there is no file, and it is left out"
                continue
            with tempfile.NamedTemporaryFile(suffix=".json") as file:
                file.write(content(path, folder, kernel))
                file.flush()
                try:
                    found = import_table(
                        file.name,
                        kernel=f"{kernel}_milo",
                        problem=timed_problem(f"{kernel}_milo"),
                        device=find_device(device)[0],
                        name=f"{kernel}_{device}",
                        kind="complete",
                        source=f"{SOURCE}, {path.relative_to(folder)}",
                        licence="MIT",
                    )
                except DatasetError as error:
                    raise DatasetError(str(error).replace(file.name, str(path))) from None
            write_dataset(found.dataset, into, overwrite=True)
            yield f"{kernel} on {gpu}: {found.account}"


def content(path: Path, folder: Path, kernel: str) -> bytes:
    """Return the content of a file, unpacked; of hotspot with the times of as much work."""
    most = MOST_PARSED if kernel == "hotspot" else MAX_BYTES
    try:
        data = read_file(path, most, inside=folder)
        if path.suffix == ".gz":
            with gzip.open(io.BytesIO(data)) as packed:
                data = packed.read(most + 1)
        if len(data) > most:
            raise ValueError(f"at most {most} bytes are read, but unpacked it has more")
        return json.dumps(by_work(parse_json(data))).encode() if kernel == "hotspot" else data
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise DatasetError(f"{path} must be a cache of Kernel Tuner or in T4, but is none: {reason(error)}.") from error


def by_work(document: Any) -> Any:
    """Return a document in which the times of what has a speed are those of 1 TFLOP, in milliseconds."""
    try:
        for entry in (document.get("cache") or {}).values():
            if isinstance(speed := entry.get("GFLOP/s"), int | float) and speed:  # others have failed
                entry["time"] = 1e6 / speed
        for result in document.get("results") or ():
            measured = {one["name"]: one["value"] for one in result["measurements"]}
            if isinstance(speed := measured.get("GFLOP/s"), int | float) and speed:
                result["measurements"] = [{"name": "time", "value": 1e6 / speed, "unit": "ms"}]
    except (AttributeError, LookupError, TypeError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from error
    return document


def main() -> None:
    """Import the spaces, and play the strategies on them."""
    parser = parser_of(__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--evaluations", type=int, default=1000)
    parser.add_argument("--strategies", default="mltune,tpe,hybrid_vndx,adaptive_tabu_greywolf,random")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--work", type=Path, default=Path("runs") / "community")
    arguments = parser.parse_args()
    for line in import_spaces(arguments.folder, arguments.work / "spaces"):
        print(line, file=sys.stderr)
    board = mltune.scoreboard(
        arguments.strategies,
        str(arguments.work / "spaces"),
        compile_cores=1,
        evaluations=arguments.evaluations,
        seeds=arguments.seeds,
        jobs=arguments.jobs,
        out=arguments.output or arguments.work / "board",
    )
    print(board.directory / "scoreboard.html")


if __name__ == "__main__":
    main()
