"""The tensors that a kernel may change: they are compared with those that the first configuration left."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from inspect import ismemberdescriptor
from typing import Any

from mltune.errors import UsageError

BITS = "bits"
"""In place of a tolerance: outputs have the same bits, on three contents of the floating-point tensors."""

_OF_A_TENSOR = ("clone", "copy_", "isclose")


class Outputs:
    """Tensors that can be reached through the arguments of a call, with their contents before it is launched.

    Attributes
    ----------
    are_changed : bool
        Whether the first launch that was compared has changed any: otherwise nothing has been compared.
    """

    def __init__(self, arguments: Mapping[str, Any]) -> None:
        tensors: dict[int, Any] = {}
        for name, value in arguments.items():
            tensors |= {id(tensor): tensor for tensor in _tensors(name, value)}
        if not tensors:
            raise UsageError(
                f"no tensor can be reached through the arguments {', '.join(arguments)}, but with tolerance= the "
                "outputs of configurations are compared: leave tolerance out, or pass tensors."
            )
        self._tensors = [tensor.detach() if hasattr(tensor, "detach") else tensor for tensor in tensors.values()]
        self._before = [tensor.clone() for tensor in self._tensors]
        self._expected: list[list[Any]] = []
        self.are_changed = False

    def restore(self) -> None:
        """Give the tensors the contents that they had."""
        for tensor, content in zip(self._tensors, self._before, strict=True):
            tensor.copy_(content)

    def are_right(self, tolerance: float | str, launch: Callable[[], bool]) -> bool:
        """Whether a launch leaves the tensors as the first one has left them, which is the first call's.

        With :data:`BITS` it is launched three times: with the contents as they are, with integers and with others.
        """
        fills = (None, _integers, _rounded) if tolerance == BITS else (None,)
        if not self._expected:
            self._expected = [[] for _ in fills]
        contents = zip(fills, self._expected, strict=True)
        return all(self._is_right(tolerance, launch, fill, expected) for fill, expected in contents)

    def _is_right(self, tolerance: float | str, launch: Callable[[], bool], fill: Any, expected: list[Any]) -> bool:
        self.restore()
        for tensor in self._tensors if fill else ():
            if tensor.is_floating_point() and tensor.numel():
                index = tensor.float().flatten().fill_(1.0).cumsum(0).remainder(65521.0)
                tensor.copy_(fill(index).reshape(tensor.shape))
        if not launch():
            return False
        if not expected:
            expected += [tensor.clone() for tensor in self._tensors]
            self.are_changed |= not fill and not all(map(_agrees, expected, self._before, [0.0] * len(expected)))
        return all(map(_agrees, self._tensors, expected, [tolerance] * len(expected)))


def _integers(index: Any) -> Any:
    return index.remainder(7.0) - 3.0


def _rounded(index: Any) -> Any:
    return (index * 12.9898).sin()


def _tensors(name: str, value: Any, around: tuple[int, ...] = ()) -> Iterator[Any]:
    """Yield the tensors within an argument: also in containers, in data classes, and behind what has an address."""
    if all(hasattr(value, method) for method in _OF_A_TENSOR):
        yield value
        return
    has_address = hasattr(value, "data_ptr")
    parts: list[Any] = []
    if isinstance(value, Mapping):
        parts = list(value.values())
    elif isinstance(value, list | tuple):
        parts = list(value)
    elif has_address or (dataclasses.is_dataclass(value) and not isinstance(value, type)):
        members = {name: item for kind in type(value).__mro__ for name, item in vars(kind).items()}
        slots = [name for name, item in members.items() if ismemberdescriptor(item)]
        parts = [*getattr(value, "__dict__", {}).values(), *(getattr(value, slot, None) for slot in slots)]
    around = (*around, id(value))
    tensors = [tensor for part in parts if id(part) not in around for tensor in _tensors(name, part, around)]
    if has_address and not tensors:
        raise UsageError(
            f"what is behind the argument {name} ({type(value).__name__}) has no {', '.join(_OF_A_TENSOR)}, but with "
            "tolerance= everything that a kernel may change is compared: leave tolerance out, or pass a tensor."
        )
    yield from tensors


def _agrees(actual: Any, expected: Any, tolerance: float | str) -> bool:
    """Whether a tensor has the bits of another one, or is as close to it as a tolerance allows."""
    if not actual.is_floating_point() or not expected.numel():
        return bool((actual == expected).all())
    if isinstance(tolerance, str):
        sizes = {1: "byte", 2: "short", 4: "int", 8: "long"}
        integer = getattr(actual.flatten()[:1], sizes[actual.element_size()])().dtype
        return bool((actual.view(integer) == expected.view(integer)).all())
    actual, expected = actual.float(), expected.float()
    largest = float(expected.abs().nan_to_num(0.0, 0.0, 0.0).max())
    return bool(actual.isclose(expected, rtol=0.0, atol=tolerance * largest, equal_nan=True).all())
