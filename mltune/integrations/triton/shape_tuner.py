"""A Triton kernel of a file, tuned at one shape after the other: what a process does for :func:`mltune.tune_shapes`."""

from __future__ import annotations

import functools
import hashlib
import heapq
import importlib.util
import inspect
import json
import math
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from mltune.errors import DeviceLostError, MltuneError, UsageError
from mltune.integrations.triton.finals import preferred
from mltune.integrations.triton.runner import quantiles_of

FINALISTS = 5
"""Most of the measured configurations, for each launch of a shape, that are timed again with all launches."""

_KEPT = ("perf_model", "configs_top_k", "early_config_prune", "reset_to_zero", "restore_value", "pre_hook", "post_hook")
"""What a kernel keeps of its own decorator besides configurations, key and benchmark."""

Row = dict[str, Any]


def make_tuner(file: str, kernel: str, names: Sequence[str], options: Row) -> Callable[[Row | None], Row]:
    """Return a function that tunes a kernel at a shape, and without one returns its facts; the factory of the child."""
    load = functools.cache(lambda: _load(file, kernel, names, options))

    def serve(shape: Row | None) -> Row:
        try:
            make, tuned, tuners, facts = load()
            return facts if shape is None else _tuned(make(**shape), tuned, tuners)
        except Exception as error:
            text = str(error) if isinstance(error, MltuneError) else f"{type(error).__name__}: {error}"
            return {"error": text, "is_known": isinstance(error, DeviceLostError)}

    return serve


def _load(file: str, kernel: str, names: Sequence[str], options: Row) -> tuple[Any, Any, list[Any], Row]:
    """Import a file; return what makes arguments, the kernel, two of it with mltune's search, and its facts.

    The second knows no wisdom: that has the winner of one launch, not of several.
    """
    import triton
    from triton.runtime.driver import driver

    from mltune.integrations.triton.decorator import autotune
    from mltune.integrations.triton.keys import own_autotuner

    sys.path.append(str(Path(file).parent))  # last: what is installed comes first
    specification: Any = importlib.util.spec_from_file_location("_mltune_kernels", file)
    module = sys.modules[specification.name] = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    autotuned = getattr(module, kernel, None)
    if not isinstance(autotuned, own_autotuner()):
        raise UsageError(f"{kernel} is not decorated with autotune (outermost) there, so it has no configurations.")
    inspect.signature(module.arguments).bind(**dict.fromkeys(names))
    own = {} if autotuned._do_bench is None else {"do_bench": autotuned._do_bench}
    searches = [
        autotune(autotuned.configs, autotuned.keys, **settings, **own)
        for settings in (options, {**options, "wisdom": "none"})
    ]
    tuners = [search(autotuned.fn) for search in searches]
    for tuner in tuners:
        vars(tuner).update({name: value for name, value in vars(autotuned).items() if name in _KEPT})
    source = hashlib.sha256(Path(file).read_bytes() + inspect.getsource(autotuned.base_fn).encode()).hexdigest()
    facts = {"kernel": kernel, "source_hash": source, **options, "triton": triton.__version__}
    device, serving = driver.active.get_device_interface().get_device_name(), getattr(module, "SERVING", {})
    dtype, blocks = serving.get("dtype"), [*map(int, serving.get("block_shape", ()))]
    facts |= {"device": device, "dtype": dtype and str(dtype), "block_shape": blocks}
    facts["default"] = _written(autotuned.configs[0])
    return module.arguments, autotuned, tuners, facts


def _tuned(arguments: Any, autotuned: Any, tuners: Sequence[Any]) -> Row:
    """Tune at a shape: search with the first launch, and choose among its fastest by the time of all launches."""
    begun = time.monotonic()
    launches = arguments if isinstance(arguments, list) else [arguments]
    tuner, (grid, *values) = tuners[len(launches) > 1], launches[0]
    tuner.configs_timings = {}
    tuner[grid](*values)
    measured = {config: times_ms[0] for config, times_ms in tuner.configs_timings.items()}
    measured = measured or {tuner.best_config: 0.0}
    ran = [config for config, time_ms in measured.items() if time_ms != math.inf] or [tuner.best_config]
    first = next((config for config in tuner.configs if config in measured), tuner.best_config)
    fastest = heapq.nsmallest(FINALISTS * len(launches), ran, key=lambda config: measured.get(config, 0.0))
    finalists = {*fastest} | ({first} & {*ran})
    total_s = {config: _time_s(autotuned, launches, config) for config in measured if config in finalists}
    best = preferred(total_s, first)  # the default stays where nothing is faster by more than the noise
    if total_s[best] == math.inf:
        raise UsageError(f"none of {len(measured)} configurations that were measured runs.")
    return {
        "configuration": _written(best),
        "median_s": total_s[best],
        "first_s": total_s[first] if total_s.get(first, math.inf) < math.inf else None,
        "measured": len(measured),
        "seconds": time.monotonic() - begun,
    }


def _written(config: Any) -> Row:
    """Return a configuration as JSON has it."""
    values = {name: value for name, value in config.all_kwargs().items() if value is not None}
    configuration: Row = json.loads(json.dumps(values, default=str))
    return configuration


def _time_s(tuner: Any, launches: Sequence[Sequence[Any]], config: Any) -> float:
    """Return the time of all launches with a configuration; infinite where one fails."""
    total_ms = 0.0
    for grid, *arguments in launches:
        tuner.nargs = dict(zip(tuner.arg_names, arguments, strict=False))
        total_ms += quantiles_of(type(tuner)._bench(tuner, *arguments, config=config, grid=grid, warmup=False))[0]
    return total_ms / 1e3
