"""Softmax of rows in FP16: in one pass where a block holds a row, else a pass for the sum and one for the results."""

import itertools

import torch
import triton
import triton.language as tl

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SIZES = ({"M": 16384, "N": 4096}, {"M": 4096, "N": 12000})
SMALL = ({"M": 7, "N": 300}, {"M": 6, "N": 1000}, {"M": 5, "N": 2500})
LARGEST_SHARE = 256
"""Most elements of a block that a thread holds: beyond it, compiling takes long, and nothing fits into registers."""

CONFIGS = [
    triton.Config({"ROWS": rows, "BLOCK_N": n, "STAGES": stages}, num_warps=warps)
    for rows, n, stages, warps in itertools.product(
        (1, 2, 4), (512, 1024, 2048, 4096, 8192, 16384), (1, 3), (2, 4, 8, 16)
    )
    if 2 * 32 * warps <= rows * n <= LARGEST_SHARE * 32 * warps and rows * n <= 16384 and (stages == 1 or n <= 2048)
]


@triton.autotune(configs=CONFIGS, key=["M", "N"])
@triton.jit
def softmax(x_ptr, y_ptr, M, N: tl.constexpr, ROWS: tl.constexpr, BLOCK_N: tl.constexpr, STAGES: tl.constexpr):
    """Compute ROWS rows of the result."""
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    columns = tl.arange(0, BLOCK_N)
    at = rows[:, None].to(tl.int64) * N + columns[None, :]
    there = rows[:, None] < M
    if BLOCK_N >= N:
        inside = there & (columns[None, :] < N)
        x = tl.load(x_ptr + at, mask=inside, other=float("-inf")).to(tl.float32)
        power = tl.exp(x - tl.max(x, 1)[:, None])
        tl.store(y_ptr + at, (power / tl.sum(power, 1)[:, None]).to(tl.float16), mask=inside)
    else:
        largest = tl.full((ROWS,), float("-inf"), tl.float32)
        total = tl.zeros((ROWS,), tl.float32)
        for start in tl.range(0, N, BLOCK_N, num_stages=STAGES):
            inside = there & (start + columns[None, :] < N)
            x = tl.load(x_ptr + at + start, mask=inside, other=float("-inf")).to(tl.float32)
            larger = tl.maximum(largest, tl.max(x, 1))
            total = total * tl.exp(largest - larger) + tl.sum(tl.exp(x - larger[:, None]), 1)
            largest = larger
        for start in tl.range(0, N, BLOCK_N, num_stages=STAGES):
            inside = there & (start + columns[None, :] < N)
            x = tl.load(x_ptr + at + start, mask=inside, other=float("-inf")).to(tl.float32)
            y = tl.exp(x - largest[:, None]) / total[:, None]
            tl.store(y_ptr + at + start, y.to(tl.float16), mask=inside)


def arguments(M, N):
    """Return the grid and the arguments for sizes."""
    x = torch.randn(M, N, device=DEVICE, dtype=torch.float16)
    return lambda meta: (triton.cdiv(M, meta["ROWS"]),), x, torch.empty_like(x), M, N


def outputs(_x, y, *_sizes):
    """Return what a launch writes."""
    return (y,)


def reference(x, *_others):
    """Return what it should write."""
    return (torch.softmax(x.float(), 1),)


def operations(M, N):
    """Return the floating-point operations of a launch: a maximum, a difference, a power, a sum and a quotient."""
    return 5 * M * N
