"""A kernel at a problem on a device, and what follows from the three."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from mltune.device.facts import Device
from mltune.kernel.bundle import Kernel, variables_of
from mltune.kernel.coding import Columns, columns_of, crossed, length, row
from mltune.kernel.launch import Launch
from mltune.kernel.space import ConstrainedSpace, SearchSpace, TableSpace, find
from mltune.problem.problem import Problem, RunnableProblem


@dataclass(frozen=True)
class PlacedKernel:
    """A kernel at a problem on a device; variables, space and default are made once.

    A space that is ``chosen`` takes the place of all valid configurations.
    """

    kernel: Kernel
    problem: Problem
    device: Device
    chosen: SearchSpace | None = None

    @property
    def runnable(self) -> RunnableProblem:
        """The problem, of which the kernel is compiled and run."""
        assert isinstance(self.problem, RunnableProblem)  # noqa: S101 - others have no kernel with a source
        return self.problem

    @cached_property
    def variables(self) -> Mapping[str, int]:
        """The variables of problem and device, which the kernel's expressions may use."""
        return variables_of(self.problem, self.device)

    @cached_property
    def space(self) -> SearchSpace:
        """The configurations that a search may propose: what restrictions leave, or what the kernel lists."""
        if self.chosen is not None:
            return self.chosen
        listed, compiler = self.kernel.space.configurations, self.kernel.compiler
        if listed is None:
            return ConstrainedSpace(self.kernel, self.variables)
        return TableSpace(crossed(listed, {name: compiler.parameters[name] for name in compiler.varied}))

    @cached_property
    def default(self) -> Mapping[str, int]:
        """The kernel's default configuration, or the one of the space that is nearest to it.

        A kernel of kind arrays that names none has the first value of every parameter as its default.
        """
        default = dict(self.kernel.space.default)
        if not default and self.kernel.arrays is not None:
            default = {name: values[0] for name, values in self.kernel.all_parameters.items()}
        if not default:
            return {}
        completed = self.kernel.compiler.completed(default)
        if self.contains(completed):
            return {name: int(completed[name]) for name in self.space.names}
        return row(self.space.rows(self.space.nearest(columns_of(completed))), 0)

    def runs(self, columns: Columns) -> NDArray[np.bool_]:
        """Return which configurations of a table keep the restrictions without which a kernel does not run."""
        scope = self.kernel.space.scope({**self.variables, **columns})
        valid = np.ones(length(columns), dtype=np.bool_)
        for restriction in self.kernel.space.needed:
            valid &= restriction.expression.evaluate_partial(scope).truth()
        return valid

    def contains(self, configuration: Mapping[str, int]) -> bool:
        """Return whether a configuration is in the space, which need not be counted for that."""
        space = self.space
        return space.holds(configuration) if isinstance(space, ConstrainedSpace) else find(space, configuration) >= 0

    @cached_property
    def verified(self) -> tuple[PlacedKernel, ...]:
        """The kernel at each problem on which configurations are verified."""
        cases = self.problem.verification_cases() if isinstance(self.problem, RunnableProblem) else ()
        return tuple(self.at(case.problem) for case in cases)

    def launch(self, configuration: Mapping[str, int]) -> Launch:
        """Return the launch of one configuration; see :meth:`Kernel.launch`."""
        return self.kernel.launch(configuration, self.variables)

    def launches(self, configurations: Sequence[Mapping[str, int]]) -> list[Launch]:
        """Return the launches of configurations of a kernel whose launch is given by expressions."""
        return self.kernel.launch_rule.launches(self.kernel.space, configurations, self.variables)

    def at(self, problem: Problem) -> PlacedKernel:
        """Return the kernel at another problem."""
        return replace(self, problem=problem)
