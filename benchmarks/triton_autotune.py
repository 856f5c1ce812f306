"""Triton's own exhaustive autotuner against mltune's, on a GPU: seconds, and the speed of what each takes.

The kernels are those of ``benchmarks/triton_kernels``. Each arm runs in a fresh process with an empty cache of its own:

- *exhaustive*: ``triton.autotune``; *exhaustive, compiled*: again in another process, over the cache of the first;
- *mltune, fresh*: the first kernel that a process tunes; *mltune, warm*: the same kernel again with another empty
  cache, when the compile processes run already; *mltune, 25*: with ``trials=25``, when everything is compiled;
- *old, 25*: 25 trials of :class:`mltune.search.plain_search.PlainSearch`, which knows the parameters only, and *random,
  25*: the mean of 1,000 draws of 25; both are looked up in the times of the exhaustive arm.

``--prior`` is what mltune starts from: by default the part of its model that has not seen the kernel.

A last process measures everything that was taken, and the five fastest of the exhaustive arm or of a recorded sweep
(``--known DATASET``), in turns; shares are those of the fastest of all.

The result is written after each arm. It has a timeline of each tune of mltune, and the seconds until it had measured a
configuration that is within 2 % of the best that it has measured.

    python benchmarks/triton_autotune.py [--case CASE] [--size 0] [--seeds 5] [--compilers 16] [--prior PRIOR]
"""

from __future__ import annotations

import functools
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import Any

import numpy as np
from harness import RESULTS, bench_in_turns, gpu_provenance, parser_of, write

KERNELS = Path(__file__).parent / "triton_kernels"
TRIALS = 25
DRAWS = 1000
ROUNDS = 5
FASTEST = 5
NEAR = 0.98


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
        count, started_from = sum(one is not None for one in times), getattr(tuner, "started_from", "")
        return {"seconds": seconds, "taken": taken, "measured": count, "ms": times, "started_from": started_from}

    def facts(self) -> list[dict[str, float]]:
        """Return what Triton's compiler says of each configuration, and the blocks of its grid."""
        from dataclasses import asdict

        from mltune.integrations.triton.compilers import Compiled

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


class Timeline:
    """Where the seconds of a tune go: moments of events, and seconds of the tuning process by what it does."""

    def __init__(self) -> None:
        self.begun = time.monotonic()
        self.seconds: dict[str, float] = {}
        self.moments: dict[str, list[float]] = {}
        self.compile_s: list[float] = []
        self.measured: list[tuple[float, int, float]] = []  # moment, configuration, milliseconds

    def mark(self, event: str) -> None:
        """Note the moment of an event."""
        self.moments.setdefault(event, []).append(round(time.monotonic() - self.begun, 3))

    def timed(self, name: str, function: Any) -> Any:
        """Return a function that adds its seconds, and marks its end."""

        def call(*arguments: Any, **options: Any) -> Any:
            began = time.monotonic()
            try:
                return function(*arguments, **options)
            finally:
                self.seconds[name] = self.seconds.get(name, 0.0) + time.monotonic() - began
                self.mark(name)

        return call

    def noted(self, session: Any, index: int) -> None:
        """Measure, and note which configuration it was and its time."""
        before = len(session.times)
        self._measure(session, index)
        if len(session.times) > before:
            config = next(reversed(session.times))
            ms = float(session.times[config][0])
            self.measured.append((self.moments["measure"][-1], session.configs.index(config), ms))

    def near_s(self) -> float:
        """Return the seconds until something was measured that is near the best of what was measured."""
        least = min(ms for _, _, ms in self.measured)
        return next(moment for moment, _, ms in self.measured if NEAR * ms <= least)

    def built(self, future: Any) -> None:
        """Note that a compile has ended."""
        if not future.cancelled():
            self.mark(f"build {future.result().state}")
            self.compile_s.append(round(future.result().compile_s, 3))

    def to_json(self) -> dict[str, Any]:
        """Return all of it, without the moments of the search."""
        ends = {name: moments for name, moments in self.moments.items() if not name.startswith("search")}
        seconds = {name: round(value, 3) for name, value in self.seconds.items()}
        return {"seconds": seconds, "moments": ends, "compile_s": self.compile_s, "measured": self.measured}

    def __enter__(self) -> Timeline:
        from mltune.integrations.triton import runner, session
        from mltune.integrations.triton.compilers import Compilers
        from mltune.search.launch_search import LaunchSearch

        tuning, submit = session.TritonTuning, Compilers.submit

        def submitted(*arguments: Any) -> Any:
            self.mark("submitted")
            future = submit(*arguments)
            future.add_done_callback(self.built)
            return future

        self._measure = self.timed("measure", tuning._measure)
        self._replaced = [
            (tuning, "_measure", lambda tuning, number: self.noted(tuning, number)),
            (session, "raced", self.timed("finals", session.raced)),
            (session, "search_over", self.timed("new search", session.search_over)),
            (tuning, "_receive", self.timed("search receive", tuning._receive)),
            (runner, "source_of", self.timed("search capture", runner.source_of)),
            (LaunchSearch, "best_first", self.timed("search order", LaunchSearch.best_first)),
            (LaunchSearch, "worth", self.timed("search worth", LaunchSearch.worth)),
            (Compilers, "submit", submitted),
        ]
        self._own = [(owner, name, getattr(owner, name)) for owner, name, _ in self._replaced]
        for owner, name, function in self._replaced:
            setattr(owner, name, function)
        return self

    def __exit__(self, *failure: object) -> None:
        for owner, name, function in self._own:
            setattr(owner, name, function)


def prior_of(given: str, case: str, folder: Path) -> str:
    """Return the option of mltune for what it starts from; a part of its model is written into a folder."""
    from mltune.cost.model_file import save_model
    from mltune.search.launch_model import launch_model

    if given != "unseen":
        return given
    model = launch_model("auto")
    members = tuple(one for one in model.members if one.sweep == f"without {case}")
    save_model(replace(model, members=members), folder / "unseen")
    return str(folder / "unseen")


def ours(case: str, size: int, seed: int, compilers: int, prior: str) -> dict[str, Any]:
    """Tune with mltune: in a fresh process, again with an empty cache, and then 25 of what is compiled."""
    from triton import knobs

    from mltune.integrations.triton import autotune

    found: dict[str, Any] = {}
    for arm, trials in (("fresh", None), ("warm", None), (str(TRIALS), TRIALS)):
        if arm != str(TRIALS):
            knobs.cache.dir = tempfile.mkdtemp(dir=os.environ["TRITON_CACHE_DIR"])
        loaded = Case(case, size)
        options = {"trials": trials, "seed": seed, "compilers": compilers, "wisdom": "none", "prior": prior}
        tuner = autotune(loaded.configs, loaded.key, **options)(loaded.kernel)
        with Timeline() as timeline:
            found[arm] = loaded.tune(tuner)
        found[arm] |= {"near_s": timeline.near_s(), "timeline": timeline.to_json()}
    return found


def fastest_known(case: str, size: int, dataset: str) -> list[int]:
    """Return the fastest configurations of a recorded sweep."""
    from mltune.dataset.dataset import load_dataset

    found = load_dataset(dataset)
    times = {tuple(row[name] for name in found.manifest.parameters): row["median_s"] for row in found.table.to_pylist()}
    configs = [one.all_kwargs() for one in Case(case, size).configs]
    ms = [times.get(tuple(one[name] for name in found.manifest.parameters)) or np.inf for one in configs]
    return np.argsort(ms)[:FASTEST].tolist()


def judged(case: str, size: int, taken: list[int]) -> dict[int, float]:
    """Return the milliseconds of configurations that are measured in turns."""
    loaded = Case(case, size)
    launch = functools.partial(loaded.kernel[loaded.grid], *loaded.arguments)
    calls = {at: functools.partial(launch, **loaded.configs[at].all_kwargs()) for at in taken}
    return bench_in_turns(calls, ROUNDS)


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
    lines = [
        f"# {document['case']}, size {document['size']}, {document['device']['name']}, prior {document['prior']}",
        "",
    ]
    lines += [
        f"| arm | share of the fastest, mean | least | seconds, mean | most | until {NEAR} | measured |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for arm, of in document["arms"].items():
        seconds = of.get("seconds")
        shown = f"{np.mean(seconds):.1f} | {max(seconds):.1f}" if seconds else "- | -"
        shown += f" | {np.mean(of['near_s']):.1f}" if of.get("near_s") else " | -"
        lines.append(f"| {arm} | {np.mean(of['shares']):.3f} | {min(of['shares']):.3f} | {shown} | {of['measured']} |")
    return "\n".join([*lines, "", f"`{document['command']}`, {document['date']}."])


def arms_of(parts: dict[str, Any]) -> dict[str, Any]:
    """Return the shares and seconds of the arms that there are."""
    times = {int(at): one for at, one in parts.get("judged", {}).items()}
    best = min(times.values(), default=np.nan)

    def arm(of: list[dict[str, Any]]) -> dict[str, Any]:
        shares = [best / times.get(one["taken"], np.nan) for one in of]
        measured = round(float(np.mean([one["measured"] for one in of])))
        near_s = [one["near_s"] for one in of if "near_s" in one]
        return {"shares": shares, "seconds": [one["seconds"] for one in of], "near_s": near_s, "measured": measured}

    found = {name: arm([parts[name]]) for name in ("exhaustive", "exhaustive, compiled") if name in parts}
    runs = parts.get("runs", [])
    found |= {f"mltune, {name}": arm([run[name] for run in runs]) for name in (runs[0] if runs else ())}
    if "facts" in parts.get("exhaustive, compiled", {}):
        full = parts["exhaustive, compiled"]
        found |= {
            f"{name}, {TRIALS}": {"shares": shares, "measured": TRIALS}
            for name, shares in looked_up(full["ms"], full["facts"], len(runs) or 1).items()
        }
    return found


def main() -> None:
    """Run the arms, and write the result after each of them."""
    parser = parser_of(__doc__)
    parser.add_argument("--case", default="matmul")
    parser.add_argument("--size", type=int, default=0)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--compilers", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--arms", default="ours,exhaustive,judged")
    parser.add_argument("--prior", choices=("unseen", "auto", "none"), default="unseen")
    parser.add_argument("--known", help="a recorded sweep of the case, in place of the exhaustive arm")
    parser.add_argument("--part", type=json.loads)
    arguments = parser.parse_args()
    if arguments.part:
        functions = {"exhaustive": exhaustive, "ours": ours, "fastest": fastest_known, "judged": judged}
        given = dict(arguments.part)
        print(json.dumps(functions[given.pop("do")](arguments.case, arguments.size, **given)))
        return
    output = arguments.output or RESULTS / f"triton_{arguments.case}_{arguments.size}.json"
    facts = {name: getattr(arguments, name) for name in ("case", "size", "compilers", "prior")}
    head = gpu_provenance(**facts)
    parts: dict[str, Any] = {}

    def keep(name: str, found: Any) -> Any:
        parts[name] = found
        document = {**head, "arms": arms_of(parts), **parts}
        write(output, document, table(document))
        return found

    with tempfile.TemporaryDirectory() as folder:
        shared, runs = Path(folder, "exhaustive"), []
        prior = prior_of(arguments.prior, arguments.case, Path(folder))
        for seed in range(arguments.seeds if "ours" in arguments.arms else 0):
            own = Path(folder, f"{seed}")
            part = {"do": "ours", "seed": seed, "compilers": arguments.compilers, "prior": prior}
            runs.append(in_process(arguments, own, **part))
            keep("runs", runs)
        fastest: list[int] = []
        if "exhaustive" in arguments.arms:
            keep("exhaustive", in_process(arguments, shared, do="exhaustive", facts=False))
            full = keep("exhaustive, compiled", in_process(arguments, shared, do="exhaustive", facts=True))
            fastest = np.argsort([np.inf if one is None else one for one in full["ms"]])[:FASTEST].tolist()
            fastest += [parts["exhaustive"]["taken"], full["taken"]]
        if arguments.known:
            fastest += in_process(arguments, shared, do="fastest", dataset=arguments.known)
        if "judged" in arguments.arms:
            taken = sorted({*fastest, *(one["taken"] for run in runs for one in run.values())})
            keep("judged", in_process(arguments, shared, do="judged", taken=taken))
    print(output.with_suffix(".md").read_text())


if __name__ == "__main__":
    main()
