"""A custom operator that PyTorch's compiler tunes: all its configurations, or those that mltune's search promises.

``torch.compile`` compiles and times each configuration that is registered with ``register_custom_op_autotuning``. Its
``config_generator`` may return few: mltune measures implementations without the compiler, and gives it the fastest. The
operator is a product with a long inner dimension, split into parts and into tiles of columns. A process has one arm.
A line of JSON has the seconds of the first compiled call, the microseconds of a later one, and how many configurations
the compiler had.

    python benchmarks/inductor_choices.py all|promising [--device cuda] [--depth 65536] [--trials 12] [--keep 3]
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable
from typing import Any

import torch
from torch._inductor.kernel.custom_op import CustomOpConfig, register_custom_op_autotuning

import mltune

PARAMETERS = {"splits": [2**power for power in range(10)], "tiles": [1, 2, 4]}


def product(a: torch.Tensor, b: torch.Tensor, splits: int = 1, tiles: int = 1) -> torch.Tensor:
    """Return a product, computed in parts of the inner dimension and in tiles of columns."""
    left = a.reshape(len(a), splits, -1).transpose(0, 1)
    parts = [left @ part.reshape(splits, -1, part.shape[1]) for part in b.chunk(tiles, 1)]
    return torch.cat([part.sum(0) for part in parts], 1)


def time_of(call: Callable[[], Any], device: str, launches: int = 5) -> float:
    """Return the least seconds of a call."""
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    call()
    seconds = []
    for _ in range(launches):
        wait()
        began = time.perf_counter()
        call()
        wait()
        seconds.append(time.perf_counter() - began)
    return min(seconds)


def promising(
    implementation: Callable[..., Any], parameters: dict[str, list[Any]], trials: int, keep: int
) -> Callable[[dict[str, torch.Tensor]], list[CustomOpConfig]]:
    """Return a ``config_generator`` that searches with inputs of the shapes for which the compiler asks."""

    def generator(inputs: dict[str, torch.Tensor]) -> list[CustomOpConfig]:
        real = {name: torch.randn(like.shape, dtype=like.dtype, device=like.device) for name, like in inputs.items()}
        device, search = next(iter(real.values())).device.type, mltune.Search(parameters, seed=0)
        while len(search.results) < trials and (configuration := search.ask()) is not None:
            try:
                search.tell(configuration, time_of(lambda: implementation(**real, **configuration), device))
            except RuntimeError:  # of a configuration that does not run
                search.tell(configuration, None)
        ranked = sorted(search.results.items(), key=lambda item: (math.isnan(item[1]), item[1]))
        return [
            CustomOpConfig(implementation, **dict(zip(parameters, values, strict=True))) for values, _ in ranked[:keep]
        ]

    return generator


def main() -> None:
    """Compile a program with the operator in one arm."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("arm", choices=("all", "promising"))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--depth", type=int, default=65536)
    parser.add_argument("--trials", type=int, default=12)
    parser.add_argument("--keep", type=int, default=3)
    options = parser.parse_args()
    operator = torch.library.custom_op("mltune_benchmarks::product", mutates_args=())(product)
    operator.register_fake(lambda a, b, splits=1, tiles=1: a.new_empty(a.shape[0], b.shape[1]))
    asked = list[int]()
    search = promising(product, PARAMETERS, options.trials, options.keep)

    def generator(inputs: dict[str, torch.Tensor]) -> list[CustomOpConfig]:
        splits, tiles = PARAMETERS.values()
        every = [CustomOpConfig(product, splits=split, tiles=tile) for split in splits for tile in tiles]
        configs = every if options.arm == "all" else search(inputs)
        asked.append(len(configs))
        return configs

    register_custom_op_autotuning(operator, config_generator=generator)
    compiled = torch.compile(lambda a, b: operator(a, b).relu())
    torch.manual_seed(0)
    a = torch.randn(64, options.depth, device=options.device)
    b = torch.randn(options.depth, 64, device=options.device)
    began = time.monotonic()
    result = compiled(a, b)
    seconds = time.monotonic() - began
    is_right = torch.allclose(result, (a @ b).relu(), rtol=1e-2, atol=1e-4 * options.depth)
    us = 1e6 * time_of(lambda: compiled(a, b), options.device, 50)
    row = {"arm": options.arm, "torch": torch.__version__, "configurations": asked, "first_s": round(seconds, 2)}
    print(
        json.dumps(
            {
                **row,
                "us": round(us, 1),
                "eager_us": round(1e6 * time_of(lambda: a @ b, options.device, 50), 1),
                "right": is_right,
            }
        )
    )


if __name__ == "__main__":
    main()
