"""A decoder block of PyTorch before and after its linear layers are replaced by a library's operator, in one line.

    python benchmarks/decoder_block.py --library FOLDER --output FILE

The block has the sizes of Llama 3 8B (hidden 4,096, 32 heads of 128 with 8 for keys and values, 14,336 in the gated
unit), random weights and the type of the library, which is a product TN without an epilogue (`hgemm` or `bgemm`). It is
measured for TOKENS tokens of one sequence, eager and by `torch.compile`, each in turns with the block before:
tokens a second by the wall time of many blocks that are enqueued one behind the other, and the seconds of the host to
enqueue one. Outputs are compared with those in double precision: the error of the replaced block is to be near that of
the original. `host_s` are the host's seconds of
one layer, by the operator and by PyTorch's own product.
"""

from __future__ import annotations

import copy
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import harness

HIDDEN, HEADS, HEADS_OF_KEYS, OF_HEAD, GATED = 4096, 32, 8, 128, 14336
TOKENS = (1, 16, 256, 4096)
ROUNDS, LEAST_S = 9, 0.05


def block(dtype: Any) -> Any:
    """Return a decoder block with random weights."""
    import torch
    from torch import nn
    from torch.nn import functional

    class Block(nn.Module):
        """A decoder block: attention with grouped keys and values, and a gated unit, each behind a norm."""

        def __init__(self) -> None:
            super().__init__()
            of_keys = HEADS_OF_KEYS * OF_HEAD
            self.before_attention, self.before_gate = nn.RMSNorm(HIDDEN), nn.RMSNorm(HIDDEN)
            self.q, self.o = (nn.Linear(HIDDEN, HIDDEN, bias=False) for _ in range(2))
            self.k, self.v = (nn.Linear(HIDDEN, of_keys, bias=False) for _ in range(2))
            self.gate, self.up = (nn.Linear(HIDDEN, GATED, bias=False) for _ in range(2))
            self.down = nn.Linear(GATED, HIDDEN, bias=False)

        def forward(self, x: Any) -> Any:
            """Return the block's output for one sequence, (1, tokens, hidden)."""
            normed = self.before_attention(x)
            q, k, v = (
                layer(normed).view(1, x.shape[1], -1, OF_HEAD).transpose(1, 2) for layer in (self.q, self.k, self.v)
            )
            k, v = (heads.repeat_interleave(HEADS // HEADS_OF_KEYS, 1) for heads in (k, v))
            attended = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.o(attended.transpose(1, 2).reshape(x.shape))
            normed = self.before_gate(x)
            return x + self.down(functional.silu(self.gate(normed)) * self.up(normed))

    torch.manual_seed(0)
    return Block().to("cuda", dtype).requires_grad_(False)


def measured(calls: Mapping[str, Callable[[], object]]) -> dict[str, dict[str, float]]:
    """Return seconds of the wall and of the host of each call, the medians of rounds in turns."""
    import torch

    counts, seconds = {}, {name: ([], []) for name in calls}
    for name, call in calls.items():
        for _ in range(3):
            call()
        torch.cuda.synchronize()
        begun = time.perf_counter()
        call()
        torch.cuda.synchronize()
        counts[name] = max(5, min(200, round(LEAST_S / (time.perf_counter() - begun))))
    for _ in range(ROUNDS):
        for name, call in calls.items():
            torch.cuda.synchronize()
            begun = time.perf_counter()
            for _ in range(counts[name]):
                call()
            enqueued = time.perf_counter()
            torch.cuda.synchronize()
            walls, hosts = seconds[name]
            walls.append((time.perf_counter() - begun) / counts[name])
            hosts.append((enqueued - begun) / counts[name])
    return {
        name: {"block_s": statistics.median(walls), "host_s": statistics.median(hosts)}
        for name, (walls, hosts) in seconds.items()
    }


def host_seconds(library: Any, dtype: Any, count: int = 300) -> dict[str, float]:
    """Return the host's median seconds of a small layer: of PyTorch's product, the operator, and ``multiply``."""
    import torch

    x, weight = (torch.randn(rows, HIDDEN, device="cuda", dtype=dtype) for rows in (16, 1024))
    operator, registered = library.to_torch_operator(), getattr(torch.ops.mltune, library.name)
    out = torch.empty(16, 1024, device="cuda", dtype=dtype)
    calls: dict[str, Callable[[], object]] = {
        "torch": lambda: torch.nn.functional.linear(x, weight),
        "operator": lambda: operator(x, weight.t()),
        "registered": lambda: registered(x, weight.t()),
        "multiply": lambda: library.multiply(x, weight.t(), out=out),
    }
    samples: dict[str, list[float]] = {name: [] for name in calls}
    with torch.no_grad():
        for _ in range(30):
            for name, call in calls.items():
                torch.cuda.synchronize()
                begun = time.perf_counter()
                for _ in range(count):
                    call()
                samples[name].append((time.perf_counter() - begun) / count)
    return {name: statistics.median(seconds) for name, seconds in samples.items()}


def main() -> None:
    """Measure the block, and write JSON."""
    parser = harness.parser_of(__doc__)
    parser.add_argument("--library", type=Path, required=True)
    parser.add_argument("--tokens", type=lambda text: [int(part) for part in text.split(",")], default=TOKENS)
    parser.add_argument("--modes", default="eager,compile", help="eager, compile")
    arguments = parser.parse_args()
    import torch

    import mltune

    library = mltune.load_library(arguments.library)
    dtype = getattr(torch, next(one["dtype"] for one in library.document["parameters"] if one["name"] == "C"))
    before = block(dtype)
    after = copy.deepcopy(before)
    replaced = library.replace_linears(after)
    head = harness.gpu_provenance(torch=torch.__version__, dtype=str(dtype), replaced=replaced)
    document: dict[str, Any] = {**head, "host_s": host_seconds(library, dtype), "rows": []}
    print({name: f"{1e6 * seconds:.1f} us" for name, seconds in document["host_s"].items()}, flush=True)
    with torch.no_grad():
        for mode in arguments.modes.split(","):
            models = [torch.compile(one, dynamic=False) if mode == "compile" else one for one in (before, after)]
            for tokens in arguments.tokens:
                x = torch.randn(1, tokens, HIDDEN, device="cuda", dtype=dtype)
                exact = copy.deepcopy(before).double()(x.double())
                errors = [float((model(x).double() - exact).norm() / exact.norm()) for model in models]
                calls = {
                    name: lambda model=model, x=x: model(x)
                    for name, model in zip(("torch", "library"), models, strict=True)
                }
                times = measured(calls)
                row = {
                    "mode": mode,
                    "tokens": tokens,
                    **{f"error_{name}": error for name, error in zip(times, errors, strict=True)},
                }
                for name, values in times.items():
                    row |= {f"{key}_{name}": value for key, value in values.items()}
                    row[f"tokens_per_s_{name}"] = tokens / values["block_s"]
                row["speedup"] = times["torch"]["block_s"] / times["library"]["block_s"]
                document["rows"].append(row)
                print(
                    {key: float(f"{value:.4g}") if isinstance(value, float) else value for key, value in row.items()},
                    flush=True,
                )
                harness.write(arguments.output, document)


if __name__ == "__main__":
    main()
