"""The first step of operations of libraries of Triton kernels, unchanged: Triton's own tuning against mltune's.

A process takes one arm: ``triton``, or ``mltune``, which is switched on as a program would. Each operation is run
forward and backward. A line of JSON has the seconds of its first step, in which kernels are tuned, the milliseconds of
the GPU in a later step, what was chosen for each kernel, and with ``--timeline`` what mltune did when: tunes, compiles,
measurements and finals, and the share of the cores that were busy in each half second.

The libraries have to be importable: ``fla-core`` and ``einops``, ``liger-kernel``. Each process needs its own cache:

    TRITON_CACHE_DIR=/tmp/a MLTUNE_WISDOM=/tmp/a.json python benchmarks/triton_libraries.py mltune retention gla
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

SIZES = ({"B": 4, "T": 4096, "H": 16, "D": 128}, {"B": 1, "T": 8192, "H": 8, "D": 128})
STEPS = 10

Event = dict[str, Any]


def operations(size: dict[str, int], torch: Any) -> dict[str, Callable[[], Callable[[], Any]]]:
    """Return functions that make operations with their inputs."""
    batch, length, heads, width = size.values()

    def random(*shape: int, dtype: Any = torch.bfloat16) -> Any:
        return torch.randn(*shape, device="cuda", dtype=dtype).requires_grad_(True)

    def qkv() -> list[Any]:
        return [random(batch, length, heads, width) for _ in range(3)]

    def retention() -> Callable[[], Any]:
        from fla.ops.retention import chunk_retention

        inputs = qkv()
        return lambda: chunk_retention(*inputs)[0]

    def gla() -> Callable[[], Any]:
        from fla.ops.gla import chunk_gla

        inputs, gates = qkv(), random(batch, length, heads, width)
        return lambda: chunk_gla(*inputs, torch.nn.functional.logsigmoid(gates))[0]

    def delta() -> Callable[[], Any]:
        from fla.ops.gated_delta_rule import chunk_gated_delta_rule

        (q, k, v), gates, betas = qkv(), random(batch, length, heads), random(batch, length, heads)

        def step() -> Any:
            g, beta = torch.nn.functional.logsigmoid(gates.float()), betas.sigmoid()
            return chunk_gated_delta_rule(q, torch.nn.functional.normalize(k, dim=-1), v, g=g, beta=beta)[0]

        return step

    def rms_norm() -> Callable[[], Any]:
        from fla.modules import RMSNorm

        module, x = RMSNorm(heads * width).cuda().bfloat16(), random(batch * length, heads * width)
        return lambda: module(x)

    def gated_norm() -> Callable[[], Any]:
        from fla.modules import FusedRMSNormGated

        module = FusedRMSNormGated(width).cuda().bfloat16()
        x, gate = random(batch, length, heads, width), random(batch, length, heads, width)
        return lambda: module(x, gate)

    def cross_entropy() -> Callable[[], Any]:
        from fla.modules import FusedCrossEntropyLoss

        module, x = FusedCrossEntropyLoss(), random(2 * length, 32000)
        labels = torch.randint(0, 32000, (2 * length,), device="cuda")
        return lambda: module(x, labels)

    def liger_moe() -> Callable[[], Any]:
        from liger_kernel.ops.fused_moe import LigerFusedMoEFunction

        tokens, experts, inner, top = length, 8, 1024, 2
        x, up, down = random(tokens, 2048), random(experts, 2 * inner, 2048), random(experts, 2048, inner)
        weights, indices = torch.rand(tokens, experts, device="cuda").topk(top)
        return lambda: LigerFusedMoEFunction.apply(x, up, down, indices, weights.bfloat16())

    made = (retention, gla, delta, rms_norm, gated_norm, cross_entropy, liger_moe)
    return {operation.__name__: operation for operation in made}


@contextlib.contextmanager
def timeline(events: list[Event]) -> Iterator[None]:
    """Note what mltune does, and how busy the cores are."""
    from mltune.integrations.triton import session
    from mltune.integrations.triton.builder import Builder
    from mltune.integrations.triton.decorator import Adapter
    from mltune.integrations.triton.planner import Planner
    from mltune.integrations.triton.runner import Runner

    begun, done = time.monotonic(), threading.Event()

    def noted(owner: Any, name: str, kind: str, words: Callable[..., Any]) -> None:
        function = getattr(owner, name)

        @functools.wraps(function)
        def wrapper(*arguments: Any, **options: Any) -> Any:
            start = time.monotonic()
            try:
                return function(*arguments, **options)
            finally:
                times = [round(start - begun, 3), round(time.monotonic() - begun, 3)]
                events.append({"kind": kind, "at": times, "of": words(*arguments)})

        setattr(owner, name, wrapper)

    def stat() -> tuple[float, float]:
        numbers = [float(word) for word in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
        return sum(numbers), numbers[3] + numbers[4]

    def watch() -> None:
        last = stat()
        while not done.wait(0.5):
            total, idle = stat()
            busy = 1.0 - (idle - last[1]) / max(1.0, total - last[0])
            events.append({"kind": "busy", "at": [round(time.monotonic() - begun, 3)], "of": round(busy, 2)})
            last = total, idle

    noted(Adapter, "_search_for", "tune", lambda self, *_: self._tuner.base_fn.__name__)
    noted(Builder, "submit", "capture", lambda self, number, *_: number)
    noted(Planner, "learn", "compiled", lambda self, number, built: [number, built.state, round(built.compile_s, 2)])
    noted(Runner, "measure", "measure", lambda self, config, *_: str(config)[:60])
    noted(session, "raced", "finals", lambda times, *_: len(times))
    threading.Thread(target=watch, daemon=True).start()
    try:
        yield
    finally:
        done.set()


def main() -> None:
    """Run operations in one arm."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("arm", choices=("triton", "mltune"))
    parser.add_argument("operations", nargs="+")
    parser.add_argument("--size", type=int, default=0)
    parser.add_argument("--timeline", action="store_true")
    options = parser.parse_args()
    import torch
    from triton.runtime.autotuner import Autotuner

    started = time.monotonic()
    if options.arm == "mltune":
        from mltune.integrations.triton import install

        install()
    tuners, make = dict[int, Any](), Autotuner.__init__

    def made(self: Any, *arguments: Any, **keywords: Any) -> None:
        make(self, *arguments, **keywords)
        tuners[id(self)] = self

    Autotuner.__init__ = made
    torch.manual_seed(0)
    for name in options.operations:
        events: list[Event] = []
        watching = timeline(events) if options.timeline and options.arm == "mltune" else contextlib.nullcontext()
        with watching:
            row = measured(operations(SIZES[options.size], torch)[name], torch)
        chosen = [
            [tuner.base_fn.__name__, len(tuner.configs), str(config)]
            for tuner in tuners.values()
            for config in tuner.cache.values()
        ]
        start_s = round(time.monotonic() - started, 2)
        line = {"arm": options.arm, "operation": name, "size": options.size, "until_s": start_s, **row}
        print(json.dumps({**line, "chosen": chosen, "events": events}), flush=True)
        for tuner in tuners.values():
            tuner.cache.clear()


def measured(operation: Callable[[], Callable[[], Any]], torch: Any) -> dict[str, Any]:
    """Return the seconds of the first step of an operation, and the milliseconds of a later one."""
    from torch.profiler import ProfilerActivity, profile

    call, began = operation(), time.monotonic()

    def step() -> None:
        call().sum().backward()

    step()
    torch.cuda.synchronize()
    first_s = time.monotonic() - began
    for _ in range(STEPS):
        step()
    torch.cuda.synchronize()
    began = time.monotonic()
    for _ in range(STEPS):
        step()
    queued_s = time.monotonic() - began
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as profiled:
        for _ in range(STEPS):
            step()
        torch.cuda.synchronize()
    gpu_us = sum(event.self_device_time_total for event in profiled.key_averages())
    return {
        "first_s": round(first_s, 2),
        "gpu_ms": round(gpu_us / 1e3 / STEPS, 4),
        "queued_ms": round(1e3 * queued_s / STEPS, 3),
    }


if __name__ == "__main__":
    main()
