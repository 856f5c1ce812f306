"""C = A B in FP16 with FP32 sums: blocks of C in groups of rows, so that neighbours share what is in the L2 cache."""

import itertools

import torch
import triton
import triton.language as tl

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SIZES = ({"M": 4096, "N": 4096, "K": 4096}, {"M": 512, "N": 8192, "K": 2048})
SMALL = ({"M": 256, "N": 512, "K": 128}, {"M": 100, "N": 70, "K": 50})

SPACE = itertools.product((64, 128, 256), (64, 128, 256), (32, 64), (1, 8), (4, 8), (3, 4))
CONFIGS = [
    triton.Config({"BLOCK_M": m, "BLOCK_N": n, "BLOCK_K": k, "GROUP_M": group}, num_warps=warps, num_stages=stages)
    for m, n, k, group, warps, stages in SPACE
]


@triton.autotune(configs=CONFIGS, key=["M", "N", "K"])
@triton.jit
def matmul(
    a_ptr,
    b_ptr,
    c_ptr,
    M,
    N,
    K,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP_M: tl.constexpr,
):
    """Compute one block of C."""
    blocks_m, blocks_n = tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N)
    group = tl.program_id(0) // (GROUP_M * blocks_n)
    in_group = tl.program_id(0) % (GROUP_M * blocks_n)
    height = tl.minimum(blocks_m - group * GROUP_M, GROUP_M)
    rows = (group * GROUP_M + in_group % height) * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = (in_group // height) * BLOCK_N + tl.arange(0, BLOCK_N)
    inner = tl.arange(0, BLOCK_K)
    a = a_ptr + (rows % M)[:, None] * K + inner[None, :]
    b = b_ptr + inner[:, None] * N + (columns % N)[None, :]
    total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for done in range(0, K, BLOCK_K):
        left = tl.load(a, mask=inner[None, :] < K - done, other=0.0)
        right = tl.load(b, mask=inner[:, None] < K - done, other=0.0)
        total = tl.dot(left, right, total)
        a += BLOCK_K
        b += BLOCK_K * N
    inside = (rows[:, None] < M) & (columns[None, :] < N)
    tl.store(c_ptr + rows[:, None] * N + columns[None, :], total.to(tl.float16), mask=inside)


def arguments(M, N, K):
    """Return the grid and the arguments for sizes."""
    a = torch.randn(M, K, device=DEVICE, dtype=torch.float16)
    b = torch.randn(K, N, device=DEVICE, dtype=torch.float16)
    c = torch.empty(M, N, device=DEVICE, dtype=torch.float16)
    return lambda meta: (triton.cdiv(M, meta["BLOCK_M"]) * triton.cdiv(N, meta["BLOCK_N"]),), a, b, c, M, N, K


def outputs(_a, _b, c, *_sizes):
    """Return what a launch writes."""
    return (c,)


def reference(a, b, *_others):
    """Return what it should write."""
    return (a.float() @ b.float(),)


def operations(M, N, K):
    """Return the floating-point operations of a launch."""
    return 2 * M * N * K
