"""Registers that machine code reads before a multiply-add of the tensor cores has written them.

A DMMA takes a time that the assembler does not know. So it names one of six counters (scoreboards), which goes up when
it starts and down when its result is written. An instruction that needs the result waits for that counter: by the mask
in its control bits, or by a DEPBAR before it. A path from a DMMA to a reader of its result on which nothing waits is an
error of the assembler, whatever the source is. The control bits are those of Jia, Maggioni, Staiger and Scarpazza,
"Dissecting the NVIDIA Volta GPU architecture via microbenchmarking", 2018.

    python benchmarks/unwaited.py FILE.cubin ...
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from mltune.measure.machine_code import find_disassembler

_LABEL = re.compile(r"^(\.L_[\w$.]+):")
_LINE = re.compile(r"^\s*/\*([0-9a-f]{4,})\*/\s+(.*?)\s*;.*/\* 0x[0-9a-f]{16} \*/")
_WORD = re.compile(r"/\* 0x([0-9a-f]{16}) \*/\s*$")
_TEXT = re.compile(r"(?:@(?P<predicate>!?U?P\w+)\s+)?(?P<name>\S+)\s*(?P<operands>.*)")
_TARGET = re.compile(r"`\((\.L_[\w$.]+)\)")
_REGISTER = re.compile(r"\bR(\d+)(\.64)?")
_DEPBAR = re.compile(r"DEPBAR\.LE SB(\d), 0x([0-9a-f]+)")
_SHAPES = {"16x8x4": (4, 2, 8), "16x8x8": (8, 4, 8), "16x8x16": (16, 8, 8), "8x8x4": (2, 2, 4)}  # registers of a, b, c
_NO_COUNTER, _MOST_YOUNGER = 7, 63


@dataclass(frozen=True, slots=True)
class Instruction:
    """An instruction with its control bits, and the registers that it reads, adds to, and writes."""

    address: int
    text: str
    stall: int
    raises: int
    raises_until_read: int
    waits: int
    reads: frozenset[int]
    adds_to: frozenset[int]
    writes: frozenset[int]
    targets: tuple[int, ...]

    @property
    def multiplies(self) -> bool:
        """Whether it is a multiply-add of the tensor cores."""
        return bool(self.adds_to)


def unwaited(cubin: bytes) -> list[tuple[str, str, int]]:
    """Return what reads results of a DMMA that nothing has waited for: both instructions, and the cycles between."""
    code = _parse(_listing(cubin))
    return [(one.text, *found) for at, one in enumerate(code) if one.multiplies for found in _readers(code, at)]


def _readers(code: list[Instruction], start: int) -> list[tuple[str, int]]:
    """Follow all paths from a DMMA until its result is waited for, or replaced by a later one's."""
    one, found = code[start], {}
    paths = [(after, one.writes, one.raises, 0, one.stall) for after in one.targets]
    seen: dict[tuple[int, frozenset[int], int], int] = {}
    while paths:
        at, left, counter, younger, cycles = paths.pop()
        if at >= len(code) or seen.get((at, left, counter), _MOST_YOUNGER + 1) <= younger:
            continue
        seen[at, left, counter] = younger
        now = code[at]
        if counter != _NO_COUNTER:
            barrier = _DEPBAR.match(now.text)
            if now.waits >> counter & 1:
                continue
            if barrier and int(barrier[1]) == counter and int(barrier[2], 16) <= younger:
                continue
        early = left & (now.reads | (frozenset() if now.multiplies else now.writes))
        if early:
            found[now.text] = min(cycles, found.get(now.text, cycles))
            left -= early
        left -= now.writes  # DMMA end in order, and the later one is followed itself
        if counter == _NO_COUNTER and now.multiplies:  # it has ended when a later one has
            counter, younger = now.raises, 0
        else:
            younger = min(younger + (now.raises == counter) + (now.raises_until_read == counter), _MOST_YOUNGER)
        paths += [(after, left, counter, younger, cycles + now.stall) for after in now.targets if left]
    return list(found.items())


def _listing(cubin: bytes) -> list[str]:
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        return subprocess.check_output([find_disassembler(), "-c", "-hex", file.name], text=True).splitlines()


def _parse(lines: list[str]) -> list[Instruction]:
    labels: dict[str, int] = {}
    read: list[tuple[int, str, int]] = []
    for line, following in zip(lines, [*lines[1:], ""], strict=True):
        if label := _LABEL.match(line):
            labels[label[1]] = len(read)
        elif (found := _LINE.match(line)) and (word := _WORD.search(following)):
            read.append((int(found[1], 16), re.sub(r"\s*\(\*.*", "", found[2]), int(word[1], 16) >> 41))
    return [_instruction(at, *one, labels) for at, one in enumerate(read)]


def _instruction(at: int, address: int, text: str, control: int, labels: dict[str, int]) -> Instruction:
    parts = _TEXT.fullmatch(text)
    assert parts, text  # noqa: S101
    name, operands = parts["name"], [one.strip() for one in parts["operands"].split(",")]
    reads, adds_to, writes = _registers(name, operands)
    target = _TARGET.search(text)
    targets = [labels[target[1]]] if target and name.startswith("BRA") else []
    if parts["predicate"] or len(operands) > 1 or not name.startswith(("BRA", "EXIT")):
        targets.append(at + 1)
    return Instruction(
        address, text, control & 15, control >> 5 & 7, control >> 8 & 7, control >> 11 & 63, reads, adds_to, writes,
        tuple(targets),
    )  # fmt: skip


def _registers(name: str, operands: list[str]) -> tuple[frozenset[int], frozenset[int], frozenset[int]]:
    def of(texts: list[str], count: int = 1) -> frozenset[int]:
        found = [(int(one[1]), 2 if one[2] else count) for text in texts for one in _REGISTER.finditer(text)]
        return frozenset(register for first, count in found for register in range(first, first + count))

    kind, width = name.split(".")[0], 4 if ".128" in name else 2 if ".64" in name else 1
    if kind == "DMMA":
        a, b, c = next(_SHAPES[part] for part in name.split(".") if part in _SHAPES)
        return of(operands[1:2], a) | of(operands[2:3], b), of(operands[3:], c), of(operands[:1], c)
    if kind in ("STL", "STS", "STG"):
        return of(operands[:-1]) | of(operands[-1:], width), frozenset(), frozenset()
    if kind in ("LDGSTS", "BRA", "BSSY", "BSYNC", "EXIT", "BAR", "DEPBAR", "LDGDEPBAR"):
        return of(operands), frozenset(), frozenset()
    double = 2 if kind in ("DADD", "DMUL", "DFMA", "DSETP") else 1
    loads = kind in ("LDL", "LDS", "LDG", "LDC")
    writes = of(operands[:1], width if loads else 2 if ".WIDE" in name else double)
    return of(operands[1:], double), frozenset(), writes


if __name__ == "__main__":
    for path in sys.argv[1:]:
        print(path)
        for writer, reader, cycles in unwaited(Path(path).read_bytes()):
            print(f"  {writer}  ->  {reader}  after {cycles} cycles or more")
