"""The winner of a run, and its launch as formulas of the problem's sizes."""

from __future__ import annotations

import ast
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from mltune.errors import ExpressionError
from mltune.kernel.bundle import Kernel
from mltune.kernel.coding import LARGEST_INTEGER
from mltune.kernel.evaluation import FUNCTIONS
from mltune.kernel.expressions import Expression, parse, tree_of
from mltune.kernel.launch import APPLY, Launch
from mltune.kernel.placed import PlacedKernel
from mltune.records.declaration import Declaration
from mltune.records.trial import Build, TrialRecord
from mltune.results.leader import Leader
from mltune.results.wording import REPLAYED


@dataclass(frozen=True, slots=True)
class Winner:
    """The content of a winner's folder, with the problem, device and build that were timed."""

    placed: PlacedKernel
    record: TrialRecord
    declaration: Declaration
    build: Build
    versions: Mapping[str, str]

    @property
    def lacks_code(self) -> str:
        """The reason why there is no machine code; empty when there is."""
        if self.placed.kernel.source.entry is None:
            return "the kernel has no source: its timings were recorded elsewhere"
        if self.build.detail:
            return f"it was not compiled: {self.build.detail}"
        return "" if self.build.cubin else REPLAYED

    def leader(self) -> Leader:
        """Return its record, of which the document shows views."""
        placed = self.placed
        configuration = placed.kernel.space.labelled(self.record.configuration)
        return Leader(placed.problem, placed.device, self.record, configuration, None, self.declaration)

    def launch(self) -> Launch:
        """Return its launch for the problem."""
        return self.placed.launch(self.record.configuration)

    @property
    def launched(self) -> dict[str, int]:
        """The parameters that are passed at launch, after the arguments of the problem."""
        return {name: self.record.configuration[name] for name in self.placed.kernel.launch_rule.arguments}

    @property
    def options(self) -> tuple[str, ...]:
        """Further options of the compiler: those of the kernel, and those that the configuration asks for."""
        kernel = self.placed.kernel
        return (*kernel.source.options, *kernel.compiler.variant(self.record.configuration).options)

    @property
    def compiler(self) -> str:
        """What made the machine code, with its versions."""
        nvrtc, nvjitlink = (self.versions.get(name, "") for name in ("nvrtc", "nvjitlink"))
        further = f" (to PTX), nvJitLink {nvjitlink}" if self.controls else ""
        return f"NVRTC {nvrtc}{further}".strip()

    @property
    def controls(self) -> dict[str, bytes]:
        """The file of controls that the assembler was given, by its name; empty without one."""
        controls = self.placed.kernel.compiler.controls
        return {name: file for name, file in controls.items() if f"{APPLY}{name}" in self.options}

    def macros(self) -> dict[str, int | float | str]:
        """Return all macros that specialise the source: the kernel's, its parameters among them, then the problem's."""
        kernel, configuration = self.placed.kernel, self.record.configuration
        return kernel.macros(configuration) | kernel.renaming(configuration) | self.placed.runnable.macros()


def one_line(text: str) -> str:
    """Return a text without line breaks and backslashes, so that a comment in a source ends where its line ends."""
    return " ".join("".join(c if c.isprintable() and c != "\\" else " " for c in text).split())


def formula(expression: Expression, values: Mapping[str, int | float | str], derived: Mapping[str, Expression]) -> str:
    """Substitute values and defining expressions for names in an expression, and evaluate its constant parts.

    ``ceil_div(m, BLK_M) * threads`` becomes ``"ceil_div(m, 128) * 256"``.
    """
    return _Substitution(values, derived).written(expression)


def launch_formulas(winner: Winner) -> dict[str, Any] | None:
    """Return grid, block, dynamic shared memory and workspace as formulas of the problem's sizes.

    None for a kernel given in Python: its launch is computed there, and not known at other sizes.
    """
    kernel = winner.placed.kernel
    return formulas_of(kernel, _fixed_values(winner)) if kernel.launch_rule.has_formulas else None


def formulas_of(kernel: Kernel, values: Mapping[str, int | float | str]) -> dict[str, Any]:
    """Return the launch of a kernel as formulas of the names without values; of tensor maps behind their places."""
    rule, written = kernel.launch_rule, _Substitution(values, kernel.space.derived).written
    return {
        "grid": [*map(written, rule.grid)],
        "block": [*map(written, rule.block)],
        "shared_bytes": written(rule.shared_bytes),
        "workspace_bytes": None if rule.workspace is None else written(rule.workspace),
        "tensor_maps": [(place, *map(written, fields)) for place, fields in rule.tensor_maps],
    }


def size_restrictions(winner: Winner) -> dict[str, str]:
    """Return the conditions of the configuration on the problem's sizes, each with its reason."""
    return restrictions_on(winner.placed.kernel, _fixed_values(winner), winner.placed.problem.size_names)


def restrictions_on(kernel: Kernel, values: Mapping[str, int | float | str], sizes: Collection[str]) -> dict[str, str]:
    """Return the conditions of a kernel on the sizes at which it runs, each with its reason."""
    written = _Substitution(values, kernel.space.derived).written
    reasons = {written(restriction.expression): restriction.reason for restriction in kernel.space.needed}
    return {text: reason for text, reason in reasons.items() if _names(tree_of(text)) & {*sizes}}


def known_values(placed: PlacedKernel, configuration: Mapping[str, int]) -> dict[str, int | float | str]:
    """Return what is the same at all sizes: the parameters of a configuration, facts of the problem and the device."""
    fixed = {name: value for name, value in placed.variables.items() if name not in placed.problem.size_names}
    return {**fixed, **placed.kernel.space.labelled(configuration)}


def _fixed_values(winner: Winner) -> dict[str, int | float | str]:
    return known_values(winner.placed, winner.record.configuration)


def _names(tree: ast.AST) -> set[str]:
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)} - FUNCTIONS.keys()


class _Substitution(ast.NodeTransformer):
    """Replace names by values and expressions, from the leaves up."""

    def __init__(self, values: Mapping[str, int | float | str], derived: Mapping[str, Expression]) -> None:
        self._values = values
        self._derived = derived
        self._replaced: dict[str, ast.expr] = {}

    def written(self, expression: Expression) -> str:
        """Return an expression with all names replaced that can be."""
        return ast.unparse(self.visit(tree_of(expression.text)))

    def visit_Name(self, node: ast.Name) -> ast.expr:
        if node.id in self._values:
            return _literal(self._values[node.id])
        if node.id in self._derived and node.id not in self._replaced:
            self._replaced[node.id] = self.visit(tree_of(self._derived[node.id].text))
        return self._replaced.get(node.id, node)

    def generic_visit(self, node: ast.AST) -> ast.AST:
        node = super().generic_visit(node)
        if isinstance(node, ast.IfExp) and isinstance(node.test, ast.Constant):
            return node.body if node.test.value else node.orelse
        if isinstance(node, ast.BoolOp):
            node = _decided(node)
        if not isinstance(node, ast.expr) or isinstance(node, ast.Constant) or _names(node):
            return node
        try:
            value = parse(ast.unparse(node)).evaluate({})
        except ExpressionError:  # a division by zero, for example, stays visible
            return node
        if isinstance(value, float) and not abs(value) < LARGEST_INTEGER:
            return node
        return _literal(value if isinstance(value, float) else int(value))  # a float stays one


def _literal(value: int | float | str) -> ast.expr:
    """Return the tree of a value."""
    if isinstance(value, float | str):
        return tree_of(repr(value))
    return ast.Constant(int(value)) if value >= 0 else tree_of(str(int(value)))


def _decided(node: ast.BoolOp) -> ast.expr:
    """Leave out of a conjunction what is true, and of a disjunction what is false; the opposite decides it.

    What precedes the opposite stays: it may be undefined.
    """
    is_and = isinstance(node.op, ast.And)
    open_parts = [part for part in node.values if not isinstance(part, ast.Constant)]
    decides = [isinstance(value, ast.Constant) and bool(value.value) != is_and for value in node.values]
    if any(decides):
        earlier = node.values[: decides.index(True)]
        return node if {*earlier} & {*open_parts} else tree_of(str(int(not is_and)))
    if len(open_parts) == 1 and isinstance(open_parts[0], ast.Compare | ast.BoolOp):
        return open_parts[0]
    return ast.BoolOp(node.op, open_parts) if len(open_parts) > 1 else node
