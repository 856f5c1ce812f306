"""Keys of Triton's winners: everything in a call that changes what runs, by the names of the kernel's signature."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

_ANY_NUMBER = inspect.Parameter.VAR_POSITIONAL
_PLAIN = (bool, int, float, str, type(None))


class Keys:
    """The keys of a tuner's calls.

    Triton's own function binds a call: it puts arguments in the order of the signature, adds defaults, and says how
    Triton compiles for each: by its type, and by whether a number or an address is a multiple of 16, or a number 1.
    """

    def __init__(self, tuner: Any) -> None:
        self._tuner, self._kernel = tuner, innermost(tuner)
        parameters = inspect.signature(tuner.base_fn).parameters.values()
        self._required = [item.name for item in parameters if item.default is item.empty and item.kind != _ANY_NUMBER]
        self._unset = dict[tuple[Any, ...], dict[str, None]]()  # by forms of calls: what configurations may set
        self._constants = [item.name for item in getattr(self._kernel, "params", ()) if item.is_constexpr]

    def of(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
        """Return the key of a call in this process; without the GPU's number, which is the first part, in any."""
        device, keys, form = -1, self._tuner.keys, (len(args), *kwargs)
        if (unset := self._unset.get(form)) is None:
            names = {*self._tuner.arg_names[: len(args)], *kwargs}
            unset = self._unset[form] = dict.fromkeys(name for name in self._required if name not in names)
        named = {**kwargs, **unset}
        named.pop("grid", None)
        named.pop("warmup", None)
        if hasattr(self._kernel, "device_caches"):
            from triton.runtime.driver import driver

            device = driver.active.get_current_device()
            bound, compiled, options = self._kernel.device_caches[device][-1](*args, **named)
        else:
            options = dict(zip(self._tuner.arg_names, args, strict=False)) | named
            bound = {name: options.pop(name, None) for name in self._tuner.arg_names}
            compiled = [str(getattr(value, "dtype", type(value))) for value in bound.values()]
        values = tuple(bound[name] for name in keys)
        types = *map(type, values), *(type(bound[name]) for name in self._constants)
        return device, tuple(keys), values, tuple(compiled), types, str(sorted(options.items()) if options else "")

    def own_of(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
        """Return the key by which Triton's own method finds the winner of a call in this process."""
        named = {**dict(zip(self._tuner.arg_names, args, strict=False)), **kwargs}
        bound = {name: value for name, value in named.items() if name in self._tuner.arg_names}
        types = [str(value.dtype) for value in bound.values() if hasattr(value, "dtype")]
        return *(bound[name] for name in self._tuner.keys if name in bound), *types


def innermost(tuner: Any) -> Any:
    """Return the function within heuristics: a ``triton.JITFunction``."""
    fn = tuner.fn
    while hasattr(fn, "values"):
        fn = fn.fn
    return fn


def own_autotuner() -> Any:
    """Return Triton's own class of autotuners, whatever a program has assigned to the names of Triton."""
    from triton.runtime import autotuner
    from triton.runtime.jit import KernelInterface

    names = (autotuner.__name__, "Autotuner")
    kinds = KernelInterface.__subclasses__()
    return next(kind for kind in kinds if (kind.__module__, kind.__qualname__) == names)


def own_run() -> Callable[..., Any]:
    """Return the method by which Triton itself tunes and launches, also where mltune has replaced it."""
    run: Callable[..., Any] = inspect.unwrap(own_autotuner().run)
    return run


def plain(value: Any) -> Any:
    """Return a value for JSON, which differs for each other value; tensors differ by their types alone."""
    if type(value).__name__ == "constexpr":
        return plain(value.value)
    if type(value) in _PLAIN and not (isinstance(value, float) and not math.isfinite(value)):
        return value
    if isinstance(value, list | tuple):
        return [plain(part) for part in value]
    parts: Any = getattr(value, "cache_key", None) or ("" if hasattr(value, "data_ptr") else str(value))
    if isinstance(value, Mapping):
        parts = sorted([str(name), plain(part)] for name, part in value.items())
    return {type(value).__name__: parts}
