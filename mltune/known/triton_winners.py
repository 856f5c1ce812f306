"""Winners of Triton's kernels in a folder, to be kept under version control or in an image: a wisdom for each GPU.

With them are the calls of programs (:mod:`mltune.known.triton_calls`), which save time on other GPUs, too.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import chain, islice
from pathlib import Path

from mltune.errors import UsageError, WisdomError
from mltune.files.reading import check_folder, raising
from mltune.files.text import did_you_mean, printable
from mltune.known.entry import Gpu, Outcome
from mltune.known.triton_calls import is_known, read_record, record_of, write_record
from mltune.known.wisdom import Wisdom
from mltune.known.wisdom_file import locked, read, write

PREFIX = "triton-"
"""Begin of the names of problems that are keys of Triton's kernels."""

RECORD = "programs.calls"
"""Name of the record of calls in a folder."""

MOST_FILES = 1000


def export_winners(wisdom: Path, folder: Path, gpu: str | None = None) -> tuple[dict[str, int], int]:
    """Write the winners of a wisdom, perhaps of one GPU, into a folder; return how many each file then holds.

    Winners that are there stay: of a key that both have, the better one. The calls of programs are written, too, and
    their number is returned: of two programs with the same kernels it is the wisdom's that stays.
    """
    entries = [entry for entry in Wisdom.load(wisdom).best if _is_of_triton(entry)]
    winners = [entry for entry in entries if gpu in (None, entry.device.name)]
    if not winners:
        of_gpu = "" if gpu is None else f" on {printable(gpu, 100)!r}"
        hint = did_you_mean(gpu or "", {entry.device.name for entry in entries}) or "; tune a program first."
        raise UsageError(f"{wisdom} has no winners of Triton's kernels{of_gpu}{hint}")
    with raising(UsageError, f"no winners can be written into {printable(folder, 300)}"):
        check_folder(folder, inside=folder, create=True)
    record, own = folder / RECORD, read_record(record_of(wisdom))
    read_record(record, inside=folder)  # what is refused is refused before anything is written
    counts = dict[str, int]()
    for device in sorted({entry.device for entry in winners}, key=_file_name):
        file = folder / _file_name(device)
        _winners_in(file)  # what is refused is refused before a lock is made where it leads
        with locked(file, is_removed=True):
            best = Wisdom(chain(_winners_in(file), (entry for entry in winners if entry.device == device))).best
            write(file, best)
        counts[file.name] = len(best)
    with locked(record, is_removed=True):
        return counts, len(write_record(record, read_record(record, inside=folder), own))


def import_winners(folder: Path, wisdom: Path) -> tuple[dict[str, int], int]:
    """Merge the winners of a folder into a wisdom, all or none; return how many each file has.

    Programs of the folder are put before those of the wisdom, which stay; the number of those for which there was room,
    or whose kernels were known, is returned.
    """
    with raising(UsageError, f"no winners can be read from {printable(folder, 300)}"):
        check_folder(folder, inside=folder)
        files = sorted(islice((path for path in folder.iterdir() if path.suffix == ".json"), MOST_FILES + 1))
    if not 0 < len(files) <= MOST_FILES:
        raise UsageError(
            f"{printable(folder, 300)} has {'too many' if files else 'no'} files of winners: it is a folder of 1 to "
            f"{MOST_FILES} files that `mltune triton export` wrote (*.json)."
        )
    winners = {file.name: _winners_in(file) for file in files}
    record, programs = record_of(wisdom), read_record(folder / RECORD, inside=folder)
    read_record(record)  # as in the export
    Wisdom(chain.from_iterable(winners.values())).add_to(wisdom)
    with locked(wisdom):
        kept = write_record(record, programs, read_record(record))
    count = sum(is_known(program, kept) for program in programs)
    return {name: len(entries) for name, entries in winners.items()}, count


def _winners_in(file: Path) -> Sequence[Outcome]:
    """Return what a file has, behind no link; an error where it has anything but winners of Triton's kernels."""
    entries = read(file, inside=file.parent)
    for number, entry in enumerate(entries, 1):
        if not _is_of_triton(entry):
            raise WisdomError(
                f"entry {number} of {printable(file, 300)} is of {entry.kernel}, not of a kernel of Triton; "
                "`mltune wisdom merge` merges any entries."
            )
    return entries


def _is_of_triton(entry: Outcome) -> bool:
    return "triton" in entry.versions and str(entry.problem.get("name")).startswith(PREFIX)


def _file_name(gpu: Gpu) -> str:
    words = re.sub(r"[^A-Za-z0-9]+", "_", f"{gpu.name} {gpu.architecture} {gpu.sm_count}").strip("_")
    return f"{words[:100]}.json"
