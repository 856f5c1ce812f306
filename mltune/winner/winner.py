"""What won, and all that is known of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mltune.kernel.bundle import Launch, device_variables
from mltune.problem.gemm import GemmProblem

if TYPE_CHECKING:
    from mltune.device.facts import Device
    from mltune.kernel.bundle import Kernel
    from mltune.problem.problem import Problem
    from mltune.records.declaration import Declaration
    from mltune.records.trial import Build, TrialRecord


@dataclass(frozen=True, slots=True)
class Winner:
    """What :func:`mltune.winner.folder.write_winner` writes down.

    Attributes
    ----------
    kernel : Kernel
    problem : Problem
        What it was timed on.
    device : Device
        The GPU that it was timed on.
    record : TrialRecord
        The winner's trial.
    declaration : Declaration
        Its time beside that of the other finalists.
    build : Build
        What was timed, with its machine code; without it where nothing was compiled.
    versions : mapping of str to str
        Of all that decides a measurement.
    """

    kernel: Kernel
    problem: Problem
    device: Device
    record: TrialRecord
    declaration: Declaration
    build: Build
    versions: Mapping[str, str]

    @property
    def lacks_code(self) -> str:
        """Why there is no machine code to take away; empty when there is."""
        if self.kernel.source is None or self.kernel.entry is None:
            return "the kernel has no source: its timings were recorded elsewhere"
        if self.build.detail:
            return f"it was not compiled: {self.build.detail}"
        return "" if self.build.cubin else "the timings were replayed: nothing was compiled"

    def launch(self) -> Launch:
        """Return how it is launched for the problem."""
        return self.kernel.launch(self.record.configuration, self.variables())

    def variables(self) -> dict[str, int]:
        """Return what the kernel's expressions may name of device and problem."""
        return {**device_variables(self.device), **self.problem.variables()}

    @property
    def gemm(self) -> GemmProblem:
        """The problem of a winner with machine code: nothing but a GEMM is compiled."""
        assert isinstance(self.problem, GemmProblem)  # noqa: S101
        return self.problem

    def macros(self) -> dict[str, int]:
        """Return all macros that the source is specialised by: the kernel's parameters, then those of the case."""
        return {name: self.record.configuration[name] for name in self.kernel.parameters} | self.gemm.macros()


def computes(problem: GemmProblem) -> str:
    """Return what a GEMM computes, as a formula: ``"C = alpha A B^T + beta C"``."""
    op = {"N": "", "T": "^T", "C": "^H"}
    return f"C = alpha A{op[problem.trans_a]} B{op[problem.trans_b]} + beta C"


def one_line(text: str) -> str:
    """Return a text so that it stands on one line of a comment and does not go on in the next."""
    return " ".join("".join(c if c.isprintable() and c != "\\" else " " for c in text).split())
