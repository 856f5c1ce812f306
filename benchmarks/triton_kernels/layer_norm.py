"""Layer normalisation of rows in FP16 with weights and biases: in one pass where a block holds a row, else in two."""

import itertools

import torch
import triton
import triton.language as tl

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SIZES = ({"M": 16384, "N": 4096}, {"M": 4096, "N": 12288})
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
def layer_norm(
    x_ptr,
    weight_ptr,
    bias_ptr,
    y_ptr,
    mean_ptr,
    rstd_ptr,
    M,
    N: tl.constexpr,
    EPSILON: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_N: tl.constexpr,
    STAGES: tl.constexpr,
):
    """Compute ROWS rows of the result, their means and the inverses of their standard deviations."""
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    columns = tl.arange(0, BLOCK_N)
    at = rows[:, None].to(tl.int64) * N + columns[None, :]
    there = rows[:, None] < M
    if BLOCK_N >= N:
        known = columns[None, :] < N
        x = tl.load(x_ptr + at, mask=there & known, other=0.0).to(tl.float32)
        mean = tl.sum(x, 1) / N
        centred = tl.where(known, x - mean[:, None], 0.0)
        rstd = tl.rsqrt(tl.sum(centred * centred, 1) / N + EPSILON)
        weight = tl.load(weight_ptr + columns, mask=columns < N, other=0.0)[None, :]
        bias = tl.load(bias_ptr + columns, mask=columns < N, other=0.0)[None, :]
        tl.store(y_ptr + at, (centred * rstd[:, None] * weight + bias).to(tl.float16), mask=there & known)
    else:
        total = tl.zeros((ROWS, BLOCK_N), tl.float32)
        squares = tl.zeros((ROWS, BLOCK_N), tl.float32)
        for start in tl.range(0, N, BLOCK_N, num_stages=STAGES):
            x = tl.load(x_ptr + at + start, mask=there & (start + columns[None, :] < N), other=0.0).to(tl.float32)
            total += x
            squares += x * x
        mean = tl.sum(total, 1) / N
        rstd = tl.rsqrt(tl.sum(squares, 1) / N - mean * mean + EPSILON)
        for start in tl.range(0, N, BLOCK_N, num_stages=STAGES):
            known = start + columns < N
            x = tl.load(x_ptr + at + start, mask=there & known[None, :], other=0.0).to(tl.float32)
            weight = tl.load(weight_ptr + start + columns, mask=known, other=0.0)[None, :]
            bias = tl.load(bias_ptr + start + columns, mask=known, other=0.0)[None, :]
            y = (x - mean[:, None]) * rstd[:, None] * weight + bias
            tl.store(y_ptr + at + start, y.to(tl.float16), mask=there & known[None, :])
    tl.store(mean_ptr + rows, mean, mask=rows < M)
    tl.store(rstd_ptr + rows, rstd, mask=rows < M)


def arguments(M, N):
    """Return the grid and the arguments for sizes."""
    x = torch.randn(M, N, device=DEVICE, dtype=torch.float16)
    weight, bias = (torch.randn(N, device=DEVICE, dtype=torch.float16) for _ in range(2))
    mean, rstd = (torch.empty(M, device=DEVICE, dtype=torch.float32) for _ in range(2))
    grid = lambda meta: (triton.cdiv(M, meta["ROWS"]),)  # noqa: E731
    return grid, x, weight, bias, torch.empty_like(x), mean, rstd, M, N, 1e-5


def outputs(_x, _weight, _bias, y, mean, rstd, *_sizes):
    """Return what a launch writes."""
    return y, mean, rstd


def reference(x, weight, bias, _y, _mean, _rstd, _m, n, epsilon):
    """Return what it should write."""
    x = x.float()
    y = torch.nn.functional.layer_norm(x, (n,), weight.float(), bias.float(), epsilon)
    return y, x.mean(1), (x.var(1, correction=0) + epsilon).rsqrt()


def operations(M, N):
    """Return the floating-point operations of a launch: two sums, a square, a difference, two products and a bias."""
    return 7 * M * N
