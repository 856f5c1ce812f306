"""Triton's own exhaustive autotuner against mltune's, on a GPU: seconds, and the speed of what each takes.

The kernels are those of ``benchmarks/triton_kernels``. Each arm runs in a fresh process with an empty cache of its own:

- *exhaustive*: ``triton.autotune``; *exhaustive, compiled*: again in another process, over the cache of the first;
- *mltune, fresh*: the first kernel that a process tunes; *mltune, warm*: the same kernel again with another empty
  cache, when the compile processes run already; *mltune, 25*: with ``trials=25``, when everything is compiled;
- *old, 25*: 25 trials of :class:`mltune.search.plain_search.PlainSearch`, which knows the parameters only, and *random,
  25*: the mean of 1,000 draws of 25; both are looked up in the times of the exhaustive arm.

A last process measures everything that was taken, and the five fastest of the exhaustive arm, in turns; shares are
those of the fastest of all.

    python benchmarks/triton_autotune.py [--case matmul] [--seeds 5] [--compilers 16] [--size 0] [--output FILE]
"""

from __future__ import annotations

import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import Any

import numpy as np
from harness import RESULTS, gpu_provenance, parser_of, write

KERNELS = Path(__file__).parent / "triton_kernels"
TRIALS = 25
DRAWS = 1000
ROUNDS = 5
FASTEST = 5


class Case:
    """A kernel with its configurations and the arguments of a size, loaded anew."""

    def __init__(self, name: str, size: int) -> None:
        loader = SourceFileLoader(f"{name}_{time.monotonic_ns()}", str(KERNELS / f"{name}.py"))
        module = importlib.util.module_from_spec(importlib.util.spec_from_loader(loader.name, loader))
        loader.exec_module(module)
        self.configs, triton_tuner = module.CONFIGS, getattr(module, name)
        self.key, self.kernel = triton_tuner.keys, triton_tuner.fn
        made = module.arguments(**module.SIZES[size])
        self.grid, *self.arguments = made[0] if isinstance(made, list) else made

    def tune(self, tuner: Any) -> dict[str, Any]:
        """Launch a kernel for the first time; return the seconds until it has run, and what was taken."""
        import torch

        torch.cuda.synchronize()
        began = time.monotonic()
        tuner[self.grid](*self.arguments)
        torch.cuda.synchronize()
        seconds = time.monotonic() - began
        taken = next(at for at, one in enumerate(self.configs) if one == tuner.best_config)
        times = [tuner.configs_timings.get(one, [None])[0] for one in self.configs]
        return {"seconds": seconds, "taken": taken, "measured": sum(one is not None for one in times), "ms": times}

    def facts(self) -> list[dict[str, float]]:
        """Return what Triton's compiler says of each configuration, and the blocks of its grid."""
        from dataclasses import asdict

        from mltune.integrations.triton_compilers import Compiled

        found = []
        for config in self.configs:
            compiled = self.kernel.warmup(*self.arguments, grid=self.grid, **config.all_kwargs())
            blocks = int(np.prod(self.grid(config.all_kwargs()) if callable(self.grid) else self.grid))
            found.append({**config.all_kwargs(), "blocks": blocks, **asdict(Compiled.of(compiled))})
        return found


def exhaustive(case: str, size: int, facts: bool) -> dict[str, Any]:
    """Tune with Triton's autotuner."""
    import triton

    loaded = Case(case, size)
    found = loaded.tune(triton.autotune(loaded.configs, loaded.key)(loaded.kernel))
    return {**found, "facts": loaded.facts()} if facts else found


def ours(case: str, size: int, seed: int, compilers: int) -> dict[str, Any]:
    """Tune with mltune: in a fresh process, again with an empty cache, and then 25 of what is compiled."""
    from triton import knobs

    from mltune.integrations.triton import autotune

    found: dict[str, Any] = {}
    for arm, trials in (("fresh", None), ("warm", None), (str(TRIALS), TRIALS)):
        if arm != str(TRIALS):
            knobs.cache.dir = tempfile.mkdtemp(dir=os.environ["TRITON_CACHE_DIR"])
        loaded = Case(case, size)
        options = {"trials": trials, "seed": seed, "compilers": compilers, "wisdom": "none"}
        found[arm] = loaded.tune(autotune(loaded.configs, loaded.key, **options)(loaded.kernel))
    return found


def judged(case: str, size: int, taken: list[int]) -> dict[int, float]:
    """Return the milliseconds of configurations that are measured in turns."""
    import triton

    loaded = Case(case, size)
    samples: dict[int, list[float]] = {at: [] for at in taken}
    for _ in range(ROUNDS):
        for at in taken:
            meta = loaded.configs[at].all_kwargs()
            call = lambda meta=meta: loaded.kernel[loaded.grid](*loaded.arguments, **meta)  # noqa: E731
            samples[at].append(triton.testing.do_bench(call, warmup=10, rep=50, return_mode="median"))
    return {at: statistics.median(times) for at, times in samples.items()}


def looked_up(ms: list[float | None], facts: list[dict[str, Any]], seeds: int) -> dict[str, list[float]]:
    """Return the shares of 25 trials of the search that knows parameters only, and of 25 at random."""
    from mltune.kernel.configurations import ConfigurationTable
    from mltune.search.plain_search import PlainSearch

    times = np.array([np.inf if one is None else one for one in ms])
    names = [name for name in list(facts[0])[: list(facts[0]).index("blocks")] if len({one[name] for one in facts}) > 1]
    values = {name: sorted({one[name] for one in facts}) for name in names}
    old = []
    for seed in range(seeds):
        search = PlainSearch(
            ConfigurationTable.from_rows(values, [[one[n] for n in names] for one in facts]), seed=seed
        )
        tried = [0]
        for _ in range(TRIALS - 1):
            search.tell(tried[-1], float(times[tried[-1]]))
            tried += search.ask()
        old.append(float(times.min() / times[tried].min()))
    rng = np.random.default_rng(0)
    drawn = [times.min() / times[rng.choice(len(times), TRIALS, replace=False)].min() for _ in range(DRAWS)]
    return {"old": old, "random": [float(np.mean(drawn))]}


def in_process(arguments: Any, cache: Path, **part: Any) -> Any:
    """Run a part of the benchmark in a fresh process, and return what it found and its seconds."""
    cache.mkdir(exist_ok=True)
    command = [sys.executable, __file__, "--case", arguments.case, "--size", str(arguments.size)]
    command += ["--compilers", str(arguments.compilers), "--part", json.dumps(part)]
    environment = {**os.environ, "TRITON_CACHE_DIR": str(cache)}
    began = time.monotonic()
    text = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True).stdout
    print(f"{part}: {time.monotonic() - began:.1f} s", file=sys.stderr, flush=True)
    return json.loads(text.splitlines()[-1])


def table(document: dict[str, Any]) -> str:
    """Return the result as Markdown."""
    lines = [f"# {document['case']}: {document['configurations']} configurations on {document['device']['name']}", ""]
    lines += [
        "| arm | share of the fastest, mean | least | seconds, mean | most | measured |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for arm, of in document["arms"].items():
        seconds = of.get("seconds")
        shown = f"{np.mean(seconds):.1f} | {max(seconds):.1f}" if seconds else "- | -"
        lines.append(f"| {arm} | {np.mean(of['shares']):.3f} | {min(of['shares']):.3f} | {shown} | {of['measured']} |")
    return "\n".join([*lines, "", f"`{document['command']}`, {document['date']}."])


def main() -> None:
    """Run all arms, and write the result."""
    parser = parser_of(__doc__)
    parser.add_argument("--case", default="matmul")
    parser.add_argument("--size", type=int, default=0)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--compilers", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--part", type=json.loads)
    arguments = parser.parse_args()
    if arguments.part:
        functions = {"exhaustive": exhaustive, "ours": ours, "judged": judged}
        given = dict(arguments.part)
        print(json.dumps(functions[given.pop("do")](arguments.case, arguments.size, **given)))
        return
    output = arguments.output or RESULTS / f"triton_{arguments.case}_{arguments.size}.json"
    with tempfile.TemporaryDirectory() as folder:
        shared = Path(folder, "exhaustive")
        cold = in_process(arguments, shared, do="exhaustive", facts=False)
        compiled = in_process(arguments, shared, do="exhaustive", facts=True)
        runs = [
            in_process(arguments, Path(folder, f"{seed}"), do="ours", seed=seed, compilers=arguments.compilers)
            for seed in range(arguments.seeds)
        ]
        ms = [np.inf if one is None else one for one in compiled["ms"]]
        fastest = np.argsort(ms)[:FASTEST].tolist()
        taken = sorted(
            {*fastest, cold["taken"], compiled["taken"], *(one["taken"] for run in runs for one in run.values())}
        )
        times = {int(at): one for at, one in in_process(arguments, shared, do="judged", taken=taken).items()}
    best = min(times.values())
    arms = {
        "exhaustive": {"shares": [best / times[cold["taken"]]], "seconds": [cold["seconds"]], "measured": len(ms)},
        "exhaustive, compiled": {
            "shares": [best / times[compiled["taken"]]],
            "seconds": [compiled["seconds"]],
            "measured": len(ms),
        },
    }
    for arm in runs[0]:
        of = [run[arm] for run in runs]
        arms[f"mltune, {arm}"] = {
            "shares": [best / times[one["taken"]] for one in of],
            "seconds": [one["seconds"] for one in of],
            "measured": round(float(np.mean([one["measured"] for one in of]))),
        }
    for arm, shares in looked_up(compiled["ms"], compiled["facts"], arguments.seeds).items():
        arms[f"{arm}, {TRIALS}"] = {"shares": shares, "measured": TRIALS}
    head = gpu_provenance(case=arguments.case, size=arguments.size, configurations=len(ms), arms=arms)
    document = {**head, "judged_ms": times, "exhaustive_ms": compiled["ms"], "facts": compiled["facts"], "runs": runs}
    write(output, document, table(document))
    print(table(document))


if __name__ == "__main__":
    main()
