"""Read the launch and the arrays of a CUDA kernel from its code: blocks, grid and shapes, where these are plain."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from mltune.kernel.cuda_file import Function

_CAST = re.compile(
    r"\(\s*(?:(?:unsigned|signed|int|long|short|size_t|u?int\d+_t)\b\s*)+\)|\bstatic_cast\s*<[^<>;]{0,60}>"
)
_SUFFIX = re.compile(r"\b(\d+)[uUlL]+\b")
_ASSIGNED = re.compile(r"\b(\w+)\s{0,9}=(?!=)([^;,{}=]{1,200})(?=[;,])")
_BOUND = re.compile(r"\b(\w+)\s{0,9}(?:<(?![<=])|>=)\s{0,9}(\w+)\s{0,9}(?=[;&|)?])")
_LONGEST, _DEEPEST = 300, 8  # characters of an expression whose macros are expanded, and steps of that

Factors = list[str] | None
"""The factors of a product of names and numbers, None of anything else."""


@dataclass(frozen=True)
class Indexing:
    """The indices of a kernel: `sizes` are its whole numbers, `parameters` what is tuned, `values` other macros."""

    function: Function
    sizes: Collection[str]
    parameters: Collection[str]
    values: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def _variables(self) -> dict[str, str]:
        return {match[1]: match[2] for match in reversed([*_ASSIGNED.finditer(self.function.body)])}

    @cached_property
    def bounds(self) -> dict[str, str]:
        """The size below which each variable is, as conditions and loops say it."""
        matches = reversed([*_BOUND.finditer(self.function.body)])
        return {match[1]: match[2] for match in matches if match[2] in self.sizes and match[1] != match[2]}

    def uses(self, name: str) -> bool:
        """Return whether the kernel's code has a text such as ``blockIdx.x``."""
        return re.search(rf"\b{re.escape(name)}\b", self.function.body) is not None

    def dimensions(self, *names: str) -> list[str]:
        """Return the letters of the dimensions of these built-in variables, without gaps."""
        used = [place for place, axis in enumerate("xyz", 1) if any(self.uses(f"{name}.{axis}") for name in names)]
        return list("xyz"[: max(used, default=1)])

    def block(self) -> list[str] | None:
        """Return the threads of a block, None where they are not plain."""
        axes = self.dimensions("threadIdx", "blockDim")
        launch_bound = self._product(self.function.launch_bound) if len(axes) == 1 else None
        if launch_bound:
            return [" * ".join(launch_bound)]
        extents = [self._extent_of_block(axis) for axis in axes]
        return None if None in extents else [extent for extent in extents if extent]

    def _extent_of_block(self, axis: str) -> str | None:
        if self.uses(f"blockDim.{axis}"):
            return f"block_size_{axis}"
        if not self.uses(f"threadIdx.{axis}"):
            return "1"
        for text in self._variables.values():
            tile = self._factors(text, f"blockIdx.{axis}")
            step = self._factors(text, f"threadIdx.{axis}")
            if tile is None or step is None:
                continue
            for factor in step:
                if factor in tile:
                    tile.remove(factor)
            if len(tile) == 1:
                return tile[0]
        return None

    def grid(self) -> list[str] | None:
        """Return the blocks of a grid, None where they are not plain."""
        extents = [self._extent_of_grid(axis) for axis in self.dimensions("blockIdx")]
        return None if None in extents else [extent for extent in extents if extent]

    def _extent_of_grid(self, axis: str) -> str | None:
        if not self.uses(f"blockIdx.{axis}"):
            return "1"
        for name, text in self._variables.items():
            tile = self._factors(text, f"blockIdx.{axis}")
            following = (other for other, text in self._variables.items() if re.search(rf"\b{name}\b", text))
            size = next((self.bounds[other] for other in (name, *following) if other in self.bounds), None)
            if tile is not None and size is not None:
                return f"ceil_div({size}, {' * '.join(tile)})" if tile else size
        return None

    def shape(self, array: str) -> list[str] | None:
        """Return the extents of an array, None where its indices are not plain, or differ."""
        texts = re.findall(rf"(?<![.\w]){array}\s{{0,9}}\[([^\[\]]{{1,200}})\]", self.function.body)
        shapes = [self._shape(_parsed(text)) for text in texts]
        uses = len(re.findall(rf"(?<![.\w]){array}\b", self.function.body))
        is_plain = bool(shapes) and uses == len(texts) and all(shape == shapes[0] for shape in shapes)
        return shapes[0] if is_plain else None

    def _shape(self, node: ast.expr | None, depth: int = 0) -> list[str] | None:
        if isinstance(node, ast.Name):
            if node.id in self.bounds:
                return [self.bounds[node.id]]
            text = self._variables.get(node.id, "")
            return self._shape(_parsed(text), depth + 1) if "*" in text and depth < _DEEPEST else None
        if depth > _DEEPEST or not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Add):
            return None
        for row, column in ((node.left, node.right), (node.right, node.left)):
            if not (isinstance(row, ast.BinOp) and isinstance(row.op, ast.Mult) and isinstance(column, ast.Name)):
                continue
            for outer, extent in ((row.left, row.right), (row.right, row.left)):
                inner, shape = self.bounds.get(column.id), self._shape(outer, depth + 1)
                if shape and inner and isinstance(extent, ast.Name) and extent.id == inner:
                    return [*shape, inner]
        return None

    def role(self, array: str, is_const: bool) -> str:
        """Return the role of an array: what is assigned, and nothing else, is an output alone."""
        if is_const:
            return "in"
        stores = rf"(?<![.\w]){array}\s{{0,9}}\[[^\[\]]{{1,200}}\]\s{{0,9}}=(?!=)"
        uses = len(re.findall(rf"(?<![.\w]){array}\b", self.function.body))
        return "out" if 0 < uses == len(re.findall(stores, self.function.body)) else "inout"

    def _factors(self, text: str, unit: str) -> Factors:
        return self._coefficient(_parsed(self._expanded(text)), unit)

    def _coefficient(self, node: ast.expr | None, unit: str) -> Factors:
        """Return the factors with which a sum grows by a built-in variable."""
        if node is None or not isinstance(node, ast.BinOp):
            return [] if node is not None and ast.unparse(node) == unit else None
        sides = node.left, node.right
        having = [side for side in sides if unit in ast.unparse(side)]
        factors = self._coefficient(having[0], unit) if len(having) == 1 else None
        if factors is None or isinstance(node.op, ast.Add):
            return factors
        other = self._product(ast.unparse(sides[1] if having[0] is sides[0] else sides[0]))
        return [*factors, *other] if isinstance(node.op, ast.Mult) and other is not None else None

    def _product(self, text: str) -> Factors:
        node = _parsed(self._expanded(text))
        return _names(node, {*self.parameters, *(f"blockDim.{axis}" for axis in "xyz")})

    def _expanded(self, text: str) -> str:
        """Return an expression with the values of other macros and of local constants."""
        for _ in range(_DEEPEST):
            words = [word for word in re.findall(r"(?<![.\w])[A-Za-z_]\w*", text) if word not in self.parameters]
            defined = {word: value for word in words if (value := self.values.get(word, self._constant(word)))}
            if not defined or len(text) > _LONGEST:
                break
            parts = re.split(r"((?<![.\w])[A-Za-z_]\w*)", text)
            text = "".join(defined.get(part, part) for part in parts)
        return text[:_LONGEST]

    def _constant(self, name: str) -> str:
        text = self._variables.get(name, "")
        return f"({text})" if text and not re.search(r"[^\w\s*]", text) and not name.isdigit() else ""


def _names(node: ast.expr | None, allowed: Collection[str]) -> Factors:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        sides = [_names(side, allowed) for side in (node.left, node.right)]
        return None if None in sides else [name for side in sides for name in side or ()]
    text = "" if node is None else ast.unparse(node)
    if text not in allowed and not text.isdigit():
        return None
    return [re.sub(r"^blockDim\.", "block_size_", text)]


def _parsed(text: str) -> ast.expr | None:
    """Return an expression of C without its casts as one of Python, where it is short and both agree on it."""
    plain = " ".join(_SUFFIX.sub(r"\1", _CAST.sub("", text)).split())
    try:
        return ast.parse(plain, mode="eval").body if len(plain) < _LONGEST else None
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
