"""A program with a Triton kernel that knows nothing of mltune: what runs with MLTUNE_TRITON=1 and without.

It prints the seconds of its first launch, in which the kernel is tuned, and what was chosen. Where mltune is installed:

    MLTUNE_TRITON=1 python benchmarks/triton_program.py

As ranks, all of which must choose the same, they share the GPUs that there are:

    MLTUNE_TRITON=1 torchrun --nproc-per-node 4 benchmarks/triton_program.py
"""

import json
import os
import sys
import time

import torch
import triton
import triton.language as tl

CONFIGS = [
    triton.Config({"BLOCK_M": m, "BLOCK_N": n, "BLOCK_K": k}, num_warps=warps, num_stages=stages)
    for m in (64, 128)
    for n in (64, 128, 256)
    for k in (32, 64)
    for warps in (4, 8)
    for stages in (3, 4)
]


@triton.autotune(CONFIGS, key=["M", "N", "K"])
@triton.jit
def matmul(a, b, c, M, N, K, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr):
    """Multiply a tile of rows with one of columns."""
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for start in range(0, K, BLOCK_K):
        inner = start + tl.arange(0, BLOCK_K)
        total += tl.dot(tl.load(a + rows[:, None] * K + inner), tl.load(b + inner[:, None] * N + columns))
    tl.store(c + rows[:, None] * N + columns, total.to(tl.bfloat16))


def main() -> None:
    """Multiply two matrices."""
    rank, ranks = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    if ranks > 1:
        torch.distributed.init_process_group("gloo")
    torch.cuda.set_device(rank % torch.cuda.device_count())
    torch.manual_seed(0)
    size = 4096
    a, b = (torch.randn(size, size, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    c = torch.empty_like(a)
    began = time.monotonic()
    matmul[lambda meta: (size // meta["BLOCK_M"], size // meta["BLOCK_N"])](a, b, c, size, size, size)
    torch.cuda.synchronize()
    seconds = round(time.monotonic() - began, 2)
    error = ((c - a @ b).abs().max() / (a @ b).abs().max()).item()
    facts = {"rank": rank, "gpu": torch.cuda.current_device(), "seconds": seconds}
    facts |= {"mltune": "mltune.integrations.triton.switch" in sys.modules, "from": getattr(matmul, "started_from", "")}
    facts |= {"chosen": str(matmul.best_config), "error": round(error, 5)}
    print(json.dumps(facts), flush=True)
    if ranks > 1:
        choices = [""] * ranks
        torch.distributed.all_gather_object(choices, facts["chosen"])
        if rank == 0:
            print(json.dumps({"ranks": ranks, "choices": len(set(choices))}), flush=True)
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
