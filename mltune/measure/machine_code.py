"""Count the instructions of a kernel's main loop in its machine code, and the bank conflicts of its registers.

Lai and Seznec (CGO 2013, sections 4 and 5.4) did so by hand. The disassembler is NVIDIA's nvdisasm: that of the package
nvidia-cuda-nvdisasm, or the toolkit's.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from collections import Counter
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path

from mltune.errors import DeviceError
from mltune.files.text import printable

PACKAGE = "nvidia-cuda-nvdisasm"
"""The package with the disassembler."""

ARITHMETIC = {"FFMA": 1, "DFMA": 1, "HFMA2": 2, "FFMA2": 2, "DMMA": 8}
ARITHMETIC |= {"HMMA": 16, "IMMA": 16, "HGMMA": 64, "QGMMA": 128}
"""Instructions that multiply and add, those of the tensor cores too, and the least products of a thread by one."""

BANKS = 2
"""Register banks by last bit, 2 operands each (Jia et al., "Dissecting the NVIDIA Volta GPU architecture", 2018)."""

_TIMEOUT_S = 60.0
_MOST_BYTES = 1 << 26

_LABEL = re.compile(r"^(\.L_[\w$.]+):")
_INSTRUCTION = re.compile(r"^\s*/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_.]*)\s*([^;]*);")
_BRANCH = re.compile(r"`\((\.L_[\w$.]+)\)")
_REGISTER = re.compile(r"\bR(\d+)(?:\.reuse)?$")


@dataclass(frozen=True, slots=True)
class LoopCode:
    """The instructions of a main loop by opcode with its width, such as ``"LDS.128"``.

    A conflict is a multiply-add in FP32 whose three operands are in one bank, and not all of them in the reuse cache.
    """

    counts: dict[str, int]
    conflicts: int

    @property
    def total(self) -> int:
        """All instructions."""
        return sum(self.counts.values())

    @property
    def arithmetic(self) -> int:
        """Instructions that multiply and add, those of the tensor cores too."""
        return sum(count for name, count in self.counts.items() if name.split(".")[0] in ARITHMETIC)

    @property
    def products(self) -> int:
        """Products of a thread, at least."""
        return sum(count * ARITHMETIC.get(name.split(".")[0], 0) for name, count in self.counts.items())


def find_disassembler() -> str:
    """Return the path of nvdisasm; raise a DeviceError where there is none."""
    try:
        paths = [Path(str(path.locate())) for path in files(PACKAGE) or () if path.stem == "nvdisasm"]
    except PackageNotFoundError:
        paths = []
    path = str(paths[0]) if paths and paths[0].is_file() else shutil.which("nvdisasm")
    if path is None:
        raise DeviceError(f"there is no nvdisasm, which reads machine code; `pip install {PACKAGE}` installs it.")
    return path


def disassemble(cubin: bytes) -> str:
    """Return the machine code of a cubin as text, or raise a DeviceError where no disassembler takes it."""
    program = find_disassembler()
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        try:
            text = subprocess.check_output(  # noqa: S603 - its own program, on a file of ours
                [program, "-c", file.name], stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, timeout=_TIMEOUT_S
            )
        except (OSError, subprocess.SubprocessError) as error:
            reason = (getattr(error, "stderr", b"") or str(error).encode()).decode("utf-8", "replace")
            raise DeviceError(f"nvdisasm cannot read the machine code: {printable(reason.strip(), 300)}.") from error
    return text[:_MOST_BYTES].decode("utf-8", "replace")


def main_loop(text: str) -> LoopCode | None:
    """Return the innermost loop of a disassembled kernel that has the most multiply-adds; None without a loop."""
    labels: dict[str, int] = {}
    code: list[tuple[str, str]] = []
    loops: list[range] = []
    for line in text.splitlines():
        if label := _LABEL.match(line):
            labels[label[1]] = len(code)
        elif instruction := _INSTRUCTION.match(line):
            code.append((instruction[1], instruction[2]))
            target = _BRANCH.search(instruction[2])
            if instruction[1].startswith("BRA") and target and target[1] in labels:
                loops.append(range(labels[target[1]], len(code)))
    kinds = [_kind(*instruction) for instruction in code]
    counted = [(loop, LoopCode(dict(Counter(kinds[loop.start : loop.stop])), 0)) for loop in loops]
    multiplying = [loop for loop, counts in counted if counts.arithmetic]
    innermost = [
        (loop, counts)
        for loop, counts in counted
        if not any(inner != loop and loop.start <= inner.start and inner.stop <= loop.stop for inner in multiplying)
    ]
    if not innermost:
        return None
    loop, counts = max(innermost, key=lambda entry: (entry[1].products, -entry[1].total))
    return replace(counts, conflicts=_conflicts(code[loop.start : loop.stop]))


def _kind(opcode: str, operands: str) -> str:
    """Return an opcode with its width: ``LDS.U.128`` is ``LDS.128``. A multiply-add of nothing is a move."""
    base, *modifiers = opcode.split(".")
    if base == "HFMA2" and "RZ" in operands:
        return "MOV"
    widths = [modifier for modifier in modifiers if modifier in ("64", "128")]
    return ".".join([base, *widths[:1]]) if base in ("LDS", "LDG", "STS", "STG", "LDGSTS", "LDL", "STL") else base


def _conflicts(loop: list[tuple[str, str]]) -> int:
    """Count the FFMA whose operands are all read from one bank; one that is in the reuse cache is not read."""
    kept: dict[int, str] = {}
    conflicts = 0
    for opcode, operands in loop:
        sources = [operand.strip() for operand in operands.split(",")][1:]
        registers = {slot: match[1] for slot, source in enumerate(sources) if (match := _REGISTER.search(source))}
        if opcode == "FFMA":
            read = {int(number) for slot, number in registers.items() if kept.get(slot) != number}
            conflicts += len(read) > BANKS and len({number % BANKS for number in read}) == 1
        kept = {slot: number for slot, number in registers.items() if sources[slot].endswith(".reuse")}
    return conflicts
