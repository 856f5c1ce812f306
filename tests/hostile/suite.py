"""The suite: which cases are run, and what must hold of each."""

from __future__ import annotations

import os
import re
import shutil
import stat
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from tests.hostile import (
    databases,
    folders,
    kernels,
    libraries,
    messages,
    own_code,
    stores,
    tables,
    targets,
    texts,
    versions,
)
from tests.hostile.cases import CORPUS, SEED, Build, Case, generated
from tests.hostile.commands import COMMANDS_OF
from tests.hostile.sandbox import MEMORY_BYTES, Outcome, Sandbox
from tests.hostile.values import MARK, XSS

GENERATORS: Mapping[str, Build] = {
    "store": stores.random_store,
    "run folder": folders.random_run_folder,
    "campaign": folders.random_campaign,
    "winner folder": folders.random_winner,
    "plan": texts.random_plan,
    "bundle": texts.random_bundle,
    "arrays bundle": kernels.random_arrays_bundle,
    "include folders": kernels.random_includes,
    "tuned kernel": kernels.random_tuned_kernel,
    "dataset": tables.random_dataset,
    "table": tables.random_table,
    "Kernel Tuner cache": tables.random_cache,
    "comparison": folders.random_comparison,
    "cubin cache": folders.random_cubins,
    "wisdom": folders.random_wisdom,
    "winners of Triton": folders.random_winners_of_triton,
    "model": folders.random_model,
    "database rows": databases.random_rows,
    "cluster messages": messages.random_message,
    "library": libraries.random_library,
    "formulas": libraries.random_formulas,
    "specification": libraries.random_specification,
    "versions": versions.random_versions,
    "shapes": own_code.random_shapes,
    "tuned function": own_code.random_tuned_function,
    "target": targets.random_target,
}
"""The function that builds a random case of each kind."""

INTERRUPTED = 130
"""Exit status after Ctrl-C, with which the suite ends commands that wait."""

FEW = 214
"""Inputs of the usual suite."""

MANY = 5_000
"""Inputs of the long one."""

LARGEST_PAGE = 1 << 28
"""Bytes of a page that is read: a larger one is an input of nothing that was left in its place."""

LONG = {
    "source/macros-that-unfold-without-end",
    "store/view-of-trials-without-end",
    "run-folder/events-of-a-million-broken-lines",
    "table/csv-a-million-rows-of-distinct-text",
    "Kernel-Tuner-cache/100-megabytes-of-entries",
    "winner-folder/a-hundred-thousand-files",
    "model/regressors-of-the-most-trees",
}
"""Cases that take three seconds and more: the long suite alone has them."""

_ONCE_BROKEN = Path(__file__).with_name("once_broken.txt")
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]|\r(?!\n)")
_TRACEBACK = "Traceback (most recent call last)"


def few_cases() -> Iterator[Case]:
    """Yield the shorter cases of the corpus that have broken mltune once, and generated ones: :data:`FEW` in all."""
    broken = once_broken()
    found = [case.with_commands(broken[case.id]) for case in CORPUS if case.id in broken and case.id not in LONG]
    yield from found
    yield from _generated(FEW - len(found), SEED)


def many_cases(seed: int) -> Iterator[Case]:
    """Yield the whole corpus and generated cases: :data:`MANY` in all."""
    yield from CORPUS
    yield from _generated(MANY - len(CORPUS), seed)


def _generated(count: int, seed: int) -> Iterator[Case]:
    """Yield generated cases, of each kind as many."""
    for position, (kind, build) in enumerate(GENERATORS.items()):
        share = (count + position) // len(GENERATORS)
        yield from generated(kind, build, share, seed)


def once_broken() -> dict[str, tuple[str, ...]]:
    """Return the cases that have broken mltune once, with the commands that they broke."""
    lines = (line.split() for line in _ONCE_BROKEN.read_text().splitlines() if not line.startswith("#"))
    return {name: tuple(commands) for name, *commands in lines}


def examine(
    case: Case, folder: Path, base: Path, sandbox: Sandbox, record: Callable[[str, object], None], *, commands: int = 1
) -> list[str]:
    """Check a case, write down what it took, and remove its folder, which may be large; return the failures."""
    try:
        found, outcomes = check(case, folder, base, sandbox, commands)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    wall_s, grown = max(one.wall_s for one in outcomes), max(one.grown_bytes for one in outcomes)
    record("hostile", (case.kind, len(outcomes), wall_s, grown))
    return found


def check(case: Case, folder: Path, base: Path, sandbox: Sandbox, count: int) -> tuple[list[str], list[Outcome]]:
    """Run a case through some of its commands.

    Returns
    -------
    list of str
        What must not have happened, each with its command.
    list of Outcome
        Of each command.
    """
    place = case.place(folder, base)
    case.build(place)
    before, kept = _state(place.canary), _kept(place.folder / "elsewhere")
    found, outcomes = [], []
    for command in case.chosen(COMMANDS_OF[case.kind], count):
        outcome = sandbox.run(command, folder)
        outcomes.append(outcome)
        found += [f"{command}: {failure}" for failure in failures(outcome)]
        after = _state(place.canary)
        found += [
            f"{command}: changed {name}"
            for name in sorted(after.keys() | before.keys())
            if after.get(name) != before.get(name)
        ]
        before, now = after, _kept(place.folder / "elsewhere")
        found += [f"{command}: changed {name}" for name in sorted(kept) if now.get(name) != kept[name]]
        kept = {name: now[name] for name in kept if name in now}
    for page in (path for path in folder.rglob("*.html") if path.is_file() and not path.is_symlink()):
        if (
            os.fspath(page) not in kept
            and page.stat().st_size < LARGEST_PAGE
            and XSS in page.read_text(errors="replace")
        ):
            found.append(f"{page.name}: holds markup of the input")
    return found, outcomes


def _kept(folder: Path) -> dict[str, object]:
    """Return what a command that writes into a folder of somebody else must leave: files, links, and the folders."""
    return {
        str(path): (stat.S_IFMT(path.lstat().st_mode), path.is_symlink() and path.readlink(), _content(path))
        for path in folder.rglob("*")
    }


def _content(path: Path) -> bytes:
    return path.read_bytes() if stat.S_ISREG(path.lstat().st_mode) else b""


def failures(outcome: Outcome) -> list[str]:
    """Return what a command must not do."""
    output = outcome.output
    last = output.strip().rpartition("\n")[2][:300]
    found = {
        f"took {outcome.wall_s:.1f} s, {outcome.cpu_s:.1f} s of a processor": outcome.late,
        f"grew by {outcome.grown_bytes >> 20} MB": outcome.large or outcome.grown_bytes > MEMORY_BYTES,
        f"died of signal {-outcome.status}": outcome.status < 0 and not (outcome.late or outcome.large),
        f"exit status {outcome.status}": outcome.status > 2 and outcome.status != INTERRUPTED,
        f"traceback: {_traceback(output)}": _TRACEBACK in output,
        f"control characters in {_around(output)!r}": _CONTROL.search(output) is not None,
        f"no message with exit status {outcome.status}": outcome.status in (1, 2) and not last,
        f"shows a canary: {last}": MARK in output,
        f"opened {', '.join(outcome.opened)}": bool(outcome.opened),
        "left a process behind": outcome.left,
    }
    return [name for name, holds in found.items() if holds]


def _traceback(output: str) -> str:
    """Return the last line of a traceback, and the last place in mltune."""
    lines = output[output.rfind(_TRACEBACK) :].strip().splitlines()
    places = re.findall(r'File ".*?/(mltune/[\w/]+\.py)", line (\d+), in (\w+)', output)
    return f"{lines[-1][:200] if lines else ''} ({':'.join(places[-1]) if places else ''})"


def _around(output: str) -> str:
    found = _CONTROL.search(output)
    return output[max(0, found.start() - 60) : found.end() + 20] if found else ""


def _state(folder: Path) -> dict[str, object]:
    """Return what tells whether something below a folder was changed."""
    found: dict[str, object] = {}
    for path in sorted([folder, *folder.rglob("*")]):
        facts = path.lstat()
        found[str(path)] = (facts.st_mode, facts.st_size, facts.st_mtime_ns, facts.st_ino)
        if stat.S_ISREG(facts.st_mode):
            found[f"the content of {path}"] = _content(path)
    return found
