"""Bundles of problems of the kind `arrays`, read without the loader: parameters, macros, launches and arguments."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mltune.device.known import H200
from mltune.files import folders
from mltune.kernel.bundle import Kernel, device_variables
from mltune.kernel.expressions import Expression, parse
from mltune.kernel.launch import Launch
from mltune.kernel.parts import Access, KernelResources, KernelSource, KernelSpace, LaunchRule, Restriction
from mltune.kernel.space import ConstrainedSpace

Configuration = Mapping[str, int]
Sizes = Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Argument:
    """An argument of a kernel: an array of a role, or a scalar.

    Attributes
    ----------
    shape : tuple of int
        Empty for a scalar.
    role : str
        One of in, out, inout, constant and scalar.
    initial : str or float
        How an array is filled, or the value of a scalar.
    """

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    role: str
    initial: Any


class ArraysBundle:
    """One bundle, with the sizes of its problem left open.

    Attributes
    ----------
    document : dict
        The kernel.toml.
    sizes : dict of str to int
        The default sizes.
    kernel : Kernel
    source : pathlib.Path
    """

    def __init__(self, name: str) -> None:
        folder = Path(str(folders.assets("kernels"))) / name
        self.document = tomllib.loads((folder / "kernel.toml").read_text())
        self.sizes: dict[str, int] = self.document["sizes"]
        self.source = folder / self.document["kernel"]["source"]
        resources = _parsed(self.document["resources"])
        launch = self.document["launch"]
        self.kernel = Kernel(
            name=name,
            problem="arrays",
            folder=folder,
            source=KernelSource(text=self.source.read_text(), entry=self.document["kernel"]["entry"]),
            space=KernelSpace(
                parameters={key: tuple(values) for key, values in self.document["parameters"].items()},
                derived=_parsed(self.document.get("derived", {})),
                restrictions=tuple(
                    Restriction(parse(text), reason) for text, reason in self.document["restrictions"].items()
                ),
            ),
            launch_rule=LaunchRule(
                block=_shape(launch["block"]),
                grid=_shape(launch["grid"]),
                shared_bytes=resources.get("shared_bytes", parse("0")),
            ),
            resources=KernelResources(
                estimates=resources,
                accesses={key: _access(table) for key, table in self.document.get("access", {}).items()},
            ),
        )

    @property
    def default(self) -> Configuration:
        """The default configuration."""
        found: dict[str, int] = self.document["default"]
        return found

    def variables(self, sizes: Sizes) -> dict[str, int]:
        """Return the sizes and the device: what expressions may use beside the parameters."""
        return dict(sizes) | device_variables(H200)

    def space(
        self, sizes: Sizes | None = None, narrowed: Mapping[str, tuple[int, ...]] | None = None
    ) -> ConstrainedSpace:
        """Return the valid configurations."""
        return ConstrainedSpace(self.kernel.with_values(narrowed or {}), self.variables(sizes or self.sizes))

    def sample(
        self, count: int, seed: int, sizes: Sizes | None = None, narrowed: Mapping[str, tuple[int, ...]] | None = None
    ) -> Iterator[Configuration]:
        """Draw distinct valid configurations."""
        space = self.space(sizes, narrowed)
        columns = space.rows(space.sample(count, np.random.default_rng(seed)))
        for values in zip(*columns.values(), strict=True):
            yield dict(zip(columns, map(int, values), strict=True))

    def macros(self, configuration: Configuration, sizes: Sizes) -> dict[str, int]:
        """Return the macros of a build: the parameters, and those of the sizes."""
        own = _parsed(self.document.get("macros", {}))
        return dict(configuration) | {name: int(self._value(text, {}, sizes)) for name, text in own.items()}

    def definitions(self, configuration: Configuration, sizes: Sizes) -> str:
        """Return the definitions that stand before the source."""
        return "".join(f"#define {name} {value}\n" for name, value in self.macros(configuration, sizes).items())

    def launch(self, configuration: Configuration, sizes: Sizes) -> Launch:
        """Return the launch of a configuration."""
        return self.kernel.launch(configuration, self.variables(sizes))

    def reference_launch(self, sizes: Sizes) -> Launch:
        """Return the launch of the reference."""
        table = self.document["reference"]
        block, grid = (
            tuple(int(self._value(expression, self.default, sizes)) for expression in _shape(table[key]))
            for key in ("block", "grid")
        )
        return Launch(grid, block, 0, ())  # type: ignore[arg-type]

    def arguments(self, sizes: Sizes) -> list[Argument]:
        """Return the kernel's arguments, in order, those in constant memory among them."""
        found = []
        for name, table in self.document["arguments"].items():
            dtype = np.dtype(table["dtype"])
            if "value" in table:
                found.append(Argument(name, dtype, (), "scalar", self._value(parse(table["value"]), {}, sizes)))
            else:
                shape = tuple(int(self._value(parse(text), {}, sizes)) for text in map(str, table["shape"]))
                found.append(Argument(name, dtype, shape, table.get("role", "in"), table.get("initial", "uniform")))
        return found

    def _value(self, expression: Expression, configuration: Configuration, sizes: Sizes) -> Any:
        return expression.evaluate(self.kernel.space.scope({**self.variables(sizes), **configuration}))


def _parsed(table: Mapping[str, Any]) -> dict[str, Expression]:
    return {name: parse(str(text)) for name, text in table.items()}


def _shape(texts: list[Any]) -> tuple[Expression, Expression, Expression]:
    x, y, z = (parse(str(text)) for text in [*texts, "1", "1"][:3])
    return x, y, z


def _access(table: Mapping[str, Any]) -> Access:
    lanes = tuple((parse(str(radix)), parse(str(stride))) for radix, stride in table["lanes"])
    return Access(table["memory"], parse(str(table["count"])), parse(str(table["bytes"])), lanes)
