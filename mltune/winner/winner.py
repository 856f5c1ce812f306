"""The winner of a run: its trial, build and declaration, with kernel, problem and device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mltune.kernel.bundle import device_variables
from mltune.kernel.launch import Launch
from mltune.problem.runnable import RunnableProblem
from mltune.results.wording import REPLAYED

if TYPE_CHECKING:
    from mltune.device.facts import Device
    from mltune.kernel.bundle import Kernel
    from mltune.problem.problem import Problem
    from mltune.records.declaration import Declaration
    from mltune.records.trial import Build, TrialRecord


@dataclass(frozen=True, slots=True)
class Winner:
    """The content of a winner's folder (see :func:`mltune.winner.folder.write_winner`).

    The problem and the device are those that the trial of the winner was timed on; ``declaration`` has its time and
    those of the other finalists; ``build`` is the build that was timed, without machine code where nothing was
    compiled; ``versions`` are those of everything that affects a measurement.
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
        """The reason why there is no machine code; empty when there is."""
        if self.kernel.source is None or self.kernel.entry is None:
            return "the kernel has no source: its timings were recorded elsewhere"
        if self.build.detail:
            return f"it was not compiled: {self.build.detail}"
        return "" if self.build.cubin else REPLAYED

    def launch(self) -> Launch:
        """Return its launch for the problem."""
        return self.kernel.launch(self.record.configuration, self.variables())

    def variables(self) -> dict[str, int]:
        """Return the values of device and problem that the kernel's expressions may use."""
        return {**device_variables(self.device), **self.problem.variables()}

    @property
    def runnable(self) -> RunnableProblem:
        """The problem of a winner with machine code, which is compiled for runnable problems only."""
        assert isinstance(self.problem, RunnableProblem)  # noqa: S101
        return self.problem

    @property
    def launched(self) -> dict[str, int]:
        """The parameters that are passed at launch, after the arguments of the problem."""
        return {name: self.record.configuration[name] for name in self.kernel.arguments}

    def macros(self) -> dict[str, int | float | str]:
        """Return all macros that specialise the source: the kernel's, its parameters among them, then the problem's."""
        return self.kernel.macros(self.record.configuration) | self.runnable.macros()


def one_line(text: str) -> str:
    """Return a text without line breaks and backslashes, so that a comment in a source ends where its line ends."""
    return " ".join("".join(c if c.isprintable() and c != "\\" else " " for c in text).split())
