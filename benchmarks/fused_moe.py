"""The configurations of a fused MoE for vLLM and SGLang on the GPU that is here: seconds, and what is lost.

The shapes are those of Mixtral 8x7B on one GPU (E=8, N=14336, K=4096, two experts a token), with 1, 2, 4 ... 4096
tokens. ``mltune tune --shapes`` tunes ``triton_kernels/fused_moe.py`` and writes the files; then all configurations of
the same space are measured for a few numbers of tokens by ``record_triton.py``, compiled in parallel. There the winner
and the five fastest of the sweep are timed again in turns; its share is the time of the best of them, divided by its
own. (Between the configurations of a sweep the clock of the GPU changes by more than they differ.) Triton's cache is
empty before each part.

    python benchmarks/fused_moe.py FOLDER [--trials 25] [--seed 0] [--swept 16,256,4096] [--output NAME.json]

FOLDER gets the files for vLLM and SGLang, the winners, and the sweeps as datasets. The same command goes on; seconds
are those of the parts that it did.
"""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from harness import bench_in_turns, gpu_provenance, parser_of, write
from record_triton import Case, compiled_ahead, launches_of, module_of, record

import mltune
from mltune.dataset.dataset import load_dataset

MODEL = {"E": 8, "N": 14336, "K": 4096, "TOP_K": 2}
TOKENS = tuple(2**power for power in range(13))
KERNEL = Path(__file__).parent / "triton_kernels" / "fused_moe.py"
FASTEST, ROUNDS = 5, 9


def tuned(folder: Path, trials: int, seed: int) -> dict[str, Any]:
    """Tune at all numbers of tokens, and write the files; return what was found."""
    shapes = folder / "shapes.csv"
    rows = [",".join(map(str, (m, *MODEL.values()))) for m in TOKENS]
    shapes.write_text("\n".join([f"M,{','.join(MODEL)}", *rows, ""]))
    return mltune.tune_shapes(
        f"{KERNEL}:fused_moe",
        shapes,
        trials=trials,
        seed=seed,
        run=folder / f"run-{trials}-{seed}",
        export={"vllm-moe": folder / "vllm", "sglang-moe": folder / "sglang"},
        progress=lambda row: print(row["shape"]["M"], row.get("error") or row["configuration"], flush=True),
    )


def swept(folder: Path, tokens: list[int], compilers: int) -> dict[int, Case]:
    """Measure all configurations at some numbers of tokens; return the cases by these."""
    cases = {m: Case("fused_moe", {"M": m, **MODEL}, folder / "sweeps") for m in tokens}
    for case in cases.values():
        case.load()
    compile_s = compiled_ahead([*cases.values()], compilers)
    for case in cases.values():
        record(case, compile_s, time_s=300.0, rep=20)
    return cases


def share_of(case: Case, winner: dict[str, int]) -> dict[str, float]:
    """Return the time of a winner and of the fastest, in turns, their quotient, and both times in the sweep."""
    dataset = load_dataset(case.out / f"{case.name}.json")
    times = dataset.numbers("median_s")
    is_it = np.all([column == winner[name] for name, column in dataset.columns.items()], axis=0)
    chosen = [int(np.flatnonzero(is_it)[0]), *np.argsort(np.where(is_it, np.inf, times))[:FASTEST].tolist()]
    by_values = {case.values(config): config for config in case.configs}
    rows = [by_values[tuple(int(column[at]) for column in dataset.columns.values())] for at in chosen]
    winner_s, *others_s = in_turns(case, [config.all_kwargs() for config in rows])
    best_s = min(winner_s, *others_s)
    swept = {"swept_s": float(times[is_it][0]), "swept_best_s": float(np.nanmin(times))}
    return {"winner_s": winner_s, "best_s": best_s, "share": best_s / winner_s, **swept}


def in_turns(case: Case, configurations: list[dict[str, Any]]) -> list[float]:
    """Return the seconds of configurations that are timed in turns, each time in another order."""
    import torch

    torch.manual_seed(0)
    fn, launches = getattr(case.module, case.kernel).fn, launches_of(case.module.arguments(**case.size))
    calls = {
        at: lambda meta=meta: [fn[grid](*arguments, **meta) for grid, *arguments in launches]
        for at, meta in enumerate(configurations)
    }
    return [1e-3 * one for one in bench_in_turns(calls, ROUNDS, shuffled=True).values()]


def timed(part: Any, *arguments: Any) -> tuple[Any, float]:
    """Do a part with an empty cache of Triton; return its result and its seconds."""
    begun = time.perf_counter()
    with tempfile.TemporaryDirectory() as cache:
        os.environ["TRITON_CACHE_DIR"] = cache
        return part(*arguments), time.perf_counter() - begun


def main() -> None:
    """Tune, sweep, and compare."""
    parser = parser_of(__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--trials", type=int, default=25)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--swept", default="16,256,4096")
    parser.add_argument("--compilers", type=int, default=max(1, (os.cpu_count() or 1) - 1))
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    tokens = [int(one) for one in given.swept.split(",") if one]
    found, tune_s = timed(tuned, given.folder, given.trials, given.seed)
    cases, sweep_s = timed(swept, given.folder, tokens, given.compilers)
    winners = {row["shape"]["M"]: row for row in found["shapes"] if "error" not in row}
    shares = {m: share_of(case, winners[m]["configuration"]) for m, case in cases.items() if m in winners}
    count = len(module_of("fused_moe").CONFIGS)
    rows = [
        f"| {m} | {1e3 * one['winner_s']:.4f} ms | {1e3 * one['best_s']:.4f} ms | {one['share']:.3f} |"
        for m, one in shares.items()
    ]
    lines = [
        f"{len(winners)} of {len(TOKENS)} numbers of tokens in {tune_s:.1f} s, {given.trials} configurations each.",
        f"All {count} at {len(tokens)} numbers of tokens in {sweep_s:.1f} s, {given.compilers} compilers.",
        "",
        "| tokens | winner | best of all | share |",
        "|---|---|---|---|",
        *rows,
    ]
    print("\n".join(lines))
    facts = {"tune_s": tune_s, "sweep_s": sweep_s, "configurations": count, "trials": given.trials, "seed": given.seed}
    document = {**gpu_provenance(), **facts, "shares": shares, "shapes": found["shapes"], "written": found["written"]}
    write(given.output, document, "\n".join(["# Fused MoE of Mixtral 8x7B", "", *lines]))


if __name__ == "__main__":
    main()
