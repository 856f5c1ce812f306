"""The first step of operations of libraries of Triton kernels, unchanged: Triton's own tuning against mltune's.

A process takes one arm: ``triton``, or ``mltune``, which is switched on as a program would. It runs operations, forward
and, where they are trained, backward. A line of JSON has the seconds of the first step, in which kernels are tuned, the
milliseconds of the GPU in a later step, what was chosen for each kernel, and with ``--timeline`` what mltune did when:
tunes, compiles, measurements and finals, and the share of the cores that were busy in each half second.

The libraries have to be importable: ``fla-core`` and ``einops``, ``liger-kernel``, ``flash-kmeans``, ``flashnn``. Each
arm needs its own cache. A process over the cache of another shows what it finds there: of mltune's results, ``mltune``
its winners, and ``triton`` those that are also written as Triton's own, which needs TRITON_CACHE_AUTOTUNING=1 where a
library does not ask for it. ``table`` compares rows by their labels.

    export TRITON_CACHE_AUTOTUNING=1
    TRITON_CACHE_DIR=/tmp/a MLTUNE_WISDOM=/tmp/a.json python benchmarks/triton_libraries.py mltune --output rows.jsonl
    TRITON_CACHE_DIR=/tmp/a MLTUNE_WISDOM=/tmp/a.json python benchmarks/triton_libraries.py mltune --label again ...
    TRITON_CACHE_DIR=/tmp/a python benchmarks/triton_libraries.py triton --label reads --output rows.jsonl
    TRITON_CACHE_DIR=/tmp/b python benchmarks/triton_libraries.py triton --output rows.jsonl
    python benchmarks/triton_libraries.py table --output rows.jsonl

What an earlier process tuned at another size is expected of a process that has its calls, and nothing else:

    MLTUNE_WISDOM=/tmp/c.json TRITON_CACHE_DIR=/tmp/c python benchmarks/triton_libraries.py mltune --sizes 1 ...
    cp /tmp/c.json.calls /tmp/d.json.calls
    MLTUNE_WISDOM=/tmp/d.json TRITON_CACHE_DIR=/tmp/d python benchmarks/triton_libraries.py mltune --label calls ...
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

SIZES = ({"B": 4, "T": 4096, "H": 16, "D": 128}, {"B": 1, "T": 8192, "H": 8, "D": 128})
STEPS, LONG_S = 10, 0.3
"""Steps that are timed after the first ones, and the seconds of one from which on no more than it is timed."""

HEADS = (
    "operation | size | kernels | triton, s | mltune, s | share "
    "| GPU time | again, s | reads, s | calls, s | overlap, s |"
)

Event = dict[str, Any]


def operations(size: dict[str, int], torch: Any) -> dict[str, Callable[[], Callable[[], Any]]]:
    """Return functions that make operations with their inputs; a step is a call of what they return."""
    batch, length, heads, width = size.values()

    def random(*shape: int, dtype: Any = torch.bfloat16) -> Any:
        return torch.randn(*shape, device="cuda", dtype=dtype).requires_grad_(True)

    def qkv() -> list[Any]:
        return [random(batch, length, heads, width) for _ in range(3)]

    def trained(call: Callable[..., Any], *inputs: Any) -> Callable[[], Any]:
        return lambda: call(*inputs).sum().backward()

    def retention() -> Callable[[], Any]:
        from fla.ops.retention import chunk_retention

        return trained(lambda *inputs: chunk_retention(*inputs)[0], *qkv())

    def gla() -> Callable[[], Any]:
        from fla.ops.gla import chunk_gla

        inputs, gates = qkv(), random(batch, length, heads, width)
        return trained(lambda *_: chunk_gla(*inputs, torch.nn.functional.logsigmoid(gates))[0])

    def delta() -> Callable[[], Any]:
        from fla.ops.gated_delta_rule import chunk_gated_delta_rule

        (q, k, v), gates, betas = qkv(), random(batch, length, heads), random(batch, length, heads)

        def call() -> Any:
            g, beta = torch.nn.functional.logsigmoid(gates.float()), betas.sigmoid()
            return chunk_gated_delta_rule(q, torch.nn.functional.normalize(k, dim=-1), v, g=g, beta=beta)[0]

        return trained(call)

    def rms_norm() -> Callable[[], Any]:
        from fla.modules import RMSNorm

        return trained(RMSNorm(heads * width).cuda().bfloat16(), random(batch * length, heads * width))

    def gated_norm() -> Callable[[], Any]:
        from fla.modules import FusedRMSNormGated

        return trained(FusedRMSNormGated(width).cuda().bfloat16(), *qkv()[:2])

    def cross_entropy() -> Callable[[], Any]:
        from fla.modules import FusedCrossEntropyLoss

        labels = torch.randint(0, 32000, (2 * length,), device="cuda")
        return trained(FusedCrossEntropyLoss(), random(2 * length, 32000), labels)

    def liger_tanh() -> Callable[[], Any]:
        from liger_kernel.transformers.dyt import LigerDyT

        return trained(LigerDyT(heads * width).cuda().bfloat16(), random(batch, length, heads * width))

    def liger_mlp() -> Callable[[], Any]:
        from liger_kernel.ops.mlp import LigerMLPFunction

        narrow, wide = heads * width, 3 * heads * width
        weights = random(wide, narrow), random(wide, narrow), random(narrow, wide)
        return trained(LigerMLPFunction.apply, random(batch, length, narrow), *weights)

    def liger_moe() -> Callable[[], Any]:
        from liger_kernel.ops.fused_moe import LigerFusedMoEFunction

        experts, narrow, wide, top = 8, heads * width, 1024, 2
        x, up, down = random(length, narrow), random(experts, 2 * wide, narrow), random(experts, narrow, wide)
        weights, indices = torch.rand(length, experts, device="cuda").topk(top)
        return trained(LigerFusedMoEFunction.apply, x, up, down, indices.int(), weights.bfloat16())

    def kmeans() -> Callable[[], Any]:
        from flash_kmeans import batch_kmeans_Euclid

        points = random(batch, 16 * length, width, dtype=torch.float16).detach()
        first = points[:, : 64 * heads].contiguous()
        options = {"max_iters": 1, "init_centroids": first, "use_heuristic": False}
        return lambda: batch_kmeans_Euclid(points, 64 * heads, **options)

    def serving_norm() -> Callable[[], Any]:  # decorates its kernel anew at each call
        import flashnn

        flashnn.set_autotune_triton_kernels(True)
        module, x = flashnn.RMSNorm(heads * width).cuda().bfloat16(), random(batch * length, heads * width)
        return torch.no_grad()(functools.partial(module, x))

    made = (retention, gla, delta, rms_norm, gated_norm, cross_entropy)
    made += (liger_tanh, liger_mlp, liger_moe, kmeans, serving_norm)
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
    """Run operations in one arm, or show a table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("arm", choices=("triton", "mltune", "table"))
    parser.add_argument("operations", nargs="*", help="all, if none is named")
    parser.add_argument("--sizes", type=int, nargs="*", default=[0, 1])
    parser.add_argument("--overlap", action="store_true", help="mltune's option, by which the second step measures")
    parser.add_argument("--timeline", action="store_true")
    parser.add_argument("--output", type=Path, help="a file to which rows are added")
    parser.add_argument("--label", help="of the rows, instead of the arm")
    parser.add_argument("--seconds", type=float, default=1e9, help="after which the process ends, whatever it does")
    options = parser.parse_args()
    if options.arm == "table":
        print(table([json.loads(line) for line in options.output.read_text().splitlines()]))
        return
    began = time.monotonic()
    import torch
    from triton.runtime.autotuner import Autotuner

    if options.arm == "mltune":
        from mltune.integrations.triton import install

        install(overlap=options.overlap)
    tuners, make = list[Any](), Autotuner.__init__
    seen, current = set[tuple[int, Any]](), {"operation": "imports", "size": -1}

    def made(self: Any, *arguments: Any, **keywords: Any) -> None:
        make(self, *arguments, **keywords)
        tuners.append(self)

    def keep(row: dict[str, Any], events: list[Event]) -> None:
        new = {(id(tuner), str(key)): (tuner, config) for tuner in tuners for key, config in [*tuner.cache.items()]}
        chosen = [
            [tuner.base_fn.__name__, len(tuner.configs), str(config)]
            for place, (tuner, config) in new.items()
            if place not in seen
        ]
        seen.update(new)
        chosen = [list(choice) for choice in dict.fromkeys(map(tuple, chosen))]
        line = {"label": options.label or options.arm, **current, "until_s": round(time.monotonic() - began, 2), **row}
        print(json.dumps({**line, "kernels": len(chosen)}), flush=True)
        if options.output:
            with options.output.open("a") as file:
                file.write(json.dumps({**line, "chosen": chosen, "events": events}) + "\n")

    def end() -> None:
        keep({"unfinished": True}, [])
        os._exit(0)  # the main thread may wait for a compiler

    Autotuner.__init__ = made
    torch.manual_seed(0)
    watch = threading.Timer(options.seconds, end)
    watch.daemon = True
    if options.seconds < threading.TIMEOUT_MAX:
        watch.start()
    for name in options.operations or operations(SIZES[0], torch):
        for size in options.sizes:
            events: list[Event] = []
            watching = timeline(events) if options.timeline and options.arm == "mltune" else contextlib.nullcontext()
            current.update(operation=name, size=size)
            try:
                with watching:
                    row = measured(operations(SIZES[size], torch)[name](), torch)
            except Exception as error:  # of a library that does not run here
                row = {"error": f"{type(error).__name__}: {error}"[:300]}
            keep(row, events)


def measured(step: Callable[[], Any], torch: Any) -> dict[str, Any]:
    """Return the seconds of the first step and of the next, and the milliseconds of later ones."""
    from torch.profiler import ProfilerActivity, profile

    def seconds(steps: int = 1) -> tuple[float, float]:
        began = time.monotonic()
        for _ in range(steps):
            step()
        queued_s = time.monotonic() - began
        torch.cuda.synchronize()
        return queued_s, time.monotonic() - began

    first_s, next_s = seconds()[1], seconds()[1]
    steps = STEPS if next_s < LONG_S else 1
    if steps > 1:
        seconds(steps)
    queued_s, _ = seconds(steps)
    with profile(activities=[ProfilerActivity.CUDA]) as profiled:
        seconds(steps)
    gpu_us = sum(event.self_device_time_total for event in profiled.key_averages())
    return {
        "first_s": round(first_s, 2),
        "next_s": round(next_s, 4),
        "gpu_ms": round(gpu_us / 1e3 / steps, 4),
        "queued_ms": round(1e3 * queued_s / steps, 3),
    }


def table(rows: list[dict[str, Any]]) -> str:
    """Return what the rows of the labels of HEADS say, as Markdown; the last column has two steps."""
    cases = dict[tuple[str, int], dict[str, dict[str, Any]]]()
    for row in rows:
        cases.setdefault((row["operation"], row["size"]), {})[row["label"]] = row
    lines = [HEADS, "---|" * HEADS.count("|")]
    for (name, size), rows_of in cases.items():
        stock, ours, overlap = (rows_of.get(label, {}) for label in ("triton", "mltune", "overlap"))
        least = f"> {stock['until_s']}" if "unfinished" in stock else ""
        both = [(ours.get(key), stock.get(key)) for key in ("first_s", "gpu_ms")]
        shares = [f"{mine / other:.3f}" if mine and other else "" for mine, other in both]
        values = [
            name,
            size,
            len(ours.get("chosen", ())),
            stock.get("first_s", least),
            ours.get("first_s", ""),
            *shares,
        ]
        values += [rows_of.get(label, {}).get("first_s", "") for label in ("again", "reads", "calls")]
        values += [f"{overlap['first_s']} + {overlap['next_s']}" if "next_s" in overlap else ""]
        lines.append(" | ".join(map(str, values)) + " |")
    return "\n".join(f"| {line}" for line in lines)


if __name__ == "__main__":
    main()
