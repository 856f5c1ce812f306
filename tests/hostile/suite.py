"""The suite: its cases, and what must hold of each."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path

from tests.hostile import folders, stores, tables, texts
from tests.hostile.base import make_base
from tests.hostile.cases import CORPUS, SEED, Case, Place, generated
from tests.hostile.commands import COMMANDS_OF
from tests.hostile.sandbox import Outcome, Sandbox
from tests.hostile.values import MARK, XSS

GENERATORS = {
    "store": stores.random_store,
    "plan": texts.random_plan,
    "bundle": texts.random_bundle,
    "dataset": tables.random_dataset,
    "table": tables.random_table,
    "Kernel Tuner cache": tables.random_cache,
    "run folder": folders.random_run_folder,
    "campaign": folders.random_campaign,
    "comparison": folders.random_comparison,
    "cubin cache": folders.random_cubins,
}
"""The function that builds a random case of each kind."""

_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]|\r(?!\n)")
_PAGES = ("report.html",)


def cases(count: int, seed: int = SEED) -> Iterator[Case]:
    """Yield the corpus, and so many generated cases of each kind."""
    yield from CORPUS
    for kind, build in GENERATORS.items():
        yield from generated(kind, build, count, seed)


def check(case: Case, folder: Path, base: Path, sandbox: Sandbox, count: int, *, verbose: bool = False) -> list[str]:
    """Run a case through its commands; return what must not have happened, each with its command."""
    place = Place(folder, base, case.rng())
    place.prepare()
    case.build(place)
    before = _state(place.canary)
    found = []
    for command in case.chosen(COMMANDS_OF[case.kind], count):
        outcome = sandbox.run(command, folder)
        if verbose:
            print(f"--- {command}: {outcome.status} {outcome.wall_s:.2f} s {outcome.grown_bytes >> 20} MB\n{outcome.output[-1500:]}")  # noqa: T201
        found += [f"{command}: {failure}" for failure in failures(outcome)]
        after = _state(place.canary)
        if after != before:
            found.append(f"{command}: changed {sorted(name for name in after.keys() | before.keys() if after.get(name) != before.get(name))}")
            before = after
    for page in (path for name in _PAGES for path in place.named.rglob(name) if path.is_file()):
        if XSS in page.read_text(errors="replace"):
            found.append(f"{page.name}: holds markup of the input")
    return found


def failures(outcome: Outcome) -> list[str]:
    """Return what a command must not do."""
    output = outcome.output
    last = output.strip().rpartition("\n")[2][:300]
    found = {
        f"{outcome.wall_s:.1f} s": outcome.late,
        f"grew by {outcome.grown_bytes >> 20} MB": outcome.large or outcome.grown_bytes > 1_500_000_000,
        f"died of signal {-outcome.status}": outcome.status < 0 and not (outcome.late or outcome.large),
        f"exit status {outcome.status}": outcome.status not in (0, 1, 2) and outcome.status >= 0,
        f"traceback: {_traceback(output)}": "Traceback (most recent call last)" in output,
        f"control characters: {_CONTROL.findall(output)[:5]} in {_around(output)!r}": _CONTROL.search(output) is not None,
        f"no message with exit status {outcome.status}": outcome.status in (1, 2) and not last,
        f"shows a canary: {last}": MARK in output,
        f"opened {outcome.opened}": bool(outcome.opened),
        "left a process behind": outcome.left,
    }
    return [name for name, holds in found.items() if holds]


def _traceback(output: str) -> str:
    lines = output[output.rfind("Traceback (most recent call last)") :].strip().splitlines()
    places = [line.strip() for line in lines if "mltune/" in line and line.strip().startswith("File")]
    where = re.sub(r'File ".*/mltune/(.*?)", line (\d+), in (\w+)', r"\1:\2 \3", places[-1]) if places else ""
    return f"{lines[-1][:200] if lines else ''} ({where})"


def _around(output: str) -> str:
    found = _CONTROL.search(output)
    return output[max(0, found.start() - 60) : found.end() + 20] if found else ""


def _state(folder: Path) -> dict[str, tuple[int, ...] | bytes]:
    """Return what tells whether something below a folder was changed."""
    found: dict[str, tuple[int, ...] | bytes] = {}
    for path in sorted([folder, *folder.rglob("*")]):
        facts = path.lstat()
        found[str(path)] = (facts.st_mode, facts.st_size, facts.st_mtime_ns, facts.st_ino)
        if stat.S_ISREG(facts.st_mode):
            found[f"{path} content"] = path.read_bytes()
    return found


assert os
assert make_base
