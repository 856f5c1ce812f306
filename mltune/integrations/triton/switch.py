"""The switch that gives every autotuner of Triton in a process mltune's search, those of libraries included."""

from __future__ import annotations

import atexit
import functools
import gc
import multiprocessing
import warnings
from typing import Any

from mltune.errors import MltuneWarning
from mltune.integrations.host import require
from mltune.integrations.triton.decorator import Adapter, Settings
from mltune.integrations.triton.keys import innermost, own_autotuner, own_run

_ADAPTER = "_mltune_adapter"  # of a tuner


def install(**settings: Any) -> None:
    """Let mltune tune every kernel of this process that Triton's autotuner would tune.

    The method of Triton's class is replaced. So it does not matter when a kernel was decorated, under which name its
    library found the class, whether it is a subclass, and what is around it. A kernel of which mltune cannot say what
    a call compiles is tuned by Triton, and a warning names it when the process ends. What a kernel was tuned for
    before stays.

    Parameters
    ----------
    **settings
        ``trials``, ``time``, ``seed``, ``compilers``, ``wisdom``, ``tolerance``, ``prior`` and ``overlap``
        of :func:`mltune.integrations.triton.autotune`. A second call replaces them for kernels that have not run yet.

    Raises
    ------
    UsageError
        Triton is not installed, or a number is below its least.

    Examples
    --------
    >>> import mltune.integrations.triton
    >>> mltune.integrations.triton.install(trials=50)  # doctest: +SKIP
    """
    switch(Settings(**settings))
    _start_early()


def switch(settings: Settings) -> None:
    """Replace the method of Triton's class; nothing is started before a kernel is decorated."""
    global _settings
    require("triton", "triton>=3.3", "3.")
    if _settings is None:
        tuner, own = own_autotuner(), own_run()

        @functools.wraps(own)
        def run(self: Any, *args: Any, **kwargs: Any) -> Any:
            adapter = vars(self).get(_ADAPTER)
            if adapter is None or (isinstance(adapter, Adapter) and not adapter.is_of(self)):
                if adapter is not None:
                    vars(self).pop(_ADAPTER, None)  # a library has copied the tuner
                adapter = vars(self).setdefault(_ADAPTER, _adapter_of(self))
            return (adapter.run if isinstance(adapter, Adapter) else own.__get__(self))(*args, **kwargs)

        make = tuner.__init__

        @functools.wraps(make)
        def made(self: Any, *args: Any, **kwargs: Any) -> None:
            make(self, *args, **kwargs)
            if len(self.configs) > 1:
                _start_early()

        tuner.run, tuner.__init__ = run, made
        atexit.register(_report)
    _settings = settings


_settings: Settings | None = None


@functools.cache
def _start_early() -> None:
    """Start the compilers while a program imports its libraries, in the first of its processes alone."""
    if _settings is not None and multiprocessing.parent_process() is None:
        _settings.start_compilers()


def _adapter_of(tuner: Any) -> Adapter | str:
    """Return what tunes, or why Triton does."""
    from triton import knobs

    if knobs.runtime.interpret:
        return "it is interpreted"
    if not hasattr(innermost(tuner), "device_caches"):
        return f"what it launches is a {type(innermost(tuner)).__name__:.100}"
    try:
        return Adapter(tuner, _settings or Settings())
    except Exception as error:
        return f"{type(error).__name__}: {error!s:.100}"


def not_taken_over() -> dict[str, str]:
    """Return the names of kernels that Triton or their library has tuned, and the reasons."""
    kind, reasons = own_autotuner(), {}
    for tuner in (thing for thing in gc.get_objects() if issubclass(type(thing), kind)):
        reason = vars(tuner).get(_ADAPTER, "its class has its own way to tune")
        if tuner.cache and isinstance(reason, str) and "run" not in vars(tuner):
            reasons[getattr(tuner.base_fn, "__name__", str(tuner.base_fn))] = reason
    return reasons


def _report() -> None:
    if reasons := not_taken_over():
        listed = "; ".join(f"{name} ({reason})" for name, reason in sorted(reasons.items()))
        law = "it tunes those that go through the run of Triton's Autotuner."
        warnings.warn(MltuneWarning(f"{len(reasons)} kernels were tuned without mltune: {listed}; {law}"), stacklevel=2)
