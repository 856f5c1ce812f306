"""Helion's own searches against mltune's, on a GPU, with the same seconds: curves of the best over seconds.

Each tune runs in a fresh process with empty caches of Helion and Triton, and with ``autotune_budget_seconds``. What was
the fastest so far, after each of :data:`MOMENTS` and at the end, is measured again by another process, in turns with
Helion's default: shares are those of the fastest of all of them.

The result is written after each tune.

    python benchmarks/helion_search.py --kernel matmul [--arms mltune,LFBOTreeSearch,PatternSearch] [--seeds 2]
"""

from __future__ import annotations

import functools
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from typing import Any

import helion
import numpy as np
import torch
from harness import RESULTS, bench_in_turns, gpu_provenance, parser_of, write
from helion_kernels import layer_norm, matmul, softmax

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
MOMENTS = (5, 10, 15, 20, 30, 45, 60, 90, 120)
ROUNDS = 5


SHAPES = {
    matmul: ((4096, 4096), (4096, 4096)),
    softmax: ((16384, 4096),),
    layer_norm: ((16384, 4096), (4096,), (4096,)),
}
KERNELS = {one.__name__: one for one in SHAPES}


def arguments_of(kernel: str) -> tuple[torch.Tensor, ...]:
    """Return random tensors in half precision."""
    torch.manual_seed(0)
    return tuple(torch.randn(shape, device=DEVICE, dtype=torch.float16) for shape in SHAPES[KERNELS[kernel]])


def tune(kernel: str, arm: str, seed: int, seconds: int) -> dict[str, Any]:
    """Tune in this process; return what was the fastest at each moment, and what was taken."""
    from helion.autotuner.benchmark_provider import LocalBenchmarkProvider

    from mltune.integrations.helion import autotuner

    measured: list[tuple[float, float, str, Any]] = []
    benchmark = LocalBenchmarkProvider.benchmark

    def noted(provider: Any, configs: Any, **options: Any) -> Any:
        found = benchmark(provider, configs, **options)
        measured.extend((one.completed_at, one.perf, one.status, one.config) for one in found)
        return found

    LocalBenchmarkProvider.benchmark = noted
    own: dict[str, Any] = {"autotuner_fn": autotuner(trials=100_000)} if arm == "mltune" else {}
    settings = {"autotune_random_seed": seed, "autotune_budget_seconds": seconds, "autotune_progress_bar": False}
    bound = helion.kernel(KERNELS[kernel], **settings, **own).bind(arguments_of(kernel))
    begun = time.perf_counter()
    taken = bound.autotune(arguments_of(kernel))
    total_s = time.perf_counter() - begun
    best: dict[str, Any] = {}
    for moment in MOMENTS:
        until = [one for one in measured if one[0] - begun <= moment and math.isfinite(one[1])]
        if until:
            fastest = min(until, key=lambda one: one[1])[3] if moment < total_s else taken
            best[f"{moment}"] = fastest.to_json()
    states = [status for _, _, status, _ in measured]
    return {
        "seconds": total_s,
        "best": {**best, "taken": taken.to_json()},
        "measured": {state: states.count(state) for state in sorted(set(states))},
        "readings": [[round(at - begun, 3), perf if math.isfinite(perf) else None] for at, perf, _, _ in measured],
    }


def judged(kernel: str, configs: list[str]) -> dict[str, float]:
    """Return the milliseconds of configurations that are measured in turns, and that of the default."""
    given = arguments_of(kernel)
    bound = helion.kernel(KERNELS[kernel]).bind(given)
    compiled = {one: bound.compile_config(helion.Config.from_json(one), allow_print=False) for one in configs}
    compiled["default"] = bound.compile_config(bound.config_spec.default_config(), allow_print=False)
    return bench_in_turns({one: functools.partial(call, *given) for one, call in compiled.items()}, ROUNDS)


def in_process(**part: Any) -> Any:
    """Run a part of the benchmark in a fresh process with empty caches."""
    with tempfile.TemporaryDirectory() as folder:
        caches = {"TRITON_CACHE_DIR": f"{folder}/triton", "HELION_CACHE_DIR": folder, "HELION_SKIP_CACHE": "1"}
        search = {} if part.get("arm", "mltune") == "mltune" else {"HELION_AUTOTUNER": part["arm"]}
        input_ = json.dumps(part)
        environment = {**os.environ, **caches, **search}
        command = [sys.executable, __file__, "--part", "-"]
        done = subprocess.run(command, env=environment, input=input_, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def table(document: dict[str, Any]) -> str:
    """Return the shares of the fastest over seconds as Markdown, the mean of the seeds that have come so far."""
    times = document["judged"]
    best = min(times.values())
    lines = [f"# {document['kernel']}, {document['device']['name']}", ""]
    columns = [*(str(one) for one in MOMENTS if one <= document["budget_s"]), "taken"]
    lines += ["| arm | " + " | ".join([*columns, "s", "measured"]) + " |", "|---|" + "---:|" * (len(columns) + 2)]
    for arm, runs in document["arms"].items():
        shares = [[best / times[run["best"][one]] for run in runs if one in run["best"]] for one in columns]
        shown = [f"{np.mean(one):.3f}" if one else "-" for one in shares]
        seconds = np.mean([run["seconds"] for run in runs])
        counts = np.mean([sum(run["measured"].values()) for run in runs])
        lines.append(f"| {arm} | {' | '.join(shown)} | {seconds:.0f} | {counts:.0f} |")
    lines += ["", f"Helion's default: {best / times['default']:.3f}; the fastest takes {1e3 * best:.1f} us."]
    return "\n".join([*lines, "", f"`{document['command']}`, {document['date']}."])


def main() -> None:
    """Run the tunes of a kernel, then measure what they found."""
    parser = parser_of(__doc__)
    parser.add_argument("--kernel", choices=KERNELS, default="matmul")
    parser.add_argument("--arms", default="mltune,LFBOTreeSearch,PatternSearch")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--part")
    arguments = parser.parse_args()
    if arguments.part:
        part = json.load(sys.stdin)
        print(json.dumps({"tune": tune, "judged": judged}[part.pop("do")](**part)))
        return
    output = arguments.output or RESULTS / f"helion_{arguments.kernel}.json"
    head = gpu_provenance(kernel=arguments.kernel, budget_s=arguments.seconds, helion=helion_version())
    arms: dict[str, list[Any]] = {one: [] for one in arguments.arms.split(",")}
    for seed in range(arguments.seeds):
        for arm, runs in arms.items():
            options = {"kernel": arguments.kernel, "seed": seed, "seconds": arguments.seconds}
            runs.append(in_process(do="tune", arm=arm, **options))
            write(output, {**head, "arms": arms})
            print(arm, seed, f"{runs[-1]['seconds']:.1f} s", runs[-1]["measured"], file=sys.stderr, flush=True)
    found = sorted({one for runs in arms.values() for run in runs for one in run["best"].values()})
    document = {**head, "arms": arms, "judged": in_process(do="judged", kernel=arguments.kernel, configs=found)}
    write(output, document, table(document))
    print(table(document))


def helion_version() -> str:
    """Return the version of Helion that is installed."""
    from importlib.metadata import version

    return version("helion")


if __name__ == "__main__":
    main()
