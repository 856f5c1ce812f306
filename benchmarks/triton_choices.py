"""How often tunes of one Triton kernel on one GPU choose differently: by the fastest median, and with ties decided.

Each kernel of ``benchmarks/triton_kernels`` is tuned some times in a process, each time as if nothing were known; what
was compiled stays. A line of JSON for each kernel has the choices by both rules, and the medians of the finalists of
each tune, in milliseconds, by the number of the configuration.

    python benchmarks/triton_choices.py [--tunes 20] [KERNEL ...]
"""

from __future__ import annotations

import argparse
import json
import time
from collections import Counter
from collections.abc import Mapping
from typing import Any

from triton_autotune import Case

from mltune.integrations.triton import autotune, finals

KERNELS = ("matmul", "layer_norm", "softmax", "grouped_gemm", "fused_moe", "flash_attention", "fp8_matmul")


def main() -> None:
    """Tune kernels repeatedly."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("kernels", nargs="*", default=KERNELS)
    parser.add_argument("--tunes", type=int, default=20)
    options = parser.parse_args()
    raced, preferred = list[dict[Any, float]](), finals.preferred

    def noted(medians: Mapping[Any, float], first: Any) -> Any:
        raced.append(dict(medians))
        return preferred(medians, first)

    finals.preferred = noted
    for name in options.kernels:
        raced.clear()
        seconds, tied, tunes = list[float](), Counter[int](), list[dict[int, float]]()
        for seed in range(options.tunes):
            case = Case(name, 0)
            tuned = case.tune(autotune(case.configs, case.key, wisdom="none", seed=seed)(case.kernel))
            seconds.append(round(tuned["seconds"], 2))
            tied[tuned["taken"]] += 1
            if len(raced) > len(tunes):
                tunes.append({case.configs.index(config): round(ms, 5) for config, ms in raced[-1].items()})
        fastest = Counter(min(tune, key=tune.__getitem__) for tune in tunes)
        outcome = {"kernel": name, "configurations": len(case.configs), "fastest": fastest, "ties decided": tied}
        print(json.dumps({**outcome, "seconds": seconds, "medians": tunes, "ended": time.time()}), flush=True)


if __name__ == "__main__":
    main()
