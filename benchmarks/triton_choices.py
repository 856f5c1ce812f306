"""How often tunes of one Triton kernel on one GPU choose differently: by the fastest median, and with ties decided.

Each kernel of ``benchmarks/triton_kernels``, perhaps at its second size (``matmul:1``), is tuned some times in a
process, each time as if nothing were known; what was compiled stays. A line of JSON for each kernel has the choices by
both rules, and the medians of the finalists of each tune, in milliseconds, by the number of the configuration.
``differ`` counts the tunes that do not choose what most of them choose: by the fastest median, and with ties decided.

    python benchmarks/triton_choices.py [--tunes 20] [--seconds 80] [--output FILE] [KERNEL[:SIZE] ...]
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from triton_autotune import Case

from mltune.integrations.triton import autotune, finals

KERNELS = "matmul layer_norm softmax grouped_gemm fused_moe flash_attention fp8_matmul layer_norm:1 softmax:1 matmul:1"


def main() -> None:
    """Tune kernels repeatedly."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("kernels", nargs="*", default=KERNELS.split())
    parser.add_argument("--tunes", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=1e9, help="after which no further tune begins")
    parser.add_argument("--output", type=Path, help="a file to which the lines are added, with the medians")
    options = parser.parse_args()
    end = time.monotonic() + options.seconds
    os.environ.pop("TRITON_CACHE_AUTOTUNING", None)  # by which the second tune would read what the first has written
    raced, preferred = list[dict[Any, float]](), finals.preferred

    def noted(medians: Mapping[Any, float], first: Any) -> Any:
        raced.append(dict(medians))
        return preferred(medians, first)

    finals.preferred = noted
    for name, _, size in (kernel.partition(":") for kernel in options.kernels):
        raced.clear()
        seconds, tied, tunes = list[float](), Counter[int](), list[dict[int, float]]()
        for seed in range(options.tunes):
            if time.monotonic() > end:
                break
            case = Case(name, int(size or 0))
            tuned = case.tune(autotune(case.configs, case.key, wisdom="none", seed=seed)(case.kernel))
            seconds.append(round(tuned["seconds"], 2))
            tied[tuned["taken"]] += 1
            if len(raced) > len(tunes):
                tunes.append({case.configs.index(config): round(ms, 5) for config, ms in raced[-1].items()})
        if not tunes:
            break
        fastest = Counter(min(tune, key=tune.__getitem__) for tune in tunes)
        differ = [counts.total() - max(counts.values()) for counts in (fastest, tied)]
        outcome = {"kernel": f"{name}:{size or 0}", "configurations": len(case.configs), "tunes": len(seconds)}
        outcome |= {"differ": differ, "fastest": fastest, "ties decided": tied, "seconds": round(sum(seconds), 2)}
        print(json.dumps(outcome), flush=True)
        if options.output:
            with options.output.open("a") as file:
                file.write(json.dumps({**outcome, "seconds": seconds, "medians": tunes}) + "\n")


if __name__ == "__main__":
    main()
